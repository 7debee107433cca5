"""Counts the optimizer steps of an unchanged PyTorch script.

`watch` waits for `torch.optim` to be imported and then adds a global optimizer hook
(torch.optim.optimizer.register_optimizer_step_post_hook, PyTorch 2.0 and later). Steps are
those of the first optimizer that steps; a second one (a GAN's) is not counted. The number
is the optimizer's own where it keeps one (the Adam family's state["step"], which a
checkpoint restores), else it counts from the start of the process and is marked relative.
"""

import sys

from rankmend.hook import layout

_MODULE = "torch.optim.optimizer"
_counting = True


def stop_counting():
    global _counting
    _counting = False


def watch():
    """Have the steps counted as soon as this process imports torch.optim."""
    if _MODULE in sys.modules:
        _register(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds nothing itself; lets the others find the module and then looks at it once."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                _wrap_loader(spec)
                return spec
        return None


def _wrap_loader(spec):
    try:
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _register(module)

        spec.loader.exec_module = exec_module
    except Exception:
        pass


def _register(module):
    try:
        import rankmend

        if not _counting or not rankmend._attach(layout.FLAG_AUTO):
            return
        module.register_optimizer_step_post_hook(_Counter().after_step)
    except Exception:
        pass


class _Counter:
    def __init__(self):
        self._optimizer_id = None
        self._step = 0
        self._tell = None

    def after_step(self, optimizer, _args, _kwargs):
        try:
            if not _counting:
                return
            if self._tell is None:
                self._begin(optimizer)
            if id(optimizer) == self._optimizer_id:
                self._step += 1
                self._tell(self._step)
        except Exception:
            pass

    def _begin(self, optimizer):
        import rankmend

        self._optimizer_id = id(optimizer)
        known = _own_step(optimizer)
        if known is None:
            rankmend._writer.set_flags(layout.FLAG_AUTO | layout.FLAG_RELATIVE)
        else:
            self._step = known - 1
        self._tell = rankmend._writer.step


def _own_step(optimizer):
    """Return how many steps the optimizer says it has made, this one included, or None."""
    for state in optimizer.state.values():
        value = state.get("step") if isinstance(state, dict) else None
        if value is None:
            return None
        return int(value)  # a tensor of one element or a number
    return None
