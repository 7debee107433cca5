"""A job is held rather than begun at zero while something is there, and a person can say otherwise."""

from dataclasses import replace

import pytest

from recovery.console.views.plan_view import foresee, view_plan
from recovery.controller.cluster.gate import Answer, Judgement
from recovery.controller.job.planner import Scene
from recovery.controller.job.restore.restore_choice import choose_checkpoint
from recovery.journal.attempt_records import (
    AttemptStarted,
    Cause,
    CheckpointSeen,
    Choice,
    PassedOver,
    StartWaits,
)
from recovery.journal.incident_records import PlanWaits, WaitCause
from recovery.journal.job_records import OutcomeKind
from recovery.messages.candidates import (
    Candidate,
    CheckpointFormat,
    CheckpointVerdict,
    Hindrance,
    Holds,
    Shape,
)
from recovery.messages.exchange import Restore, StopReason
from recovery.messages.outside import PersonAct, PersonCommand
from tests.support.controller_bench import IMPATIENT, Bench, begin, fail
from tests.support.job_ledgers import POLICY, SEEN, ledger, verdict

TORN = verdict(20, is_valid=False, reason="torn")


def begun_at_zero(*paths: str) -> AttemptStarted:
    passed_over = tuple(PassedOver(path, None, "torn") for path in paths)
    return AttemptStarted(3, Cause.FIRST, Choice(True, None, "none", passed_over))


@pytest.mark.parametrize(
    ("changes", "found", "is_possible"),
    [
        # A recovery: something is there, or was.
        ({"has_ordered": True}, [TORN], False),
        ({"has_ordered": True, "restorable": SEEN}, [], False),
        ({"has_ordered": True}, [], True),
        ({"has_ordered": True, "started": begun_at_zero("/c/20")}, [TORN], True),
        ({"has_ordered": True, "started": begun_at_zero("/c/10")}, [TORN], False),
        (
            {"has_ordered": True, "started": begun_at_zero("/c/20"), "restorable": SEEN},
            [TORN],
            False,
        ),
        # A start by a person: only where this job had one.
        ({"is_resumed": True}, [TORN], True),
        ({"is_resumed": True, "restorable": SEEN}, [TORN], False),
        ({"is_resumed": True, "restorable": SEEN}, [], True),
    ],
)
def test_a_job_begins_at_zero_only_where_nothing_is_lost_by_it(
    changes: dict[str, object], found: list[object], is_possible: bool
) -> None:
    chosen = choose_checkpoint(ledger(**changes), POLICY, found)

    assert (chosen.is_possible, chosen.restore) == (is_possible, None)


def test_another_name_of_a_checkpoint_does_not_hold_a_job() -> None:
    alias = replace(verdict(20, is_valid=False), hindrance=Hindrance.ALIAS)

    assert choose_checkpoint(ledger(has_ordered=True), POLICY, [alias]).is_possible


def test_a_valid_one_is_restored_even_where_the_job_may_begin_at_zero() -> None:
    found = [TORN, verdict(10)]

    chosen = choose_checkpoint(ledger(has_ordered=True), POLICY, found, may_begin=True)

    assert chosen.restore == Restore("/c/10", 10)


def test_a_younger_one_that_is_ordered_behind_the_chosen_one_is_named() -> None:
    older = verdict(10)
    copied = replace(older, candidate=replace(older.candidate, modified_unix_s=5000.0))

    chosen = choose_checkpoint(ledger(), POLICY, [verdict(20), copied, verdict(5)])

    assert [one.path for one in chosen.passed_over] == ["/c/10"]
    assert "written later" in chosen.passed_over[0].reason


def file_of(name: str, holds: Holds, at_unix_s: float, step: int | None = None) -> Candidate:
    shape = Shape(holds, 4, {"a": 100, "b": 300}.get(name[0], 200))
    return Candidate(
        f"/c/{name}", step, CheckpointFormat.TORCH, 10, at_unix_s, step is not None, shape=shape
    )


def whole(candidate: Candidate) -> CheckpointVerdict:
    return CheckpointVerdict(candidate, True, "complete")


def torn(candidate: Candidate) -> CheckpointVerdict:
    return CheckpointVerdict(candidate, False, "torn", Hindrance.DAMAGED)


BEST = whole(file_of("best.pt", Holds.MODEL, 1020.0))


@pytest.mark.parametrize("changes", [{"has_ordered": True}, {"is_resumed": True}, {}])
def test_model_alone_never_takes_the_place_of_torn_training_states(
    changes: dict[str, object],
) -> None:
    states = [torn(file_of(f"step_{at}.pt", Holds.STATE, 1000.0 + at, at)) for at in (20, 10)]

    chosen = choose_checkpoint(ledger(**changes), POLICY, [*states, BEST])

    assert (chosen.is_possible, chosen.restore) == (False, None)
    assert "step_20.pt: torn" in chosen.reason
    assert "--checkpoint-name best.pt" in chosen.reason


def test_nor_where_only_the_journal_knows_that_the_torn_one_was_a_training_state() -> None:
    seen = CheckpointSeen("/c/step_10.pt", 10, "torch", "", 1.0, "whole", holds="state")
    unreadable = torn(file_of("step_20.pt", Holds.UNKNOWN, 1020.0, 20))

    held = choose_checkpoint(ledger(restorable=seen), POLICY, [unreadable, BEST])
    unknown = choose_checkpoint(
        ledger(restorable=replace(seen, holds="")), POLICY, [unreadable, BEST]
    )

    assert not held.is_possible
    assert unknown.restored_path == "/c/best.pt"


def test_model_alone_is_restored_once_a_person_wants_it() -> None:
    state = torn(file_of("step_20.pt", Holds.STATE, 1020.0, 20))

    approved = choose_checkpoint(ledger(has_ordered=True), POLICY, [state, BEST], may_begin=True)
    named = choose_checkpoint(ledger(has_ordered=True), POLICY, [BEST])

    assert approved.restored_path == named.restored_path == "/c/best.pt"


def test_person_who_approves_has_the_job_go_on_from_the_model_alone(training: Bench) -> None:
    state = torn(file_of("step_20.pt", Holds.STATE, 1020.0, 20))
    training.storage.verdicts = [state, BEST]
    fail(training)
    training.tell(after_s=6.0)
    (waits,) = training.records(PlanWaits)
    incident_id = training.control.ledger.incident.state.incident_id
    assert waits.reason.endswith(
        "because the optimizer's state would be lost. Put a valid training state back (rankmend keeps looking), "
        f"or let the job go on from /c/best.pt: `rankmend approve {incident_id}`"
    )

    training.control.take_command(
        PersonCommand(PersonAct.APPROVE, "ada", "", incident_id=incident_id)
    )
    training.tell()

    assert training.records(AttemptStarted)[-1].choice.restored_path == "/c/best.pt"


def test_older_training_state_is_restored_beside_a_torn_one() -> None:
    states = [torn(file_of("step_20.pt", Holds.STATE, 1020.0, 20))]
    older = whole(file_of("step_10.pt", Holds.STATE, 1010.0, 10))

    chosen = choose_checkpoint(ledger(has_ordered=True), POLICY, [*states, older, BEST])

    assert chosen.begins_at == 10


def two_series() -> list[CheckpointVerdict]:
    """Return two kinds of training states, in the order of those who know nothing of the journal."""
    return [
        whole(file_of(f"{kind}_{step}.pt", Holds.STATE, at_unix_s + step, step))
        for kind, at_unix_s in (("b", 1000.5), ("a", 1000.0))
        for step in (20, 10)
    ]


@pytest.mark.parametrize(
    ("proven", "chosen"),
    [
        ((), "/c/b_20.pt"),
        ((("/c/a_10.pt", 1010.0),), "/c/a_20.pt"),
        # Deleted since: the kind counts.
        ((("/c/a_5.pt", 1005.0),), "/c/a_20.pt"),
        # The job has saved no more of what it began from.
        ((("/c/a_20.pt", 1020.0),), "/c/b_20.pt"),
        ((("/elsewhere/a_5.pt", 1005.0),), "/c/b_20.pt"),
    ],
)
def test_kind_that_the_job_made_progress_from_comes_before_another(
    proven: tuple[tuple[str, float], ...], chosen: str
) -> None:
    choice = choose_checkpoint(ledger(proven=proven), POLICY, two_series())

    assert choice.restored_path == chosen


def test_progress_proves_no_more_than_an_optimizer_and_a_step_do() -> None:
    proven = (("/c/best.pt", 1001.0),)
    state = whole(file_of("step_20.pt", Holds.STATE, 1010.0, 20))

    choice = choose_checkpoint(ledger(proven=proven), POLICY, [state, BEST])

    assert choice.restored_path == "/c/step_20.pt"


@pytest.fixture
def training() -> Bench:
    return begin(Bench())


def test_the_journal_notes_what_an_attempt_made_progress_from(training: Bench) -> None:
    training.storage.verdicts = [verdict(20)]
    fail(training)
    assert training.control.ledger.proven == ()

    training.run_attempt(2)
    training.step(21, 21)
    training.step(22, 22, after_s=11.0)

    assert training.control.ledger.proven == (("/c/20", 1020.0),)


def test_a_recovery_that_finds_only_torn_checkpoints_waits_for_a_person(training: Bench) -> None:
    training.storage.verdicts = [TORN]

    fail(training)
    training.tell(after_s=6.0)

    (waits,) = training.records(PlanWaits)
    assert waits.cause is WaitCause.CHECKPOINT
    assert "20: torn" in waits.reason
    assert f"`rankmend approve {waits.incident_id}`" in waits.reason
    assert len(training.records(AttemptStarted)) == 1
    assert training.control.outcome is None


def test_people_learn_within_10_s_of_the_failure_that_a_job_is_held(training: Bench) -> None:
    training.storage.verdicts = [TORN]
    failed_at_s = training.clock.time_s

    training.end(1, signal=9)
    training.empty()  # the launcher kills the other rank at once
    while not training.records(PlanWaits) and training.clock.time_s < failed_at_s + 60.0:
        training.tell(after_s=0.25)

    assert training.records(PlanWaits)
    assert training.clock.time_s - failed_at_s < 10.0


def test_a_job_that_is_held_goes_on_by_itself_once_a_checkpoint_is_whole(training: Bench) -> None:
    training.storage.verdicts = [TORN]
    fail(training)

    training.storage.verdicts = [TORN, verdict(10)]
    training.tell(after_s=6.0)

    assert training.orders[-1].restore == Restore("/c/10", 10)


def test_a_person_who_approves_has_the_job_begin_at_zero(training: Bench) -> None:
    training.storage.verdicts = [TORN]
    fail(training)
    incident_id = training.control.ledger.incident.state.incident_id

    training.control.take_command(
        PersonCommand(PersonAct.APPROVE, "ada", "", incident_id=incident_id)
    )
    training.tell()

    second = training.records(AttemptStarted)[-1]
    assert (second.choice.restore, second.choice.is_new_run) == (None, True)
    assert "; a person wants it so" in second.choice.reason


def test_a_job_that_is_held_too_long_is_given_up() -> None:
    bench = begin(Bench(IMPATIENT))
    bench.storage.verdicts = [TORN]
    fail(bench)

    for _look in range(5):
        bench.tell(after_s=6.0)

    assert bench.control.outcome.kind is OutcomeKind.ESCALATED
    assert "held for" in bench.control.outcome.reason


def started_again(bench: Bench, *, from_scratch: bool = False) -> Bench:
    """Stop the job, tear its checkpoint and start it again, as a person would."""
    bench.storage.is_watched = True
    bench.storage.verdicts = [verdict(10)]
    bench.step(11, 11)
    bench.tell(stop_requested=StopReason.SIGTERM)
    bench.empty()
    assert bench.control.outcome is not None
    settings = replace(bench.settings, starts_from_scratch=from_scratch)
    last = Bench(settings, bench.journal.entries)
    last.storage.verdicts = [verdict(10, is_valid=False, reason="torn")]
    last.empty_through = 1
    last.start().tell()
    return last


def test_what_a_failure_would_restore_is_noted_beside_training(training: Bench) -> None:
    training.storage.is_watched = True
    training.storage.verdicts = [TORN, verdict(10)]
    training.step(11, 11)
    training.storage.verdicts = [verdict(15), TORN, verdict(10)]
    training.step(12, 12, after_s=11.0)
    training.step(13, 13, after_s=11.0)

    assert [one.path for one in training.records(CheckpointSeen)] == ["/c/10", "/c/15"]


def test_plan_shows_what_a_failure_would_pass_over_and_how_to_choose_otherwise(
    training: Bench,
) -> None:
    training.storage.is_watched = True
    state = whole(file_of("step_10.pt", Holds.STATE, 1000.0, 10))
    training.storage.verdicts = [state, whole(file_of("ema.pt", Holds.MODEL, 2000.0))]
    training.step(11, 11)

    shown = foresee(
        training.control.ledger,
        training.settings,
        "train",
        Scene(),
        lambda request: Answer(Judgement.ALLOWED, "within the limits"),
        None,
    )

    assert shown.reason.endswith(
        "can restore /c/step_10.pt at step 10 (torch.save file); passed over when that was checked: /c/ema.pt: written later, but no optimizer's state "
        "is in it (to restore it all the same: --checkpoint-name ema.pt)"
    )


def test_the_last_save_of_a_job_is_noted_once_it_has_ended(training: Bench) -> None:
    training.storage.is_watched = True
    training.storage.verdicts = [verdict(10)]
    training.step(11, 11)
    training.storage.verdicts = [verdict(20), verdict(10)]

    training.end(0, exit_code=0)
    training.end(1, exit_code=0)
    training.empty()

    assert training.control.outcome is not None
    assert [one.path for one in training.records(CheckpointSeen)] == ["/c/10", "/c/20"]


def test_a_start_waits_where_the_journal_knows_a_checkpoint_that_could_be_restored(
    training: Bench,
) -> None:
    last = started_again(training)
    last.tell(after_s=6.0)

    (waits,) = last.records(StartWaits)
    assert "1 file or folder looks like a checkpoint" in waits.reason
    assert len(last.records(AttemptStarted)) == 1
    assert last.control.outcome is None

    last.storage.verdicts = [verdict(10)]
    last.tell(after_s=6.0)
    assert last.orders[-1].restore == Restore("/c/10", 10)


def test_a_person_who_starts_from_scratch_means_it(training: Bench) -> None:
    last = started_again(training, from_scratch=True)

    choice = last.records(AttemptStarted)[-1].choice
    assert (choice.restore, choice.is_new_run) == (None, True)
    assert last.control.ledger.restorable is None


def test_a_person_who_approves_a_held_start_has_it_begin_at_zero(training: Bench) -> None:
    last = started_again(training)
    last.tell(after_s=6.0)
    (waits,) = last.records(StartWaits)
    assert f"`rankmend approve {last.settings.name}`" in waits.reason
    pending = view_plan(last.control.ledger, "j", "train")
    assert pending is not None
    assert (pending.incident_id, pending.step) == ("", "start")

    refused = last.control.take_command(PersonCommand(PersonAct.APPROVE, "ada", incident_id="x-1"))
    acted = last.control.take_command(PersonCommand(PersonAct.APPROVE, "ada"))
    last.tell()

    assert (refused.is_refused, acted.is_refused) == (True, False)
    assert view_plan(last.control.ledger, "j", "train") is None
    choice = last.records(AttemptStarted)[-1].choice
    assert (choice.restore, choice.is_new_run) == (None, True)
    assert last.control.ledger.start_approved_by is None


def test_that_a_start_was_from_scratch_counts_for_its_first_attempt_alone(training: Bench) -> None:
    last = started_again(training, from_scratch=True)
    last.run_attempt(2)
    last.step(10, 10)
    last.storage.verdicts = [TORN]

    fail(last)

    (waits,) = last.records(PlanWaits)
    assert waits.cause is WaitCause.CHECKPOINT


def test_without_a_word_a_held_start_is_given_up_in_the_end() -> None:
    last = started_again(begin(Bench(IMPATIENT)))

    for _look in range(5):
        last.tell(after_s=6.0)

    assert last.control.outcome.kind is OutcomeKind.ESCALATED


def test_checkpoint_that_was_deleted_after_it_was_chosen_gives_way_to_the_next(
    training: Bench,
) -> None:
    storage = training.storage
    storage.verdicts = [verdict(20), verdict(10)]
    storage.on_advance = lambda: setattr(storage, "verdicts", [verdict(10)])

    fail(training)

    second = training.records(AttemptStarted)[-1]
    assert second.choice.restore == Restore("/c/10", 10)
    assert second.choice.passed_over == (PassedOver("/c/20", 20, "deleted after it was chosen"),)
    assert len(training.records(AttemptStarted)) == 2
    assert training.control.ledger.restarts == 1


def test_job_whose_only_checkpoint_was_deleted_after_it_was_chosen_is_held(training: Bench) -> None:
    storage = training.storage
    storage.verdicts = [verdict(20)]
    storage.on_advance = storage.verdicts.clear

    fail(training)
    training.tell(after_s=6.0)

    (waits,) = training.records(PlanWaits)
    assert "/c/20 was deleted after it was chosen" in waits.reason
    assert len(training.records(AttemptStarted)) == 1

    storage.verdicts = [verdict(20)]
    training.tell(after_s=6.0)
    assert training.orders[-1].restore == Restore("/c/20", 20)
