"""Restores of checkpoints before all of their content was checked: when, and what a wrong sum leads to. Pure.

A checkpoint that is whole in its structure is never refused because there was no time to read it (`recovery.checkpoints.finder`).
One that was checked to its end is preferred as long as that costs little training. What was restored unchecked is checked on
beside the restore. If a sum is wrong then, the job goes back to what is older: what was saved since comes from the damaged state. It
goes back only if something older is known; otherwise the attempt trains on, and people are told.
"""

from collections.abc import Sequence
from dataclasses import replace

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from rankmend.printable import size_in_words
from recovery.checkpoints.model import CheckpointVerdict, Hindrance
from recovery.journal.attempt_records import RestoreDamaged
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep, Policy, out_of_restarts
from recovery.messages.exchange import SnapshotPoint


def prefer_checked(
    ledger: Ledger, policy: Policy, candidates: Sequence[CheckpointVerdict]
) -> Sequence[CheckpointVerdict]:
    """Return the candidates; newer unchecked ones are passed over where the newest checked one is nearly as new.

    Times of the storage's clock tell how much training lies between two saves.
    """
    newest = next((one for one in candidates if one.is_valid), None)
    if newest is None or newest.is_checked:
        return candidates
    checked = next((one for one in candidates if _may_replace(one, ledger, policy)), None)
    if checked is None:
        return candidates
    redo_s = newest.candidate.modified_unix_s - checked.candidate.modified_unix_s
    if not 0 <= redo_s <= policy.checkpoint_unverified_redo_s:
        return candidates
    why = f"{checked.candidate.tag} was checked to its end, and is {redo_s:.0f} s older"
    place = candidates.index(checked)
    newer = [_passed_over(one, why) if one.unchecked_bytes else one for one in candidates[:place]]
    return (*newer, *candidates[place:])


def _may_replace(verdict: CheckpointVerdict, ledger: Ledger, policy: Policy) -> bool:
    identity = f"{verdict.candidate.path}@{verdict.candidate.modified_unix_s}"
    has_failed = ledger.restores_of(identity) >= policy.restore_failures_max
    return verdict.is_checked and not has_failed


def _passed_over(verdict: CheckpointVerdict, why: str) -> CheckpointVerdict:
    size = size_in_words(verdict.unchecked_bytes)
    reason = f"{size} of it were not checked yet; {why}"
    return replace(verdict, is_valid=False, reason=reason, hindrance=Hindrance.UNREAD)


def is_unchecked(ledger: Ledger) -> bool:
    """Return whether the running attempt began from a checkpoint of which something may still prove wrong."""
    started = ledger.started
    if started is None or not ledger.is_attempt_open:
        return False
    is_known = any(one.attempt == ledger.attempt for one in ledger.damaged_restores)
    choice = started.choice
    return choice.unchecked_bytes > 0 and choice.restored_path is not None and not is_known


def damage_found(
    ledger: Ledger,
    policy: Policy,
    known: Sequence[CheckpointVerdict],
    snapshots: Sequence[SnapshotPoint] = (),
) -> RestoreDamaged | None:
    """Return that what the running attempt began from has a wrong sum, or None.

    Only a sum that fails counts, of the very files that were restored: a rotation that takes them away, or a save
    over them, says nothing about what the ranks have read. ``snapshots``: steps of which every rank has its part in memory.
    """
    if not is_unchecked(ledger) or ledger.started is None:
        return None
    choice = ledger.started.choice
    for verdict in known:
        candidate = verdict.candidate
        is_same = candidate.path == choice.restored_path
        is_same &= candidate.modified_unix_s == choice.modified_unix_s
        if is_same and verdict.has_wrong_sum and verdict.hindrance is Hindrance.DAMAGED:
            has_older = any(
                one.is_valid and one.candidate.modified_unix_s < candidate.modified_unix_s
                for one in known
            )
            has_older |= any(point.attempt < ledger.attempt for point in snapshots)
            may_restart = policy.allows(Kind.NUMBERS_WRONG, PlanStep.RESTART_IN_PLACE)
            may_restart &= out_of_restarts(ledger.spent, policy) is None
            return RestoreDamaged(
                *(ledger.attempt, candidate.path, candidate.step, candidate.modified_unix_s),
                *(verdict.reason, has_older and may_restart),
            )
    return None


def damage_finding(damage: RestoreDamaged, job_id: str) -> Finding:
    """Return why the job goes back; no rank and no node is blamed."""
    summary = (
        f"{damage.path}, from which attempt {damage.attempt} began before all of it was checked, is damaged: "
        f"{damage.reason}: the job goes back to an older one"
    )
    return Finding(
        kind=Kind.NUMBERS_WRONG,
        severity=Severity.CRITICAL,
        blame=Blame.NOBODY,
        summary=summary,
        job_id=job_id,
        attempt=damage.attempt,
        node="",
        ranks=(),
        victims=(),
        since_age_s=0.0,
        symptom=Symptom(SymptomKind.CHECKPOINT, "wrong sum"),
        evidence=(Evidence("checked beside the restore", damage.reason),),
    )


def comes_from_damage(verdict: CheckpointVerdict, ledger: Ledger) -> bool:
    """Return whether the job goes back now from a damaged checkpoint, and this one is not older.

    Times of the storage's clock: what is newer was saved by ranks that had begun from it, or was passed over then.
    """
    damage = ledger.leaves_damaged
    if damage is None or not damage.goes_back:
        return False
    return verdict.candidate.modified_unix_s >= damage.modified_unix_s


def snapshot_from_damage(point: SnapshotPoint, ledger: Ledger) -> str | None:
    """Return why a snapshot of ranks that began from a damaged checkpoint is not restored, or None."""
    if any(one.attempt == point.attempt and one.goes_back for one in ledger.damaged_restores):
        return f"attempt {point.attempt} began from a damaged checkpoint"
    return None
