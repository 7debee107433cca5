"""Wait for an event, never for a time.

A test that waits for "at most 5 s" claims something of the machine. The one deadline here only ends a test that
would hang for ever, so it is far beyond what a busy machine needs. What a test waits for is named.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from recovery.api.controller_errors import BusyError

T = TypeVar("T")

# The longest wait seen to end well was 151 s, on two cores at a load of 120.
DEADLINE_S = 300.0
_PAUSE_S = 0.01
_BUSY_PAUSE_S = 0.2
TOO_MANY = 429


def eventually(
    look: Callable[[], T | None],
    what: str | Callable[[], object] = "it",
    *,
    pause_s: float = _PAUSE_S,
) -> T:
    """Return the first true value of ``look``, or fail after `DEADLINE_S` with ``what`` was awaited.

    ``what``: words, or a call that describes the state in which the wait ended. An AssertionError of
    ``look`` ends the wait at once: it is how a test says that the event can't come any more.
    """
    end_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            value = look()
        except BusyError as error:  # so many looks in a second are over the controller's rate
            if error.status != TOO_MANY:
                raise
            value = None
            time.sleep(_BUSY_PAUSE_S)
        if value:
            return value
        if time.monotonic() >= end_s:
            awaited = what if isinstance(what, str) else what()
            raise AssertionError(f"did not happen within {DEADLINE_S:.0f} s: {awaited}")
        time.sleep(pause_s)


def deadline_s() -> float:
    """Return the moment of the monotonic clock at which code under test may give up."""
    return time.monotonic() + DEADLINE_S


def fault_lasts(seconds: float) -> None:
    """Let a fault last: how long a process is stopped, a link is cut or a disk hangs is an input of the test."""
    time.sleep(seconds)
