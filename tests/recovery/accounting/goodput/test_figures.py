"""What follows from where the time went."""

from dataclasses import replace

import pytest

from detectors.finding import Blame, Symptom, SymptomKind
from recovery.accounting.goodput.figures import Figures, Loss, clip, figures_of
from recovery.accounting.goodput.timeline import TimePart
from recovery.journal.attempt_records import AttemptAbandoned, AttemptStarted, Cause, Choice
from recovery.journal.observation_records import SlowEnded, SlowFound
from tests.support.goodput_jobs import (
    BEGIN,
    END,
    FAILED,
    FAILURE,
    FINDING,
    LAUNCHED,
    OPENED,
    PLACED,
    Timed,
    time_of,
)


def figures(*records: Timed) -> Figures:
    return figures_of([time_of(*records)])


def test_ratios_are_shares_of_the_time_that_they_name() -> None:
    found = figures(*BEGIN, *FAILED, *END, (4020.0, LAUNCHED))

    productive_s = 1971.0
    assert found.wall_s == 4020.0
    assert found.run_s == 2010.0  # without the 2,010 s after the job's end
    assert found.device_s == 2010.0 * 4
    assert found.goodput_ratio == pytest.approx(productive_s / 2010.0)
    assert found.ettr_ratio == pytest.approx(productive_s / 4020.0)
    assert found.availability_ratio == pytest.approx(1 - 7.5 / 2010.0)  # fault to first step
    assert found.unaccounted_ratio == 0.0
    assert sum(one.seconds for one in found.parts.values()) == pytest.approx(found.wall_s)


def test_failures_are_counted_by_class_and_by_the_node_that_they_accuse() -> None:
    found = figures(*BEGIN, *FAILED, *END)

    training_s = 1971.0 + 13.0 + 0.5
    assert (found.failures, found.restarts) == (1, 1)
    assert found.mtbf_s == pytest.approx(training_s)
    assert found.mttr_s == 7.5
    assert list(found.by_class) == ["killed"]
    one = found.by_node["n1"]
    assert (one.failures, one.mttr_s) == (1, 7.5)
    assert one.lost_device_s == pytest.approx((7.5 + 0.5 + 13.0) * 4)
    assert found.restarts_per_1000_gpu_days == pytest.approx(1000 * 86400 / (2010 * 4))


def test_a_restart_that_a_person_asked_for_is_no_failure() -> None:
    asked = replace(
        FINDING, blame=Blame.USER, symptom=Symptom(SymptomKind.PERSON, "restart"), node=""
    )
    opened = replace(OPENED, failure=replace(FAILURE, finding=asked))
    records = [(at_s, opened if isinstance(r, type(OPENED)) else r) for at_s, r in FAILED]

    found = figures(*BEGIN, *records, *END)

    assert (found.failures, found.restarts, found.mtbf_s) == (0, 1, None)


def test_a_launcher_that_ended_with_its_ranks_is_a_failure_without_a_class() -> None:
    again = AttemptStarted(2, Cause.TAKEOVER, Choice(True, None, ""), placement=PLACED)

    found = figures(
        *BEGIN,
        (500.0, replace(LAUNCHED, alive_age_s=100.0)),
        (501.0, AttemptAbandoned(1, "gone")),
        (502.0, again),
    )

    assert (found.failures, found.restarts, dict(found.by_class)) == (1, 1, {})
    assert Loss("launcher gone", 102.0 * 4, 102.0) in found.losses


def test_losses_name_their_cause_and_sum_to_the_time_that_was_not_productive() -> None:
    found = figures(*BEGIN, *FAILED, *END)

    assert found.losses[0].cause == "killed rank 2 on n1"
    assert found.losses[0].incident_id == "inc-1"
    assert sum(loss.seconds for loss in found.losses) == pytest.approx(2010.0 - 1971.0)


def test_what_is_nobodys_fault_is_one_loss_of_all_jobs_and_incidents_stay_apart() -> None:
    job = time_of(*BEGIN, *FAILED, *END)

    alone, both = figures_of([job]), figures_of([job, job])

    shared = {one.cause: one for one in alone.losses if not one.incident_id}
    assert {one.cause: one.seconds for one in both.losses if not one.incident_id} == {
        cause: pytest.approx(2 * one.seconds) for cause, one in shared.items()
    }
    assert [one.incident_id for one in both.losses if one.incident_id] == ["inc-1", "inc-1"]


def test_of_slow_ranks_at_the_same_time_only_the_slowest_costs() -> None:
    slow = SlowFound(1, 2, "compute", 2.0, 40, FINDING, step_factor=1.25)

    found = figures(
        *BEGIN,
        (100.0, slow),
        (200.0, replace(slow, rank=3, step_factor=2.0)),
        (300.0, SlowEnded(1, 3, "as fast as its peers")),
        (500.0, SlowEnded(1, 2, "as fast as its peers")),
    )

    lost = {loss.cause: loss for loss in found.losses if loss.is_within_training}
    assert lost["slow rank 3 on n1"].seconds == pytest.approx(50.0)  # half of 100 s
    assert lost["slow rank 2 on n1"].seconds == pytest.approx(60.0)  # a fifth of 300 s
    assert lost["slow rank 2 on n1"].device_s == pytest.approx(240.0)


def test_time_from_a_moment_on_leaves_out_what_was_before() -> None:
    job = time_of(*BEGIN, *FAILED, *END)

    recent = clip(job, 5000.0 + 1500.0)

    assert recent is not None
    found = figures_of([recent])
    assert found.wall_s == 510.0
    assert (found.failures, found.restarts, found.mttr_s) == (0, 0, None)
    assert found.parts[TimePart.PRODUCTIVE].seconds == 500.0
    assert clip(job, 5000.0 + 9000.0) is None


def test_nothing_measured_gives_no_figure() -> None:
    found = figures_of([])

    assert (found.goodput_ratio, found.ettr_ratio, found.availability_ratio) == (None, None, None)
    assert (found.mtbf_s, found.mttr_s, found.restarts_per_1000_gpu_days) == (None, None, None)


def test_several_jobs_are_added_up() -> None:
    job = time_of(*BEGIN, *FAILED, *END)

    both = figures_of([job, job])

    assert both.device_s == 2 * 2010.0 * 4
    assert (both.failures, both.mttr_s) == (2, 7.5)
    assert both.goodput_ratio == figures_of([job]).goodput_ratio
