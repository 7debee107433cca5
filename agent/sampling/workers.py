"""Threads that run collectors, so that one that hangs holds up no other.

Quick runs take turns in one daemon thread; each other run gets a daemon thread of its own. A thread
for each of a second's dozen runs was a sixth of the agent's CPU. A quick run that hangs keeps the
others waiting until the next one is submitted `STUCK_S` later, which moves them to another thread.
All are daemons: one that is stuck in a driver cannot hold up the agent's exit.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread, current_thread
from time import perf_counter
from typing import Final

STUCK_S: Final = 0.5  # after this long in a quick run, the others get another thread

Run = Callable[[], None]


class Workers:
    def __init__(self) -> None:
        self._turn = Condition()  # guards everything below
        self._waiting: deque[Run] = deque()
        self._worker: Thread | None = None
        self._busy_since_s: float | None = None

    def submit(self, name: str, run: Run, *, is_quick: bool) -> None:
        """Run it soon, in a thread that may hang. Never blocks."""
        if not is_quick:
            Thread(target=run, name=f"collect-{name}", daemon=True).start()
            return
        self.submit_quick([run])

    def submit_quick(self, runs: Sequence[Run]) -> None:
        """Run these soon, in turn: one wake-up of the worker for all of them. Never blocks."""
        if not runs:
            return
        with self._turn:
            self._waiting.extend(runs)
            if self._worker is None or self._is_stuck():
                self._start_worker()
            elif self._busy_since_s is None:
                self._turn.notify_all()

    def stop(self) -> None:
        """Run nothing more. Does not wait for runs under way."""
        with self._turn:
            self._worker = None
            self._waiting.clear()
            self._turn.notify_all()

    def _is_stuck(self) -> bool:
        return self._busy_since_s is not None and perf_counter() - self._busy_since_s > STUCK_S

    def _start_worker(self) -> None:
        """Start a new thread for the runs that wait; the old one, if any, ends after its run."""
        self._busy_since_s = None
        self._worker = Thread(target=self._work, name="collect", daemon=True)
        self._worker.start()

    def _work(self) -> None:
        me = current_thread()
        while True:
            with self._turn:
                if self._worker is me:
                    self._busy_since_s = None
                while self._worker is me and not self._waiting:
                    self._turn.wait()
                if self._worker is not me:
                    return
                run = self._waiting.popleft()
                self._busy_since_s = perf_counter()
            run()
