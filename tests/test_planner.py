from dataclasses import replace

import pytest

from detectors.finding import Blame, Evidence, Finding, Kind, Severity
from rankmend.errors import ConfigError
from recovery.checkpoints.model import Candidate, CheckpointKind, Verdict
from recovery.ledger import ErrorRun, Ledger, OpenIncident
from recovery.machine import State
from recovery.messages import RankError, Restore
from recovery.planner import choose_checkpoint, is_progress, plan
from recovery.policy import Policy, Spent, exhausted
from recovery.records import AttemptStarted, Cause, Choice, Failure, PassedOver, PlanStep

POLICY = Policy()
FINDING = Finding(
    kind=Kind.RANK_FAILED,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="rank 2 failed first: SIGKILL",
    job_id="job-1",
    attempt=3,
    node="n1",
    ranks=(2,),
    victims=(0, 1),
    since_age_s=0.5,
    signature="killed:SIGKILL",
    evidence=(Evidence("wait status", "rank 2: SIGKILL"),),
)
BUG = replace(FINDING, blame=Blame.PROGRAM, ranks=(), signature="exception:ValueError:bad batch")
LONE_BUG = replace(BUG, blame=Blame.RANK, ranks=(2,))
LOST_PEER = replace(FINDING, blame=Blame.COMMUNICATION, ranks=(), signature="communication")
DEVICE = replace(FINDING, signature="device:CUDA error")
HANG = replace(FINDING, kind=Kind.RANK_HUNG, blame=Blame.NOBODY, ranks=(), signature="hung:nobody")


def ledger(
    finding: Finding = FINDING,
    *,
    run: int = 1,
    step: int | None = 40,
    exit_code: int = 1,
    **changes: object,
) -> Ledger:
    error = RankError("ValueError", "bad batch 7", "")
    failure = Failure(3, finding, exit_code, 2, error, step, False, (0, 1, 2))
    incident = OpenIncident(State("inc-1", 3), failure, 40, failure, POLICY)
    errors = ErrorRun(finding.signature, step, None, run)
    told = frozenset({0, 1, 2})
    return replace(
        Ledger(), incident=incident, errors=errors, attempt=3, telling_ranks=told, **changes
    )


def verdict(step: int, *, is_valid: bool = True, reason: str = "whole") -> Verdict:
    candidate = Candidate(f"/c/{step}", step, CheckpointKind.NPZ, 10, 1000.0 + step)
    return Verdict(candidate, is_valid, reason)


@pytest.mark.parametrize("finding", [FINDING, BUG, LONE_BUG, LOST_PEER, DEVICE, HANG])
def test_a_first_failure_restarts_the_ranks_where_they_are(finding: Finding) -> None:
    made = plan(finding, ledger(finding), POLICY, None)

    assert made.step is PlanStep.RESTART_IN_PLACE
    assert made.evidence == finding.evidence
    assert made.choice is None


def test_a_hang_that_accuses_nobody_says_so() -> None:
    assert "nothing accuses one of them" in plan(HANG, ledger(HANG), POLICY, None).reason


@pytest.mark.parametrize("finding", [BUG, LONE_BUG])
def test_the_same_error_twice_at_one_step_escalates_with_the_first_ranks_words(
    finding: Finding,
) -> None:
    made = plan(finding, ledger(finding, run=2), POLICY, None)

    assert made.step is PlanStep.ESCALATE
    assert made.reason == (
        "the same error at step 40 in 2 attempts in a row is the program's own: "
        "rank 2: ValueError: bad batch 7"
    )


@pytest.mark.parametrize("finding", [FINDING, LOST_PEER, DEVICE, HANG])
def test_what_is_not_the_programs_own_is_restarted_however_often_it_comes(
    finding: Finding,
) -> None:
    made = plan(finding, ledger(finding, run=9), POLICY, None)

    assert made.step is PlanStep.RESTART_IN_PLACE


def test_the_number_of_equal_errors_is_the_policys() -> None:
    patient = Policy(same_error_max=3)

    assert plan(BUG, ledger(BUG, run=2), patient, None).step is PlanStep.RESTART_IN_PLACE
    assert plan(BUG, ledger(BUG, run=3), patient, None).step is PlanStep.ESCALATE


@pytest.mark.parametrize(
    ("told", "words"), [(frozenset({1}), "before the first step"), (frozenset(), "at no known")]
)
def test_an_error_without_a_step_says_what_is_known(told: frozenset[int], words: str) -> None:
    known = replace(ledger(BUG, run=2, step=None), telling_ranks=told)

    assert words in plan(BUG, known, POLICY, None).reason


def test_exit_code_93_escalates_at_once() -> None:
    made = plan(FINDING, ledger(exit_code=93), POLICY, None)

    assert made.step is PlanStep.ESCALATE
    assert "exit code 93" in made.reason
    assert "ValueError: bad batch 7" in made.reason


@pytest.mark.parametrize(
    ("restarts", "without", "step"),
    [
        (99, 2, PlanStep.RESTART_IN_PLACE),
        (100, 0, PlanStep.ESCALATE),
        (3, 3, PlanStep.ESCALATE),
    ],
)
def test_a_spent_budget_escalates_and_one_below_does_not(
    restarts: int, without: int, step: PlanStep
) -> None:
    known = ledger(restarts=restarts, restarts_without_progress=without)

    assert plan(FINDING, known, POLICY, None).step is step


def test_a_spent_budget_is_said_in_figures() -> None:
    assert exhausted(Spent(100, 0), POLICY) == "100 restarts of this job, 100 are allowed"
    assert exhausted(Spent(3, 3), POLICY) == (
        "3 restarts without a new highest step, 3 are allowed"
    )
    assert exhausted(Spent(99, 2), POLICY) is None


def test_the_newest_valid_checkpoint_is_chosen_and_the_torn_one_before_it_named() -> None:
    found = [verdict(30, is_valid=False, reason="cut off"), verdict(20), verdict(10)]

    chosen = choose_checkpoint(ledger(), POLICY, found)

    assert chosen.restore == Restore("/c/20", 20)
    assert chosen.passed_over == (PassedOver("/c/30", 30, "cut off"),)
    assert chosen.modified_unix_s == 1020.0


def test_a_checkpoint_restored_too_often_without_progress_is_passed_over() -> None:
    identity = choose_checkpoint(ledger(), POLICY, [verdict(20)]).identity
    once, twice = ledger(restores=((identity, 1),)), ledger(restores=((identity, 2),))
    found = [verdict(20), verdict(10)]

    assert choose_checkpoint(once, POLICY, found).restore == Restore("/c/20", 20)
    chosen = choose_checkpoint(twice, POLICY, found)
    assert chosen.restore == Restore("/c/10", 10)
    assert chosen.passed_over[0].reason == "restored 2 times without progress"


def test_a_checkpoint_written_over_since_is_another_one() -> None:
    identity = choose_checkpoint(ledger(), POLICY, [verdict(20)]).identity
    known = ledger(restores=((identity, 2),))
    newer = replace(verdict(20), candidate=replace(verdict(20).candidate, modified_unix_s=2000.0))

    assert choose_checkpoint(known, POLICY, [newer]).restore == Restore("/c/20", 20)


def test_when_all_valid_ones_failed_before_the_job_is_not_begun_anew() -> None:
    identity = choose_checkpoint(ledger(), POLICY, [verdict(20)]).identity
    known = ledger(restores=((identity, 2),))

    made = plan(FINDING, known, POLICY, [verdict(20)])

    assert made.step is PlanStep.ESCALATE
    assert "all 1 valid checkpoints were restored without progress" in made.reason
    assert not made.choice.is_possible


def test_checkpoints_that_vanished_do_not_begin_the_job_anew() -> None:
    known = ledger(last_restore_path="/c/20")

    for found in ([], [verdict(20, is_valid=False)]):
        chosen = choose_checkpoint(known, POLICY, found)
        assert not chosen.is_possible
        assert "had begun from /c/20" in chosen.reason


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "no checkpoint found: from the beginning"),
        ([verdict(5, is_valid=False)], "none of the 1 checkpoints found is valid"),
    ],
)
def test_without_any_restore_before_a_job_begins_at_the_beginning(
    found: list[Verdict], words: str
) -> None:
    made = plan(FINDING, ledger(), POLICY, found)

    assert made.step is PlanStep.RESTART_IN_PLACE
    assert made.choice.restore is None
    assert words in made.choice.reason


def test_a_plan_names_at_most_so_many_that_were_passed_over() -> None:
    found = [verdict(step, is_valid=False) for step in range(500, 0, -1)]

    assert len(choose_checkpoint(ledger(), POLICY, found).passed_over) == 20


@pytest.mark.parametrize(
    ("is_comparable", "modified_unix_s", "expected"),
    [(False, 1020.0, True), (False, 1010.0, False), (True, 1020.0, False)],
)
def test_a_newer_checkpoint_is_progress_only_where_steps_can_not_be_compared(
    is_comparable: bool, modified_unix_s: float, expected: bool
) -> None:
    before = Choice(True, Restore("/c/a", None), "whole", (), 1010.0)
    known = ledger(is_comparable=is_comparable, started=AttemptStarted(3, Cause.FIRST, before))
    chosen = Choice(True, Restore("/c/b", None), "whole", (), modified_unix_s)

    assert is_progress(known, chosen) is expected


@pytest.mark.parametrize(
    "changes",
    [{"restarts_max": -1}, {"settle_s": -0.1}, {"tries_max": 0}, {"same_error_max": 0}],
)
def test_an_impossible_policy_is_refused_by_name(changes: dict[str, int]) -> None:
    (name,) = changes

    with pytest.raises(ConfigError, match=name):
        Policy(**changes)
