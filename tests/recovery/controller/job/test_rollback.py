"""A job goes back behind wrong numbers only by policy, as often as allowed, and never to less than it had."""

from dataclasses import replace

import pytest

from detectors.finding import Blame, Kind, Severity
from detectors.numbers.wrong import ToldNumber, Trouble
from recovery.controller.job.restore.restore_choice import choose_checkpoint
from recovery.controller.job.restore.rollback import rollback_due, rollback_finding
from recovery.journal.attempt_records import AttemptStarted, Cause, Choice
from recovery.journal.faults import Fault
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep, Policy
from recovery.journal.observation_records import GoesBack, NumbersWrong, ReplicasDiffer
from recovery.messages.exchange import BadNumber, NotFinite, Restore, SnapshotPoint, StepNumbers
from tests.support.controller_bench import SETTINGS, Bench
from tests.support.job_ledgers import FROM_30, HELD, choose, held, ledger, verdict

ON = Policy(numbers_rollbacks_max=2)
NAN_40 = NumbersWrong(
    1, 40, ToldNumber.LOSS, Trouble.NOT_FINITE, (1,), (0, 1), "NaN", None, "n1"
)  # fmt: skip
BACK = GoesBack(1, 40, 40, 1)


def wrong(*records: NumbersWrong, begins_at: int | None = None, **changes: object) -> Ledger:
    restore = None if begins_at is None else Restore("/c", begins_at)
    started = AttemptStarted(1, Cause.FIRST, Choice(True, restore, "whole"))
    made = replace(Ledger(), attempt=1, started=started, wrong_numbers=records)
    return replace(made, **changes)


def test_job_goes_back_behind_the_first_step_with_wrong_numbers() -> None:
    before = replace(NAN_40, step=38, quantity=ToldNumber.GRAD_NORM)

    assert rollback_due(wrong(NAN_40), ON) == BACK
    assert rollback_due(wrong(before, NAN_40), ON) == GoesBack(1, 38, 38, 1)
    assert rollback_due(wrong(replace(NAN_40, trouble=Trouble.APART)), ON) == BACK


def test_norm_of_a_step_that_loss_scaling_skipped_long_before_sends_the_job_no_further_back() -> (
    None
):
    scaling = replace(NAN_40, step=3, quantity=ToldNumber.GRAD_NORM, value="infinite")

    assert rollback_due(wrong(scaling, NAN_40), ON) == BACK
    assert (scaling.severity, NAN_40.severity) == (Severity.WARNING, Severity.CRITICAL)


@pytest.mark.parametrize(("odd", "node"), [((1,), "n1"), ((), "")])
def test_job_goes_back_behind_the_step_at_which_replicas_differ(
    odd: tuple[int, ...], node: str
) -> None:
    differ = ReplicasDiffer(1, 40, "model", (0, 1, 2), odd, node)
    state = wrong(differing=(differ, replace(differ, step=50)))

    assert rollback_due(state, Policy()) is None
    assert rollback_due(state, ON) == BACK
    finding = rollback_finding(BACK, state, replace(ON, numbers_rollback_moves=True), "job")
    assert (finding.ranks, finding.node) == (odd, node)
    assert finding.blame is (Blame.RANK if odd else Blame.NOBODY)
    assert "model of" in finding.summary


@pytest.mark.parametrize(
    ("state", "policy"),
    [
        (wrong(NAN_40), Policy()),  # off by default
        (wrong(), ON),
        (wrong(replace(NAN_40, attempt=2)), ON),
        (wrong(replace(NAN_40, trouble=Trouble.SPIKE)), ON),
        (wrong(replace(NAN_40, quantity=ToldNumber.GRAD_NORM)), ON),  # loss scaling
        (wrong(NAN_40, rollbacks=(BACK,)), ON),  # asked for in this attempt
        (wrong(NAN_40, rollbacks=(replace(BACK, attempt=0),) * 2), ON),
        (wrong(NAN_40, restarts=10_000), ON),  # the planner would give the job up
        (wrong(NAN_40, barren=(Fault(),) * 50), ON),
    ],
)  # fmt: skip
def test_job_trains_on(state: Ledger, policy: Policy) -> None:
    assert rollback_due(state, policy) is None


def test_policy_that_allows_no_restart_for_numbers_lets_the_job_train_on() -> None:
    policy = replace(ON, allow={Kind.NUMBERS_WRONG: (PlanStep.MOVE,)})

    assert rollback_due(wrong(NAN_40), policy) is None


@pytest.mark.parametrize(
    ("wrong_at", "begins_at", "behind"), [(40, 30, 30), (39, 30, 30), (41, 30, 41), (40, None, 40)]
)
def test_job_that_got_no_further_goes_back_behind_where_it_began(
    wrong_at: int, begins_at: int | None, behind: int
) -> None:
    again = replace(NAN_40, attempt=2, step=wrong_at)
    state = wrong(NAN_40, again, begins_at=begins_at, attempt=2, rollbacks=(BACK,))

    assert rollback_due(state, ON) == GoesBack(2, behind, wrong_at, 2)


@pytest.mark.parametrize(
    ("moves", "group", "blame", "node"),
    [
        (False, (0, 1), Blame.NOBODY, ""),
        (True, (0, 1), Blame.RANK, "n1"),
        (True, (), Blame.NOBODY, ""),
        (True, (1,), Blame.NOBODY, ""),
    ],
)
def test_rank_is_blamed_only_by_policy_and_with_evidence(
    moves: bool, group: tuple[int, ...], blame: Blame, node: str
) -> None:
    policy = replace(ON, numbers_rollback_moves=moves)

    finding = rollback_finding(BACK, wrong(replace(NAN_40, group=group)), policy, "job")

    assert (finding.blame, finding.node) == (blame, node)
    assert finding.ranks == ((1,) if node else ())


def test_newest_checkpoint_from_before_is_restored_and_the_others_never_again() -> None:
    there = [verdict(50), verdict(40), verdict(30), verdict(20)]

    choice = choose_checkpoint(ledger(goes_back=BACK), ON, there)

    assert choice.begins_at == 30
    assert [one.step for one in choice.passed_over] == [50, 40]
    later = ledger(spoiled=choice.spoiled)
    assert choose_checkpoint(later, ON, there).begins_at == 30
    assert choose_checkpoint(later, ON, [verdict(60), *there]).begins_at == 60


@pytest.mark.parametrize("older", [[], [verdict(30, is_valid=False, reason="torn")]])
def test_where_nothing_is_from_before_the_newest_is_taken(older: list[object]) -> None:
    choice = choose_checkpoint(ledger(goes_back=BACK), ON, [verdict(50), *older])  # type: ignore[list-item]

    assert choice.begins_at == 50
    assert "none is from before the numbers went wrong" in choice.reason


def test_snapshot_from_before_is_restored() -> None:
    back = ledger(goes_back=BACK, rollbacks=(BACK,))

    assert choose(held(*[(39, 40)] * 4), known=back).snapshot == SnapshotPoint(1, 39)
    assert choose(held(*[(40, 41)] * 4), known=back).begins_at == 30
    newer = choose(held(*[(40, 41)] * 4, attempt=2), known=ledger(rollbacks=(BACK,)))
    assert newer.snapshot == SnapshotPoint(2, 41)


def test_snapshot_from_before_wins_over_a_checkpoint_that_is_not() -> None:
    back = ledger(goes_back=BACK, rollbacks=(BACK,))
    from_50 = replace(FROM_30, restore=Restore("/c/50", 50))

    assert choose(held(*[(39, 40)] * 4), from_50, back).snapshot == SnapshotPoint(1, 39)
    assert choose(held(*[(40, 49)] * 4), from_50, back).begins_at == 50


def test_snapshots_from_after_are_better_than_nothing() -> None:
    back = ledger(goes_back=BACK, rollbacks=(BACK,))

    assert choose(held(*[(40, 41)] * 4), HELD, back).snapshot == SnapshotPoint(1, 41)


def bench_with_nan(policy: Policy, *checkpoints: int) -> Bench:
    bench = Bench(replace(SETTINGS, policy=policy)).start()
    bench.tell()
    bench.run_attempt(1)
    bench.storage.is_watched = True
    bench.storage.verdicts = [verdict(step) for step in checkpoints]
    bench.step(39, 1)
    tell_nan(bench, 40)
    return bench


def tell_nan(bench: Bench, step: int) -> None:
    for rank, told in sorted(bench.ranks.items()):
        value = NotFinite.NAN if rank == 1 else 1.0
        bench.ranks[rank] = replace(
            told,
            numbers=(StepNumbers(1, step, value),),
            first_bad_loss=BadNumber(step, NotFinite.NAN) if rank == 1 else None,
        )
    bench.step(step, 2)


def test_job_goes_back_as_often_as_the_policy_says() -> None:
    bench = bench_with_nan(replace(SETTINGS.policy, numbers_rollbacks_max=1), 50, 30)
    bench.empty()
    assert bench.orders[-1].restore == Restore(verdict(30).candidate.path, 30)
    bench.run_attempt(2)
    bench.step(31, 1)
    bench.step(32, 2)
    tell_nan(bench, 40)
    bench.step(41, 3)

    assert len(bench.records(IncidentOpened)) == 1
    assert [one.attempt for one in bench.records(NumbersWrong)] == [1, 2]
    assert bench.orders[-1].attempt == 2


def test_job_does_not_go_back_unless_the_policy_says_so() -> None:
    bench = bench_with_nan(SETTINGS.policy, 30)

    assert len(bench.records(NumbersWrong)) == 1
    assert bench.records(IncidentOpened) == []


def test_job_without_an_older_checkpoint_does_not_go_back() -> None:
    bench = bench_with_nan(replace(SETTINGS.policy, numbers_rollbacks_max=1), 50)

    assert bench.records(IncidentOpened) == []
