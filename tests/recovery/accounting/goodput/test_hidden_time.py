"""What was hidden, from what ranks tell to the words of the report."""

from dataclasses import replace

import pytest

from rankmend.rank_values import ToldHidden
from recovery.accounting.goodput.anatomy import StepAnatomy, divide_steps, mean_hidden
from recovery.accounting.goodput.job_time import StepsTime
from recovery.accounting.goodput.time_words import anatomy_lines
from recovery.journal.attempt_records import HiddenSeen, add_hidden, hidden_communication, hidden_io
from recovery.local.report.time_report import plain_anatomy

NOTHING = ToldHidden()
# 10 steps of 1 s: 0.6 s compute, 0.3 s communication, 0.1 s I/O.
STEPS = StepsTime(10.0, 1, 1, 10, 10.0, 6.0, 3.0, 2.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (NOTHING, None),
        (
            ToldHidden(works=8, works_least_s=1.0, works_most_s=3.0),
            HiddenSeen(10, 1.0, 3.0, ("asynchronous_collectives",)),
        ),
        (  # two sampled iterations, of which 0.4 s and 0.2 s lay under backward
            ToldHidden(has_replica=True, samples=2, window_s=1.0, overlap_s=0.6),
            HiddenSeen(10, 0.0, 3.0, ("ddp_statistics",)),
        ),
        (ToldHidden(has_replica=True), HiddenSeen(0, gaps=("ddp_not_sampled",))),
        (ToldHidden(has_untimed=True), HiddenSeen(0, gaps=("untimed_collectives",))),
        (
            ToldHidden(has_untimed=True, has_replica=True, samples=2, window_s=1.0, overlap_s=0.6),
            HiddenSeen(0, gaps=("untimed_collectives",)),
        ),
        (
            ToldHidden(has_untimed=True, sendings=3, sendings_s=2.0),
            HiddenSeen(10, 2.0, None, ("background_sections",), ("untimed_collectives",)),
        ),
    ],
)
def test_communication_has_a_least_and_a_most_or_a_reason(
    told: ToldHidden, expected: HiddenSeen | None
) -> None:
    assert hidden_communication(NOTHING, told, 10) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (NOTHING, None),
        (ToldHidden(loads_itself=True), HiddenSeen(10, 0.0, 0.0, ("loader_without_workers",))),
        (ToldHidden(loads_in_workers=True), HiddenSeen(0, gaps=("loader_workers",))),
        (
            ToldHidden(loads_itself=True, loads_in_workers=True),
            HiddenSeen(0, gaps=("loader_workers",)),
        ),
        (
            ToldHidden(reads=4, reads_s=2.0, loads_itself=True),
            HiddenSeen(10, 2.0, 2.0, ("background_sections",)),
        ),
        (
            ToldHidden(reads=4, reads_s=2.0, loads_in_workers=True),
            HiddenSeen(10, 2.0, None, ("background_sections",), ("loader_workers",)),
        ),
    ],
)
def test_reading_is_hidden_as_far_as_somebody_tells_it(
    told: ToldHidden, expected: HiddenSeen | None
) -> None:
    assert hidden_io(NOTHING, told, 10) == expected


def test_ranks_that_tell_nothing_are_no_part_of_the_mean() -> None:
    one = HiddenSeen(10, 1.0, 3.0, ("asynchronous_collectives",))
    other = HiddenSeen(0, gaps=("untimed_collectives",))

    both = add_hidden([one, None, other])

    assert both == replace(one, gaps=("untimed_collectives",))
    found = mean_hidden(both, 0.3, 0.6)
    assert found is not None
    assert (found.least_s, found.most_s) == (pytest.approx(0.1), pytest.approx(0.3))
    assert (found.least_ratio, found.most_ratio) == (pytest.approx(0.25), pytest.approx(0.5))


def test_most_of_one_rank_that_nobody_knows_is_nobodys() -> None:
    both = add_hidden([HiddenSeen(10, 1.0, 3.0), HiddenSeen(10, 1.0, None)])

    assert both == HiddenSeen(20, 2.0, None)


def test_no_more_is_hidden_than_ranks_did_of_their_own() -> None:
    found = mean_hidden(HiddenSeen(10, 0.0, 50.0), 0.3, 0.6)

    assert found is not None
    assert found.most_s == 0.6


def anatomy(**hidden: HiddenSeen) -> StepAnatomy:
    found = divide_steps([replace(STEPS, **hidden)])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (
            HiddenSeen(10, 1.0, 3.0, ("asynchronous_collectives",)),
            "hidden communication: 0.1 s (25.00 %) to 0.3 s (50.00 %) of it, by asynchronous collectives",
        ),
        (
            HiddenSeen(10, 3.0, 3.0, ("background_sections",)),
            "hidden communication: 0.3 s (50.00 %) of it, by the script's background sections",
        ),
        (
            HiddenSeen(10, 0.0, 3.0, ("ddp_statistics",)),
            "hidden communication: at most 0.3 s (50.00 %) of it, by DistributedDataParallel's own statistics",
        ),
        (
            HiddenSeen(10, 0.0, 0.0, ("asynchronous_collectives",)),
            "hidden communication: nothing, by asynchronous collectives",
        ),
        (
            HiddenSeen(10, 1.0, None, ("asynchronous_collectives",), ("ddp_not_sampled",)),
            "hidden communication: at least 0.1 s (25.00 %) of it, by asynchronous collectives; "
            "DistributedDataParallel has not sampled an iteration yet",
        ),
        (
            HiddenSeen(0, gaps=("untimed_collectives",)),
            "hidden communication: not known: nobody sees the end of some collectives",
        ),
        (
            HiddenSeen(10, 3.0, 3.0, ("a_newer_source",)),
            "hidden communication: 0.3 s (50.00 %) of it, by a newer source",
        ),
    ],
)
def test_report_says_the_share_with_its_source_or_why_there_is_none(
    told: HiddenSeen, line: str
) -> None:
    assert anatomy_lines(anatomy(hidden_communication=told))[1:] == [line]


def test_report_for_programs_has_both_bounds_source_and_gaps() -> None:
    found = plain_anatomy(anatomy(hidden_io=HiddenSeen(10, 0.0, 0.0, ("loader_without_workers",))))

    assert found["hidden_communication"] is None
    assert found["hidden_io"] == {
        "least_s": 0.0,
        "most_s": 0.0,
        "least_ratio": 0.0,
        "most_ratio": 0.0,
        "sources": ["loader_without_workers"],
        "gaps": [],
    }


def test_record_of_an_older_version_has_nothing_hidden() -> None:
    assert divide_steps([STEPS]) == anatomy()
    assert anatomy().hidden_communication is None
