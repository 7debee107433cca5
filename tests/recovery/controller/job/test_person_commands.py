"""A person's word to a job: each command does what it says or says why not, in each state of the job."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from detectors.finding import Blame, Finding, Kind, Severity
from recovery.console.views.job_view import state_of
from recovery.controller.cluster.gate import Answer, Judgement
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.incident_records import IncidentOpened, PlanWaits, WaitsFor
from recovery.journal.job_records import OutcomeKind, PersonActed
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.node_records import EvidenceTaken
from recovery.messages.codec import symptom_of
from recovery.messages.outside import PersonAct, Refusal
from tests.support.nodes_bench import SETTINGS, Bench, command, evidence, make_training

OPEN = Answer(Judgement.ALLOWED, "open")
WAIT = Answer(Judgement.WAIT, "needs approval")
FIRING = [evidence(node) for node in "ab"]


def make_storm() -> Bench:
    """Return a job without a spare of which a rule that misfires accuses every node, and of which one rank died."""
    bench = make_training()
    bench.held["c"] = (
        "drained by ann"  # so that what alerts accuse is all there is, and one of it is broken
    )
    for told in FIRING:
        bench.control.take_evidence(told)
    bench.beat(0.25)
    bench.kill("b")
    bench.beat(5.0)
    assert waits(bench).waits_for is WaitsFor.NODES
    return bench


def waits(bench: Bench) -> PlanWaits:
    found = bench.records(PlanWaits)[-1]
    assert isinstance(found, PlanWaits)
    return found


def give(bench: Bench, act: PersonAct, node: str | None = None, key: str = "") -> PersonActed:
    return bench.control.take_command(command(act, node, key))


def restart_controller(bench: Bench) -> Bench:
    """Return the same nodes under a controller that begins from the journal."""
    again = Bench(opened=bench.journal.entries)
    again.nodes = bench.nodes
    again.answer, again.held = bench.answer, bench.held
    again.beat(1.0)
    return again


@pytest.mark.parametrize("is_of_jobs", [False, True])
def test_gate_reads_whether_the_approver_of_a_plan_speaks_for_its_nodes(
    *, is_of_jobs: bool
) -> None:
    """A token limited to jobs (`--job`) approves what the job does, and drains no node that others share."""
    bench = make_training()
    bench.answer = WAIT
    bench.kill("b")
    bench.beat(2.0)

    approval = replace(command(PersonAct.APPROVE), is_of_jobs=is_of_jobs)
    assert not bench.control.take_command(approval).is_refused
    bench.beat(2.0)

    asked = {(one.approved_by, one.is_approved_within) for one in bench.asked}
    assert asked == {(None, False), ("ada", is_of_jobs)}


# Nodes that a person takes back.


def test_nodes_of_a_false_alarm_that_a_person_takes_back_are_used_again() -> None:
    bench = make_storm()
    for told in FIRING:
        bench.control.take_evidence(replace(told, is_active=False))

    for node in "ab":
        assert not give(bench, PersonAct.RESUME, node).is_refused
    bench.beat(3.0)

    assert len(bench.records(AttemptStarted)) == 2
    assert bench.placed == ["a", "b"]


def test_a_word_about_a_node_holds_while_the_false_alarm_still_fires_and_is_told_again() -> None:
    bench = make_storm()
    for node in "ab":
        give(bench, PersonAct.RESUME, node)
    bench.beat(3.0)
    assert len(bench.records(AttemptStarted)) == 2

    again = restart_controller(bench)
    for told in FIRING:
        again.control.take_evidence(told)
    again.beat(1.0, 9)
    again.kill("a")
    again.beat(4.0)

    assert len(again.records(AttemptStarted)) == 3
    assert again.placed == ["a", "b"]
    assert len(again.records(EvidenceTaken)) == 1, "that of before the word"


def test_an_alert_that_ended_after_the_word_and_comes_again_counts_again() -> None:
    bench = make_storm()
    for node in "ab":
        give(bench, PersonAct.RESUME, node)
    bench.beat(3.0)
    for step in (5, 6, 7):
        bench.beat(1.0, step)

    bench.control.take_evidence(replace(FIRING[1], is_active=False))
    bench.control.take_evidence(FIRING[1])
    bench.beat(0.25)
    bench.held.clear()
    bench.kill("b")
    bench.beat(4.0)

    assert bench.placed == ["a", "c"]


def test_what_a_node_was_accused_of_goes_out_of_a_plan_that_waits() -> None:
    bench = make_training()
    bench.answer = WAIT
    bench.control.take_evidence(evidence("b"))
    bench.beat(0.25)
    bench.kill("b")
    bench.beat(2.0)
    assert waits(bench).plan.without == ("b",)

    give(bench, PersonAct.RESUME, "b")
    bench.beat(2.0)

    assert (waits(bench).plan.step, waits(bench).plan.without) == (PlanStep.RESTART_IN_PLACE, ())


def slow_on_b() -> Finding:
    return Finding(
        kind=Kind.RANK_SLOW, severity=Severity.WARNING, blame=Blame.RANK, summary="rank 1 is slow",
        job_id=SETTINGS.job_id, attempt=1, node="b", ranks=(1,), victims=(), since_age_s=60.0,
        symptom=symptom_of("slow"),
    )  # fmt: skip


def make_slow() -> Bench:
    """Return a job of which a slow rank is to be moved, and the plan waits."""
    bench = make_training()
    bench.kill("a")  # what a restart costs is measured
    bench.beat(3.0)
    for step in range(4, 12):
        bench.beat(1.0, step)
    bench.answer = WAIT
    assert "moved" in bench.control.take_slow(slow_on_b(), 2.0)
    bench.beat(1.0, 12)
    assert waits(bench).plan.without == ("b",)
    return bench


def test_a_slow_rank_whose_node_is_taken_back_is_not_moved() -> None:
    bench = make_slow()
    attempts = len(bench.records(AttemptStarted))

    give(bench, PersonAct.RESUME, "b")
    bench.answer = OPEN
    for step in range(13, 20):
        bench.beat(1.0, step)

    assert bench.control.ledger.incident is None
    assert len(bench.records(AttemptStarted)) == attempts


def test_a_node_that_is_taken_back_is_not_blamed_to_the_cluster_again() -> None:
    bench = make_training()
    bench.control.take_evidence(evidence("b"))
    bench.beat(0.25)
    bench.answer = WAIT
    bench.kill("b")
    bench.beat(2.0)
    give(bench, PersonAct.RESUME, "b")
    bench.answer = OPEN

    bench.beat(3.0)

    assert len(bench.records(AttemptStarted)) == 2
    assert bench.blamed == []


# Words that can't be obeyed.


def test_an_approval_replaces_no_nodes_and_says_which_are_missing() -> None:
    refused = give(make_storm(), PersonAct.APPROVE)

    assert refused.refusal is Refusal.NEEDS_NODES
    assert "waits for nodes, not for approval" in refused.result
    assert "a: XidFatal: Xid 79; b: XidFatal: Xid 79" in refused.result


def test_ranks_that_train_are_not_killed_for_a_restart_that_could_not_start() -> None:
    bench = make_training()
    bench.held = {"b": "drained by ada", "c": "drained by ada"}

    refused = give(bench, PersonAct.RESTART)
    bench.beat(3.0, 5)

    assert refused.refusal is Refusal.NEEDS_NODES
    assert "1 of 2 nodes are there and may be used (b: drained by ada" in refused.result
    assert len(bench.records(AttemptStarted)) == 1
    assert bench.nodes["a"].orders[-1].ranks == (0,)


def test_a_refused_command_that_is_repeated_is_refused_again() -> None:
    bench = make_storm()

    first = give(bench, PersonAct.APPROVE, key="k")
    again = give(bench, PersonAct.APPROVE, key="k")

    assert (again.is_refused, again.refusal, again.result) == (True, first.refusal, first.result)
    assert len(bench.records(PersonActed)) == 1


def make_waiting() -> Bench:
    bench = make_training()
    bench.answer = WAIT
    bench.kill("b")
    bench.beat(2.0)
    return bench


def make_paused() -> Bench:
    bench = make_training()
    give(bench, PersonAct.PAUSE)
    return bench


def make_paused_and_waiting() -> Bench:
    bench = make_paused()
    bench.kill("b")
    bench.beat(2.0)
    return bench


def make_cancelled() -> Bench:
    bench = make_waiting()
    give(bench, PersonAct.CANCEL)
    bench.answer = OPEN
    return bench


def make_escalated() -> Bench:
    bench = make_waiting()
    give(bench, PersonAct.REJECT)
    bench.beat(3.0)
    assert bench.control.ledger.ended is not None
    return bench


_NO = Refusal
_ACTS = (
    PersonAct.APPROVE, PersonAct.REJECT, PersonAct.CANCEL, PersonAct.PAUSE, PersonAct.RESUME,
    PersonAct.RESTART, PersonAct.STOP, PersonAct.RESET_BUDGETS,
)  # fmt: skip
_STATES: tuple[tuple[Callable[[], Bench], tuple[Refusal | None, ...]], ...] = (
    (make_training, (_NO.NOT_OPEN, _NO.NOT_OPEN, _NO.NOT_OPEN, None, _NO.NOT_PAUSED, None, None, None)),
    (make_storm, (_NO.NEEDS_NODES, None, None, None, _NO.NOT_PAUSED, _NO.NEEDS_NODES, None, None)),
    (make_waiting, (None, None, None, None, _NO.NOT_PAUSED, None, None, None)),
    (make_paused, (_NO.NOT_OPEN, _NO.NOT_OPEN, _NO.NOT_OPEN, None, None, None, None, None)),
    (make_paused_and_waiting, (None, None, None, None, None, None, None, None)),
    (make_cancelled, (_NO.NOT_OPEN, _NO.NOT_OPEN, _NO.NOT_OPEN, None, None, None, None, None)),
    (make_escalated, (_NO.ENDED,) * 8),
)  # fmt: skip


@pytest.mark.parametrize(
    ("make", "act", "refusal"),
    [
        pytest.param(make, act, refusal, id=f"{act.value}-{make.__name__}")
        for make, refusals in _STATES
        for act, refusal in zip(_ACTS, refusals, strict=True)
    ],
)
def test_a_command_is_obeyed_or_refused_with_the_reason_in_each_state(
    make: Callable[[], Bench], act: PersonAct, refusal: Refusal | None
) -> None:
    bench = make()
    attempts = len(bench.records(AttemptStarted))

    acted = give(bench, act)
    if act is PersonAct.RESTART:
        bench.answer_standing = OPEN  # what a person asks for needs no approval
        bench.answer = OPEN
    bench.beat(4.0)

    assert (acted.refusal, acted.is_refused) == (refusal, refusal is not None)
    assert acted.result
    if refusal is None:
        _check_effect(bench, act, attempts)


def _check_effect(bench: Bench, act: PersonAct, attempts: int) -> None:
    """Assert that what was said to be done was done."""
    ledger, outcome = bench.control.ledger, bench.control.outcome
    started = len(bench.records(AttemptStarted)) - attempts
    if act in (PersonAct.APPROVE, PersonAct.RESTART):
        assert started == 1
    elif act is PersonAct.REJECT:
        assert outcome is not None
        assert outcome.kind is OutcomeKind.ESCALATED
    elif act is PersonAct.STOP:
        assert outcome is not None
        assert outcome.kind is OutcomeKind.STOPPED
    elif act in (PersonAct.PAUSE, PersonAct.CANCEL):
        assert (ledger.paused_by, started) == ("ada", 0)
    elif act is PersonAct.RESUME:
        is_dead = any(rank.exit for node in bench.nodes.values() for rank in node.ranks.values())
        assert (ledger.paused_by, is_dead) == (None, False), "what waited is carried out"
    else:
        assert act is PersonAct.RESET_BUDGETS
        assert ledger.restarts == 0


@pytest.mark.parametrize(
    ("act", "node", "refusal"),
    [
        (PersonAct.RESUME, "z", Refusal.UNKNOWN_NODE),
        (PersonAct.RESUME, "b", Refusal.NOT_HELD),
        (PersonAct.LEAVE_NODE, "z", Refusal.UNKNOWN_NODE),
        (PersonAct.CONFIRM_GONE, "z", Refusal.UNKNOWN_NODE),
        (PersonAct.CONFIRM_GONE, "c", Refusal.NO_RANKS),
        (PersonAct.CONFIRM_GONE, "b", Refusal.NODE_SPEAKS),
    ],
)
def test_a_word_about_a_node_that_has_no_effect_says_why(
    act: PersonAct, node: str, refusal: Refusal
) -> None:
    refused = give(make_training(), act, node)

    assert refused.refusal is refusal
    assert node in refused.result


# Pause.


def test_a_paused_job_sees_journals_and_plans_a_failure_and_does_not_act_upon_it() -> None:
    bench = make_paused()
    bench.kill("b")
    bench.beat(30.0)

    (opened,) = bench.records(IncidentOpened)
    (waiting,) = bench.records(PlanWaits)
    assert "SIGKILL" in opened.failure.finding.summary
    assert (waiting.plan.step, waiting.waits_for) == (PlanStep.RESTART_IN_PLACE, WaitsFor.LEAVE)
    assert waiting.reason == "the job is paused by ada"
    assert bench.nodes["a"].orders[-1].ranks == (0,), "its ranks run on"
    assert state_of(bench.control.ledger) == "waiting"

    give(bench, PersonAct.RESUME)
    bench.beat(3.0)
    assert len(bench.records(AttemptStarted)) == 2


def test_on_resume_the_plan_is_made_from_what_is_true_then() -> None:
    bench = make_paused_and_waiting()
    assert waits(bench).plan.without == ()
    bench.held = {"b": "drained by ada"}

    give(bench, PersonAct.RESUME)
    bench.beat(3.0)

    assert bench.placed == ["a", "c"]


def test_ranks_that_go_on_during_a_pause_are_not_restarted_after_it() -> None:
    bench = make_training()
    give(bench, PersonAct.PAUSE)
    bench.age(130.0)
    assert waits(bench).reason == "the job is paused by ada"

    bench.beat(2.0, 5)
    give(bench, PersonAct.RESUME)
    bench.beat(3.0, 6)

    assert bench.control.ledger.incident is None
    assert len(bench.records(AttemptStarted)) == 1


def test_a_pause_outlives_the_controller_and_what_failed_before_its_start_is_seen() -> None:
    bench = make_paused()
    bench.kill("b")

    again = restart_controller(bench)
    again.beat(2.0)

    assert waits(again).reason == "the job is paused by ada"
    assert len(again.records(AttemptStarted)) == 1


def test_a_job_that_is_paused_during_its_recovery_starts_no_ranks() -> None:
    bench = make_training()
    bench.kill("b")
    bench.control.handle_report(bench.nodes["b"].report())
    bench.nodes["a"].is_silent = True  # so the fence takes a while
    bench.beat(1.0)
    give(bench, PersonAct.PAUSE)
    bench.nodes["a"].is_silent = False
    bench.nodes["a"].take(bench.nodes["a"].orders[-1])
    bench.beat(20.0)

    assert len(bench.records(AttemptStarted)) == 1
    assert waits(bench).reason == "the job is paused by ada"
    give(bench, PersonAct.RESUME)
    bench.beat(3.0)
    assert len(bench.records(AttemptStarted)) == 2


def test_a_job_is_not_given_up_while_it_is_paused() -> None:
    bench = Bench(replace(SETTINGS, policy=replace(SETTINGS.policy, restarts_max=0)))
    bench.beat(1.0)
    for step in (1, 2, 3):
        bench.beat(1.0, step)
    give(bench, PersonAct.PAUSE)
    bench.kill("b")
    bench.beat(20.0)

    assert bench.control.outcome is None
    assert waits(bench).plan.step is PlanStep.ESCALATE

    give(bench, PersonAct.RESUME)
    bench.beat(3.0)
    assert bench.control.outcome is not None
    assert bench.control.outcome.kind is OutcomeKind.ESCALATED


def test_a_rank_that_dies_again_during_a_pause_is_told_before_it_is_restarted() -> None:
    bench = make_training()
    bench.kill("b")
    bench.beat(2.0)
    assert len(bench.records(AttemptStarted)) == 2
    give(bench, PersonAct.PAUSE)
    bench.kill("b")  # while its steps are still to be verified
    bench.beat(Policy().retry_pause_s + 10.0)

    assert bench.nodes["a"].orders[-1].ranks == (0,), "the others run on"
    assert waits(bench).reason == "the job is paused by ada"
    assert len(bench.records(AttemptStarted)) == 2
    give(bench, PersonAct.RESUME)
    bench.beat(5.0)
    assert len(bench.records(AttemptStarted)) == 3


# Cancel.


def test_what_was_cancelled_is_not_told_anew_and_the_job_does_not_count_as_running() -> None:
    bench = make_cancelled()
    bench.beat(60.0)

    assert len(bench.records(IncidentOpened)) == 1
    assert state_of(bench.control.ledger) == "standing"
    assert state_of(fold_all(bench.journal.entries)) == "standing"


def test_a_job_whose_ranks_were_stopped_before_the_cancel_does_not_count_as_running() -> None:
    bench = make_storm()

    acted = give(bench, PersonAct.CANCEL)
    bench.beat(5.0)

    assert "the ranks are already stopped" in acted.result
    assert bench.control.ledger.incident is None
    assert state_of(bench.control.ledger) == "standing"


def test_a_rank_that_dies_after_the_plan_for_a_slow_one_was_cancelled_is_seen() -> None:
    bench = make_slow()
    give(bench, PersonAct.CANCEL)
    incidents = len(bench.records(IncidentOpened))
    assert state_of(bench.control.ledger) == "running"

    bench.kill("a")
    bench.beat(3.0)

    assert len(bench.records(IncidentOpened)) == incidents + 1
    assert waits(bench).reason == "the job is paused by ada"
