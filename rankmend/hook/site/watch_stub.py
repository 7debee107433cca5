"""The `sitecustomize.py` of the folder of `rankmend watch env`: runs in each Python process of a cluster, before the script.

A process that is no rank goes by with a look at some variables. Most Pythons compile this file at each start, since they
leave no compiled files in that folder: so it has what every process needs and no more, and what runs a sitecustomize of the
site itself lies beside it. What goes wrong here is swallowed. It keeps to what Python 2.7 understands.
"""

import os
import sys

_REST = "rankmend-site.py"  # no name that an import could find


def _await_torch():
    known = os.environ.get
    try:
        if (
            # Of torchrun, srun, Open MPI and Hydra: a process with none of these is no rank, unless its owner says so.
            (known("RANK") or known("SLURM_STEP_ID") or known("OMPI_COMM_WORLD_RANK") or known("PMI_RANK")
             or known("RANKMEND_WATCH_ANY"))
            and known("RANKMEND_WATCH") == "1"
            and not known("RANKMEND_PROGRESS_FILE")
            and sys.version_info >= (3, 8)
            and not os.path.exists("/etc/rankmend/watch-off")
        ):  # fmt: skip
            # The folder on PYTHONPATH has no package that a script could import instead of its own.
            folder = os.path.dirname(os.path.realpath(__file__))
            package = os.path.realpath(os.path.join(folder, "lib-rankmend", "current", "rankmend"))
            # What every interpreter has loaded already: importlib.util would bring a dozen modules.
            machinery = sys.modules["_frozen_importlib_external"]
            path = os.path.join(package, "hook", "awaiting.py")
            spec = machinery.spec_from_file_location("_rankmend_awaiting", path)
            module = sys.modules["_frozen_importlib"].module_from_spec(spec)
            spec.loader.exec_module(module)
            module.await_torch(package)
    except Exception:  # the process starts as it would have
        pass


def _is_imported_by_name():
    # By Python itself, mostly. Others load what they have found, and may expect no error from that.
    if not hasattr(sys, "_getframe"):
        return False
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return sys.version_info < (3,) and frame is not None and frame.f_globals["__name__"] == "site"


def _go_on(folder, is_imported_by_name):
    """Run the sitecustomize that would have run without us; where there is none, be none."""
    # The folder stays on PYTHONPATH, and so reaches children; this program's own path is what it is without us.
    sys.path[:] = [item for item in sys.path if item != folder]
    sys.path_importer_cache.pop(folder, None)
    if sys.version_info < (3,) or sys.modules["_frozen_importlib_external"].PathFinder.find_spec(
        "sitecustomize", sys.path
    ):
        rest = os.path.join(folder, _REST)
        if os.path.exists(rest):
            names = {
                "__name__": "sitecustomize",
                "__file__": __file__,
                "is_imported_by_name": is_imported_by_name,
            }
            with open(rest, "rb") as file:
                code = compile(file.read(), rest, "exec")
            exec(code, names)  # noqa: S102 - a file of ours: see `rankmend.watch.hook_folder`
            return
    if is_imported_by_name:
        error = ImportError("No module named 'sitecustomize'")
        error.name = (
            "sitecustomize"  # as where there is none: then Python goes on, and we leave no trace
        )
        raise error


_await_torch()
_go_on(os.path.dirname(__file__), _is_imported_by_name())
