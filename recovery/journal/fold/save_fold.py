"""What the records change in a job's history of saves, failures and restarts. Pure."""

from typing import Final, NamedTuple

from detectors.finding import Blame
from recovery.journal.attempt_records import (
    AttemptStarted,
    AttemptVerified,
    Cause,
    CheckpointSeen,
)
from recovery.journal.fold.changed_copy import replace
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.job_records import LauncherStarted
from recovery.journal.ledger import Ledger, Moment, Wish
from recovery.journal.records import Record
from recovery.journal.save_history import HALF_LIFE_S, SAVES_KEPT, Restored, SaveHistory

_READ_S_MIN: Final = 0.1  # less is how long a cache or a start takes, and no read rate


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
    """Return the ledger with the time that training went on until ``record``, and what it tells."""
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
        case AttemptStarted(cause=Cause.INCIDENT, try_number=1) if not _is_asked_for(before):
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


def _is_asked_for(ledger: Ledger) -> bool:
    return ledger.incident is not None and ledger.incident.failure.finding.blame is Blame.USER


def _has_stayed(record: AttemptStarted, before: Ledger) -> bool:
    """Return whether every rank begins on the node on which it ran, and none of these was booted meanwhile."""
    members = [before.members.get(place.node) for place in record.placement]
    is_booted = any(one and one.boot_since > before.started_number for one in members)
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
    since_opened_s = incident.opened_at.until_s(at) - (record.first_step_age_s or 0.0)
    repair_s = incident.fault_age_s + max(0.0, since_opened_s)
    return replace(history, repairs=history.repairs + 1, repaired_s=history.repaired_s + repair_s)


def _with_restored(history: SaveHistory, record: AttemptVerified, before: Ledger) -> SaveHistory:
    seen, path = before.restorable, before.started and before.started.choice.restored_path
    asked_s, trained_s = record.resumed_age_s, record.first_section_age_s
    if seen is None or not path or seen.path != path or not seen.size_bytes:
        return history
    if asked_s is None or trained_s is None or asked_s - trained_s < _READ_S_MIN:
        return history
    return replace(history, restored=Restored(seen.size_bytes, asked_s - trained_s))
