"""What records of observations change in the ledger: numbers, probes, slow ranks, snapshots and the job's history. Pure."""

from typing import Final, NamedTuple

from detectors.finding import Blame
from recovery.journal.attempt_records import AttemptStarted, AttemptVerified, Cause, CheckpointSeen
from recovery.journal.fold.budget_fold import replace
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import LauncherStarted
from recovery.journal.ledger import (
    HALF_LIFE_S,
    SAVES_KEPT,
    Ledger,
    Moment,
    ProbesNow,
    Restored,
    SaveHistory,
    SlowNow,
    Wish,
)
from recovery.journal.observation_records import (
    FabricProbeAsked,
    FabricProbeEnded,
    FabricProbeSkipped,
    GoesBack,
    NumbersWrong,
    ParallelDeclared,
    ReplicasDiffer,
    ReplicasKnown,
    SlowEnded,
    SlowExplained,
    SlowFound,
)
from recovery.journal.records import Record

_WRONG_MAX: Final = 16  # newest

_DIFFERING_MAX: Final = 16  # newest; a rank has two snapshots

_READ_S_MIN: Final = 0.1  # less is how long a cache or a start takes, and no read rate


def fold_numbers_wrong(record: NumbersWrong, ledger: Ledger) -> Ledger:
    return replace(ledger, wrong_numbers=(*ledger.wrong_numbers, record)[-_WRONG_MAX:])


def fold_goes_back(record: GoesBack, ledger: Ledger) -> Ledger:
    return replace(ledger, rollbacks=(*ledger.rollbacks, record), goes_back=record)


def fold_fabric_probe_asked(record: FabricProbeAsked, ledger: Ledger) -> Ledger:
    return replace(ledger, probes=ProbesNow(asked=record, slow_nodes=ledger.probes.slow_nodes))


def fold_fabric_probe_skipped(record: FabricProbeSkipped, ledger: Ledger) -> Ledger:
    return replace(ledger, probes=replace(ledger.probes, skipped=record))


def fold_fabric_probe_ended(record: FabricProbeEnded, ledger: Ledger) -> Ledger:
    probes = ledger.probes
    if probes.asked is None or probes.asked.probe_id != record.probe_id:
        return ledger
    slow_nodes = probes.slow_nodes
    if record.verdict is not None:
        slow_nodes = (slow_nodes - set(probes.asked.nodes)) | set(record.slow_nodes)
    return replace(ledger, probes=replace(probes, ended=record, slow_nodes=slow_nodes))


def fold_slow_found(record: SlowFound, ledger: Ledger) -> Ledger:
    if record.attempt != ledger.attempt:
        return ledger
    slow = {**ledger.slow, record.rank: SlowNow(record, ledger.number)}
    return replace(ledger, slow=slow, revision=_shown_revision(ledger))


def fold_slow_explained(record: SlowExplained, ledger: Ledger) -> Ledger:
    known = ledger.slow.get(record.rank)
    if record.attempt != ledger.attempt or known is None:
        return ledger
    slow = {**ledger.slow, record.rank: replace(known, why=record)}
    return replace(ledger, slow=slow, revision=_shown_revision(ledger))


def fold_slow_ended(record: SlowEnded, ledger: Ledger) -> Ledger:
    if record.attempt != ledger.attempt or record.rank not in ledger.slow:
        return ledger
    slow = {rank: item for rank, item in ledger.slow.items() if rank != record.rank}
    return replace(ledger, slow=slow, revision=_shown_revision(ledger))


def _shown_revision(ledger: Ledger) -> int:
    """Return the revision by which the launchers learn of slow ranks; what runs stays as it is."""
    return ledger.number if ledger.wish is Wish.RANKS else ledger.revision


def fold_replicas_differ(record: ReplicasDiffer, ledger: Ledger) -> Ledger:
    return replace(ledger, differing=(*ledger.differing, record)[-_DIFFERING_MAX:])


def fold_parallel_declared(record: ParallelDeclared, ledger: Ledger) -> Ledger:
    return replace(ledger, layout=record.layout)


def fold_replicas_known(record: ReplicasKnown, ledger: Ledger) -> Ledger:
    return replace(ledger, replicas=record)


class RunSums(NamedTuple):
    """What is older counts less. A tuple: a new one is made for each record of progress."""

    ran_s: float
    failures: float
    stayed: float
    repairs: float
    repaired_s: float

    def after(self, more_s: float) -> "RunSums":
        """Return the sums after training went on for ``more_s``."""
        keep = 0.5 ** (more_s / HALF_LIFE_S)
        return RunSums(
            self.ran_s * keep + more_s,
            self.failures * keep,
            self.stayed * keep,
            self.repairs * keep,
            self.repaired_s * keep,
        )


def with_history(record: Record, at: Moment, before: Ledger, after: Ledger) -> Ledger:
    """Return the ledger with the time that training went on until ``record``, and the record's own contents."""
    history, ran_at = before.history, before.ran_at
    is_begun_anew = isinstance(record, LauncherStarted)  # when ranks last ran is not known
    if trains(before) and ran_at is not None and not is_begun_anew:
        history = with_run_sums(history, run_sums(history).after(ran_at.until_s(at)))
    match record:
        case CheckpointSeen(saves=saves) if saves is not None:
            history = replace(history, saves=(*history.saves, saves)[-SAVES_KEPT:])
        case IncidentOpened(failure=failure) if failure.finding.blame is not Blame.USER:
            history = replace(history, failures=history.failures + 1)
        case AttemptStarted(cause=Cause.TAKEOVER):  # the ranks ended with their launcher
            stayed = history.stayed + _has_stayed(record, before)
            history = replace(history, failures=history.failures + 1, stayed=stayed)
        case AttemptStarted(cause=Cause.INCIDENT, try_number=1) if not _is_requested(before):
            history = replace(history, stayed=history.stayed + _has_stayed(record, before))
        case AttemptVerified():
            history = _with_repair(_with_restored(history, record, before), record, at, before)
        case _:
            pass
    now_at = at if trains(after) and not is_begun_anew else None
    if history is before.history and now_at is before.ran_at:
        return after
    return replace(after, history=history, ran_at=now_at)


def trains(ledger: Ledger) -> bool:
    """Return whether ranks of the newest attempt train, by what is on record."""
    runs = ledger.wish is Wish.RANKS and ledger.is_attempt_open
    return runs and ledger.is_verified and ledger.incident is None


def _is_requested(ledger: Ledger) -> bool:
    return ledger.incident is not None and ledger.incident.failure.finding.blame is Blame.USER


def _has_stayed(record: AttemptStarted, before: Ledger) -> bool:
    """Return whether every rank begins on the node on which it ran, and none of these was booted meanwhile."""
    members = [before.members.get(place.node) for place in record.placement]
    is_booted = any(member and member.boot_since > before.started_number for member in members)
    return record.placement == before.placement and not is_booted


def run_sums(history: SaveHistory) -> RunSums:
    return RunSums(
        history.ran_s, history.failures, history.stayed, history.repairs, history.repaired_s
    )


def with_run_sums(history: SaveHistory, sums: RunSums) -> SaveHistory:
    return replace(
        history,
        ran_s=sums.ran_s,
        failures=sums.failures,
        stayed=sums.stayed,
        repairs=sums.repairs,
        repaired_s=sums.repaired_s,
    )


def _with_repair(
    history: SaveHistory, record: AttemptVerified, at: Moment, before: Ledger
) -> SaveHistory:
    incident = before.incident
    if incident is None or incident.failure.finding.blame is Blame.USER:
        return history
    repair_s = max(0.0, incident.cost_s(at) - (record.first_step_age_s or 0.0))
    return replace(history, repairs=history.repairs + 1, repaired_s=history.repaired_s + repair_s)


def _with_restored(history: SaveHistory, record: AttemptVerified, before: Ledger) -> SaveHistory:
    seen, path = before.restorable, before.started and before.started.choice.restored_path
    asked_s, trained_s = record.resumed_age_s, record.first_section_age_s
    if seen is None or not path or seen.path != path or not seen.size_bytes:
        return history
    if asked_s is None or trained_s is None or asked_s - trained_s < _READ_S_MIN:
        return history
    return replace(history, restored=Restored(seen.size_bytes, asked_s - trained_s))
