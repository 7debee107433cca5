"""How long ranks trained, how often they failed, and what restarts took, by the records."""

from dataclasses import replace

import pytest

from detectors.finding import Blame, Kind, Symptom, SymptomKind
from recovery.console.views.checkpoint_view import view_checkpoint
from recovery.journal.attempt_records import (
    AttemptStarted,
    Cause,
    CheckpointSeen,
    Choice,
    Milestone,
    Placement,
    SavesSeen,
    StallSource,
)
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import CaughtUp
from recovery.journal.job_records import JobOpened, LauncherStarted
from recovery.journal.ledger import HALF_LIFE_S, Ledger, Restored, SaveHistory
from recovery.journal.records import Entry, Record
from tests.support.goodput_jobs import FAILURE, OPENED, PLAN, VERIFIED, event, started

LAUNCHED = LauncherStarted(("n1",), 4, 1, "0")
FIRST = AttemptStarted(
    1,
    Cause.FIRST,
    Choice(True, None, "none there"),
    placement=(Placement("n1", (0, 1, 2, 3)),),
)
BEGIN: tuple[tuple[float, Record], ...] = (
    (0.0, JobOpened("job-1", "job")),
    (0.0, LAUNCHED),
    (1.0, FIRST),
    (10.0, replace(VERIFIED, attempt=1, first_step=1)),
)


def seen(at: int, saves: SavesSeen | None = None) -> CheckpointSeen:
    return CheckpointSeen(
        f"/c/step-{at}", at, "dcp", "PyTorch DCP", 5000.0, "complete", 6_000_000, saves
    )


def fold(*records: tuple[float, Record]) -> Ledger:
    return fold_all(
        Entry(number, 5000.0 + at_s, at_s, "boot-1", record)
        for number, (at_s, record) in enumerate((*BEGIN, *records), start=1)
    )


def recovery(at_s: float) -> list[tuple[float, Record]]:
    return [
        (at_s, OPENED),
        (at_s, PLAN),
        (at_s + 0.25, event(Outcome.ACCEPTED, "inc-1")),
        (at_s + 1.0, event(Outcome.SUCCEEDED, "inc-1/1/fencing")),
        (at_s + 1.125, replace(started(2, 1), placement=FIRST.placement)),
        (at_s + 2.0, event(Outcome.SUCCEEDED, "inc-1/1/restoring")),
        (at_s + 8.0, VERIFIED),
        (at_s + 8.5, event(Outcome.SUCCEEDED, "inc-1/1/verifying")),
    ]


def test_running_time_is_that_of_verified_ranks_without_an_incident() -> None:
    history = fold(*recovery(3610.0), (4818.5, Milestone(2, 200))).history

    # 3,600 s before the fault and 1,200 s after the recovery, in which the first lost 0.137 %.
    assert history.ran_s == pytest.approx(3600 * 0.99863 + 1200, abs=0.1)
    assert history.failures == pytest.approx(0.99863, abs=1e-5)
    assert history.repair_s == pytest.approx(7.5)  # fault to the first step, as the account has it


def test_restore_is_measured_from_asking_for_it_to_the_first_section() -> None:
    history = fold((100.0, seen(100)), *recovery(3610.0)).history

    assert history.restored == Restored(6_000_000, 1.5)


def test_restart_that_a_person_asked_for_is_no_failure() -> None:
    finding = replace(
        FAILURE.finding, blame=Blame.USER, symptom=Symptom(SymptomKind.PERSON, "restart")
    )
    asked = replace(OPENED, failure=replace(FAILURE, finding=finding))
    records = recovery(3610.0)
    records[0] = (3610.0, asked)

    history = fold(*records).history

    assert (history.failures, history.repairs) == (0.0, 0.0)


def test_what_a_restart_cost_begins_where_ranks_that_trained_on_were_stopped() -> None:
    """A person has approved the move of a slow rank an hour after it was planned."""
    slow = replace(
        OPENED, failure=replace(FAILURE, finding=replace(FAILURE.finding, kind=Kind.RANK_SLOW))
    )
    caught_up = CaughtUp("inc-1", 2, 121, age_s=2.0)
    approved = [(10.0, slow), *recovery(3610.0)[1:], (3632.0, caught_up)]

    ledger = fold(*approved)
    failed = fold(*recovery(3610.0), (3632.0, caught_up))

    assert (ledger.restart_cost_s, ledger.history.repair_s) == (19.75, 6.75)
    assert (failed.restart_cost_s, failed.history.repair_s) == (20.5, 7.5)


def test_time_in_which_no_launcher_ran_is_no_running_time_and_a_takeover_is_a_failure() -> None:
    taken_over = AttemptStarted(2, Cause.TAKEOVER, Choice(True, None, ""))

    history = fold((110.0, Milestone(1, 50)), (9000.0, LAUNCHED), (9001.0, taken_over)).history

    assert history.ran_s == pytest.approx(100.0, abs=0.1)
    assert history.failures == 1.0


def test_failure_counts_half_after_a_week_of_running() -> None:
    history = fold(*recovery(20.0), (28.5 + HALF_LIFE_S, Milestone(2, 200))).history

    assert history.failures == pytest.approx(0.5, abs=0.001)
    assert history.repair_s == pytest.approx(7.5)


def test_costs_follow_from_sections_where_there_are_any_and_else_from_steps() -> None:
    by_steps = SavesSeen(1, 600.0, 9.0, StallSource.STEPS, 30.0)
    by_section = SavesSeen(1, 700.0, 4.0, StallSource.SECTION, 20.0)

    history = SaveHistory(saves=(by_steps, by_section, replace(by_section, stall_s=6.0)))

    assert (history.stall_source, history.stall_s) == (StallSource.SECTION, 5.0)
    assert (history.interval_s, history.save_s) == (700.0, 20.0)


def test_view_tells_present_and_best_cost_with_their_inputs() -> None:
    saves = SavesSeen(2, 720.0, 14.4, StallSource.SECTION, 28.8)
    ledger = fold((100.0, Milestone(1, 112)), (110.0, seen(100, saves)))

    view = view_checkpoint(ledger, now_unix_s=5180.0)

    assert view is not None
    assert (view.step, view.steps_since, view.age_s, view.saves) == (100, 12, 180.0, 2)
    assert view.write_bytes_per_s == pytest.approx(6_000_000 / 28.8)
    assert view.failure_interval_s == view.prior_failure_interval_s == 1.8 * 3600 * 16384 / 4
    assert (view.present, view.best, view.missing) != (None, None, "")
    assert view.present is not None
    assert view.best is not None
    assert view.present.interval_s == 720.0
    assert view.present.stalls == pytest.approx(0.02, abs=1e-5)
    assert view.best.total < view.present.total


@pytest.mark.parametrize(
    ("saves", "missing"),
    [
        (None, "no save has been measured yet"),
        (SavesSeen(1, None, 4.0, StallSource.SECTION), "saves measured: 1; 2 of one attempt are"),
        (SavesSeen(2, 60.0), "the script marks no checkpoint section"),
        (SavesSeen(2, 60.0, 0.0, StallSource.STEPS), "no stall to weigh"),
    ],
)
def test_view_says_what_is_missing_for_the_costs(saves: SavesSeen | None, missing: str) -> None:
    view = view_checkpoint(fold((110.0, seen(100, saves))), now_unix_s=5180.0)

    assert view is not None
    assert (view.present, view.best) == (None, None)
    assert missing in view.missing


def test_job_without_a_restorable_checkpoint_has_no_view() -> None:
    assert view_checkpoint(fold(), now_unix_s=5180.0) is None


@pytest.mark.parametrize(
    ("placement", "stayed"),
    [(FIRST.placement, 1.0), ((Placement("n2", (0, 1, 2, 3)),), 0.0)],
    ids=["same node", "other node"],
)
def test_failure_after_which_all_ranks_begin_where_they_were_has_left_the_nodes(
    placement: tuple[Placement, ...], stayed: float
) -> None:
    records = recovery(3610.0)
    records[4] = (3611.125, replace(started(2, 1), placement=placement))

    history = fold(*records).history

    assert history.stayed == stayed
    assert history.failures == pytest.approx(1.0)


def test_second_try_of_an_incident_is_no_second_failure_that_left_the_nodes() -> None:
    records = recovery(3610.0)
    records.insert(5, (3611.25, replace(started(3, 2), placement=FIRST.placement)))

    assert fold(*records[:6]).history.stayed == 1.0


def test_failure_that_left_the_nodes_counts_half_after_a_week_as_all_do() -> None:
    history = fold(*recovery(20.0), (28.5 + HALF_LIFE_S, Milestone(2, 200))).history

    assert history.stayed == history.failures
