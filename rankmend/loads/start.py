"""Runs loads one after another in a process of its own: ``python start.py SPEC``, where SPEC is a JSON text.

``{"loads": [{"load": "processor", "seconds": 3}, ...], "lifeline": 5, "alone_s": 20}``. Prints one JSON object a line:
``begin`` and ``end`` of a load, a ``figure``, a ``check`` (how much was wrong), a ``sign`` (what explains a figure), a
``model``, an ``error``.

The process never outlives who started it: the kernel kills it with its parent, the end of the lifeline (a pipe whose other
end the starter holds) ends it also behind a wrapper script, and a timer ends it after ``alone_s`` whatever happens.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
import types
from typing import Any, Dict

_PR_SET_PDEATHSIG = 1
LOADS = ("processor", "memory", "gemm", "transfers", "disk")
_LINE_BYTES_MAX = 65536


def main(text: str) -> int:
    spec = json.loads(text)
    _end_with_starter(spec.get("lifeline"), float(spec["alone_s"]))
    _leave_own_folder()
    time.sleep(float(spec.get("waits_s", 0)))
    for load in spec["loads"]:
        _run(load)
    return 0


def _run(load: Dict[str, Any]) -> None:
    name = load["load"]
    if name not in LOADS:
        tell({"error": "no load is called %r" % name, "type": "ValueError", "load": name})
        return
    tell({"begin": name, "part": load.get("part", "")})
    try:
        importlib.import_module("rankmend.loads." + name).run(load, tell)
    except Exception as error:  # noqa: BLE001 - it is told, and the other loads go on
        tell({"error": str(error)[:400], "type": type(error).__name__, "load": name})
    tell({"end": name})


def tell(line: Dict[str, Any]) -> None:
    text = json.dumps(line)
    if len(text) < _LINE_BYTES_MAX:
        os.write(1, (text + "\n").encode())


def _end_with_starter(lifeline: Any, alone_s: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, alone_s)
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if lifeline is not None:
        threading.Thread(target=_wait_for_end, args=(int(lifeline),), daemon=True).start()


def _wait_for_end(descriptor: int) -> None:
    try:
        while os.read(descriptor, 1):
            pass
    except OSError:
        return  # it was not passed on: a wrapper has closed it
    os._exit(1)


def _leave_own_folder() -> None:
    """Have `rankmend.loads` importable and nothing else of where rankmend is installed."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    package = types.ModuleType("rankmend")
    package.__path__ = [os.path.dirname(here)]
    sys.modules["rankmend"] = package


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
