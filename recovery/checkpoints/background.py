"""Looks at the checkpoints while training runs, so that a restore waits for stats and not for reads.

Two daemon threads do all reading, one at a time: a slow one beside training, at low priority and
within a rate, and one for looks that somebody waits for. A caller waits no longer than its timeout:
storage that hangs leaves one thread behind, and the other one doesn't begin while it is stuck.

They take turns, and neither loses what it has read: the finder keeps how far each file was read, and whoever looks
next goes on there. What ranks restore before it was read to its end is read first, and at full speed.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import RankmendError, SourceError
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.finder import settle
from recovery.checkpoints.priority import yield_to_training
from recovery.messages.candidates import CheckpointSettings, CheckpointVerdict, Hindrance, Share

log = logging.getLogger(__name__)

# After a caller's time, for a look that is about to end: it lets go of a read at most a chunk later.
_LATE_S: Final = 2.0
_RESTORED_MAX: Final = 16  # remembered; the kind counts, and a job changes it rarely
_Marks = tuple[int, float]  # size in bytes, time of the newest change


class Finder(Protocol):
    settings: CheckpointSettings
    share: Share  # of the next look
    owed: frozenset[str]  # paths that looks beside training check before all others
    restored: Mapping[str, float]  # paths that ranks have restored, and when each was saved

    def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
        """Yield all verdicts again after each that was reached."""
        ...


class LooksBeside(Protocol):
    """What looks at something else while training runs."""

    def start(self, save_ended: Callable[[], None]) -> None:
        """Begin; call ``save_ended`` from any thread once ranks have closed what they wrote."""
        ...

    def stop(self) -> None: ...


class CheckpointWatch:
    """Ticket numbers tie a caller to the look that began after it asked."""

    def __init__(self, finder: Finder, clock: Clock, beside: LooksBeside | None = None) -> None:
        """``beside``: begins and ends with it."""
        self._finder = finder
        self._beside = beside
        self._settings = finder.settings
        self._clock = clock
        self._changed = threading.Condition()
        self._threads: dict[bool, threading.Thread] = {}  # the slow one by True
        self._is_stopping = False
        self._is_looking = False
        self._asked = self._begun = self._served = 0  # tickets
        self._enough = 1  # of the callers that wait
        self._answer_by_s = 0.0
        self._deadline: Deadline | None = None  # of the look under way
        self._is_cut = False  # the look under way: ended early, for a caller
        self._is_awaited = False  # a caller waits for the look under way
        self._owed: frozenset[str] = frozenset()  # restored before it was checked
        self._owes_look = False  # and not for a whole interval
        self._restored: dict[str, float] = {}
        self._verdicts: tuple[CheckpointVerdict, ...] = ()
        self._seen: dict[str, tuple[_Marks | None, float]] = {}  # and since when
        self._has_looked = False
        self._error: str | None = None
        self.looks_total = 0
        self.errors_total = 0

    @property
    def last_error(self) -> str | None:
        """Why the newest look failed, or None when it did not."""
        return self._error

    def start(self) -> None:
        if self._beside is not None:
            self._beside.start(self.look_soon)
        with self._changed:
            for is_slow in (False, True):
                thread = self._threads.get(is_slow)
                if thread is None or not thread.is_alive():
                    self._is_stopping = False
                    self._threads[is_slow] = thread = threading.Thread(
                        target=self._look_beside_training if is_slow else self._look_when_asked,
                        name="checkpoint-watch" if is_slow else "checkpoint-look",
                        daemon=True,
                    )
                    thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Return whether the threads are gone; hung storage can hold one."""
        until_s = self._clock.now_s() + timeout_s
        if self._beside is not None:
            self._beside.stop()
        with self._changed:
            self._is_stopping = True
            if self._deadline is not None:
                self._deadline.shorten(0)
            self._changed.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, until_s - self._clock.now_s()))
        return not any(thread.is_alive() for thread in threads)

    def take_share(self, share: Share) -> None:
        """Read only this share of each checkpoint's files in every look that begins from now on."""
        self._finder.share = share

    def look_soon(self) -> None:
        """Look beside training as soon as nobody else does: what was saved just now is still in the page cache."""
        with self._changed:
            self._owes_look = True
            self._changed.notify_all()

    def check_on(self, path: str) -> None:
        """Note that ranks restore this one. If it is unchecked, read the rest of it before all others and at full speed.

        `known` tells what comes of it.
        """
        with self._changed:
            self._restored |= {
                verdict.candidate.path: verdict.candidate.modified_unix_s
                for verdict in self._verdicts
                if verdict.candidate.path == path
            }
            while len(self._restored) > _RESTORED_MAX:
                del self._restored[next(iter(self._restored))]
            self._finder.restored = dict(self._restored)
            self._owed = frozenset({path}) if self._is_unchecked(path) else frozenset()
            if self._owed:
                self._owes_look = True
                self._cut()
            self._changed.notify_all()

    def candidates(
        self, *, is_training: bool = False, enough: int = 1, timeout_s: float | None = None
    ) -> tuple[CheckpointVerdict, ...]:
        """Return all verdicts, newest first, by a look that began after this call.

        ``enough``: how many valid ones the caller can use: 1, and one more for each that it
        passes over. Raises SourceError when the folder can't be listed or does not answer in time.
        """
        timeout_s = self._settings.validate_timeout_s if timeout_s is None else timeout_s
        with self._changed:
            self._asked += 1  # before the thread starts, whose first look is then this one
            ticket = self._asked
            self._enough = max(self._enough, enough)
            self._answer_by_s = max(self._answer_by_s, self._clock.now_s() + timeout_s)
            self._cut()
            self.start()
            self._changed.notify_all()
            is_served = self._changed.wait_for(lambda: self._served >= ticket, timeout_s)
            if not is_served and self._begun >= ticket and not self._has_valid():
                is_served = self._changed.wait_for(lambda: self._served >= ticket, _LATE_S)
            if is_served and self._error is not None:
                raise SourceError(self._error)
            if not is_served and self._begun < ticket:
                raise SourceError(f"the checkpoint storage did not answer within {timeout_s:g} s")
            late = f"not finished within {timeout_s:g} s"
            verdicts = tuple(
                replace(verdict, reason=late, hindrance=Hindrance.UNREADABLE)
                if verdict.hindrance is Hindrance.PENDING
                else verdict
                for verdict in self._verdicts
            )
            return tuple(map(self._settle, verdicts)) if is_training else verdicts

    def known(self) -> tuple[CheckpointVerdict, ...]:
        """Return what the last look found, as it counts while training runs; waits for no storage."""
        with self._changed:
            verdicts = self._verdicts if self._has_looked else ()
            return tuple(
                self._settle(verdict)
                for verdict in verdicts
                if verdict.hindrance is not Hindrance.PENDING
            )

    def _has_valid(self) -> bool:
        return any(verdict.is_valid for verdict in self._verdicts)

    def _cut(self) -> None:
        """End the look beside training: the one after it goes on where this one was."""
        if self._deadline is not None and not self._is_awaited:  # else it is another caller's
            self._is_cut = True
            self._deadline.shorten(0)

    def _settle(self, verdict: CheckpointVerdict) -> CheckpointVerdict:
        known = self._seen.get(verdict.candidate.path)
        seen_age_s = self._clock.now_s() - known[1] if known else 0.0
        modified_age_s = abs(self._clock.unix_s() - verdict.candidate.modified_unix_s)
        return settle(verdict, min(seen_age_s, modified_age_s), self._settings.grace_s)

    def _look_beside_training(self) -> None:
        yield_to_training()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._is_idle())
                if self._has_looked:
                    self._changed.wait_for(
                        lambda: self._is_stopping or self._owes_look,
                        self._settings.scan_interval_s,
                    )
                if self._is_stopping:
                    return
                if not self._is_idle():  # a caller came meanwhile
                    continue
                self._is_awaited = self._owes_look = False
                self._finder.owed = self._owed
                # A wrong sum in what the ranks have begun from costs all that they train until it is found.
                rate = 0.0 if self._owed else self._settings.check_rate_bytes_per_s
                deadline = Deadline(
                    self._clock,
                    self._settings.background_timeout_s,
                    is_awaited=False,
                    rate_bytes_per_s=rate,
                )
                ticket = self._begin(deadline)
            self._look(ticket, deadline, self._settings.enough)

    def _look_when_asked(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._is_stopping or (not self._is_looking and self._asked > self._served)
                    )
                )
                if self._is_stopping:
                    return
                self._is_awaited = True
                timeout_s = max(0.0, self._answer_by_s - self._clock.now_s())
                enough, self._enough = self._enough, 1
                deadline = Deadline(self._clock, timeout_s)
                ticket = self._begin(deadline)
            self._look(ticket, deadline, enough)

    def _is_idle(self) -> bool:
        return not self._is_looking and self._asked == self._served

    def _begin(self, deadline: Deadline) -> int:
        self._is_looking = True
        self._is_cut = False
        self._deadline = deadline
        return self._asked

    def _look(self, ticket: int, deadline: Deadline, enough: int) -> None:
        error = None
        try:
            for verdicts in self._finder.look(deadline, enough):
                self._publish(ticket, verdicts)
        except RankmendError as caught:
            # What was ended for a caller's sake says nothing to callers that were answered before.
            error = self._error if self._is_cut else str(caught)
            if error != self._error and not self._is_stopping:  # the end cuts a look short
                log.warning("looking for checkpoints failed", extra={"error": error})
        except Exception as caught:
            error = f"looking for checkpoints failed: {caught!r}"
            log.exception("looking for checkpoints failed")
        with self._changed:
            self._is_looking = False
            self._deadline = None
            self._error = error
            self.looks_total += 1
            self.errors_total += error is not None
            self._has_looked = True
            if error is None and not self._is_awaited and not self._is_cut:
                self._owed = frozenset(filter(self._is_unchecked, self._owed))
            self._served = ticket
            self._changed.notify_all()

    def _is_unchecked(self, path: str) -> bool:
        """Return whether there is more to find out of this one."""
        is_open = {Hindrance.PENDING, Hindrance.UNREAD}
        return any(
            verdict.candidate.path == path
            and (verdict.unchecked_bytes > 0 or verdict.hindrance in is_open)
            for verdict in self._verdicts
        )

    def _publish(self, ticket: int, verdicts: tuple[CheckpointVerdict, ...]) -> None:
        now_s = self._clock.now_s()
        with self._changed:
            self._begun = ticket
            self._verdicts = verdicts
            seen = {}
            for verdict in verdicts:
                candidate = verdict.candidate
                marks: _Marks | None = (candidate.size_bytes, candidate.modified_unix_s)
                if verdict.hindrance in {Hindrance.PENDING, Hindrance.UNREAD}:
                    marks = None  # of a folder they are not known before it is walked
                known = self._seen.get(candidate.path)
                if known is None:  # what the first look finds may be old
                    seen[candidate.path] = (marks, now_s if self._has_looked else float("-inf"))
                elif marks is None or known[0] in (None, marks):
                    seen[candidate.path] = (marks or known[0], known[1])
                else:
                    seen[candidate.path] = (marks, now_s)
            self._seen = seen
