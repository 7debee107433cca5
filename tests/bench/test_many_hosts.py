"""The recovery of a job on many hosts is that of the first attempt in which every rank makes a step."""

import pytest

from bench.recovery.many_hosts import (
    GOAL_S,
    HostsTrial,
    JobEvent,
    is_complete,
    judge_goal,
    judge_kill,
    parse_events,
)

S = 1_000_000_000
RECOVERED = (
    "kill 1 0 10000000000 7\n"
    "started 2 0 10400000000 0\nstarted 2 1 10500000000 0\n"
    "connected 2 1 10600000000 0\nconnected 2 0 10700000000 0\n"
    "step 2 0 10800000000 7\nstep 2 1 10900000000 7\n"
)


def test_the_last_rank_decides() -> None:
    assert judge_kill(parse_events(RECOVERED), 1, 2) == HostsTrial(0, 0.5, 0.7, 0.9)


def test_a_start_that_failed_is_part_of_the_way() -> None:
    later = RECOVERED.replace("step 2 1 10900000000 7\n", "")
    again = [JobEvent("started", 3, rank, 12 * S) for rank in (0, 1)]
    steps = [JobEvent("step", 3, rank, 13 * S) for rank in (0, 1)]

    assert judge_kill([*parse_events(later), *again, *steps], 1, 2).step_s == 3.0
    assert judge_kill(parse_events(later), 1, 2) == HostsTrial(0, None, None, None)


def test_a_line_that_is_not_whole_is_no_event() -> None:
    assert parse_events("step 1 0 5 1\nstep 1 1 5") == [JobEvent("step", 1, 0, 5)]
    assert not is_complete(parse_events("step 1 0 5 1\nstep 1 1 5"), 1, 2)


@pytest.mark.parametrize(
    ("times", "judged"),
    [
        ((1.0, 3.0, GOAL_S), (2.0, True)),
        ((2.5,), (2.5, False)),
        (
            (1.0, None),
            (None, False),
        ),  # a kill that was never recovered from is no median of the others
        ((-0.5,), (-0.5, False)),  # a clock that was set: no figure
        ((), (None, False)),
    ],
)
def test_only_recoveries_count_as_met(
    times: tuple[float | None, ...], judged: tuple[float | None, bool]
) -> None:
    assert judge_goal([HostsTrial(0, None, None, step_s) for step_s in times]) == judged
