"""Whether a job goes back behind numbers that went wrong, and behind which step. Pure.

Off unless the policy says how often. A loss that is no finite number sends a job back, and so do ranks that came apart, in a number or in their snapshots. A
spike does not, for it often ends by itself, and neither does a gradient norm alone: loss scaling makes infinite
ones by design. A job that got no further goes back behind where it began: the state there may be what is wrong.
"""

from dataclasses import dataclass
from typing import Final

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from detectors.numbers.wrong import ToldNumber, Trouble
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep, Policy, out_of_patience, out_of_restarts
from recovery.journal.observation_records import GoesBack, NumbersWrong, ReplicasDiffer

NORM_LEADS_STEPS: Final = 3
"""Our choice: gradients that are no numbers spoil the next loss, or a later one where scripts tell it every other step."""


def rollback_due(ledger: Ledger, policy: Policy) -> GoesBack | None:
    """Return behind which step the job should go back, or None."""
    before = ledger.rollbacks
    if len(before) >= policy.numbers_rollbacks_max or not _may_restart(ledger, policy):
        return None
    if before and before[-1].attempt == ledger.attempt:
        return None  # allowed or not, this attempt was asked about
    causes = _causes(ledger, ledger.attempt)
    if not causes:
        return None
    wrong = _wrong(ledger, ledger.attempt)
    caused_at = min(cause.step for cause in causes)
    # A norm of long before belongs to a step that loss scaling has skipped.
    steps = [item.step for item in wrong if item.trouble is not Trouble.SPIKE]
    first = min([caused_at, *(step for step in steps if step >= caused_at - NORM_LEADS_STEPS)])
    behind = first
    began_at = None if ledger.started is None else ledger.started.choice.begins_at
    got_no_further = bool(before) and first <= before[-1].wrong_at
    if began_at is not None and (got_no_further or began_at >= first):
        behind = min(first, began_at)
    return GoesBack(ledger.attempt, behind, first, len(before) + 1)


def rollback_finding(back: GoesBack, ledger: Ledger, policy: Policy, job_id: str) -> Finding:
    """Return why the job goes back; the rank is blamed only if the policy may leave its node."""
    reported = min(_causes(ledger, back.attempt), key=lambda cause: cause.step)
    is_blamed = policy.numbers_rollback_moves and reported.rank is not None and bool(reported.node)
    summary = f"{reported.text}: the job goes back behind step {back.behind}, for time {back.count} of {policy.numbers_rollbacks_max}"
    numbers = [
        Evidence("numbers that the script reported", item.in_words)
        for item in _wrong(ledger, back.attempt)
    ]
    snapshots = [
        Evidence("digests of snapshots", item.in_words) for item in _differing(ledger, back.attempt)
    ]
    return Finding(
        kind=Kind.NUMBERS_WRONG,
        severity=Severity.CRITICAL,
        blame=Blame.RANK if is_blamed else Blame.NOBODY,
        summary=summary,
        job_id=job_id,
        attempt=back.attempt,
        node=reported.node if is_blamed else "",
        ranks=(reported.rank,) if is_blamed and reported.rank is not None else (),
        victims=(),
        since_age_s=0.0,
        symptom=Symptom(SymptomKind.NUMBERS, reported.what),
        evidence=(*numbers, *snapshots),
    )


@dataclass(frozen=True, slots=True)
class _Cause:
    """What sends a job back."""

    step: int
    text: str
    what: str  # for the symptom
    rank: int | None  # the one that had it alone
    node: str


def _causes(ledger: Ledger, attempt: int) -> list[_Cause]:
    numbers = [
        _Cause(
            *(item.step, item.in_words, f"{item.quantity.value} {item.trouble.value}"),
            *(item.odd_rank, item.node),
        )
        for item in filter(_sends_back, _wrong(ledger, attempt))
    ]
    snapshots = [
        _Cause(
            *(item.step, f"{item.in_words} at step {item.step}", "replicas differ"),
            *(item.odd[0] if len(item.odd) == 1 else None, item.node),
        )
        for item in _differing(ledger, attempt)
    ]
    return [*numbers, *snapshots]


def _wrong(ledger: Ledger, attempt: int) -> list[NumbersWrong]:
    return [number for number in ledger.wrong_numbers if number.attempt == attempt]


def _differing(ledger: Ledger, attempt: int) -> list[ReplicasDiffer]:
    return [differ for differ in ledger.differing if differ.attempt == attempt]


def _sends_back(wrong: NumbersWrong) -> bool:
    is_loss = wrong.quantity is ToldNumber.LOSS
    return wrong.trouble is Trouble.APART or (wrong.trouble is Trouble.NOT_FINITE and is_loss)


def _may_restart(ledger: Ledger, policy: Policy) -> bool:
    """Return whether a restart is allowed: a job whose budgets are spent trains on instead of being given up."""
    if out_of_restarts(ledger.spent, policy) or out_of_patience(ledger.spent, policy):
        return False
    return policy.allows(Kind.NUMBERS_WRONG, PlanStep.RESTART_IN_PLACE)
