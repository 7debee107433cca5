"""The inbox of the deciding thread: each subject has a share of it, and waits for its own reports only."""

from collections import Counter
from collections.abc import Callable

import pytest

from recovery.messages.exchange import Report
from recovery.service.http.request_errors import FullError
from recovery.service.jobs.listening_clock import Hearing
from recovery.service.jobs.worker_inbox import (
    BATCH_MAX,
    PRESENT_S,
    REPORT_BYTES_MAX,
    REPORTS_MAX,
    WorkerInbox,
)
from recovery.service.roles import TooManyError
from tests.support.service import Speaker
from tests.support.simulation import SimClock

pytestmark = pytest.mark.process

Flood = Callable[[str], int]


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def hearing(clock: SimClock) -> Hearing:
    return Hearing(clock)


@pytest.fixture
def inbox(hearing: Hearing) -> WorkerInbox:
    return WorkerInbox(hearing)


def report_of(subject: str) -> Report:
    report = Speaker(None, f"{subject}-1", "job").report  # type: ignore[arg-type]
    assert report is not None
    return report


@pytest.fixture
def flood(inbox: WorkerInbox) -> Flood:
    """Put reports of a subject until it is refused, and return how many had room."""

    def put(subject: str) -> int:
        report = report_of(subject)
        for number in range(REPORTS_MAX + 1):
            try:
                inbox.put_report(report, 1, subject)
            except TooManyError:
                return number
        raise AssertionError("never refused")

    return put


def test_reports_of_one_subject_wait_for_none_of_another_that_floods(
    inbox: WorkerInbox, flood: Flood
) -> None:
    inbox.put_report(report_of("alice"), 1, "alice")
    inbox.take(0.0)
    flooded = flood("mallory")

    for _ in range(100):
        inbox.put_report(report_of("alice"), 1, "alice")
    taken = Counter(queued.report.node for queued in inbox.take(0.0).reports)

    assert flooded == REPORTS_MAX // 2
    assert taken == {"alice-1": 100, "mallory-1": BATCH_MAX - 100}


def test_first_report_of_a_subject_finds_room_beside_one_that_has_flooded_alone(
    inbox: WorkerInbox, flood: Flood
) -> None:
    assert flood("mallory") == REPORTS_MAX - REPORTS_MAX // 8

    for _ in range(100):
        inbox.put_report(report_of("alice"), 1, "alice")

    assert Counter(queued.report.node for queued in inbox.take(0.0).reports)["alice-1"] == 100


def test_many_subjects_that_flood_leave_room_for_one_more(inbox: WorkerInbox, flood: Flood) -> None:
    inbox.put_report(report_of("alice"), 1, "alice")
    had = [flood(f"mallory-{number}") for number in range(12)]

    inbox.put_report(report_of("alice"), 1, "alice")

    assert had[:3] == [10_000, 5_000, 2_500]
    assert inbox.queued < REPORTS_MAX


def test_subject_with_large_reports_leaves_bytes_for_another(inbox: WorkerInbox) -> None:
    inbox.put_report(report_of("alice"), 1, "alice")
    inbox.put_report(report_of("mallory"), REPORT_BYTES_MAX // 2 - 1, "mallory")

    with pytest.raises(TooManyError, match=r"1 reports with 33554431 bytes of mallory are queued"):
        inbox.put_report(report_of("mallory"), 2, "mallory")
    inbox.put_report(report_of("alice"), REPORT_BYTES_MAX // 4, "alice")


def test_clock_of_a_subject_stands_while_its_reports_are_refused_and_no_others_does(
    inbox: WorkerInbox, flood: Flood, hearing: Hearing, clock: SimClock
) -> None:
    hearing.beat()
    alice, mallory = hearing.of("alice"), hearing.of("mallory")
    inbox.put_report(report_of("alice"), 1, "alice")
    flood("mallory")
    began_s = alice.listened_s(), mallory.listened_s()

    for _ in range(50):
        clock.time_s += 0.2
        hearing.beat()

    assert alice.listened_s() - began_s[0] == pytest.approx(10.0)
    assert mallory.listened_s() == began_s[1]
    mallory.admit()
    clock.time_s += 0.2
    hearing.beat()
    assert mallory.listened_s() - began_s[1] == pytest.approx(0.2)


def test_reports_that_wait_hold_back_the_clock_of_their_subject_alone(
    inbox: WorkerInbox, flood: Flood, hearing: Hearing, clock: SimClock
) -> None:
    alice, mallory = hearing.of("alice"), hearing.of("mallory")
    flood("mallory")
    came_s = mallory.listened_s()
    mallory.admit()
    clock.time_s += 5.0

    through = dict(inbox.take(0.0).through)

    assert through[mallory] == pytest.approx(came_s)
    assert through[alice] == pytest.approx(came_s + 5.0)


def test_subject_that_has_reported_nothing_for_minutes_takes_no_share(
    inbox: WorkerInbox, flood: Flood, clock: SimClock
) -> None:
    inbox.put_report(report_of("alice"), 1, "alice")
    clock.time_s += PRESENT_S + 1.0
    inbox.take(0.0)

    assert flood("mallory") == REPORTS_MAX - REPORTS_MAX // 8


def test_full_inbox_stops_everybodys_clock(
    inbox: WorkerInbox, hearing: Hearing, clock: SimClock
) -> None:
    hearing.beat()
    alice = hearing.of("alice")
    with pytest.raises(FullError, match="bytes"):
        inbox.put_report(report_of("mallory"), REPORT_BYTES_MAX + 1, "mallory")
    stopped_s = alice.listened_s()
    clock.time_s += 0.2
    hearing.beat()

    assert alice.listened_s() == stopped_s
