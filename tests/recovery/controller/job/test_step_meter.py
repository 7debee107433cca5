"""What ranks spend their steps on, from their reports through the journal to the mean step."""

from dataclasses import astuple, replace

import pytest

from rankmend.rank_values import ToldHidden
from recovery.accounting.goodput.anatomy import anatomy_of
from recovery.accounting.goodput.time_spent import read_time
from recovery.controller.job.watch.meters import StepMeter
from recovery.journal.attempt_records import HiddenSeen, StepsSeen
from recovery.messages.exchange import RankReport, Report, StepTiming
from tests.support.goodput_jobs import BEGIN, entries_of

SEEN = StepsSeen(1, 2, 20, 40.0, 24.0, 10.0, 8.0, 4.0, 0.0)


def report(
    steps: int,
    *,
    sections: int = 9,
    first: int = 1,
    attempt: int = 1,
    hidden: ToldHidden | None = None,
) -> Report:
    """Return a report of two ranks that make a step of 2 s: 1.2 s compute, 0.5 s communication, 0.2 s I/O."""
    timings = tuple(
        StepTiming(
            number=number,
            step=number,
            age_s=2.0 * (steps - number),
            compute_s=1.2 * number,
            communication_s=0.5 * number,
            io_s=0.2 * number,
            checkpoint_s=0.0,
            waited_s=0.4 * number,
        )
        for number in range(first, steps + 1)
    )
    ranks = tuple(
        RankReport(
            rank,
            rank,
            100 + rank,
            "S",
            sections_entered=sections,
            timings=timings,
            hidden=hidden,
        )
        for rank in range(2)
    )
    return Report(1, "n1", "boot-1", "job-1", 1, attempt, ranks, 0)


def test_steps_are_added_up_from_the_second_one_on() -> None:
    meter = StepMeter()
    meter.begin(1)

    meter.note_report(report(1), 2.0)
    meter.note_report(report(11, first=2), 22.0)

    seen = meter.take()
    assert seen is not None
    assert astuple(seen)[:9] == pytest.approx(astuple(SEEN)[:9])
    assert (seen.hidden_communication, seen.hidden_io) == (None, None)
    assert meter.take() is None


def test_hidden_times_are_added_up_over_ranks_and_since_the_record_before() -> None:
    meter = StepMeter()
    meter.begin(1)
    hidden = ToldHidden(works=5, works_least_s=1.0, works_most_s=2.0, loads_itself=True)
    later = replace(hidden, works=25, works_least_s=3.0, works_most_s=6.0)

    meter.note_report(report(1, hidden=hidden), 2.0)
    meter.note_report(report(11, first=2, hidden=later), 22.0)

    seen = meter.take()
    assert seen is not None
    assert seen.hidden_communication == HiddenSeen(20, 4.0, 8.0, ("asynchronous_collectives",))
    assert seen.hidden_io == HiddenSeen(20, 0.0, 0.0, ("loader_without_workers",))


def test_ranks_without_sections_and_other_attempts_tell_nothing() -> None:
    meter = StepMeter()
    meter.begin(1)

    for steps in (1, 11):
        meter.note_report(report(steps, sections=0), 2.0 * steps)
        meter.note_report(report(steps, attempt=2), 2.0 * steps)

    assert meter.take() is None


def test_new_process_of_a_rank_is_measured_from_its_own_first_step() -> None:
    meter = StepMeter()
    meter.begin(1)
    meter.note_report(report(11), 22.0)
    meter.note_report(report(3), 30.0)
    meter.note_report(report(5, first=4), 34.0)

    seen = meter.take()

    assert seen is not None
    assert (seen.steps, seen.step_s) == (4, pytest.approx(8.0))


def test_parts_sum_to_the_step_and_what_nobody_told_is_absent() -> None:
    time = read_time(entries_of(*BEGIN, (60.0, SEEN)))
    assert time is not None

    found = anatomy_of([time])

    assert found is not None
    assert found.parts == pytest.approx(
        {"compute": 1.2, "communication": 0.5, "io": 0.2, "other": 0.1}
    )
    assert found.checkpoint_s is None
    assert sum(found.parts.values()) == pytest.approx(found.step_s)


def test_rest_of_a_step_is_compute_where_the_script_has_no_such_sections() -> None:
    time = read_time(entries_of(*BEGIN, (60.0, replace(SEEN, compute_s=0.0))))
    assert time is not None

    found = anatomy_of([time])

    assert found is not None
    assert found.parts == pytest.approx({"compute": 1.3, "communication": 0.5, "io": 0.2})


def test_job_without_sections_has_no_anatomy() -> None:
    time = read_time(entries_of(*BEGIN))
    assert time is not None

    assert anatomy_of([time]) is None
