"""Runs an action when the script imports a module; imports nothing itself."""

import sys

_IMPORT_SYSTEM = (
    "<frozen importlib._bootstrap_external>"  # Python/import.c, remove_importlib_frames
)


def when_imported(name, action):
    """Call ``action(module)`` as soon as this process has imported the module, at once if it has."""
    if name in sys.modules:
        action(sys.modules[name])
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Lets the other finders find the module, and runs the action once it is loaded."""

    def __init__(self, name, action):
        self.name = name
        self._action = action

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
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
                self._action(module)

            # Python removes the frames of its import system from tracebacks; this one in their middle, too.
            exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORT_SYSTEM)
            loader.exec_module = exec_module
        except Exception:  # the module loads as it would have
            pass
