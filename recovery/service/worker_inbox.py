"""The deciding thread's inbox: reports of launchers and calls, both bounded."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from recovery.messages.exchange import Report
from recovery.service.listening_clock import Hearing
from recovery.service.request_errors import FullError

REPORTS_MAX: Final = 20_000  # 10 s of 2,000 nodes that report each second
# Total size of queued report bodies. A report for 8 ranks is 3 to 30 kB.
REPORT_BYTES_MAX: Final = 64 * 1024 * 1024
CALLS_MAX: Final = 4096  # 2,000 launchers that join at once, and people
BATCH_MAX: Final = 1000  # reports between two looks at the other jobs' ticks
# What a turn waits for more of them: after the first, and where some have come in the turn before, so that 2,000 reports a second
# take fewer than 100 turns. Each has the interpreter taken from the event loop.
BATCH_S: Final = 0.005
BUSY_BATCH_S: Final = 0.01

_R = TypeVar("_R")
QueuedReport: TypeAlias = tuple[Report, int, float]  # with its size in bytes, and when it came


@dataclass(frozen=True, slots=True)
class QueuedCall:
    """A function to run in the deciding thread, and the future that gets its result."""

    act: Callable[[], object]
    result: "Future[object]"

    def answer(self) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(self.act())
        except Exception as error:  # noqa: BLE001 - of one request: its client hears of it
            self.result.set_exception(error)


@dataclass(frozen=True, slots=True)
class InboxBatch:
    """The input of one turn of the thread."""

    calls: deque[QueuedCall]
    reports: list[QueuedReport]
    through_s: float  # every report that came before this time is in this batch or an earlier one
    is_last: bool  # the inbox is closed and no report is left


class WorkerInbox:
    """Any thread puts in; the deciding thread takes out."""

    def __init__(self, hearing: Hearing) -> None:
        """``hearing`` dates the reports, and learns when one is refused."""
        self._hearing = hearing
        self._condition = threading.Condition()
        self._reports: deque[QueuedReport] = deque()
        self._report_bytes = 0
        self._calls: deque[QueuedCall] = deque()
        self._is_closed = False
        self._is_idle = False  # the thread waits for the first report, and not for more of them

    @property
    def queued(self) -> int:
        """Return how many reports wait."""
        return len(self._reports)

    @property
    def lateness_s(self) -> float:
        """Return how long the oldest report has waited for the thread."""
        with self._condition:
            return self._hearing.listened_s() - self._reports[0][2] if self._reports else 0.0

    def put_report(self, report: Report, size: int) -> None:
        """Queue a report of ``size`` bytes, or raise FullError."""
        with self._condition:
            if len(self._reports) >= REPORTS_MAX or self._report_bytes + size > REPORT_BYTES_MAX:
                self._hearing.refuse()
                raise FullError(
                    f"{len(self._reports)} reports with {self._report_bytes} bytes are queued; "
                    f"the limits are {REPORTS_MAX} reports and {REPORT_BYTES_MAX} bytes"
                )
            self._reports.append((report, size, self._hearing.listened_s()))
            self._report_bytes += size
            if self._is_idle:
                self._is_idle = False
                self._condition.notify()

    def put_call(self, act: Callable[[], _R]) -> "Future[_R]":
        """Queue ``act`` for the next turn and return its future result, or raise FullError."""
        result: Future[_R] = Future()
        with self._condition:
            if len(self._calls) >= CALLS_MAX or self._is_closed:
                raise FullError(
                    f"{len(self._calls)} requests wait for the deciding thread; try again"
                )
            self._calls.append(QueuedCall(act, result))  # type: ignore[arg-type]
            self._condition.notify()
        return result

    def take(self, wait_s: float) -> InboxBatch:
        """Return what is queued; wait up to ``wait_s`` for the first of it, and then for what comes within a moment."""
        with self._condition:
            pause_s = BUSY_BATCH_S if self._reports else BATCH_S
            if not self._reports and not self._calls and not self._is_closed:
                self._is_idle = True
                self._condition.wait(wait_s)
                self._is_idle = False
            if len(self._reports) < BATCH_MAX:
                self._condition.wait_for(lambda: self._calls or self._is_closed, pause_s)
            calls, self._calls = self._calls, deque()
            reports = [self._reports.popleft() for _ in range(min(BATCH_MAX, len(self._reports)))]
            self._report_bytes -= sum(size for _report, size, _came_s in reports)
            through_s = self._reports[0][2] if self._reports else self._hearing.listened_s()
            return InboxBatch(calls, reports, through_s, self._is_closed and not self._reports)

    def close(self) -> None:
        """Refuse calls from now on; what is queued is still taken out."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()

    def refuse_calls(self) -> None:
        """Close, and refuse the calls still queued."""
        self.close()
        with self._condition:
            calls, self._calls = self._calls, deque()
        for call in calls:
            call.result.set_exception(FullError("the controller is stopping"))
