"""Keeps a guardian running: continues a stopped one and replaces a dead one.

A stopped guardian reaps no rank, fences none and keeps no lease. Nobody has a reason to stop it (it
has its own session, so Ctrl-Z does not reach it), so the launcher wakes it. If it stays stopped
although it is needed, as under a debugger, the launcher kills it; its ranks die with it, and the
job restarts.
"""

import contextlib
import logging
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import Clock
from rankmend.errors import LaunchError, SourceError
from recovery.launcher.guardian.guardian_client import Guardian
from recovery.launcher.guardian.word import LastWord
from recovery.launcher.processes.process_list import read_list
from recovery.launcher.processes.process_tree import fence_leftovers, read_state
from recovery.launcher.processes.standing import ForeignMarks, identify

log = logging.getLogger(__name__)

WAKE_S: Final = 1.0  # leaves room for a short, deliberate pause
END_S: Final = 15.0  # a debugger that prints a stack needs seconds
_STOPPED: Final = "T"
_TRACED: Final = "t"

GUARDIANS_LOST_MAX: Final = 3  # after that, somebody kills them on purpose
LEFTOVERS_S_MAX: Final = 60.0  # as policy.fence_timeout_s: a process that lives longer will not go


class Care(Enum):
    """The action that a guardian needs from its launcher."""

    NOTHING = "nothing"
    WAKE = "wake"  # SIGCONT
    END = "end"  # SIGKILL: nothing else helps


class GuardianWatch:
    """Detects a stopped guardian, and decides what the launcher does about it."""

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


class GuardianKeeper:
    def __init__(
        self,
        start: Callable[[], Guardian],
        job_id: str,
        node: str | None,
        process_list: Path,
        clock: Clock,
    ) -> None:
        """``node``, ``process_list``: for `fence_leftovers`, once a guardian is gone."""
        self._start = start
        self._job_id = job_id
        self._node = node
        self._process_list = process_list
        self._clock = clock
        self._watch = GuardianWatch()
        self._lost_count = 0
        self._word: LastWord | None = None  # the guardian's copy
        self.guardian = start()

    @staticmethod
    def ask(call: Callable[..., None], *arguments: object) -> None:
        """Send the guardian a request. If it is gone, its end is the next event."""
        with contextlib.suppress(LaunchError):
            call(*arguments)

    def leave_word(self, word: LastWord | None) -> None:
        """Let the guardian send this launcher's last report if the launcher is killed."""
        if word is None or word == self._word:
            return
        with contextlib.suppress(LaunchError):  # its end is the next event
            self.guardian.leave_word(msgspec.json.encode(word))
            self._word = word

    def look_after(self, is_needed: Callable[[], bool]) -> None:
        """Wake a stopped guardian, and kill it if it can't be woken.

        ``is_needed``: whether it owes an answer about a dead rank or an attempt that must end.
        """
        try:
            state = read_state(self.guardian.pid)
        except SourceError:  # no descriptor or no memory left: check again soon
            return
        letter = "" if state is None else state.letter
        care = self._watch.look(letter, is_needed, self._clock.now_s())
        if care is Care.WAKE:
            log.warning(
                "the guardian of the ranks (process %d) was stopped, so a rank's death would go unnoticed; "
                "continuing it",
                self.guardian.pid,
            )
            self.guardian.wake()
        elif care is Care.END:
            log.warning(
                "the guardian of the ranks (process %d) stays stopped; killing it and its ranks",
                self.guardian.pid,
            )
            self.guardian.end()

    def replace(self, reason: str) -> None:
        """Start another guardian. The ranks died with the old one (PR_SET_PDEATHSIG)."""
        self._lost_count += 1
        if self._lost_count > GUARDIANS_LOST_MAX:
            raise LaunchError(f"the guardian of the ranks ended again: {reason}")
        log.warning("the guardian of the ranks ended, and its ranks with it: %s", reason)
        self.guardian.close()
        left = fence_leftovers(
            self._job_id,
            None,
            self._clock.now_s() + LEFTOVERS_S_MAX,
            node=self._node,
            listed=read_list(str(self._process_list)),
            is_foreign=ForeignMarks(identify()),
        )
        if left.alive:
            pids = ", ".join(str(item.pid) for item in left.alive)
            raise LaunchError(f"the guardian ended, and processes of the job remain: {pids}")
        self.guardian = self._start()
        self._word = None
