"""Which checkpoint the next attempt begins from, and when to hold the job rather than begin at zero. Pure.

Never from zero where something is there. In a recovery nothing is started while checkpoints are
there of which none can be restored, or while those that were there are gone. At a start by a person
that holds only where the job's own journal says that one could be restored: a folder with torn
or foreign files must not keep a new job from starting.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from shlex import quote
from typing import Final

from recovery.checkpoints.model import CheckpointVerdict, Hindrance, Holds
from recovery.checkpoints.names import shown
from recovery.checkpoints.order import (
    BY_EVIDENCE,
    evidence_of,
    held_by,
    passed_over,
    proven_first,
    say_reason,
)
from recovery.job.fallback import failed_to_start, follows_choice
from recovery.job.unchecked_restore import comes_from_damage, prefer_checked
from recovery.journal.attempt_records import Choice, PassedOver
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.messages.exchange import Restore

_PASSED_OVER_MAX: Final = 20  # in one plan; a folder can hold thousands
_SPOILED_MAX: Final = 64  # remembered of one choice: the newest
_NAMED_MAX: Final = 3  # in a sentence; all others are passed over with their reasons
_WITHOUT_OPTIMIZER: Final = frozenset({Holds.MODEL, Holds.VALUES})
# Of a training state: it is there, and is not restored now. What is only not read yet is another look's.
_LOST: Final = frozenset(
    {Hindrance.DAMAGED, Hindrance.UNREADABLE, Hindrance.WRITING, Hindrance.MISSING, None}
)
_DIGITS: Final = re.compile(r"[0-9]+")


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
    spoiled = [one for one in candidates if _is_spoiled(one, ledger)]
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
    sound = [one for one in candidates if not _is_spoiled(one, ledger)]
    identities = tuple(_choice_of(one).identity for one in spoiled[:_SPOILED_MAX])
    if not any(one.is_valid for one in sound):
        choice = _newest_valid(ledger, policy, candidates, may_begin=may_begin)
        return replace(
            choice, reason=f"{choice.reason}; none is from before {_what_spoiled(ledger)}"
        )
    choice = _newest_valid(ledger, policy, sound, may_begin=may_begin)
    others = tuple(
        PassedOver(one.candidate.path, one.candidate.step, _why_spoiled(one, ledger))
        for one in spoiled
        if one.looks_like_checkpoint
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
    usable = [one for one in candidates if _choice_of(one).identity not in not_loaded]
    if any(one.is_valid for one in usable):
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
            lambda one: choice.restore is None or one.candidate.path != choice.restore.path,
            candidates,
        )
    )
    failed = [one for one in newer if one.is_valid and _choice_of(one).identity in not_loaded]
    if not failed:
        return choice
    reasons = tuple(
        PassedOver(one.candidate.path, one.candidate.step, not_loaded[_choice_of(one).identity])
        for one in failed
    )
    return replace(
        choice,
        passed_over=(*reasons, *choice.passed_over)[:_PASSED_OVER_MAX],
        fallen_back_from=tuple(_choice_of(one).identity for one in failed),
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
        restores, verdict = min(failed, key=lambda one: one[0])  # of equals the first, the newest
        choice = _with_passed_over(ledger, verdict, usable, failed)
        how = f"restored {restores} times without progress, as was every other valid one"
        return replace(choice, reason=f"{choice.reason}; {how}")
    return _without_checkpoint(ledger, candidates, may_begin=may_begin)


def _lost_state(
    ledger: Ledger, chosen: CheckpointVerdict, candidates: Sequence[CheckpointVerdict]
) -> CheckpointVerdict | None:
    """Return a training state that can't be restored, where what is chosen in its place has no optimizer's state.

    Momentum that is lost without a word spoils a run slowly. A training state: the content says so, or the journal
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
        PassedOver(one.candidate.path, one.candidate.step, one.reason)
        for one in candidates[:_PASSED_OVER_MAX]
        if one.looks_like_checkpoint and one is not chosen
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
    gone = tuple(one for one in deleted if one.path != path)
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

    By the step, where names of one pattern (or none at all) tell it, else also by time:
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
    times = {one.candidate.path: restores for restores, one in failed}
    evidence = evidence_of([one.candidate for one in candidates], proven=dict(ledger.proven))
    before = {
        one.candidate.path
        for one in takewhile(lambda one: one.candidate.path != chosen.candidate.path, candidates)
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
    what = _say_unrestorable(seen) if seen else "no checkpoint found"
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


def _say_unrestorable(seen: Sequence[CheckpointVerdict]) -> str:
    """Return how many look like checkpoints, and why none of them can be restored."""
    named = "; ".join(f"{one.candidate.tag}: {one.reason}" for one in seen[:_NAMED_MAX])
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
    return {one.path for one in others} <= {one.path for one in started.choice.passed_over}


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
