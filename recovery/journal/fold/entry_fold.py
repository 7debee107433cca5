"""Folds a job's journal into its ledger, entry by entry. Pure: no clock and no file is read.

Each kind of record has one function, in the module of its subject: it has all that a record
changes.
"""

from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import Final, TypeAlias, cast

from rankmend.errors import JournalError
from recovery.journal.attempt_records import (
    AttemptStarted,
    Milestone,
    RelativeMilestone,
    SavesMissing,
    SavesStalled,
    StandStill,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.fold import (
    attempt_fold,
    budget_fold,
    incident_fold,
    job_fold,
    node_fold,
    observation_fold,
)
from recovery.journal.fold.attempt_fold import with_relative
from recovery.journal.fold.budget_fold import (
    replace,
    with_first_step,
    with_restart_dated,
    with_step,
)
from recovery.journal.fold.node_fold import with_evidence
from recovery.journal.fold.observation_fold import run_sums, trains, with_history, with_run_sums
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import CaughtUp, IncidentEvent, IncidentOpened, TryFailed
from recovery.journal.ledger import (
    Ledger,
    Moment,
    OpenIncident,
    Reach,
    UnsavedNow,
    farther,
    is_farther,
)
from recovery.journal.node_records import EvidenceTaken
from recovery.journal.observation_records import FabricProbeAsked
from recovery.journal.records import Entry, Record

MEASURED: Final = (WorkSeen, StepsSeen, SavesStalled)
"""Change nothing but until when ranks are known to have trained."""
ProgressRecord: TypeAlias = Milestone | RelativeMilestone | WorkSeen | StepsSeen | SavesStalled
PROGRESS: Final = frozenset({Milestone, RelativeMilestone, *MEASURED})
"""What a run consists of."""

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
    observation_fold.fold_slow_found,
    observation_fold.fold_slow_explained,
    observation_fold.fold_slow_ended,
    observation_fold.fold_fabric_probe_asked,
    observation_fold.fold_fabric_probe_skipped,
    observation_fold.fold_fabric_probe_ended,
    node_fold.fold_nodes_joined,
    node_fold.fold_launchers_ended,
    node_fold.fold_nodes_off,
    node_fold.fold_node_left,
    node_fold.fold_finder_chosen,
    node_fold.fold_fence_waits,
    job_fold.fold_person_acted,
    observation_fold.fold_parallel_declared,
    observation_fold.fold_replicas_differ,
    observation_fold.fold_replicas_known,
    observation_fold.fold_numbers_wrong,
    observation_fold.fold_goes_back,
)


class ProgressRun:
    """A run of records of progress and measurements behind ``ledger``, folded at once: nearly all of a long journal.

    To fold one entry copies the ledger several times. Nothing reads the ledger within such a run,
    so this stores only a few numbers: the ledger is the same, to the last bit, as after folding
    entry by entry.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._before = ledger
        self._number = ledger.number
        self._steps = Reach(ledger.highest_step, ledger.floor_step)
        self._relative = ledger.reach
        self._has_relative = self._has_stepped = self._has_begun = False
        self._trains = trains(ledger)
        self._ran_at = ledger.ran_at
        self._sums = run_sums(ledger.history)

    def take(self, entry: Entry, record: ProgressRecord) -> None:
        """Add the next entry, which holds ``record``."""
        if entry.number != self._number + 1:
            raise JournalError(f"record {entry.number} follows record {self._number}")
        self._number = entry.number
        self._has_begun = self._has_begun or not isinstance(record, MEASURED)
        if isinstance(record, Milestone):
            known, self._steps = self._steps, farther(self._steps, record.step, record.floor_step)
            self._has_stepped = self._has_stepped or is_farther(known, self._steps)
        elif isinstance(record, RelativeMilestone):
            known, self._has_relative = self._relative, True
            self._relative = farther(known, record.steps, record.floor_steps)
            is_news = self._before.is_base_known and is_farther(known, self._relative)
            self._has_stepped = self._has_stepped or is_news
        at = Moment(entry.unix_s, entry.monotonic_s, entry.boot_id) if self._trains else None
        if at is not None and self._ran_at is not None:
            self._sums = self._sums.after(self._ran_at.until_s(at))
        self._ran_at = at

    def ledger(self) -> Ledger:
        """Return the ledger after the newest entry."""
        after = replace(
            self._before,
            number=self._number,
            highest_step=self._steps.highest,
            floor_step=self._steps.floor,
            history=with_run_sums(self._before.history, self._sums),
            ran_at=self._ran_at,
        )
        if self._has_relative:
            after = with_relative(after, self._relative)
        if self._has_begun:
            after = with_first_step(after)
        return with_step(after) if self._has_stepped else after


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
    if isinstance(record, IncidentEvent) and after.incident is not None:
        return _with_stop(after, after.incident, at)
    if isinstance(record, CaughtUp) and before.behind is not None:
        cost_s = max(0.0, before.behind.cost_s(at) - record.age_s)
        return replace(after, restart_cost_s=cost_s)
    if isinstance(record, FabricProbeAsked):
        return replace(after, probes=replace(after.probes, asked_at=at))
    if isinstance(record, SavesMissing):
        return replace(after, unsaved=UnsavedNow(record, at))
    if isinstance(record, StandStill) and after.continued_number == entry.number:
        others = [item for item in after.continued if item[0] not in record.ranks]
        fresh = [(rank, at) for rank in record.ranks]
        return replace(after, continued=(*others, *fresh))
    if isinstance(record, EvidenceTaken):
        return with_evidence(after, record, at)
    return after


def _with_stop(after: Ledger, incident: OpenIncident, at: Moment) -> Ledger:
    """Note when the first plan of an incident was accepted."""
    if incident.stopped_at is not None or incident.state.phase is Phase.OPENED:
        return after
    return replace(after, incident=replace(incident, stopped_at=at))


@singledispatch
def _fold(_record: Record, ledger: Ledger) -> Ledger:
    """Fold a record that changes no decision (unknown, TailCut)."""
    return ledger


for _one in FOLDS:
    _fold.register(_one)
