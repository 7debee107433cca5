"""The time that incidents take: from the fault to the first step, in the phases of MTTR. Pure."""

from collections.abc import Collection
from typing import Final

from recovery.accounting.goodput.job_standing import runs_on
from recovery.accounting.goodput.job_time import IncidentTime
from recovery.accounting.goodput.timeline import TRAINING, Timeline, TimePart
from recovery.journal.accounting import Accounting, divide_start
from recovery.journal.attempt_records import AttemptVerified
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.ledger import Ledger, Moment, OpenIncident
from recovery.journal.records import Entry

_NO_WAITS: Final = frozenset(TimePart) - {
    TimePart.WAIT_NODES,
    TimePart.WAIT_PERSON,
    TimePart.WAIT_STORAGE,
}


class IncidentTimes:
    def __init__(self) -> None:
        self._fenced_first_s: float | None = None
        self._fenced: Entry | None = None
        self._faults: dict[str, tuple[float, float]] = {}
        self._accounting = Accounting()

    def __len__(self) -> int:
        return len(self._faults)

    def forget(self, incident_ids: Collection[str]) -> None:
        """Forget incidents that are over; the newest is not."""
        for incident_id in incident_ids:
            self._faults.pop(incident_id, None)
        self._accounting.forget(incident_ids)

    def account(self, entry: Entry) -> None:
        """Take any entry that may be part of an incident's account."""
        self._accounting.take(entry)

    def open(
        self, record: IncidentOpened, line: Timeline, now_s: float, ordered_s: float | None
    ) -> bool:
        """Note an incident; return whether ranks train no more. ``ordered_s``: the newest attempt, if there is one."""
        self._fenced, self._fenced_first_s = None, None
        fault_s = now_s - record.fault_age_s
        if ordered_s is not None:
            fault_s = max(fault_s, ordered_s)
        fault_s = max(0.0, fault_s)
        incident_id = record.incident_id
        self._faults[incident_id] = (fault_s, now_s)
        if runs_on(record.failure.finding):
            return False
        if record.step_age_s is not None:
            stepped_s = now_s - record.step_age_s
            line.paint(
                stepped_s, fault_s, TimePart.UNFINISHED, only=TRAINING, incident_id=incident_id
            )
        line.paint(fault_s, now_s, TimePart.DETECT, incident_id=incident_id)
        return True

    def follow(
        self, entry: Entry, before: Ledger, after: Ledger, line: Timeline, now_s: float
    ) -> None:
        """Note an event: where ranks are proved gone, what came since the first proof were tries that failed."""
        incident = after.incident
        if incident is None or incident.state.phase is not Phase.RESTORING:
            return
        was = before.incident
        if was is not None and was.state.phase is Phase.RESTORING:
            return
        self._fenced = entry
        if self._fenced_first_s is None:
            self._fenced_first_s = now_s
            return
        incident_id = incident.state.incident_id
        begin_s = self._fenced_first_s
        line.paint(begin_s, now_s, TimePart.RETRIES, only=_NO_WAITS, incident_id=incident_id)

    def divide(
        self,
        ordered: Entry,
        entry: Entry,
        record: AttemptVerified,
        incident: OpenIncident,
        line: Timeline,
        now_s: float,
    ) -> None:
        """Give the time from the last fence to the first step the phases of MTTR."""
        fenced = self._fenced
        if fenced is None:
            return
        phases, _notes = divide_start(fenced, ordered, entry, record)
        at_s = now_s - _moment(fenced).until_s(_moment(entry))
        incident_id = incident.state.incident_id
        for phase, length_s in phases.items():
            end_s = at_s + length_s
            part = TimePart(phase.value)
            line.paint(at_s, end_s, part, only=_NO_WAITS, incident_id=incident_id)
            at_s = end_s

    def times(self) -> tuple[IncidentTime, ...]:
        """Return the incidents so far, oldest first."""
        return tuple(
            IncidentTime(account, *self._faults[account.incident_id])
            for account in self._accounting.accounts()
            if account.incident_id in self._faults
        )


def _moment(entry: Entry) -> Moment:
    return Moment(entry.unix_s, entry.monotonic_s, entry.boot_id)
