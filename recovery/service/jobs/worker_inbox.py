"""The deciding thread's inbox: reports of launchers and calls, both bounded.

Reports wait in a queue for each subject. The thread takes one of each subject in turn, so that a subject with many delays its own only. No
subject fills the inbox: while others report, too, it has half of what they leave, and alone seven eighths, so that there is room for the first
reports of another.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from recovery.journal.witnesses import share_of
from recovery.messages.exchange import Report
from recovery.service.http.request_errors import FullError
from recovery.service.jobs.listening_clock import Hearing, SubjectHearing
from recovery.service.roles import TooManyError

REPORTS_MAX: Final = 20_000  # 10 s of 2,000 nodes that report each second
# Total size of queued report bodies. A report for 8 ranks is 3 to 30 kB.
REPORT_BYTES_MAX: Final = 64 * 1024 * 1024
# A subject that has put a report within this time is there: three times what a launcher waits at most between two (`jobs.report_s`).
PRESENT_S: Final = 180.0
CALLS_MAX: Final = 4096  # 2,000 launchers that join at once, and people
BATCH_MAX: Final = 1000  # reports between two looks at the other jobs' ticks
# What a turn waits for more of them: after the first, and where some have come in the turn before, so that 2,000 reports a second
# take fewer than 100 turns. Each has the interpreter taken from the event loop.
BATCH_S: Final = 0.005
BUSY_BATCH_S: Final = 0.01

_R = TypeVar("_R")


class QueuedReport(NamedTuple):
    report: Report
    size: int  # bytes
    came_s: float  # by its subject's clock
    hearing: SubjectHearing


@dataclass(slots=True)
class _Queue:
    """The reports of one subject that wait."""

    hearing: SubjectHearing
    reports: deque[QueuedReport] = field(default_factory=deque)
    size: int = 0  # bytes
    put_at_s: float = 0.0  # the last attempt, in listened seconds of all


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
    # Of each subject: every report of its that came before this time, by its own clock, is in this batch or an earlier one.
    through: list[tuple[SubjectHearing, float]]
    through_s: float  # every call that came before this time, by everybody's clock
    is_last: bool  # the inbox is closed and no report is left


class WorkerInbox:
    """Any thread puts in; the deciding thread takes out."""

    def __init__(self, hearing: Hearing) -> None:
        """``hearing`` dates the reports, and learns when one is refused."""
        self._hearing = hearing
        self._condition = threading.Condition()
        self._queues: dict[str, _Queue] = {}  # by subject
        self._turn: deque[_Queue] = deque()  # those with reports; the next one first
        self._count = 0
        self._report_bytes = 0
        self._calls: deque[QueuedCall] = deque()
        self._is_closed = False
        self._is_idle = False  # the thread waits for the first report, and not for more of them

    @property
    def queued(self) -> int:
        """Return how many reports wait."""
        return self._count

    @property
    def lateness_s(self) -> float:
        """Return how long the oldest report has waited for the thread."""
        with self._condition:
            waited = (queue.hearing.listened_s() - queue.reports[0].came_s for queue in self._turn)
            return max(waited, default=0.0)

    def put_report(self, report: Report, size: int, subject: str = "") -> None:
        """Queue a report of ``size`` bytes, or raise TooManyError where the subject's share is used up, and FullError where all is."""
        with self._condition:
            queue = self._queue_of(subject)
            if self._count >= REPORTS_MAX or self._report_bytes + size > REPORT_BYTES_MAX:
                self._hearing.refuse()
                raise FullError(
                    f"{self._count} reports with {self._report_bytes} bytes are queued; "
                    f"the limits are {REPORTS_MAX} reports and {REPORT_BYTES_MAX} bytes"
                )
            reports_max, bytes_max = self._share_of(queue)
            if len(queue.reports) >= reports_max or queue.size + size > bytes_max:
                queue.hearing.refuse()
                raise TooManyError(
                    f"{len(queue.reports)} reports with {queue.size} bytes of {subject or 'all'} are queued; "
                    f"its share is {reports_max} reports and {bytes_max} bytes",
                    1.0,
                )
            if not queue.reports:
                self._turn.append(queue)
            queue.reports.append(
                QueuedReport(report, size, queue.hearing.listened_s(), queue.hearing)
            )
            queue.size += size
            self._count += 1
            self._report_bytes += size
            if self._is_idle:
                self._is_idle = False
                self._condition.notify()

    def _queue_of(self, subject: str) -> _Queue:
        queue = self._queues.get(subject)
        if queue is None:
            queue = self._queues[subject] = _Queue(self._hearing.of(subject))
        queue.put_at_s = self._hearing.listened_s()
        return queue

    def _share_of(self, queue: _Queue) -> tuple[int, int]:
        """Return how many reports, and how many bytes of them, the subject may have here."""
        if len(self._queues) == 1:
            return REPORTS_MAX - REPORTS_MAX // 8, REPORT_BYTES_MAX - REPORT_BYTES_MAX // 8
        return (
            share_of(REPORTS_MAX, self._count, len(queue.reports)),
            share_of(REPORT_BYTES_MAX, self._report_bytes, queue.size),
        )

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
            pause_s = BUSY_BATCH_S if self._count else BATCH_S
            if not self._count and not self._calls and not self._is_closed:
                self._is_idle = True
                self._condition.wait(wait_s)
                self._is_idle = False
            if self._count < BATCH_MAX:
                self._condition.wait_for(lambda: self._calls or self._is_closed, pause_s)
            calls, self._calls = self._calls, deque()
            reports = self._take_reports()
            return InboxBatch(
                calls,
                reports,
                self._through(),
                self._hearing.listened_s(),
                self._is_closed and not self._count,
            )

    def _take_reports(self) -> list[QueuedReport]:
        """Take one report of each subject in turn, up to `BATCH_MAX`, and forget the subjects that are not there any more."""
        taken: list[QueuedReport] = []
        while self._turn and len(taken) < BATCH_MAX:
            queue = self._turn.popleft()
            report = queue.reports.popleft()
            queue.size -= report.size
            self._count -= 1
            self._report_bytes -= report.size
            taken.append(report)
            if queue.reports:
                self._turn.append(queue)
        due_s = self._hearing.listened_s() - PRESENT_S
        for subject, queue in list(self._queues.items()):
            if not queue.reports and queue.put_at_s < due_s:
                del self._queues[subject]
        return taken

    def _through(self) -> list[tuple[SubjectHearing, float]]:
        """Return of each subject's clock up to when its reports are processed."""
        waiting = {id(queue.hearing): queue.reports[0].came_s for queue in self._turn}
        return [
            (hearing, waiting.get(id(hearing), hearing.listened_s()))
            for hearing in self._hearing.subjects()
        ]

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
