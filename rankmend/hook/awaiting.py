"""Waits in what may be a rank of another launcher for its import of PyTorch: run by `sitecustomize.py`, not imported.

Until then nothing of rankmend is imported, and an entry of `sys.meta_path` is all that there is. A process that was forked
before is no rank: it goes by.
"""

import os
import sys

_MODULE = "torch.optim.optimizer"


def await_torch(package):
    """Watch this process once it imports PyTorch's optimizers; ``package``: the folder of the hook's own rankmend."""
    on_import = _load("_rankmend_on_import", os.path.join(package, "hook", "on_import.py"))
    pid = os.getpid()

    def begin(module):
        try:
            if os.getpid() == pid:
                _find_package(package)
                from rankmend.hook import watched

                watched.watch(module)
        except Exception:  # a rank that can't be watched trains as it would have
            pass

    on_import.when_imported(_MODULE, begin)


def _find_package(package):
    """Make ``import rankmend`` find the script's own, where it has one, else that of the hook folder."""
    if "rankmend" in sys.modules:
        return
    finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path]
    found = [find("rankmend", None) for find in finders if find is not None]
    if any(spec is not None and spec.origin is not None for spec in found):  # and not a mere folder
        return
    try:
        _load("rankmend", os.path.join(package, "__init__.py"), [package])
    except BaseException:
        sys.modules.pop("rankmend", None)
        raise


def _load(name, path, search=None):
    # What every interpreter has loaded already: importlib.util would bring a dozen modules.
    machinery, bootstrap = (
        sys.modules["_frozen_importlib_external"],
        sys.modules["_frozen_importlib"],
    )
    spec = machinery.spec_from_file_location(name, path, submodule_search_locations=search)
    module = bootstrap.module_from_spec(spec)
    if search:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
