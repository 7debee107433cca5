"""Counts the optimizer steps of an unchanged PyTorch script.

`watch` waits for `torch.optim.optimizer` to be imported and then adds a global optimizer hook
(register_optimizer_step_post_hook, PyTorch 2.0 and later). A training step may step several
optimizers (a GAN's two, one for each layer): it ends when one steps that has stepped in it
already, so that each training step counts once, and counting goes on when a script changes to
another optimizer. The number of the first step is the optimizer's own where it keeps one (the
Adam family's state["step"], which a checkpoint restores); else steps count from the start of
the process and are marked relative.
"""

import sys

import rankmend
from rankmend.hook import layout
from rankmend.hook.torch_sections import Installer

_MODULE = "torch.optim.optimizer"
_OPTIMIZERS_MAX = 100000  # stepped in one training step; more: a new one is made for each
_STATES_MAX = 64  # parameters looked at: each may cost a copy from the device (10 us)
_counting = True


def stop_counting():
    global _counting
    _counting = False


def watch():
    """Have the steps counted as soon as this process imports torch.optim."""
    if _MODULE in sys.modules:
        _register(sys.modules[_MODULE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds nothing itself: lets the others find the module, to look at it once loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._wrap_loader(spec.loader)
                return spec
        return None

    def _wrap_loader(self, loader):
        try:
            load = loader.exec_module

            def exec_module(module):
                try:  # leave the loader and the import system as they were
                    sys.meta_path.remove(self)
                    del loader.exec_module
                except (ValueError, AttributeError):
                    pass
                load(module)
                _register(module)

            loader.exec_module = exec_module
        except Exception:
            pass


def _register(module):
    try:
        register = module.register_optimizer_step_post_hook
        if _counting and rankmend._attach(layout.FLAG_AUTO):
            register(_Counter().after_step)
    except Exception:
        pass


class _Counter:
    def __init__(self):
        self._step = None  # of the training step under way; None before the first
        self._stepped = set()  # ids of the optimizers that stepped in it
        self._is_held = False  # the first step is not told yet
        self._installer = Installer()

    def after_step(self, optimizer, _args, _kwargs):
        # Nothing to catch here: what comes by is a signal handler's, and so the script's.
        writer = rankmend._writer  # None in a forked child
        if writer is None:
            return
        if not self._installer.is_done:
            self._installer.look()
        if not _counting:
            return
        key = id(optimizer)
        if self._step is None:
            self._stepped = {key}
            self._begin(writer, optimizer)
            return
        if key not in self._stepped and len(self._stepped) < _OPTIMIZERS_MAX:
            self._stepped.add(key)
            return
        if self._is_held:
            self._is_held = False
            self._tell_first(writer)
        self._step += 1
        self._stepped = {key}
        writer.step(self._step)

    # A script may have its optimizer's step compiled: not to be traced into, which would fail.
    # torch.compiler.disable sets the same, and costs a second, because it imports the compiler.
    after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
    after_step._torchdynamo_disable_msg = None  # type: ignore[attr-defined]

    def _begin(self, writer, optimizer):
        """Tell the first step, or hold it back from a script that may tell it itself.

        The optimizer steps before the script can say so: a step told by both would count twice,
        and with another number.
        """
        known = _own_step(optimizer)
        self._step = known or 1
        self._is_relative = not known
        self._is_held = _is_known_to_script()
        if not self._is_held:
            self._tell_first(writer)

    def _tell_first(self, writer):
        relative = layout.FLAG_RELATIVE if self._is_relative else 0
        writer.set_flags(layout.FLAG_AUTO | relative)
        writer.step(self._step)


def _is_known_to_script():
    """Return whether a module that is not ours holds rankmend, or the main one a part of it."""
    try:
        parts = {id(value) for value in vars(rankmend).values() if callable(value)}
        parts.add(id(rankmend))
        main = sys.modules.get("__main__")
        if any(id(value) in parts for value in vars(main).values()):
            return True
        return any(
            getattr(module, "__dict__", {}).get("rankmend") is rankmend
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] != "rankmend"
        )
    except Exception:
        return True  # holding back costs one step's delay, once


def _own_step(optimizer):
    """Return how many steps the optimizer says it has made, this one included, or None.

    The most of any parameter's: one that was frozen at first has made fewer.
    """
    if _is_capturing():
        return None
    try:
        steps = [state["step"] for state in optimizer.state.values() if "step" in state]
        return max(int(step) for step in steps[:_STATES_MAX])  # tensors of one element, numbers
    except Exception:
        return None


def _is_capturing():
    """Return whether a CUDA graph is being captured: to read from the device would end that."""
    try:
        cuda = sys.modules["torch"].cuda
        return cuda.is_initialized() and cuda.is_current_stream_capturing()
    except Exception:
        return False
