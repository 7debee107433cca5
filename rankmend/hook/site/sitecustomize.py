"""Runs in every Python process below `rankmend run`, before the script.

Runs the sitecustomize that would have run without rankmend, then has the steps of an
unchanged PyTorch script counted. Whatever goes wrong in our part is swallowed; what the
user's own raises goes on to Python, which reports it as it would have.
"""

import os
import sys


def _watch_torch():
    try:
        if os.environ.get("RANKMEND_AUTO") == "1" and os.environ.get("RANKMEND_PROGRESS_FILE"):
            from rankmend.hook import torch_steps

            torch_steps.watch()
    except Exception:
        pass


def _run_users_own():
    from importlib import util
    from importlib.machinery import PathFinder

    here = os.path.realpath(os.path.dirname(__file__))
    ours = {here, os.path.realpath(os.path.dirname(os.path.abspath(__file__)))}
    # The folder on PYTHONPATH holds a link to this file: leave out each folder that leads here.
    others = [
        folder
        for folder in sys.path
        if os.path.realpath(os.path.join(folder or ".", "sitecustomize.py"))
        != os.path.realpath(__file__)
        and os.path.realpath(folder or ".") not in ours
    ]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_watch_torch()
_run_users_own()
