"""What no check reads is read before a reader is expected, by the rhythm in which readers have come."""

import pytest

from agent.assembly.families import FAMILIES
from agent.daemon.node_agent import SHOWN_METRICS
from agent.findings.policy_files import load_checks
from agent.sampling.demand import READERS_MAX, Demand
from tests.support.agent import FakeClock


def came(gaps_s: list[float], reader: str = "10.0.0.1") -> tuple[FakeClock, Demand]:
    clock = FakeClock()
    demand = Demand(clock.now_s)
    demand.note(reader)
    for gap_s in gaps_s:
        clock.time_s += gap_s
        demand.note(reader)
    return clock, demand


def test_reader_that_came_once_is_not_expected() -> None:
    _clock, demand = came([])

    assert not demand.is_expected(0.0, 3600.0)


@pytest.mark.parametrize(
    ("later_s", "from_s", "to_s", "expected"),
    [
        (0.0, 0.0, 1.0, False),
        (13.0, 0.0, 1.0, False),
        (14.1, 0.0, 1.0, True),
        (13.9, 0.0, 1.0, True),  # it may be 0.2 s late
        (12.5, 2.0, 3.0, True),
        (13.5, 2.0, 3.0, False),  # it comes before
        (28.5, 0.0, 2.0, True),  # the one before was missed
        (45.3, 0.0, 60.0, False),  # it has gone
    ],
)
def test_reader_is_expected_after_as_long_as_lay_between_its_last_two_visits(
    later_s: float, from_s: float, to_s: float, expected: bool
) -> None:
    clock, demand = came([15.0])

    clock.time_s += later_s

    assert demand.is_expected(from_s, to_s) is expected


def test_reader_of_every_second_is_always_expected() -> None:
    clock, demand = came([1.0, 1.0])

    for _tenth in range(10):
        assert demand.is_expected(2.0, 3.0)
        clock.time_s += 0.1


def test_second_reader_does_not_disturb_the_rhythm_of_the_first() -> None:
    clock, demand = came([15.0])
    clock.time_s += 7.0
    demand.note("10.0.0.2")

    clock.time_s += 7.5

    assert demand.is_expected(0.0, 1.0)


def test_page_in_two_requests_is_one_visit() -> None:
    clock, demand = came([15.0, 0.01])

    clock.time_s += 1.0
    soon = demand.is_expected(0.0, 1.0)
    clock.time_s += 13.5

    assert (soon, demand.is_expected(0.0, 1.0)) == (False, True)


def test_readers_are_bounded_and_the_newest_are_kept() -> None:
    clock, demand = came([15.0])
    for number in range(READERS_MAX):
        demand.note(f"10.0.1.{number}")

    clock.time_s += 14.5

    assert not demand.is_expected(0.0, 1.0)


def test_everything_is_always_expected_where_something_reads_it_all_the_time() -> None:
    assert Demand(FakeClock().now_s, is_constant=True).is_expected(0.0, 0.0)


def test_no_shipped_check_reads_what_waits_for_a_reader() -> None:
    read = {metric for check in load_checks(FAMILIES) for metric in check.metrics}

    assert read & SHOWN_METRICS == set()  # else every node reads everything all the time
    assert FAMILIES.keys() >= SHOWN_METRICS
