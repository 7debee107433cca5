"""Threads that write what jobs have handed in, each job's journal by itself: those in files (`recovery.journal.store`).

Jobs wait for one disk, and not for each other. A decision goes first; bookkeeping has few commits under way at a time, so that the
disk has room for decisions however many jobs there are. All that a job has handed in by then goes into one commit.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rankmend.backoff import Backoff
from rankmend.clock import Clock
from recovery.journal.pen import AheadPen

THREADS_MAX: Final = 64  # commits at once: 500 jobs that all fail wait for 8 commits
BOOKKEEPING_MAX: Final = 2  # of them, for what nobody waits for
QUICK_S: Final = 0.02  # a commit that takes no longer is waited for: 0.25 ms on the measured disk
RETRY: Final = Backoff(first_s=0.5, cap_s=5.0)


class CommitThreads:
    """`recovery.journal.pen.Committer`."""

    def __init__(self, clock: Clock, note_commit: Callable[[float], None]) -> None:
        """``note_commit`` receives how long each commit took."""
        self._clock = clock
        self._note_commit = note_commit
        self._changed = threading.Condition()
        self._urgent: deque[AheadPen] = deque()
        self._later: deque[AheadPen] = deque()
        self._failed: dict[
            AheadPen, tuple[float, int]
        ] = {}  # when to try again, and failures in a row
        self._under_way: set[AheadPen] = set()
        self._bookkeeping = 0  # of those
        self._threads = self._idle = 0
        self._is_closed = False
        self.quick_s = QUICK_S

    def take(self, pen: AheadPen, /, *, is_urgent: bool) -> None:
        with self._changed:
            if pen in self._under_way:
                return  # it is looked at again as soon as that has ended
            self._queue(pen, is_urgent=is_urgent)

    def _queue(self, pen: AheadPen, *, is_urgent: bool) -> None:
        if pen in self._failed and not is_urgent:
            return
        queue = self._urgent if is_urgent else self._later
        if pen not in queue:
            queue.append(pen)
        if not self._idle and self._threads < THREADS_MAX:
            self._threads += 1
            threading.Thread(target=self._run, name="commit", daemon=True).start()
        self._changed.notify()

    def close(self) -> None:
        """Let the threads end; what pens have handed in they have had written before."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (found := self._next()) is None:
                    if self._is_closed:
                        self._threads -= 1
                        return
                    self._idle += 1
                    self._changed.wait(self._pause_s())
                    self._idle -= 1
                pen, is_bookkeeping = found
                self._under_way.add(pen)
                self._bookkeeping += is_bookkeeping
            is_durable = self._commit(pen)
            with self._changed:
                self._under_way.remove(pen)
                self._bookkeeping -= is_bookkeeping
                self._note_end(pen, is_durable=is_durable)
                if self._urgent or self._later:
                    self._changed.notify()
            if pen.owes_fold:  # the job may commit meanwhile
                pen.save_fold()

    def _next(self) -> tuple[AheadPen, bool] | None:
        now_s = self._clock.now_s()
        for pen in [item for item, (at_s, _count) in self._failed.items() if at_s <= now_s]:
            if pen not in self._under_way and pen not in self._urgent:
                self._failed[pen] = now_s + RETRY.cap_s, self._failed[pen][1]
                self._urgent.append(pen)
        while self._urgent:
            pen = self._urgent.popleft()
            if pen not in self._under_way:
                return pen, False
        if self._later and self._bookkeeping < BOOKKEEPING_MAX:
            pen = self._later.popleft()
            if pen not in self._under_way:
                return pen, True
        return None

    def _pause_s(self) -> float | None:
        if not self._failed:
            return None
        return max(0.0, min(at_s for at_s, _count in self._failed.values()) - self._clock.now_s())

    def _commit(self, pen: AheadPen) -> bool:
        if not pen.has_pending:
            return True
        began_s = self._clock.now_s()
        is_durable = pen.commit()
        took_s = self._clock.now_s() - began_s
        self._note_commit(took_s)
        self.quick_s = QUICK_S if took_s < QUICK_S else 0.0
        return is_durable

    def _note_end(self, pen: AheadPen, *, is_durable: bool) -> None:
        if is_durable:
            self._failed.pop(pen, None)
            if pen.has_pending:
                self._queue(pen, is_urgent=pen.owes_decision)
        elif pen.pending():
            failures = self._failed.get(pen, (0.0, 0))[1] + 1
            self._failed[pen] = self._clock.now_s() + RETRY.wait_s(failures), failures
        else:
            self._failed.pop(pen, None)  # it was closed, or must be opened anew
