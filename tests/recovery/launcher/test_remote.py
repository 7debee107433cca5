"""Reports out and orders back: what waits, what is repeated, and what ends a launcher."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from rankmend.clock import SystemClock
from recovery.api.controller_errors import (
    ConflictError,
    JobEndedError,
    RefusedError,
    UnknownJobError,
    UnreachableError,
)
from recovery.api.wire import WAIT_S_MAX, WAIT_S_SAFE, Accepted, Problem
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.launcher.membership.remote import TIMINGS_MAX, Remote, with_timings
from recovery.messages.exchange import (
    LauncherLine,
    Order,
    RankReport,
    Report,
    StepNumbers,
    StepTiming,
)
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.launcher_bench import JOB, order, report

pytestmark = pytest.mark.process

DONE = JobOutcome(OutcomeKind.DONE, 0, "done")
NOTHING = Problem("no")


def rank(*numbers: int, pid: int = 7) -> RankReport:
    timings = tuple(StepTiming(number, number, 1.0, 0, 0, 0, 0) for number in numbers)
    return RankReport(rank=0, local_rank=0, pid=pid, process_state="R", timings=timings)


class PollClock(SystemClock):
    """A clock that polls set forward."""

    time_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.time_s


class Controller:
    """A controller of the contract; an error put in its way is raised once."""

    url = "https://fake"
    wait_s = WAIT_S_MAX  # as it told whoever joined

    def __init__(self) -> None:
        self.clock = PollClock()
        self.reports: list[Report] = []
        self.asked: list[tuple[int, int, float]] = []
        self.errors: list[Exception] = []
        self.poll_errors: list[Exception] = []
        self.revision = 0
        self.changed = threading.Condition()
        self.orders: list[Order] = []
        self.may_poll = True
        self.is_over = False
        self.passes: Callable[[float], float] = lambda _wait_s: 0.0  # for a poll, on the clock

    def report(self, report: Report) -> Accepted:
        if self.errors:
            raise self.errors.pop(0)
        self.reports.append(report)
        return Accepted(self.revision)

    def order(
        self, job_id: str, node: str, launcher_id: str, *, after: int, epoch: int, wait_s: float
    ) -> Order | None:
        self.asked.append((epoch, after, wait_s))
        self.clock.time_s += self.passes(wait_s)
        if self.poll_errors:
            raise self.poll_errors.pop(0)
        with self.changed:
            self.changed.wait_for(lambda: self.is_over or wait_s == 0 or self._new(epoch, after), 5)
            return self._new(epoch, after) if self.may_poll or wait_s == 0 else None

    def _new(self, epoch: int, after: int) -> Order | None:
        new = [one for one in self.orders if (one.epoch, one.revision) > (epoch, after)]
        return new[-1] if new and not self.is_over else None

    def post(self, order: Order) -> None:
        with self.changed:
            self.orders.append(order)
            self.revision = order.revision
            self.changed.notify_all()


class Heard:
    def __init__(self) -> None:
        self.orders: list[int] = []
        self.taken_at_s: list[float] = []
        self.outcome: JobOutcome | None = None
        self.replaced_by: str | None = None
        self.joins = 0
        self.lines: list[LauncherLine] = []

    def order(self, order: Order) -> None:
        self.orders.append(order.revision)

    def taken(self, asked_at_s: float, _accepted: Accepted) -> None:
        self.taken_at_s.append(asked_at_s)

    def ended(self, outcome: JobOutcome, lines: Sequence[LauncherLine]) -> None:
        self.outcome = outcome
        self.lines = list(lines)

    def replaced(self, reason: str) -> None:
        self.replaced_by = reason

    def unknown(self) -> None:
        self.joins += 1


class Line:
    def __init__(self) -> None:
        self.controller, self.heard = Controller(), Heard()
        self.remote = Remote(self.controller, JOB, "a", "id", self.heard, self.controller.clock)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.remote.close()
    with line.controller.changed:
        line.controller.is_over = True
        line.controller.changed.notify_all()


def test_of_the_reports_that_wait_only_the_newest_is_sent_with_the_steps_of_all(line: Line) -> None:
    line.remote.put(report(1, rank(1, 2)))
    line.remote.put(report(2, rank(3)))
    line.remote.put(report(3, rank(4, 5)))

    line.remote.start()
    assert line.remote.flush(DEADLINE_S)

    (sent,) = line.controller.reports
    assert sent.number == 3
    assert [one.number for one in sent.ranks[0].timings] == [1, 2, 3, 4, 5]


def test_a_report_that_was_not_taken_is_sent_again_and_only_then_counts_as_contact(
    line: Line,
) -> None:
    line.controller.errors = [UnreachableError("away"), RefusedError("the token", 401, NOTHING)]
    line.remote.put(report(1, rank(1)))

    line.remote.start()
    assert line.remote.flush(DEADLINE_S)

    assert [one.number for one in line.controller.reports] == [1]
    assert len(line.heard.taken_at_s) == 1


def test_orders_are_asked_for_by_what_was_heard_last(line: Line) -> None:
    line.remote.start()
    line.controller.post(order(5))
    eventually(lambda: line.heard.orders == [5], "the first order")
    line.controller.post(order(2, epoch=2))

    eventually(lambda: line.heard.orders == [5, 2], "one of a newer controller")

    eventually(lambda: line.controller.asked[-1][:2] == (2, 2), "asked from there on")
    assert line.controller.asked[0][:2] == (0, 0)


def test_a_poll_that_brings_nothing_is_passed_by_when_reports_tell_of_an_order(line: Line) -> None:
    line.controller.may_poll = False  # as a connection that died without a word
    line.remote.start()
    line.controller.post(order(9))

    for number in range(1, 4):
        line.remote.put(report(number))
        assert line.remote.flush(DEADLINE_S)

    eventually(lambda: 9 in line.heard.orders, "asked beside the poll")


def waits(line: Line, polls: int) -> list[float]:
    """Return for how long the first polls were to wait; every new order ends one."""

    def has_asked() -> bool:
        line.controller.post(order(len(line.controller.orders) + 1))
        return len(line.controller.asked) >= polls

    eventually(has_asked, "so many polls")
    return [wait_s for _epoch, _after, wait_s in line.controller.asked[:polls]]


def test_polls_wait_as_long_as_the_controller_allows(line: Line) -> None:
    line.remote.start()

    assert waits(line, 2) == [WAIT_S_MAX, WAIT_S_MAX]


def test_polls_that_a_proxy_cuts_wait_no_longer_than_every_proxy_allows(line: Line) -> None:
    line.controller.passes = lambda wait_s: min(wait_s, 30.0)
    line.controller.poll_errors = [UnreachableError("cut"), UnreachableError("cut")]
    line.remote.start()

    assert waits(line, 5) == [WAIT_S_MAX, WAIT_S_MAX, WAIT_S_SAFE, WAIT_S_SAFE, WAIT_S_SAFE]


def test_a_poll_that_ends_with_its_controller_shortens_no_other(line: Line) -> None:
    line.controller.passes = lambda _wait_s: 30.0 if len(line.controller.asked) == 1 else 1.0
    line.controller.poll_errors = [UnreachableError("killed"), UnreachableError("not back yet")]
    line.remote.start()

    assert waits(line, 4) == [WAIT_S_MAX] * 4


def test_two_controllers_that_end_far_apart_shorten_no_poll(line: Line) -> None:
    line.controller.passes = lambda _wait_s: 30.0
    line.controller.poll_errors = [UnreachableError("killed")]
    line.remote.start()
    assert waits(line, 2) == [WAIT_S_MAX] * 2

    eventually(lambda: line.heard.orders, "an order")
    line.controller.poll_errors = [UnreachableError("killed again")]
    asked = len(line.controller.asked)
    assert waits(line, asked + 3) == [WAIT_S_MAX] * (asked + 3)


def test_a_controller_of_an_older_version_is_asked_at_once_for_what_it_allows(line: Line) -> None:
    line.controller.poll_errors = [RefusedError("wait: at most 25", 400, NOTHING)]
    line.remote.start()

    assert waits(line, 3) == [WAIT_S_MAX, WAIT_S_SAFE, WAIT_S_SAFE]


@pytest.mark.parametrize("where", ["errors", "poll_errors"])
def test_the_end_of_the_job_ends_both_threads(line: Line, where: str) -> None:
    last = LauncherLine(9, "done: all ended")
    problem = Problem("over", lines=[last])
    setattr(line.controller, where, [JobEndedError("over", 410, problem, DONE)])
    line.remote.put(report())

    line.remote.start()

    eventually(lambda: line.heard.outcome == DONE, "heard")
    assert line.heard.lines == [last]


def test_a_launcher_that_was_replaced_says_so_and_asks_no_more(line: Line) -> None:
    line.controller.errors = [ConflictError("a newer launcher", 409, NOTHING)]
    line.remote.put(report())

    line.remote.start()

    eventually(lambda: line.heard.replaced_by == "a newer launcher", "heard")
    line.remote.put(report(2))
    assert line.remote.flush(0.0)  # nobody sends it
    assert line.controller.reports == []


def test_a_controller_that_forgot_the_job_is_joined_again(line: Line) -> None:
    line.controller.errors = [UnknownJobError("no job", 404, NOTHING)]
    line.remote.put(report())

    line.remote.start()
    assert line.remote.flush(DEADLINE_S)

    assert line.heard.joins == 1
    assert len(line.controller.reports) == 1


def test_an_error_that_nobody_foresaw_ends_no_thread(line: Line) -> None:
    line.controller.errors = [ZeroDivisionError()]
    line.remote.put(report(1))
    line.remote.start()
    eventually(lambda: not line.controller.errors, "it was raised")

    line.remote.put(report(2))
    assert line.remote.flush(DEADLINE_S)

    assert [one.number for one in line.controller.reports] == [2]


def test_steps_of_another_attempt_or_process_are_not_carried_over() -> None:
    older = report(1, rank(1, 2))

    assert (
        with_timings(report(2, rank(3), attempt=2), older, 0, 5).ranks[0].timings == rank(3).timings
    )
    assert with_timings(report(2, rank(1, pid=8)), older, 0, 5).ranks[0].timings == rank(1).timings


def test_steps_that_are_carried_over_grow_older_and_are_bounded() -> None:
    older, newer = report(1, rank(*range(1, 101))), report(2, rank(*range(101, 201)))

    timings = with_timings(newer, older, 10.0, 12.5).ranks[0].timings

    assert len(timings) == TIMINGS_MAX
    assert [one.number for one in timings] == list(range(73, 201))
    assert timings[0] == replace(rank(73).timings[0], age_s=3.5)
    assert timings[-1].age_s == 1.0


def test_numbers_of_a_report_that_was_never_taken_are_carried_over() -> None:
    def telling(*numbers: int) -> RankReport:
        told = tuple(StepNumbers(number, 10 + number, 1.0) for number in numbers)
        return replace(rank(*numbers), numbers=told)

    newer, older = report(2, telling(3, 4)), report(1, telling(1, 2, 3))

    numbers = with_timings(newer, older, 0, 5).ranks[0].numbers

    assert [one.number for one in numbers] == [1, 2, 3, 4]


@pytest.mark.parametrize("status", [401, 403])
def test_a_launcher_that_is_turned_away_says_once_what_that_means_and_goes_on(
    line: Line, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    refused = RefusedError("c: token 0a1b2c3d is unknown or was revoked", status, NOTHING)
    line.controller.errors += [refused, refused]

    line.remote.put(report(1, rank(1)))
    line.remote.start()
    assert line.remote.flush(DEADLINE_S)

    said = [one.message for one in caplog.records if "refuses this launcher" in one.message]
    assert len(said) == 1
    assert "token 0a1b2c3d is unknown or was revoked" in said[0]
    assert "The ranks keep training, but no failure is recovered" in said[0]
    assert "Put a valid token into its token file" in said[0]
