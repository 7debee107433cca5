"""Runs in every Python process below `rankmend run`, or where `rankmend watch env` was used, before the script.

Has the steps of an unchanged PyTorch script counted and the stacks of a rank told on request,
the order of its imports noted for the fork server, and runs the sitecustomize that would have run without rankmend. Whatever goes wrong in our part
is swallowed; what the user's own raises goes on to Python, which reports it as it would have. Any
Python may come by here, so this file keeps to what Python 2.7 understands.
"""

import os
import sys

# Of torchrun, srun, Open MPI and Hydra: a process with none of these is no rank.
_OF_RANKS = ("RANK", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _watch_torch():
    try:
        if (
            sys.version_info >= (3, 8)
            and os.environ.get("RANKMEND_AUTO") == "1"
            and os.environ.get("RANKMEND_PROGRESS_FILE")
        ):
            from rankmend.hook import torch_rendezvous, torch_steps, torch_store

            torch_steps.watch()
            torch_store.watch()
            torch_rendezvous.watch()
    except Exception:
        pass


def _watch_other_launchers():
    # In each Python of a cluster, if that is wished: what is no rank goes by with a look at some variables.
    try:
        known = os.environ.get
        if (
            known("RANKMEND_WATCH") == "1"
            and not known("RANKMEND_PROGRESS_FILE")
            and any(known(name) for name in _OF_RANKS)
            and sys.version_info >= (3, 8)
            and not os.path.exists("/etc/rankmend/watch-off")
        ):
            # The folder on PYTHONPATH has no package that a script could import instead of its own.
            here = os.path.dirname(os.path.realpath(__file__))
            package = os.path.realpath(os.path.join(here, "lib-rankmend", "current", "rankmend"))
            machinery, bootstrap = _import_system()
            path = os.path.join(package, "hook", "awaiting.py")
            spec = machinery.spec_from_file_location("_rankmend_awaiting", path)
            module = bootstrap.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.await_torch(package)
    except Exception:
        pass


def _is_in_watch_folder():
    return os.path.exists(os.path.join(os.path.dirname(__file__), "rankmend-version"))


def _leave_path():
    # The folder stays on PYTHONPATH, and so reaches children; this program's own path is what it is without us.
    here = os.path.dirname(__file__)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    sys.path_importer_cache.pop(here, None)


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


def _import_system():
    # What every interpreter has loaded already: importlib.util would bring a dozen modules that a program may not expect.
    loaded = sys.modules
    return loaded["_frozen_importlib_external"], loaded["_frozen_importlib"]


def _offer_stacks():
    try:
        if sys.version_info >= (3, 8) and os.environ.get("RANKMEND_STACKS_FILE"):
            from rankmend.hook import stacks

            stacks.offer()
    except Exception:
        pass


def _note_imports(is_begin):
    try:
        if sys.version_info >= (3, 8) and os.environ.get("RANKMEND_IMPORTS_FILE"):
            from rankmend.hook import import_order

            (import_order.watch if is_begin else import_order.note_site)()
    except Exception:
        pass


def _run_users_own():
    """Run the sitecustomize that would have run without us, and return whether there is one."""
    # Others do as we do (New Relic's, Datadog's). So that a chain ends, each runs once, whoever
    # found the other: we, the one that Python ran first, and each one that we ran.
    done = sys.__dict__.setdefault("_rankmend_sitecustomize_done", set())
    done.add(_source(__file__))
    done.add(_source(getattr(sys.modules.get("sitecustomize"), "__file__", None) or __file__))
    for folder in list(sys.path):
        # Links are followed: the file in the folder on PYTHONPATH is one to this file.
        path = _source(os.path.join(folder, "sitecustomize.py"))
        if path not in done and _run_from(folder, path, done):
            return True
    return False


def _run_users_own_or_be_none(is_imported_by_name, names):
    # Where the user's own raises, Python 2.7 has taken the names of this module: no other is used after that.
    try:
        if not _run_users_own() and is_imported_by_name:
            error = ImportError("No module named 'sitecustomize'")
            error.name = "sitecustomize"  # as where there is none: then Python goes on, and we leave no trace
            raise error
    finally:
        if is_imported_by_name:
            names.pop("_rankmend_sitecustomize_done", None)


def _source(path):
    return os.path.realpath(os.path.splitext(path)[0] + ".py")


def _run_from(folder, path, done):
    """Return whether there was a sitecustomize in this folder, after running it."""
    if sys.version_info < (3,):
        is_loaded = "imp" in sys.modules
        import imp

        if not is_loaded:
            del sys.modules["imp"]
        try:
            found = imp.find_module("sitecustomize", [folder])
        except ImportError:
            return False
        done.add(path)
        imp.load_module("sitecustomize", *found)
        return True

    machinery, bootstrap = _import_system()
    spec = machinery.PathFinder.find_spec("sitecustomize", [folder])
    if spec is None or spec.loader is None or not spec.has_location:  # none, or a mere folder
        return False
    done.add(path)
    module = bootstrap.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
    return True


_watch_torch()
_watch_other_launchers()
_offer_stacks()
_note_imports(True)
if _is_in_watch_folder():
    _leave_path()
    _run_users_own_or_be_none(_is_imported_by_name(), sys.__dict__)
else:
    _run_users_own()
_note_imports(False)
