"""Runs in every Python process below `rankmend run`, before the script.

Has the steps of an unchanged PyTorch script counted and the stacks of a rank told on request,
the order of its imports noted for the fork server, and runs the sitecustomize that would have run without rankmend. Whatever goes wrong in our part
is swallowed; what the user's own raises goes on to Python, which reports it as it would have. Any
Python may come by here, so this file keeps to what Python 2.7 understands. Where `rankmend watch env` was used, `watch_stub.py`
runs it, with `is_imported_by_name` among its names, if there is a sitecustomize to run.
"""

import os
import sys


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
    except Exception:  # none of the script's business: it starts as it would have
        pass


def _import_system():
    # What every interpreter has loaded already: importlib.util would bring a dozen modules that a program may not expect.
    loaded = sys.modules
    return loaded["_frozen_importlib_external"], loaded["_frozen_importlib"]


def _offer_stacks():
    try:
        if sys.version_info >= (3, 8) and os.environ.get("RANKMEND_STACKS_FILE"):
            from rankmend.hook import stacks

            stacks.offer()
    except Exception:  # as above
        pass


def _offer_drills():
    try:
        if sys.version_info >= (3, 8) and os.environ.get("RANKMEND_DRILL_FILE"):
            from rankmend.hook import drill

            drill.offer()
    except Exception:  # as above
        pass


def _record_errors():
    try:
        if (
            sys.version_info >= (3, 8)
            and os.environ.get("RANKMEND_AUTO") == "1"
            and os.environ.get("RANKMEND_PROGRESS_FILE")
        ):
            from rankmend.hook import uncaught

            uncaught.watch()
    except Exception:  # as above
        pass


def _note_imports(is_begin):
    try:
        if sys.version_info >= (3, 8) and os.environ.get("RANKMEND_IMPORTS_FILE"):
            from rankmend.hook import import_order

            (import_order.watch if is_begin else import_order.note_site)()
    except Exception:  # as above
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
_offer_stacks()
_record_errors()
_offer_drills()
_note_imports(True)
if "is_imported_by_name" in globals():
    _run_users_own_or_be_none(globals()["is_imported_by_name"], sys.__dict__)
else:
    _run_users_own()
_note_imports(False)
