"""What spends a job's budgets and what gives them back: restarts, progress, restores. Pure.

`replace` of dataclasses for the fold: of a ledger, which has 81 fields, it takes a tenth of the time.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from recovery.journal.attempt_records import AttemptStarted, Cause, Placement
from recovery.journal.faults import UNSEEN, Fault
from recovery.journal.job_records import BudgetsReset, RecordsLost
from recovery.journal.ledger import Ledger, StartFailure, Wish
from recovery.journal.records import Record

__all__ = ["replace"]

_DAY_S: Final = 86400.0
_PROVEN_MAX: Final = 16  # the kind counts, and a job changes it rarely
_BARREN_MAX: Final = 1000  # restarts that are remembered; limits are far below
_START_FAILURES_MAX: Final = 64  # far above the limits that end a job which never makes a step
_NOT_LOADED_MAX: Final = 64  # checkpoints; a folder that is kept tidy holds a few
RESTARTS: Final = (Cause.TAKEOVER, Cause.INCIDENT)

if TYPE_CHECKING:
    from dataclasses import replace  # so the types of the changes are checked
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy with other values in some fields."""
        if type(value) is not Ledger:
            return dataclasses.replace(value, **changes)
        copy = object.__new__(Ledger)
        fields = copy.__dict__
        fields.update(value.__dict__)
        count = len(fields)
        fields.update(changes)
        if len(fields) > count:
            raise TypeError(f"a ledger has no {', '.join(changes.keys() - value.__dict__.keys())}")
        return copy


def with_restart(ledger: Ledger, record: AttemptStarted) -> Ledger:
    """Count a restart, and what it was for until there is progress."""
    count = int(record.cause in RESTARTS)
    after = replace(
        ledger,
        restarts=ledger.restarts + count,
        restarts_in_all=ledger.restarts_in_all + count,
    )
    fault = fault_behind(record, ledger)
    if fault is None:
        return after
    return replace(after, barren=(*ledger.barren, fault)[-_BARREN_MAX:])


def fault_behind(record: AttemptStarted, ledger: Ledger) -> Fault | None:
    """Return why the attempt had to be started; None where nothing had failed."""
    if record.cause is Cause.TAKEOVER:
        return UNSEEN
    return ledger.last_fault if record.cause is Cause.INCIDENT else None


def with_restart_dated(record: Record, unix_s: float, ledger: Ledger) -> Ledger:
    """Date a restart that no new step has followed yet, and forget those of yesterday."""
    recent = [item for item in ledger.stepless if unix_s - item[1] < _DAY_S]
    if isinstance(record, AttemptStarted) and fault_behind(record, ledger) is not None:
        recent.append((record.attempt, unix_s))
    return replace(ledger, stepless=tuple(recent[-_BARREN_MAX:]))


def with_step(ledger: Ledger) -> Ledger:
    """Return the ledger with progress that a new step shows."""
    # What makes steps has not failed, whatever a notice said of it.
    return replace(with_progress(ledger), stepless=without_last(ledger), set_aside=0)


def with_progress(ledger: Ledger) -> Ledger:
    return without_restore(_with_proven(replace(ledger, barren=(), has_advanced=True)))


def _with_proven(ledger: Ledger) -> Ledger:
    """Note what the newest attempt began from: the job makes progress from it."""
    choice = None if ledger.started is None else ledger.started.choice
    if choice is None or choice.restored_path is None or choice.modified_unix_s is None:
        return ledger
    proven = (choice.restored_path, choice.modified_unix_s)
    if ledger.proven[-1:] == (proven,):
        return ledger
    others = tuple(item for item in ledger.proven if item[0] != proven[0])
    return replace(ledger, proven=(*others, proven)[-_PROVEN_MAX:])


def without_last(ledger: Ledger) -> tuple[tuple[int, float], ...]:
    """Return the restarts that no new step followed, without that of the newest attempt."""
    return tuple(item for item in ledger.stepless if item[0] != ledger.attempt)


def without_restore(ledger: Ledger) -> Ledger:
    """Forget what is held against what the newest attempt began from."""
    if ledger.started is None or not ledger.started.choice.identity:
        return ledger
    identity = ledger.started.choice.identity
    return replace(ledger, restores=tuple(pair for pair in ledger.restores if pair[0] != identity))


def with_start_failed(ledger: Ledger, failed: StartFailure | None) -> Ledger:
    """Add an attempt that ended before its first step."""
    if failed is None:
        return ledger
    failures = (*ledger.start_failures, failed)[-_START_FAILURES_MAX:]
    return replace(ledger, start_failures=failures)


def with_first_step(ledger: Ledger) -> Ledger:
    """Return the ledger once the newest attempt is past its first step.

    What it passed over stays passed over: the failures were those checkpoints', since this one serves.
    """
    if not ledger.start_failures or ledger.started is None:
        return ledger
    errors = {failure.identity: failure.error for failure in ledger.start_failures}
    known = dict(ledger.not_loaded)
    for identity in ledger.started.choice.fallen_back_from:
        if identity in errors:
            known[identity] = f"the program could not begin from it: {errors[identity]}"
    not_loaded = tuple(known.items())[-_NOT_LOADED_MAX:]
    return replace(ledger, start_failures=(), not_loaded=not_loaded)


def with_restore_failed(ledger: Ledger, fault: Fault | None) -> Ledger:
    """Hold a failure without progress against the checkpoint that the attempt began from."""
    if fault is None or ledger.has_advanced or not ledger.base:
        return ledger
    faults = {identity: known for identity, known in ledger.restores if identity != ledger.base}
    faults[ledger.base] = (*dict(ledger.restores).get(ledger.base, ()), fault)[-_BARREN_MAX:]
    return replace(ledger, restores=tuple(faults.items()))


def without_spent(ledger: Ledger) -> Ledger:
    return replace(
        ledger,
        restarts=0,
        barren=(),
        stepless=(),
        errors=None,
        start_failures=(),
        not_loaded=(),
        last_fault=UNSEEN,
    )


def fold_budgets_reset(_record: BudgetsReset, ledger: Ledger) -> Ledger:
    return replace(
        without_spent(ledger),
        restores=(),
        last_restore_path=None,
        rollbacks=(),
        node_run=("", 0),
        run_before=("", 0),
        adopted=None,
    )


def fold_records_lost(record: RecordsLost, ledger: Ledger) -> Ledger:
    highest = [at for at in (ledger.highest_step, record.highest_step) if at is not None]
    is_ahead = record.attempt > ledger.attempt
    return replace(
        ledger,
        wish=Wish.NOTHING if is_ahead else ledger.wish,
        revision=ledger.number if is_ahead else ledger.revision,
        attempt=max(ledger.attempt, record.attempt),
        restarts=max(ledger.restarts, record.restarts),
        restarts_in_all=max(ledger.restarts_in_all, record.restarts),
        barren=_at_least(ledger.barren, record.restarts_without_progress),
        highest_step=max(highest, default=None),
        is_attempt_open=ledger.is_attempt_open or is_ahead,
        placement=tuple(Placement(node, ()) for node in record.nodes)
        if is_ahead
        else ledger.placement,
        started_number=ledger.number if is_ahead else ledger.started_number,
        has_lost_lease=record.has_lease if is_ahead else ledger.has_lost_lease,
    )


def _at_least(barren: tuple[Fault, ...], count: int) -> tuple[Fault, ...]:
    """Return ``count`` restarts without progress at least; what those not known were for is lost."""
    lost = min(count, _BARREN_MAX) - len(barren)
    return (*(UNSEEN for _one in range(lost)), *barren)
