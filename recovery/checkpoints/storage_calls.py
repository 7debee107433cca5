"""Goes on without a call to the storage that does not return.

A read from a server that is gone can't be cancelled. It is left behind in its thread, and what it was
for is not asked again until that thread comes back. Other checkpoints, on servers that answer, have
their turn meanwhile.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from rankmend.clock import Clock
from recovery.checkpoints.deadline import Deadline, UnfinishedError

T = TypeVar("T")

LATE_S: Final = 1.0  # after its deadline, which whoever reads looks at before each read
STALLED_S: Final = 60.0  # one read of 4 MB beside training, where the deadline is far
HUNG_MAX: Final = 4  # threads left behind at a time
_LOOK_S: Final = 0.05
_IDLE_S: Final = 1.0  # then a thread without a call ends


class HungError(UnfinishedError):
    """The storage does not answer; nothing is known of what was asked."""


class _Call(Generic[T]):
    def __init__(self, work: Callable[[], T], began_s: float) -> None:
        self._work = work
        self.began_s = began_s
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._result: list[T] = []

    def run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            self.error = error
        self.ended.set()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result[0]


class StorageCalls:
    """Calls run in a second thread, which has the priority of the one that asks."""

    def __init__(self, clock: Clock, late_s: float = LATE_S, stalled_s: float = STALLED_S) -> None:
        self._clock = clock
        self._late_s = late_s
        self._stalled_s = stalled_s
        self._lock = threading.Lock()
        self._hung: dict[str, float] = {}  # since when, by what was asked
        self._idle: dict[int, queue.SimpleQueue[tuple[str, _Call[Any]]]] = {}  # by who asks

    def run(self, key: str, work: Callable[[], T], deadline: Deadline) -> T:
        """Return what ``work`` returns; raise HungError where it does not return.

        ``work`` looks at ``deadline`` again and again, and raises by itself when it is over.
        """
        now_s = self._clock.now_s()
        with self._lock:
            since_s = self._hung.get(key)
            hung = len(self._hung)
        if since_s is not None:
            raise HungError(f"the storage has not answered for {now_s - since_s:.0f} s")
        if hung >= HUNG_MAX:
            raise HungError(f"not read: the storage does not answer {hung} earlier reads")
        call = _Call(work, now_s)
        calls = self._worker()
        calls.put((key, call))
        over_at_s: float | None = None
        while not call.ended.wait(_LOOK_S):
            now_s = self._clock.now_s()
            if over_at_s is None and deadline.left_s() <= 0:
                over_at_s = now_s
            is_late = over_at_s is not None and now_s - over_at_s >= self._late_s
            is_stalled = now_s - max(call.began_s, deadline.checked_at_s) >= self._stalled_s
            if (is_late or is_stalled) and self._leave(key, call):
                raise HungError(f"the storage has not answered for {now_s - call.began_s:.0f} s")
        with self._lock:
            self._idle[threading.get_ident()] = calls
        return call.result()

    def _worker(self) -> "queue.SimpleQueue[tuple[str, _Call[Any]]]":
        """Return the queue of a thread that waits for a call of the one that asks."""
        asks = threading.get_ident()
        with self._lock:
            calls = self._idle.pop(asks, None)
        if calls is None:
            calls = queue.SimpleQueue()
            threading.Thread(
                target=self._run, args=(calls, asks), name="storage-call", daemon=True
            ).start()
        return calls

    def _leave(self, key: str, call: "_Call[T]") -> bool:
        """Note that the call hangs; return False where it has just ended."""
        with self._lock:
            if call.ended.is_set():
                return False
            self._hung[key] = call.began_s
            return True

    def _run(self, calls: "queue.SimpleQueue[tuple[str, _Call[Any]]]", asks: int) -> None:
        while True:
            try:
                key, call = calls.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle.get(asks) is not calls:
                        continue  # a call is on its way
                    del self._idle[asks]
                return
            call.run()
            with self._lock:
                was_left = self._hung.pop(key, None) is not None
            if was_left:
                return
