"""Looks at this Python, and at the interpreter of the ranks, which may hang on a dead mount: run it in a child.

The other interpreter imports nothing of PyTorch but its file of versions: that takes 0.1 s, all of it 2 to 10 s.
"""

import json
import subprocess
import sys
from itertools import chain
from typing import Final

from detectors.doctor.python import PythonFacts
from rankmend.packages import BASE, EXTRAS, is_installed

RANKS_S_MAX: Final = 5.0
_CHARACTERS_MAX: Final = 300
# The first line keeps the working folder's files out: a json.py there is not ours to run.
_LOOK: Final = """\
import sys; sys.path[:] = [one for one in sys.path if one]
import json
told = {"version": list(sys.version_info[:3]), "torch": None, "cuda": None, "error": ""}
try:
    from importlib import util
    spec = util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        import os, runpy
        names = runpy.run_path(os.path.join(list(spec.submodule_search_locations)[0], "version.py"))
        told["torch"] = str(names.get("__version__"))
        told["cuda"] = bool(names.get("cuda") or names.get("hip"))
except Exception as error:
    told["error"] = "%s: %s" % (type(error).__name__, error)
print(json.dumps(told))
"""


def find_missing() -> tuple[str, ...]:
    """Return the modules of `rankmend.packages` that this Python does not have."""
    packages = (*BASE, *chain.from_iterable(EXTRAS.values()))
    return tuple(dict.fromkeys(package.module for package in packages if not is_installed(package)))


def read_python(ranks: str | None, gpus: int = 0, answer_s: float = RANKS_S_MAX) -> PythonFacts:
    """``ranks``: the ranks' interpreter; None: this one, as `rankmend run` does."""
    path = ranks or sys.executable
    missing = find_missing()
    try:
        done = subprocess.run(
            [path, "-c", _LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=answer_s,
            text=True,
            errors="replace",
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return PythonFacts(sys.executable, missing, path, last[:_CHARACTERS_MAX])
        reported = json.loads(done.stdout.strip().splitlines()[-1])
        version = tuple(int(number) for number in reported["version"])
        torch = None if reported["torch"] is None else str(reported["torch"])[:_CHARACTERS_MAX]
        error = str(reported["error"])[:_CHARACTERS_MAX]
    except OSError as failure:
        return PythonFacts(sys.executable, missing, path, failure.strerror or str(failure))
    except subprocess.TimeoutExpired:
        return PythonFacts(sys.executable, missing, path, f"no answer within {answer_s:g} s")
    except (ValueError, LookupError, TypeError):
        return PythonFacts(sys.executable, missing, path, "it is no Python")
    return PythonFacts(
        sys.executable,
        missing,
        path,
        ranks_version=version,
        torch=torch,
        torch_error=error,
        has_cuda=reported["cuda"],
        gpus=gpus,
    )
