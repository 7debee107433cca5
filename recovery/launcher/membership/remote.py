"""Carries a launcher's reports to a controller elsewhere, and its orders back.

Two daemon threads: one posts reports, of which only the newest waits; one holds the long poll.
A controller that is down, slow or refuses stops nothing: both try again after a pause, and
what keeps the ranks running meanwhile is the lease (`peers`). Only two answers end a launcher:
that it was replaced by a newer one of its node, and that the job has ended.
"""

import logging
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Protocol

from rankmend.clock import Clock
from rankmend.errors import MessageError
from recovery.api.connection import pause_s
from recovery.api.controller_errors import (
    ConflictError,
    ControllerError,
    JobEndedError,
    RefusedError,
    UnknownJobError,
    UnreachableError,
)
from recovery.api.wire import WAIT_S_SAFE, Accepted
from recovery.journal.job_records import JobOutcome
from recovery.launcher.membership.node_membership import boot_time_s, spread_s
from recovery.messages.exchange import (
    NUMBERS_MAX,
    LauncherLine,
    Order,
    RankReport,
    Report,
    StepTiming,
)

log = logging.getLogger(__name__)

# New step records a rank and report, as the launcher reads at most from a progress file at once.
TIMINGS_MAX: Final = 128
FLUSH_S_MAX: Final = 5.0
# People look at a log of hours and must find it there; two lines in an hour drown nothing.
DOWN_SAID_EVERY_S: Final = 1800.0
# Polls in a row that ended without an answer after `WAIT_S_SAFE`: one may be the controller's end, two are a proxy that gives up.
CUT_POLLS_MAX: Final = 2


_TURNED_AWAY: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
TURNED_AWAY: Final = (
    "the controller refuses this launcher: %s. The ranks keep training, but no failure is recovered until it accepts the launcher again. "
    "Put a valid token into its token file (--token-file): it is read again by itself, without a restart"
)


class Client(Protocol):
    """What `recovery.api.launcher_client.LauncherClient` does for a launcher."""

    @property
    def url(self) -> str: ...
    @property
    def wait_s(self) -> float:
        """Return for how long a poll may wait at the controller that was joined."""
        ...

    def report(self, report: Report) -> Accepted: ...
    def order(
        self, job_id: str, node: str, launcher_id: str, *, after: int, epoch: int, wait_s: float
    ) -> Order | None: ...


class Heard(Protocol):
    """Receives the controller's answers. Called from the threads of `Remote`; must not block."""

    def order(self, order: Order) -> None: ...
    def taken(self, asked_at_s: float, accepted: Accepted) -> None:
        """Hear that a report which was sent at that time (CLOCK_BOOTTIME) was taken, and by whom."""
        ...

    def ended(self, outcome: JobOutcome, lines: Sequence[LauncherLine]) -> None:
        """Hear how the job ended, and the last lines to print; none: from an older controller."""
        ...

    def replaced(self, reason: str) -> None: ...
    def unknown(self) -> None:
        """Hear that the controller does not know the job: join again. May block, and raise."""
        ...


class Remote:
    def __init__(
        self,
        client: Client,
        job_id: str,
        node: str,
        launcher_id: str,
        heard: Heard,
        clock: Clock,
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._node = node
        self._launcher_id = launcher_id
        self._heard = heard
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: tuple[Report, float] | None = None  # and when it was made
        self._is_sending = False
        self._is_over = False
        self._newest = (0, 0)  # epoch and revision of the newest order received
        self._cut_polls = 0  # in a row
        self._waits_safely = False  # something on the way gives up long polls
        self._late_reports = 0  # in a row that announced an order which the poll has not brought
        self._group_count = 1
        self._down_since_s: float | None = None
        self._down_said_s = 0.0
        self._is_refused = False  # what was logged last: our token is not accepted
        self._hurries = 0
        self._threads = [
            threading.Thread(target=self._post, name="reports", daemon=True),
            threading.Thread(target=self._poll, name="orders", daemon=True),
        ]

    # The launcher's thread.

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, report: Report) -> None:
        """Have the report sent; one that still waits gives way, and leaves its step records."""
        now_s = self._clock.now_s()
        with self._changed:
            if self._waiting is not None:
                report = with_timings(report, *self._waiting, now_s)
            self._waiting = (report, now_s)
            self._changed.notify_all()

    def hurry(self) -> None:
        """Wait no longer before the next try: there is another controller to be queried."""
        with self._changed:
            self._hurries += 1
            self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_S_MAX) -> bool:
        """Return whether the newest report was taken, within a time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_over or (self._waiting is None and not self._is_sending),
                timeout_s,
            )

    def close(self) -> None:
        """Send no more. A poll under way ends with its answer, in a thread that nobody waits for."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    # Reports.

    def _post(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._waiting is not None)
                if self._is_over or self._waiting is None:
                    return
                (report, made_at_s), self._waiting = self._waiting, None
                self._is_sending = True
            asked_at_s = boot_time_s()
            try:
                accepted = self._client.report(report)
            except MessageError as error:  # it can't be encoded: the next one may be smaller
                log.warning("a report could not be sent: %s", error)
                failures, error_pause_s = 0, None
            except ControllerError as error:
                failures += 1
                error_pause_s = self._judge(error, failures)
                self._put_back(report, made_at_s)
            except Exception:  # a bad report must not end the thread: that would end the lease
                log.exception("a report could not be sent")
                failures += 1
                error_pause_s = pause_s(failures)
            else:
                failures, error_pause_s = 0, None
                self._note_up()
                self._heard.taken(asked_at_s, accepted)
                self._fetch_late_order(accepted)
            finally:
                with self._changed:
                    self._is_sending = False
                    self._changed.notify_all()
            if error_pause_s is not None:
                self._pause(error_pause_s)

    def _put_back(self, report: Report, made_at_s: float) -> None:
        with self._changed:
            if self._waiting is None:
                self._waiting = (report, made_at_s)
            else:
                newer, newer_made_at_s = self._waiting
                newer = with_timings(newer, report, made_at_s, newer_made_at_s)
                self._waiting = (newer, newer_made_at_s)

    def _fetch_late_order(self, accepted: Accepted) -> None:
        """Ask beside the poll, which a connection that died unheard holds up for 40 s."""
        epoch, revision = self._newest
        is_late = (accepted.epoch or epoch, accepted.revision) > (epoch, revision)
        is_late &= accepted.revision > 0
        self._late_reports = self._late_reports + 1 if is_late else 0
        if self._late_reports < 2:
            return
        self._late_reports = 0
        try:
            self._take(self._ask(0.0))
        except ControllerError as error:
            log.debug("no order beside the poll: %s", error)

    # Orders.

    def _poll(self) -> None:
        failures = 0
        while not self._is_over:
            wait_s = WAIT_S_SAFE if self._waits_safely else self._client.wait_s
            asked_at_s = self._clock.now_s()
            try:
                self._take(self._ask(wait_s))
                failures = self._cut_polls = 0
            except ControllerError as error:
                if self._was_too_long(error, wait_s, self._clock.now_s() - asked_at_s):
                    continue
                failures += 1
                self._pause(self._judge(error, failures))
            except Exception:  # a bad order must not end the thread: it receives all others
                log.exception("cannot accept an order")
                failures += 1
                self._pause(pause_s(failures))

    def _was_too_long(self, error: ControllerError, wait_s: float, took_s: float) -> bool:
        """Return whether to repeat a poll at once, and for no longer than every controller and proxy allows."""
        if wait_s <= WAIT_S_SAFE:
            return False
        if isinstance(error, UnreachableError) and took_s > WAIT_S_SAFE:
            self._cut_polls += 1
        is_refused = isinstance(error, RefusedError) and error.status == HTTPStatus.BAD_REQUEST
        self._waits_safely = is_refused or self._cut_polls >= CUT_POLLS_MAX
        if self._waits_safely:
            log.info("polls wait for %g s at most from now on: %s", WAIT_S_SAFE, error)
        return self._waits_safely

    def _ask(self, wait_s: float) -> Order | None:
        epoch, after = self._newest
        return self._client.order(
            self._job_id, self._node, self._launcher_id, after=after, epoch=epoch, wait_s=wait_s
        )

    def _take(self, order: Order | None) -> None:
        if order is None or self._is_over:
            return
        with self._changed:
            self._newest = max(self._newest, (order.epoch, order.revision))
            self._group_count = order.group_count
        self._heard.order(order)

    # Both.

    def _judge(self, error: ControllerError, failures: int) -> float:
        """Act on an answer that is none, and return how long to wait before the next try."""
        if isinstance(error, JobEndedError):
            self.close()
            self._heard.ended(error.outcome, error.problem.lines)
            return 0.0
        if isinstance(error, ConflictError):
            self.close()
            self._heard.replaced(str(error))
            return 0.0
        if isinstance(error, UnknownJobError):
            try:
                self._heard.unknown()
            except ControllerError as failed:
                error = failed
        self._note_down(error)
        wait_s = pause_s(failures)
        if isinstance(error, UnreachableError) and error.retry_after_s is not None:
            wait_s = max(wait_s, error.retry_after_s)
        return wait_s + random.random() * spread_s(self._group_count)  # noqa: S311 - spreads

    def _pause(self, wait_s: float) -> None:
        with self._changed:
            before = self._hurries
            self._changed.wait_for(lambda: self._is_over or self._hurries != before, wait_s)

    def _note_down(self, error: ControllerError) -> None:
        """Say that the controller does not answer, or turns us away: at once, and again while that lasts."""
        is_refused = isinstance(error, RefusedError) and error.status in _TURNED_AWAY
        now_s = self._clock.now_s()
        with self._changed:
            is_new = self._down_since_s is None or is_refused != self._is_refused
            self._is_refused = is_refused
            since_s = self._down_since_s = (
                now_s if self._down_since_s is None else self._down_since_s
            )
            if not is_new and now_s - self._down_said_s < DOWN_SAID_EVERY_S:
                return
            self._down_said_s = now_s
        if is_refused:
            log.warning(TURNED_AWAY, error)
        elif is_new:
            log.warning("the controller does not answer; the ranks keep running: %s", error)
        else:
            log.warning(
                "the controller has not answered for %.0f min; the ranks keep running: %s",
                (now_s - since_s) / 60.0,
                error,
            )

    def _note_up(self) -> None:
        with self._changed:
            was_down, self._down_since_s = self._down_since_s is not None, None
        if was_down:
            log.warning("the controller answers again: %s", self._client.url)


def with_timings(report: Report, older: Report, made_at_s: float, now_s: float) -> Report:
    """Return the report with the step records of an older one that was never taken."""
    if older.attempt != report.attempt:
        return report
    before = {rank.rank: rank for rank in older.ranks if rank.timings}
    if not before:
        return report
    passed_s = max(0.0, now_s - made_at_s)
    return replace(
        report,
        ranks=tuple(_with_timings(rank, before.get(rank.rank), passed_s) for rank in report.ranks),
    )


def _with_timings(rank: RankReport, older: RankReport | None, passed_s: float) -> RankReport:
    if older is None or older.pid != rank.pid:
        return rank
    first = rank.timings[0].number if rank.timings else None
    retained: list[StepTiming] = [
        replace(timing, age_s=timing.age_s + passed_s)
        for timing in older.timings
        if first is None or timing.number < first
    ]
    first_number = rank.numbers[0].number if rank.numbers else None
    numbers = (
        *(
            number
            for number in older.numbers
            if first_number is None or number.number < first_number
        ),
        *rank.numbers,
    )
    timings = (*retained, *rank.timings)[-TIMINGS_MAX:]
    return replace(rank, timings=timings, numbers=numbers[-NUMBERS_MAX:])
