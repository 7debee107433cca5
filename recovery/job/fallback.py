"""Which checkpoints are passed over because the program could not begin from them. Pure.

A checkpoint can be whole and still be of no use: another version of the script wrote it, or it lacks
what the script now asks for. Rules, over the attempts that ended before their first step since one
last got past it (`Ledger.start_failures`):

- an error that shows loading (`detectors.failed.loading_error`) passes its checkpoint over at once:
  the file does not change, so the same load fails again;
- another error of the program does so once it came `Policy.same_error_max` times from this checkpoint,
  and from no other start. Errors of a service, storage, memory, a device or a peer never do;
- if the older checkpoint then fails before its first step for another reason, the first diagnosis may
  have been wrong: the newest is tried again;
- at most `Policy.fallbacks_max` attempts in a row begin from an older checkpoint. Nothing is deleted.

Once an attempt has got past its first step, what it passed over stays passed over
(`Ledger.not_loaded`) until a person starts the job again, who may have mended the script.
A script that begins from what it finds itself can't follow; for it nothing is passed over.
"""

from collections.abc import Sequence
from typing import Final

from recovery.journal.attempt_records import Choice
from recovery.journal.ledger import Ledger, StartFailure
from recovery.journal.limits import Policy

_NAMED_MAX: Final = 4  # checkpoints in a sentence: the newest, and three steps back
_PROGRAM: Final = "the program itself fails"


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
    alike = [one for one in failures if one.symptom == last.symptom]
    starts = {one.identity for one in alike}
    is_exhausted = steps_back(ledger) >= policy.fallbacks_max
    of_choice = sum(one.identity == choice.identity for one in alike)
    refusal = None
    if last.is_loading and last.is_fallback and is_exhausted:
        refusal = _say_not_loaded(failures)
    elif last.is_fallback and not last.is_loading and len(starts) > 1:
        refusal = f"the same error before the first step from {len(starts)} checkpoints: {_PROGRAM}"
    elif choice.fallen_back_from and (of_choice == 0 or last.identity != choice.identity):
        pass  # an older one that this error does not come from
    elif last.is_loading and len(starts) > 1 and of_choice >= tries:
        refusal = _say_not_loaded(failures)
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
    own = [one for one in failures if one.identity == identity]
    loading = [one for one in own if one.is_loading]
    if loading:
        return f"attempt {loading[-1].attempt} could not load it: {loading[-1].error}"
    for one in own:
        alike = [other for other in own if other.symptom == one.symptom]
        is_elsewhere = any(
            other.symptom == one.symptom and other.identity != identity for other in failures
        )
        if one.may_be_state and len(alike) >= policy.same_error_max and not is_elsewhere:
            return f"{len(alike)} attempts from it ended before the first step: {one.error}"
    return None


def _say_not_loaded(failures: Sequence[StartFailure]) -> str:
    """Return which checkpoints could not be loaded, each with the program's own error."""
    errors = {one.name: one.error for one in failures if one.is_loading}
    named = [f"{name} ({error})" for name, error in list(errors.items())[:_NAMED_MAX]]
    if len(named) == 1:
        return f"the program can't load its only checkpoint, {named[0]}"
    return f"the program can't load the newest {len(errors)} checkpoints: {'; '.join(named)}"
