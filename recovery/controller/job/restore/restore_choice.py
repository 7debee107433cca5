"""Which checkpoint the next attempt begins from, and when to hold the job rather than begin at zero. Pure.

Never from zero while there is something to restore. A recovery starts nothing while none of the
checkpoints can be restored, or while those of before are missing. At a start by a person that holds
only where the job's own journal shows that a checkpoint could be restored: a folder with torn or
foreign files must not keep a new job from starting.

A checkpoint can be whole and still be of no use: another version of the script wrote it, or it
lacks what the script now needs. Rules, over the attempts that ended before their first step since
an attempt last got past it (`Ledger.start_failures`):

- an error that shows loading (`detectors.failed.loading_error`) passes its checkpoint over at once:
  the file does not change, so the same load fails again;
- another error of the program does so once it came `Policy.same_error_max` times from this checkpoint,
  and from no other start. Errors of a service, storage, memory, a device or a peer never do;
- if the older checkpoint then fails before its first step for another reason, the first diagnosis may
  have been wrong: the newest is tried again;
- at most `Policy.fallbacks_max` attempts in a row begin from an older checkpoint. Nothing is deleted.

Once an attempt has got past its first step, what it passed over stays passed over
(`Ledger.not_loaded`) until a person starts the job again, who may have repaired the script. A
script that chooses its own start can't follow: for it nothing is passed over.

Lack of time to read a checkpoint whose structure is whole never rules it out
(`recovery.checkpoints.finder`). One that was checked to its end is preferred as long as that costs
little training. The check of one that was restored unchecked goes on beside the restore. If a sum
is wrong then, the job goes back to something older, because all later saves come from the damaged
state. It goes back only if something older is known; otherwise the attempt trains on, and a notice
tells people.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from shlex import quote
from typing import Final

from detectors.finding import Blame, Evidence, Finding, Kind, Severity, Symptom, SymptomKind
from rankmend.printable import size_in_words
from recovery.checkpoints.names import shown
from recovery.checkpoints.order import (
    BY_EVIDENCE,
    evidence_of,
    held_by,
    passed_over,
    proven_first,
    say_reason,
)
from recovery.journal.attempt_records import Choice, PassedOver, RestoreDamaged
from recovery.journal.ledger import Ledger, StartFailure
from recovery.journal.limits import PlanStep, Policy, out_of_restarts
from recovery.messages.candidates import CheckpointVerdict, Hindrance, Holds
from recovery.messages.exchange import Restore, SnapshotPoint

_PASSED_NAMED_MAX: Final = 4  # checkpoints in a sentence: the newest, and three steps back
_PROGRAM: Final = "the program itself fails"

_PASSED_OVER_MAX: Final = 20  # in one plan; a folder can hold thousands
_SPOILED_MAX: Final = 64  # remembered of one choice: the newest
_NAMED_MAX: Final = 3  # in a sentence; all others are passed over with their reasons
_WITHOUT_OPTIMIZER: Final = frozenset({Holds.MODEL, Holds.VALUES})
# Of a training state: it is there, and is not restored now. What is only not read yet is another look's.
_LOST: Final = frozenset(
    {Hindrance.DAMAGED, Hindrance.UNREADABLE, Hindrance.WRITING, Hindrance.MISSING, None}
)
_DIGITS: Final = re.compile(r"[0-9]+")


def failed_to_start(ledger: Ledger, policy: Policy) -> dict[str, str]:
    """Return the checkpoints to pass over now, by identity, each with the reason in words."""
    if not follows_choice(ledger):
        return {}
    known = dict(ledger.not_loaded)
    failures = ledger.start_failures
    if not failures or steps_back(ledger) >= policy.fallbacks_max:
        return known
    found = {
        failure.identity: reason
        for failure in failures
        if failure.path and (reason := _reason(failure.identity, failures, policy)) is not None
    }
    last = failures[-1]
    if last.is_fallback and last.identity not in found:
        return known
    return {**known, **found}


def steps_back(ledger: Ledger) -> int:
    """Return how many attempts since the last first step began from an older checkpoint, and failed."""
    return sum(failure.is_fallback for failure in ledger.start_failures)


def follows_choice(ledger: Ledger) -> bool:
    """Return whether the program begins from the checkpoint that it is given, as far as is known."""
    if ledger.chooses_itself:
        return False
    return ledger.reads_choice or ledger.started is None or ledger.started.is_taken is not False


def refuse_same_start(ledger: Ledger, policy: Policy, choice: Choice) -> str | None:
    """Return why a start from this choice would fail as the last ones did, or None.

    For an error before the first step, or at an unknown one.
    """
    run, failures = ledger.errors, ledger.start_failures
    if run is None or run.step is not None:
        return None
    # A state in memory may be what is wrong: the checkpoint gets its try before the program is blamed.
    tries = policy.same_error_max + (ledger.restored_step is not None)
    last = failures[-1] if failures else None
    if last is None or not last.is_own:
        return say_same_error(ledger) if run.count >= tries else None
    alike = [failure for failure in failures if failure.symptom == last.symptom]
    starts = {failure.identity for failure in alike}
    is_exhausted = steps_back(ledger) >= policy.fallbacks_max
    of_choice = sum(failure.identity == choice.identity for failure in alike)
    refusal = None
    if last.is_loading and last.is_fallback and is_exhausted:
        refusal = _not_loaded_text(failures)
    elif last.is_fallback and not last.is_loading and len(starts) > 1:
        refusal = f"the same error before the first step from {len(starts)} checkpoints: {_PROGRAM}"
    elif choice.fallen_back_from and (of_choice == 0 or last.identity != choice.identity):
        pass  # an older checkpoint, which this error does not come from
    elif last.is_loading and len(starts) > 1 and of_choice >= tries:
        refusal = _not_loaded_text(failures)
    elif run.count >= tries or of_choice >= tries:
        refusal = say_same_error(ledger, count=of_choice)
    return refusal


def may_begin_elsewhere(ledger: Ledger) -> bool:
    """Return whether the next attempt may begin from another checkpoint than the last one.

    After an error before the first step, or at an unknown one: an older checkpoint may serve, or
    a newer one may have been saved. Which is known only once nobody writes any more.
    """
    started = ledger.started
    if started is None or started.choice.snapshot is not None:
        return False
    if not ledger.telling_ranks and started.choice.has_folder:
        return True
    return started.choice.restored_path is not None


def say_same_error(ledger: Ledger, cause: str = _PROGRAM, count: int = 0) -> str:
    """Return what is wrong with a program that ended with the same error again and again."""
    run = ledger.errors
    assert run is not None, "a job without an error has nothing to repeat"
    silent = "before the first step" if ledger.telling_ranks else "at an unknown step"
    where = silent if run.step is None else f"at step {run.step}"
    in_a_row = f"in {count} attempts" if count > run.count else f"in {run.count} attempts in a row"
    return f"the same error {where} {in_a_row}: {cause}"


def _reason(identity: str, failures: Sequence[StartFailure], policy: Policy) -> str | None:
    """Return why a checkpoint is passed over, or None."""
    own = [failure for failure in failures if failure.identity == identity]
    loading = [failure for failure in own if failure.is_loading]
    if loading:
        return f"attempt {loading[-1].attempt} could not load it: {loading[-1].error}"
    for failure in own:
        alike = [other for other in own if other.symptom == failure.symptom]
        is_elsewhere = any(
            other.symptom == failure.symptom and other.identity != identity for other in failures
        )
        if failure.may_be_state and len(alike) >= policy.same_error_max and not is_elsewhere:
            return f"{len(alike)} attempts from it ended before the first step: {failure.error}"
    return None


def _not_loaded_text(failures: Sequence[StartFailure]) -> str:
    """Return which checkpoints could not be loaded, each with the program's own error."""
    errors = {failure.name: failure.error for failure in failures if failure.is_loading}
    named = [f"{name} ({error})" for name, error in list(errors.items())[:_PASSED_NAMED_MAX]]
    if len(named) == 1:
        return f"the program can't load its only checkpoint, {named[0]}"
    return f"the program can't load the newest {len(errors)} checkpoints: {'; '.join(named)}"


def prefer_checked(
    ledger: Ledger, policy: Policy, candidates: Sequence[CheckpointVerdict]
) -> Sequence[CheckpointVerdict]:
    """Return the candidates; newer unchecked ones are passed over where the newest checked one is nearly as new.

    Times of the storage's clock show how much training lies between two saves.
    """
    newest = next((candidate for candidate in candidates if candidate.is_valid), None)
    if newest is None or newest.is_checked:
        return candidates
    checked = next(
        (candidate for candidate in candidates if _may_replace(candidate, ledger, policy)), None
    )
    if checked is None:
        return candidates
    redo_s = newest.candidate.modified_unix_s - checked.candidate.modified_unix_s
    if not 0 <= redo_s <= policy.checkpoint_unverified_redo_s:
        return candidates
    why = f"{checked.candidate.tag} was checked to its end, and is {redo_s:.0f} s older"
    place = candidates.index(checked)
    newer = [
        _passed_over(candidate, why) if candidate.unchecked_bytes else candidate
        for candidate in candidates[:place]
    ]
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
    is_known = any(restore.attempt == ledger.attempt for restore in ledger.damaged_restores)
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
                item.is_valid and item.candidate.modified_unix_s < candidate.modified_unix_s
                for item in known
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
    if any(
        restore.attempt == point.attempt and restore.goes_back
        for restore in ledger.damaged_restores
    ):
        return f"attempt {point.attempt} began from a damaged checkpoint"
    return None


def choose_checkpoint(
    ledger: Ledger,
    policy: Policy,
    candidates: Sequence[CheckpointVerdict],
    *,
    may_begin: bool = False,
) -> Choice:
    """Return the newest valid checkpoint that has not failed too often, and what was passed over.

    Where all have, the newest of those that failed the least: whether to go on at all is for
    the budgets to say. ``may_begin``: a person wants the job to begin at zero where there is none.
    """
    candidates = proven_first(candidates, dict(ledger.proven))
    candidates = prefer_checked(ledger, policy, candidates)
    spoiled = [candidate for candidate in candidates if _is_spoiled(candidate, ledger)]
    if spoiled:
        return _without_spoiled(ledger, policy, candidates, spoiled, may_begin=may_begin)
    return _newest_valid(ledger, policy, candidates, may_begin=may_begin)


def is_spoiled_step(ledger: Ledger, step: int | None) -> bool:
    """Return whether a state of this step is not from before the step behind which the job goes back now."""
    back = ledger.goes_back
    return back is not None and (step is None or step >= back.behind)


def _is_spoiled(verdict: CheckpointVerdict, ledger: Ledger) -> bool:
    if is_spoiled_step(ledger, verdict.candidate.step) or comes_from_damage(verdict, ledger):
        return True
    return _choice_of(verdict).identity in ledger.spoiled


def _what_spoiled(ledger: Ledger) -> str:
    damage = ledger.leaves_damaged
    return "the numbers went wrong" if damage is None else f"{damage.path}, which is damaged"


def _why_spoiled(verdict: CheckpointVerdict, ledger: Ledger) -> str:
    if ledger.leaves_damaged is None:
        return f"not from before {_what_spoiled(ledger)}"
    if not verdict.is_valid:
        return verdict.reason
    return f"saved by ranks that began from {_what_spoiled(ledger)}"


def _without_spoiled(
    ledger: Ledger,
    policy: Policy,
    candidates: Sequence[CheckpointVerdict],
    spoiled: Sequence[CheckpointVerdict],
    *,
    may_begin: bool,
) -> Choice:
    """Return the choice among what is from before the numbers went wrong; where that is nothing, among all."""
    sound = [candidate for candidate in candidates if not _is_spoiled(candidate, ledger)]
    identities = tuple(_choice_of(verdict).identity for verdict in spoiled[:_SPOILED_MAX])
    if not any(candidate.is_valid for candidate in sound):
        choice = _newest_valid(ledger, policy, candidates, may_begin=may_begin)
        return replace(
            choice, reason=f"{choice.reason}; none is from before {_what_spoiled(ledger)}"
        )
    choice = _newest_valid(ledger, policy, sound, may_begin=may_begin)
    others = tuple(
        PassedOver(verdict.candidate.path, verdict.candidate.step, _why_spoiled(verdict, ledger))
        for verdict in spoiled
        if verdict.looks_like_checkpoint
    )
    passed_over = (*others, *choice.passed_over)[:_PASSED_OVER_MAX]
    return replace(choice, passed_over=passed_over, spoiled=identities)


def _newest_valid(
    ledger: Ledger,
    policy: Policy,
    candidates: Sequence[CheckpointVerdict],
    *,
    may_begin: bool,
) -> Choice:
    not_loaded = failed_to_start(ledger, policy)
    usable = [
        candidate for candidate in candidates if _choice_of(candidate).identity not in not_loaded
    ]
    if any(candidate.is_valid for candidate in usable):
        return _with_fallback(
            _newest_usable(ledger, policy, usable, candidates, may_begin=may_begin),
            candidates,
            not_loaded,
        )
    return _newest_usable(ledger, policy, candidates, candidates, may_begin=may_begin)


def _with_fallback(
    choice: Choice, candidates: Sequence[CheckpointVerdict], not_loaded: Mapping[str, str]
) -> Choice:
    """Return the choice with the newer ones that the program could not begin from."""
    newer = list(
        takewhile(
            lambda item: choice.restore is None or item.candidate.path != choice.restore.path,
            candidates,
        )
    )
    failed = [item for item in newer if item.is_valid and _choice_of(item).identity in not_loaded]
    if not failed:
        return choice
    reasons = tuple(
        PassedOver(item.candidate.path, item.candidate.step, not_loaded[_choice_of(item).identity])
        for item in failed
    )
    return replace(
        choice,
        passed_over=(*reasons, *choice.passed_over)[:_PASSED_OVER_MAX],
        fallen_back_from=tuple(_choice_of(item).identity for item in failed),
    )


def _newest_usable(
    ledger: Ledger,
    policy: Policy,
    usable: Sequence[CheckpointVerdict],
    candidates: Sequence[CheckpointVerdict],
    *,
    may_begin: bool,
) -> Choice:
    failed: list[tuple[int, CheckpointVerdict]] = []
    for verdict in usable:
        if not verdict.is_valid:
            continue
        restores = ledger.restores_of(_choice_of(verdict).identity)
        if restores < policy.restore_failures_max or not follows_choice(ledger):
            state = None if may_begin else _lost_state(ledger, verdict, candidates)
            if state is not None:
                return _without_optimizer(verdict, state, candidates)
            choice = _with_passed_over(ledger, verdict, usable, failed)
            if _is_rolled_back(ledger, verdict.candidate.step, candidates):
                reason = (
                    f"{choice.reason}; newer ones that were restored before are gone: a new run"
                )
                return replace(choice, reason=reason, is_new_run=True)
            return choice
        failed.append((restores, verdict))
    if failed:
        restores, verdict = min(failed, key=lambda item: item[0])  # of equals the first, the newest
        choice = _with_passed_over(ledger, verdict, usable, failed)
        how = f"restored {restores} times without progress, as was every other valid one"
        return replace(choice, reason=f"{choice.reason}; {how}")
    return _without_checkpoint(ledger, candidates, may_begin=may_begin)


def _lost_state(
    ledger: Ledger, chosen: CheckpointVerdict, candidates: Sequence[CheckpointVerdict]
) -> CheckpointVerdict | None:
    """Return a training state that can't be restored, where what is chosen in its place has no optimizer's state.

    Momentum that is lost silently spoils a run slowly. A training state: the content shows it, or the journal
    does of one with such a name. A person who names what to restore (`--checkpoint-name`) leaves it out.
    """
    if held_by(chosen.candidate) not in _WITHOUT_OPTIMIZER:
        return None
    own, noted = _pattern_of(chosen.candidate.path), ledger.restorable
    noted_pattern = None
    if noted is not None and noted.holds == Holds.STATE.value:
        noted_pattern = _pattern_of(noted.path)
    for verdict in candidates:
        if verdict.is_valid or not verdict.looks_like_checkpoint:
            continue
        if verdict.hindrance not in _LOST:
            continue
        holds, pattern = held_by(verdict.candidate), _pattern_of(verdict.candidate.path)
        was_state = holds is Holds.UNKNOWN and pattern == noted_pattern != own
        if holds is Holds.STATE or was_state:
            return verdict
    return None


def _without_optimizer(
    chosen: CheckpointVerdict, state: CheckpointVerdict, candidates: Sequence[CheckpointVerdict]
) -> Choice:
    """Return the choice to hold the job rather than go on from a model alone."""
    others = tuple(
        PassedOver(candidate.candidate.path, candidate.candidate.step, candidate.reason)
        for candidate in candidates[:_PASSED_OVER_MAX]
        if candidate.looks_like_checkpoint and candidate is not chosen
    )
    tag = shown(chosen.candidate.tag)
    reason = (
        f"no training state can be restored ({state.candidate.tag}: {state.reason}), and {tag} has no optimizer's state "
        f"(to restore it all the same: --checkpoint-name {quote(tag)})"
    )
    return Choice(False, None, reason, others, model_alone=chosen.candidate.path)


def without_deleted(choice: Choice, deleted: tuple[PassedOver, ...], *, may_begin: bool) -> Choice:
    """Return a choice that was made once more, after the checkpoints chosen before were deleted.

    It names them, and without another checkpoint it is not possible: training would begin at zero.
    """
    path = None if choice.restore is None else choice.restore.path
    gone = tuple(over for over in deleted if over.path != path)
    if not gone:
        return choice
    choice = replace(choice, passed_over=(*gone, *choice.passed_over))
    if choice.restore is not None or may_begin or not choice.is_possible:
        return choice
    reason = f"{gone[-1].path} was deleted after it was chosen, and no other checkpoint is left"
    return replace(choice, is_possible=False, reason=reason, is_new_run=False)


def without_folder(ledger: Ledger) -> Choice:
    """Return the choice of an attempt of a job that names no folder to look for checkpoints in."""
    is_new_run = ledger.is_resumed and not ledger.was_given_up
    reason = "no --checkpoint-dir: so does every restart, unless the ranks keep snapshots in memory"
    return Choice(True, None, reason, is_new_run=is_new_run, has_folder=False)


def is_progress(ledger: Ledger, choice: Choice) -> bool:
    """Return whether the snapshot or checkpoint is newer than any that an attempt of this run began from.

    By the step, where names of one pattern (or none at all) have it, else also by time:
    `last.ckpt` written after `epoch_3.ckpt` was restored is progress, whatever their numbers.
    """
    if choice.snapshot is not None:
        known = [step for step in (ledger.base_step, ledger.memory_step) if step is not None]
        return choice.snapshot.step > max(known, default=-1)
    if choice.restore is None or ledger.attempt == 0:
        return False
    if choice.restore.step is not None and ledger.base_step is not None:
        if choice.restore.step > ledger.base_step:
            return True
        former = ledger.last_restore_path
        if former is None or _pattern_of(choice.restore.path) == _pattern_of(former):
            return False
    if choice.modified_unix_s is None:
        return False
    before = ledger.base_modified_unix_s
    return before is None or choice.modified_unix_s > before


def _choice_of(verdict: CheckpointVerdict) -> Choice:
    candidate = verdict.candidate
    return Choice(
        True,
        Restore(candidate.path, candidate.step),
        verdict.reason,
        modified_unix_s=candidate.modified_unix_s,
        unchecked_bytes=verdict.unchecked_bytes,
    )


def _with_passed_over(
    ledger: Ledger,
    chosen: CheckpointVerdict,
    candidates: Sequence[CheckpointVerdict],
    failed: Sequence[tuple[int, CheckpointVerdict]],
) -> Choice:
    """Return the choice with every other candidate that a person may take for the newest."""
    times = {item.candidate.path: restores for restores, item in failed}
    evidence = evidence_of(
        [candidate.candidate for candidate in candidates], proven=dict(ledger.proven)
    )
    before = {
        item.candidate.path
        for item in takewhile(lambda item: item.candidate.path != chosen.candidate.path, candidates)
    }
    others = []
    for verdict in passed_over(candidates, chosen.candidate.path)[:_PASSED_OVER_MAX]:
        path = verdict.candidate.path
        reason = verdict.reason
        if path in times:
            reason = f"restored {times[path]} times without progress"
        elif path not in before and (verdict.is_valid or verdict.hindrance is Hindrance.UNREAD):
            why = evidence[path].reason
            reason = f"written later, but {say_reason(why)}"
            if why in BY_EVIDENCE:
                tag = shown(verdict.candidate.tag)
                reason = f"{reason} (to restore it all the same: --checkpoint-name {quote(tag)})"
        others.append(PassedOver(path, verdict.candidate.step, reason))
    return replace(_choice_of(chosen), passed_over=tuple(others))


def _without_checkpoint(
    ledger: Ledger, candidates: Sequence[CheckpointVerdict], *, may_begin: bool
) -> Choice:
    """Return the choice to begin at zero, or not to (`Choice.is_possible`) where that would lose training.

    A folder that a person has emptied before the start is a new run. One that is empty in the
    middle of a run is a loss, or storage that is not there: to begin at zero would train for days
    what is already there, and write over it.
    """
    seen = [verdict for verdict in candidates if verdict.looks_like_checkpoint]
    others = tuple(
        PassedOver(verdict.candidate.path, verdict.candidate.step, verdict.reason)
        for verdict in candidates[:_PASSED_OVER_MAX]
    )
    known = ledger.restorable_path
    is_start = ledger.attempt == 0 or _is_persons_start(ledger)
    what = _unrestorable_text(seen) if seen else "no checkpoint found"
    if may_begin:
        reason = f"{what}; a person wants it so"
        return Choice(True, None, reason, others, is_new_run=ledger.attempt > 0)
    is_lost = known is not None and (bool(seen) or not is_start)
    is_unknown = bool(seen) and not is_start and not _are_known(ledger, others)
    if is_lost or is_unknown:
        before = "" if known is None else f", and {known} could be restored before"
        return Choice(False, None, f"{what}{before}", others)
    if known is not None:
        reason = f"{what}: a new run; the one before could be restored from {known}"
        return Choice(True, None, reason, others, is_new_run=True)
    # A job that was given up before it had saved anything is started again as it was.
    if ledger.is_resumed and not ledger.was_given_up:
        return Choice(True, None, f"{what}: a new run", others, is_new_run=True)
    return Choice(True, None, what, others)


def _unrestorable_text(seen: Sequence[CheckpointVerdict]) -> str:
    """Return how many look like checkpoints, and why none of them can be restored."""
    named = "; ".join(f"{verdict.candidate.tag}: {verdict.reason}" for verdict in seen[:_NAMED_MAX])
    more = f"; and {len(seen) - _NAMED_MAX} more" if len(seen) > _NAMED_MAX else ""
    if len(seen) == 1:
        return f"1 file or folder looks like a checkpoint, but can't be restored ({named})"
    return (
        f"{len(seen)} files or folders look like checkpoints, but none can be restored "
        f"({named}{more})"
    )


def _are_known(ledger: Ledger, others: tuple[PassedOver, ...]) -> bool:
    """Return whether the newest attempt began at zero in sight of the same candidates."""
    started = ledger.started
    if started is None or started.choice.restore is not None:
        return False
    return {other.path for other in others} <= {
        verdict.path for verdict in started.choice.passed_over
    }


def _is_persons_start(ledger: Ledger) -> bool:
    """Return whether the next attempt is the first since somebody started the job (again).

    On several nodes a controller also starts when another host takes over: nobody's wish.
    """
    return ledger.is_resumed or (not ledger.has_ordered and not ledger.members)


def _is_rolled_back(
    ledger: Ledger, step: int | None, candidates: Sequence[CheckpointVerdict]
) -> bool:
    """Return whether a person has removed the checkpoints from ``step`` on before the start."""
    if step is None or ledger.base_step is None or not _is_persons_start(ledger):
        return False
    there = {verdict.candidate.path for verdict in candidates}
    return step < ledger.base_step and ledger.last_restore_path not in there


def _pattern_of(path: str) -> str:
    return _DIGITS.sub("#", path.rpartition("/")[2])
