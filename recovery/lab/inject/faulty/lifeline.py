"""What ties a helper to the process that started it: a pipe on standard input. Its end is the end of the helper."""

import ctypes
import os
import signal
import sys
import threading
from typing import Final

GO: Final = b"go\n"
READY: Final = b"ready\n"


def wait_for_go() -> None:
    """Return once the fault may begin; end this process where it never will."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only its pipe, or SIGKILL, ends a helper
    if os.read(0, len(GO)) != GO:
        os._exit(0)


def say_ready() -> None:
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()


def end_with_pipe() -> None:
    """End this process, from a thread, as soon as the pipe ends."""
    threading.Thread(target=_wait_for_end, daemon=True, name="lifeline").start()


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (PR_SET_PDEATHSIG)."""
    parent = os.getppid()
    zero = ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL), zero, zero, zero)
    if os.getppid() != parent:
        os._exit(0)
