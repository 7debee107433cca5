"""Detects a stopped guardian, and decides what the launcher does about it.

A stopped guardian reaps no rank, fences none and keeps no lease. Nobody has a reason to stop it
(it has its own session, so Ctrl-Z does not reach it), so the launcher wakes it. If it stays stopped
although it is needed, as under a debugger, the launcher kills it; its ranks die with it, and the job
restarts.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

WAKE_S: Final = 1.0  # leaves room for a short, deliberate pause
END_S: Final = 15.0  # a debugger that prints a stack needs seconds
_STOPPED: Final = "T"
_TRACED: Final = "t"


class Care(Enum):
    """The action that a guardian needs from its launcher."""

    NOTHING = "nothing"
    WAKE = "wake"  # SIGCONT
    END = "end"  # SIGKILL: nothing else helps


class GuardianWatch:
    def __init__(self) -> None:
        self._stopped_at_s: float | None = None
        self._needed_at_s: float | None = None
        self._woken_at_s = 0.0
        self.stops = 0  # how often it was stopped and woken

    def look(self, letter: str, is_needed: Callable[[], bool], now_s: float) -> Care:
        """Return what to do for a guardian in this process state (a letter of /proc/PID/stat).

        ``is_needed``: whether it owes an answer about a dead rank or an attempt to kill.
        """
        if letter not in (_STOPPED, _TRACED):
            self._stopped_at_s = self._needed_at_s = None
            return Care.NOTHING
        if self._stopped_at_s is None:
            self._stopped_at_s = now_s
        if not is_needed():
            self._needed_at_s = None
        elif self._needed_at_s is None:
            self._needed_at_s = now_s
        if self._needed_at_s is not None and now_s - self._needed_at_s >= END_S:
            return Care.END
        if letter == _STOPPED and now_s - max(self._stopped_at_s, self._woken_at_s) >= WAKE_S:
            self._woken_at_s = now_s
            self.stops += 1
            return Care.WAKE
        return Care.NOTHING
