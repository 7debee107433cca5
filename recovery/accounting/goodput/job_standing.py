"""What a job does at a moment, and with how many devices, by how its journal stands. Pure."""

from typing import Final

from detectors.finding import Finding, SymptomKind
from recovery.accounting.goodput.timeline import TimePart, TimeSpan
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import WaitsFor
from recovery.journal.ledger import Ledger, OpenIncident, Wish, stands_paused
from recovery.messages.outside import trains

_WAITS: Final = {
    WaitsFor.LEAVE: TimePart.WAIT_PERSON,
    WaitsFor.NODES: TimePart.WAIT_NODES,
    WaitsFor.STORAGE: TimePart.WAIT_STORAGE,
}


def going_on(ledger: Ledger) -> TimeSpan:
    """Return the time from the newest record on, but for its bounds."""
    part, incident_id = _part_of(ledger)
    devices = 0 if part is TimePart.ENDED else devices_of(ledger)
    return TimeSpan(0.0, 0.0, part, ledger.attempt, devices, incident_id)


def runs_on(finding: Finding) -> bool:
    """Return whether ranks go on while the incident is decided."""
    return trains(finding) or finding.symptom.kind is SymptomKind.ALERT


def devices_of(ledger: Ledger) -> int:
    """Return how many devices the job holds: a rank stands for one; before the first attempt, a slot does."""
    if ledger.attempt > 0 and ledger.placement:
        return ledger.world_size
    slots = sum(member.slots for member in ledger.members.values() if member.left is None)
    return max(ledger.world_size, slots)


def _part_of(ledger: Ledger) -> tuple[TimePart, str]:
    """Return what a job does whose journal stands so, and the incident that this is the cost of."""
    incident_id = ""
    if ledger.ended is not None:
        part = TimePart.ENDED
    elif ledger.closing is not None:
        part, incident_id = TimePart.STOPPING, ledger.closing.outcome.incident_id or ""
    elif stands_paused(ledger):
        part = TimePart.WAIT_PERSON
    elif ledger.start_waits is not None and ledger.incident is None:
        is_storage = ledger.start_waits.is_for_storage
        part = TimePart.WAIT_STORAGE if is_storage else TimePart.WAIT_PERSON
    elif ledger.incident is not None:
        part, incident_id = _part_of_incident(ledger, ledger.incident)
    elif not ledger.is_attempt_open:
        is_restart = ledger.attempt > 0 and not ledger.is_resumed
        part = TimePart.INTERRUPTED if is_restart else TimePart.WAIT_NODES
    elif ledger.wish is not Wish.RANKS:
        part = TimePart.INTERRUPTED
    else:
        part = TimePart.UNDIVIDED if ledger.has_run else TimePart.STARTUP
    return part, incident_id


def _part_of_incident(ledger: Ledger, incident: OpenIncident) -> tuple[TimePart, str]:
    phase, incident_id = incident.state.phase, incident.state.incident_id
    if phase is Phase.VERIFYING and ledger.is_verified:
        return TimePart.UNDIVIDED, ""
    if phase is Phase.OPENED and runs_on(incident.failure.finding) and ledger.has_run:
        return TimePart.UNDIVIDED, ""
    is_ordered = phase is Phase.VERIFYING
    is_ordered |= phase is Phase.RESTORING and ledger.is_attempt_open
    if incident.waits is not None and not is_ordered:
        return _WAITS[incident.waits_for], incident_id
    if phase is Phase.OPENED:
        return TimePart.DECIDE, incident_id
    if phase is Phase.FENCING:
        is_first = incident.state.try_number == 1
        return (TimePart.FENCE if is_first else TimePart.RETRIES), incident_id
    return (TimePart.START if is_ordered else TimePart.PREPARE), incident_id
