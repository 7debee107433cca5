from dataclasses import replace

import pytest

from detectors.finding import Blame, Finding, Kind
from rankmend.errors import ConfigError
from recovery.controller.job.planner import plan
from recovery.controller.job.restore.restore_choice import (
    choose_checkpoint,
    is_progress,
    without_folder,
)
from recovery.journal.attempt_records import Choice, PassedOver
from recovery.journal.faults import Fault
from recovery.journal.ledger import Member
from recovery.journal.limits import BudgetsSpent, PlanStep, Policy, exhausted
from recovery.messages.candidates import CheckpointVerdict
from recovery.messages.codec import symptom_of
from recovery.messages.exchange import Restore
from tests.support.job_ledgers import FINDING, POLICY, ledger, verdict

pytestmark = pytest.mark.safety

BUG = replace(
    FINDING, blame=Blame.PROGRAM, ranks=(), symptom=symptom_of("exception:ValueError:bad batch")
)
LONE_BUG = replace(BUG, blame=Blame.RANK, ranks=(2,))
LOST_PEER = replace(
    FINDING, blame=Blame.COMMUNICATION, ranks=(), symptom=symptom_of("communication")
)
DEVICE = replace(FINDING, symptom=symptom_of("device:CUDA error"))
HANG = replace(
    FINDING, kind=Kind.RANK_HUNG, blame=Blame.NOBODY, ranks=(), symptom=symptom_of("hung:nobody")
)


@pytest.mark.parametrize("finding", [FINDING, BUG, LONE_BUG, LOST_PEER, DEVICE, HANG])
def test_a_first_failure_restarts_the_ranks_where_they_are(finding: Finding) -> None:
    made = plan(finding, ledger(finding), POLICY, None)

    assert made.step is PlanStep.RESTART_IN_PLACE
    assert made.evidence == finding.evidence
    assert made.choice is None


def test_a_hang_that_accuses_nobody_says_so() -> None:
    assert "nothing points at one of them" in plan(HANG, ledger(HANG), POLICY, None).reason


@pytest.mark.parametrize("finding", [BUG, LONE_BUG])
def test_the_same_error_twice_at_one_step_escalates_with_the_first_ranks_words(
    finding: Finding,
) -> None:
    made = plan(finding, ledger(finding, run=2), POLICY, None)

    assert made.step is PlanStep.ESCALATE
    assert made.reason == (
        "the same error at step 40 in 2 attempts in a row: the program itself fails: "
        "rank 2: ValueError: bad batch 7"
    )


def test_ranks_with_two_nccls_are_no_error_of_the_program_in_words() -> None:
    mixed = replace(BUG, symptom=symptom_of("mixed_nccl:DistBackendError"))

    made = plan(mixed, ledger(mixed, run=2), POLICY, None)

    assert made.step is PlanStep.ESCALATE
    assert "in a row: its ranks have loaded two versions of NCCL: rank 2" in made.reason


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
    ("told", "words"),
    [(frozenset({1}), "before the first step"), (frozenset(), "at an unknown step")],
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
        (9_999, 99, PlanStep.RESTART_IN_PLACE),
        (10_000, 0, PlanStep.ESCALATE),
        (100, 100, PlanStep.ESCALATE),
    ],
)
def test_restarts_of_a_run_and_of_a_day_are_bounded_whatever_was_saved(
    restarts: int, without: int, step: PlanStep
) -> None:
    stepless = tuple((number, 0.0) for number in range(without))
    known = ledger(restarts=restarts, stepless=stepless)

    assert plan(FINDING, known, POLICY, None).step is step


SAME = Fault(Kind.RANK_HUNG, "hung", 1)
OTHERS = tuple(replace(SAME, kind=Kind.RANK_FAILED, exit_code=number) for number in range(50))


@pytest.mark.parametrize(
    ("barren", "step"),
    [
        ((SAME, SAME), PlanStep.RESTART_IN_PLACE),
        ((SAME, SAME, OTHERS[0], SAME), PlanStep.RESTART_IN_PLACE),
        ((OTHERS[0], SAME, SAME, SAME), PlanStep.ESCALATE),
        (OTHERS[:49], PlanStep.RESTART_IN_PLACE),
        (OTHERS[:50], PlanStep.ESCALATE),
    ],
)
def test_restarts_without_progress_are_bounded_by_cause_and_in_all(
    barren: tuple[Fault, ...], step: PlanStep
) -> None:
    known = ledger(HANG, barren=barren, last_fault=SAME)

    made = plan(HANG, known, POLICY, [])

    assert made.step is step
    assert plan(HANG, known, POLICY, None).step is PlanStep.RESTART_IN_PLACE, "nobody has looked"


def test_a_checkpoint_newer_than_all_that_were_restored_allows_a_restart() -> None:
    known = ledger(HANG, barren=(SAME,) * 3, last_fault=SAME, base_step=10)

    assert plan(HANG, known, POLICY, [verdict(20)]).step is PlanStep.RESTART_IN_PLACE
    assert plan(HANG, known, POLICY, [verdict(10)]).step is PlanStep.ESCALATE


def test_a_spent_budget_is_said_in_figures() -> None:
    assert exhausted(BudgetsSpent(10_000, 0, 0, 0), POLICY) == (
        "10000 restarts of this run, 10000 are allowed"
    )
    assert exhausted(BudgetsSpent(100, 0, 0, 100), POLICY) == (
        "100 restarts within a day without a new step, 100 are allowed"
    )
    assert exhausted(BudgetsSpent(3, 3, 3, 3), POLICY) == (
        "3 restarts after the same failure brought no new step and no newer checkpoint, "
        "3 are allowed"
    )
    assert exhausted(BudgetsSpent(50, 50, 2, 50), POLICY) == (
        "50 restarts brought no new step and no newer checkpoint, 50 are allowed"
    )
    assert exhausted(BudgetsSpent(99, 49, 2, 99), POLICY) is None


def test_the_newest_valid_checkpoint_is_chosen_and_the_torn_one_before_it_named() -> None:
    found = [verdict(30, is_valid=False, reason="cut off"), verdict(20), verdict(10)]

    chosen = choose_checkpoint(ledger(), POLICY, found)

    assert chosen.restore == Restore("/c/20", 20)
    assert chosen.passed_over == (PassedOver("/c/30", 30, "cut off"),)
    assert chosen.modified_unix_s == 1020.0


def test_a_checkpoint_restored_too_often_without_progress_is_passed_over() -> None:
    identity = choose_checkpoint(ledger(), POLICY, [verdict(20)]).identity
    once, twice = (
        ledger(restores=((identity, (SAME,)),)),
        ledger(restores=((identity, (SAME,) * 2),)),
    )
    unlucky = ledger(restores=((identity, OTHERS),))
    found = [verdict(20), verdict(10)]
    assert choose_checkpoint(unlucky, POLICY, found).restore == Restore("/c/20", 20)

    assert choose_checkpoint(once, POLICY, found).restore == Restore("/c/20", 20)
    chosen = choose_checkpoint(twice, POLICY, found)
    assert chosen.restore == Restore("/c/10", 10)
    assert chosen.passed_over[0].reason == "restored 2 times without progress"


def test_a_checkpoint_written_over_since_is_another_one() -> None:
    identity = choose_checkpoint(ledger(), POLICY, [verdict(20)]).identity
    known = ledger(restores=((identity, (SAME, SAME)),))
    newer = replace(verdict(20), candidate=replace(verdict(20).candidate, modified_unix_s=2000.0))

    assert choose_checkpoint(known, POLICY, [newer]).restore == Restore("/c/20", 20)


def test_when_all_valid_ones_failed_before_the_newest_is_restored_again_and_the_budget_decides() -> (
    None
):
    found = [verdict(20), verdict(10)]
    newest, older = (choose_checkpoint(ledger(), POLICY, [one]).identity for one in found)
    failed = ((newest, (SAME, SAME)), (older, (SAME, SAME)))

    known = ledger(HANG, restores=failed, barren=(SAME, SAME), last_fault=SAME, base_step=20)
    made = plan(HANG, known, POLICY, found)
    spent = plan(HANG, replace(known, barren=(SAME,) * 3), POLICY, found)

    assert (made.step, made.choice.restore) == (PlanStep.RESTART_IN_PLACE, Restore("/c/20", 20))
    assert "as was every other valid one" in made.choice.reason
    assert spent.step is PlanStep.ESCALATE


def test_checkpoints_that_vanished_in_a_run_do_not_begin_the_job_anew() -> None:
    known = ledger(last_restore_path="/c/20", has_ordered=True)

    for found in ([], [verdict(20, is_valid=False)]):
        chosen = choose_checkpoint(known, POLICY, found)
        assert not chosen.is_possible
        assert chosen.reason.endswith("and /c/20 could be restored before")


@pytest.mark.parametrize("changes", [{"is_resumed": True}, {}])
def test_a_folder_that_was_emptied_before_the_job_is_started_again_is_a_new_run(
    changes: dict[str, bool],
) -> None:
    known = ledger(last_restore_path="/c/20", **changes)

    chosen = choose_checkpoint(known, POLICY, [])

    assert (chosen.is_possible, chosen.restore, chosen.is_new_run) == (True, None, True)
    assert (
        chosen.reason
        == "no checkpoint found: a new run; the one before could be restored from /c/20"
    )


def test_job_that_was_given_up_before_it_saved_anything_is_no_new_run() -> None:
    ended = ledger(is_resumed=True)

    assert choose_checkpoint(ended, POLICY, []).is_new_run
    assert without_folder(ended).is_new_run
    given_up = replace(ended, was_given_up=True)
    assert not choose_checkpoint(given_up, POLICY, []).is_new_run
    assert not without_folder(given_up).is_new_run
    assert choose_checkpoint(replace(given_up, last_restore_path="/c/9"), POLICY, []).is_new_run


def test_damaged_checkpoints_alone_are_no_new_run() -> None:
    known = ledger(last_restore_path="/c/20", is_resumed=True)

    chosen = choose_checkpoint(known, POLICY, [verdict(20, is_valid=False)])

    assert not chosen.is_possible
    assert "1 file or folder looks like a checkpoint, but can't be restored" in chosen.reason


def test_on_several_nodes_another_host_taking_over_is_no_persons_start() -> None:
    member = Member("n1", "l1", "boot", 8, None, 0.0, 1, 1, 0)
    known = ledger(last_restore_path="/c/20", members={"n1": member})

    assert not choose_checkpoint(known, POLICY, []).is_possible
    assert choose_checkpoint(replace(known, is_resumed=True), POLICY, []).is_new_run


def test_checkpoints_removed_down_to_an_older_one_before_a_start_are_a_new_run_from_there() -> None:
    known = ledger(last_restore_path="/c/90", base_step=90)
    found = [verdict(50)]

    chosen = choose_checkpoint(known, POLICY, found)

    assert (chosen.restore, chosen.is_new_run) == (Restore("/c/50", 50), True)
    assert not choose_checkpoint(replace(known, has_ordered=True), POLICY, found).is_new_run
    torn = [verdict(90, is_valid=False), *found]
    assert not choose_checkpoint(known, POLICY, torn).is_new_run, "it is there, and was passed over"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "no checkpoint found"),
        (
            [verdict(5, is_valid=False)],
            "looks like a checkpoint, but can't be restored (5: whole)",
        ),
    ],
)
def test_without_any_restore_before_a_job_begins_at_the_beginning(
    found: list[CheckpointVerdict], words: str
) -> None:
    made = plan(FINDING, ledger(), POLICY, found)

    assert made.step is PlanStep.RESTART_IN_PLACE
    assert made.choice.restore is None
    assert words in made.choice.reason


def test_a_plan_names_at_most_so_many_that_were_passed_over() -> None:
    found = [verdict(step, is_valid=False) for step in range(500, 0, -1)]

    assert len(choose_checkpoint(ledger(), POLICY, found).passed_over) == 20


@pytest.mark.parametrize(
    ("step", "modified_unix_s", "base_step", "expected"),
    [
        (21, 900.0, 20, True),  # its step counts, whatever the clock of the storage says
        (20, 2000.0, 20, False),  # the same step written again
        (19, 2000.0, 20, False),
        (None, 1020.0, None, True),
        (None, 1010.0, None, False),
        (None, 1020.0, 20, True),
        (None, None, None, False),
    ],
)
def test_a_checkpoint_is_progress_when_it_is_newer_than_all_that_were_restored(
    step: int | None, modified_unix_s: float | None, base_step: int | None, expected: bool
) -> None:
    known = ledger(base_step=base_step, base_modified_unix_s=1010.0)
    chosen = Choice(True, Restore("/c/b", step), "whole", (), modified_unix_s)

    assert is_progress(known, chosen) is expected
    assert not is_progress(known, Choice(True, None, "nothing"))


@pytest.mark.parametrize(
    ("path", "modified_unix_s", "expected"),
    [
        ("/c/epoch_3.ckpt", 2000.0, True),  # its number is of another kind
        ("/c/epoch_3.ckpt", 1000.0, False),
        ("/c/step_19.ckpt", 2000.0, False),  # an older one, copied back
    ],
)
def test_a_later_checkpoint_of_another_name_pattern_is_progress_whatever_its_number(
    path: str, modified_unix_s: float, expected: bool
) -> None:
    known = ledger(base_step=20, base_modified_unix_s=1010.0, last_restore_path="/c/step_20.ckpt")
    chosen = Choice(True, Restore(path, 19), "whole", (), modified_unix_s)

    assert is_progress(known, chosen) is expected


def test_the_first_checkpoint_of_a_run_is_progress() -> None:
    assert is_progress(ledger(), choose_checkpoint(ledger(), POLICY, [verdict(5)]))


@pytest.mark.parametrize(
    "changes",
    [{"restarts_max": -1}, {"settle_s": -0.1}, {"tries_max": 0}, {"same_error_max": 0}],
)
def test_an_impossible_policy_is_refused_by_name(changes: dict[str, int]) -> None:
    (name,) = changes

    with pytest.raises(ConfigError, match=name):
        Policy(**changes)
