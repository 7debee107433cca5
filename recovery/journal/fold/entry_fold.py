"""Fold a job's journal into its ledger, entry by entry. Pure: no clock and no file is read.

Each kind of record has one function, in the module of its subject: what a record changes is there.
"""

from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import Final, cast

from rankmend.errors import JournalError
from recovery.journal.attempt_records import AttemptStarted, SavesMissing, StandStill
from recovery.journal.fold import (
    attempt_fold,
    budget_fold,
    incident_fold,
    job_fold,
    node_fold,
    number_fold,
    person_fold,
    probe_fold,
    slow_rank_fold,
    snapshot_fold,
)
from recovery.journal.fold.budget_fold import with_restart_dated
from recovery.journal.fold.changed_copy import replace
from recovery.journal.fold.node_fold import with_evidence
from recovery.journal.fold.progress_fold import PROGRESS, ProgressRecord, ProgressRun
from recovery.journal.fold.save_fold import with_history
from recovery.journal.incident_records import CaughtUp, IncidentOpened, TryFailed
from recovery.journal.ledger import Ledger, Moment, UnsavedNow
from recovery.journal.node_records import EvidenceTaken
from recovery.journal.probe_records import FabricProbeAsked
from recovery.journal.records import Entry, Record


def fold_all(entries: Iterable[Entry], ledger: Ledger | None = None) -> Ledger:
    """Return the ledger of a whole journal; ``ledger``: that of what is before the entries."""
    ledger, run = ledger or Ledger(), None
    for entry in entries:
        record = entry.record
        if type(record) in PROGRESS:
            run = run or ProgressRun(ledger)
            run.take(entry, cast(ProgressRecord, record))
            continue
        if run is not None:
            ledger, run = run.ledger(), None
        ledger = fold(ledger, entry)
    return ledger if run is None else run.ledger()


def fold(ledger: Ledger, entry: Entry) -> Ledger:
    """Return the ledger after ``entry``."""
    if entry.number != ledger.number + 1:
        raise JournalError(f"record {entry.number} follows record {ledger.number}")
    after = _fold(entry.record, replace(ledger, number=entry.number))
    if after.attempt > after.attempt_max:
        after = replace(after, attempt_max=after.attempt)
    at = Moment(entry.unix_s, entry.monotonic_s, entry.boot_id)
    return with_history(entry.record, at, ledger, _with_time(entry, at, ledger, after))


def _with_time(  # noqa: PLR0911 - a table
    entry: Entry, at: Moment, before: Ledger, after: Ledger
) -> Ledger:
    """Note when incidents open, when evidence came, and what catching up took."""
    record = entry.record
    if isinstance(record, AttemptStarted | IncidentOpened | TryFailed):
        after = with_restart_dated(record, entry.unix_s, after)
    if isinstance(record, IncidentOpened) and after.incident is not None:
        incident = replace(after.incident, opened_at=at, fault_age_s=record.fault_age_s)
        return replace(after, incident=incident)
    if isinstance(record, CaughtUp) and before.behind is not None:
        behind = before.behind
        cost_s = behind.fault_age_s + max(0.0, behind.opened_at.until_s(at) - record.age_s)
        return replace(after, restart_cost_s=cost_s)
    if isinstance(record, FabricProbeAsked):
        return replace(after, probes=replace(after.probes, asked_at=at))
    if isinstance(record, SavesMissing):
        return replace(after, unsaved=UnsavedNow(record, at))
    if isinstance(record, StandStill) and after.continued_number == entry.number:
        others = [one for one in after.continued if one[0] not in record.ranks]
        fresh = [(rank, at) for rank in record.ranks]
        return replace(after, continued=(*others, *fresh))
    if isinstance(record, EvidenceTaken):
        return with_evidence(after, record, at)
    return after


@singledispatch
def _fold(_record: Record, ledger: Ledger) -> Ledger:
    """Fold a record that changes no decision (unknown, TailCut)."""
    return ledger


# One for each kind of record that changes something: the kind is the type of its first parameter.
FOLDS: Final[tuple[Callable[..., Ledger], ...]] = (
    job_fold.fold_job_opened,
    job_fold.fold_launcher_started,
    job_fold.fold_ranks_done,
    job_fold.fold_stop_requested,
    job_fold.fold_job_ended,
    attempt_fold.fold_attempt_started,
    attempt_fold.fold_start_waits,
    attempt_fold.fold_checkpoint_put_back,
    attempt_fold.fold_restore_damaged,
    attempt_fold.fold_checkpoint_seen,
    attempt_fold.fold_saves_missing,
    attempt_fold.fold_stand_still,
    attempt_fold.fold_attempt_verified,
    attempt_fold.fold_milestone,
    attempt_fold.fold_relative_milestone,
    attempt_fold.fold_attempt_abandoned,
    attempt_fold.fold_attempt_ended,
    attempt_fold.fold_attempt_heard,
    attempt_fold.fold_adopted,
    budget_fold.fold_budgets_reset,
    budget_fold.fold_records_lost,
    node_fold.fold_evidence_doubted,
    incident_fold.fold_incident_opened,
    incident_fold.fold_try_failed,
    incident_fold.fold_evidence_collected,
    incident_fold.fold_nodes_charged,
    incident_fold.fold_blame_corrected,
    incident_fold.fold_incident_event,
    incident_fold.fold_caught_up,
    incident_fold.fold_decided,
    incident_fold.fold_plan_waits,
    slow_rank_fold.fold_slow_found,
    slow_rank_fold.fold_slow_explained,
    slow_rank_fold.fold_slow_ended,
    probe_fold.fold_fabric_probe_asked,
    probe_fold.fold_fabric_probe_skipped,
    probe_fold.fold_fabric_probe_ended,
    node_fold.fold_nodes_joined,
    node_fold.fold_launchers_ended,
    node_fold.fold_nodes_off,
    node_fold.fold_node_left,
    node_fold.fold_finder_chosen,
    node_fold.fold_fence_waits,
    person_fold.fold_person_acted,
    snapshot_fold.fold_parallel_declared,
    snapshot_fold.fold_replicas_differ,
    snapshot_fold.fold_replicas_known,
    number_fold.fold_numbers_wrong,
    number_fold.fold_goes_back,
)
for _one in FOLDS:
    _fold.register(_one)
