"""Chooses what the launchers of a job print of its journal, and keeps the newest of these lines. Pure.

A launcher that hosts the controller prints each record as it becomes durable. Others have a controller elsewhere: it
sends the newest lines with its answers to their reports (`recovery.api.wire.Accepted.lines`), and once more with the
answer that says that the job has ended. So all launchers of a job print the same.

A record's number in the journal is the number of its line. A launcher says which it has printed last; a lost answer
therefore loses no line, and a repeated one prints none twice.
"""

from collections.abc import Sequence
from typing import Final

from detectors.finding import Blame
from recovery.journal.attempt_records import AttemptStarted, AttemptVerified, CheckpointPutBack
from recovery.journal.incident_machine import Outcome
from recovery.journal.incident_records import (
    Decided,
    IncidentEvent,
    IncidentOpened,
    PlanWaits,
    WaitCause,
    WaitsFor,
)
from recovery.journal.job_records import JobEnded, JobOutcome, OutcomeKind
from recovery.journal.narration.narrator import describe_passed_over, narrate
from recovery.journal.node_records import NodesJoined
from recovery.journal.records import Entry
from recovery.messages.exchange import LauncherLine

# An incident with its decision, waits and restart takes 6 lines; a launcher reports at least every few seconds.
LINES_MAX: Final = 32
# A finding's summary names up to 20 ranks and the error's message, some hundred characters.
CHARACTERS_MAX: Final = 1000


class LauncherLines:
    """The lines of one job. One thread notes records, any thread reads ``newest``."""

    def __init__(self, *, names_nodes: bool = False) -> None:
        """``names_nodes``: the job has several nodes, so that who failed is also where."""
        self._names_nodes = names_nodes
        self._incident_id: str | None = None  # that is open
        self._decided = ""  # why the newest plan is as it is
        self.newest: tuple[LauncherLine, ...] = ()  # at most LINES_MAX

    def note(self, entry: Entry) -> LauncherLine | None:
        """Return what launchers print of a durable record, and keep it; None: nothing."""
        text = self._text(entry)
        if not text:
            return None
        if len(text) > CHARACTERS_MAX:
            text = f"{text[:CHARACTERS_MAX]} ..."
        line = LauncherLine(entry.number, text)
        self.newest = (*self.newest, line)[-LINES_MAX:]
        return line

    @property
    def newest_number(self) -> int:
        """Return the number of the newest line; 0: there is none."""
        return self.newest[-1].number if self.newest else 0

    def after(self, number: int | None) -> list[LauncherLine]:
        """Return the lines behind the one that a launcher printed last; None: a launcher that prints none."""
        if number is None or self.newest_number <= number:
            return []
        return [line for line in self.newest if line.number > number]

    def _text(self, entry: Entry) -> str:
        record = entry.record
        text = narrate(record) or ""
        match record:
            # A launcher has printed itself what it put back, and that it joined.
            case NodesJoined() | CheckpointPutBack():
                text = ""
            case IncidentOpened():
                self._incident_id = record.incident_id
                text += self._where(record)
            case AttemptStarted():
                text = "\n".join((text, *describe_passed_over(record.choice)))
            case AttemptVerified():
                incident_id, self._incident_id = self._incident_id, None
                text += _why(incident_id)
            case Decided():
                self._decided = record.plan.reason
            case IncidentEvent() if record.event.outcome is Outcome.CANCEL:
                self._incident_id = None
            case IncidentEvent() if record.event.reason == self._decided:
                text = ""  # the decision has just been printed
            case PlanWaits():
                text += _who_decides(record)
            case JobEnded():
                text += next_act(record.outcome, self._incident_id)
        return text

    def _where(self, record: IncidentOpened) -> str:
        """Return the node of what failed; nothing where no rank stands out, and no node."""
        finding = record.failure.finding
        is_there = bool(finding.ranks) or finding.blame is Blame.RANK
        return f", on {finding.node}" if self._names_nodes and finding.node and is_there else ""


def _who_decides(record: PlanWaits) -> str:
    """Return what a person does about a plan that waits for one; empty: nobody does, or its reason has it."""
    if record.waits_for is not WaitsFor.LEAVE or record.cause is not WaitCause.APPROVAL:
        return ""
    return f"; a person decides: `rankmend approve {record.incident_id}`, or reject"


def _why(incident_id: str | None) -> str:
    return "" if incident_id is None else f"; recovered: `rankmend why {incident_id}`"


def next_act(outcome: JobOutcome, incident_id: str | None = None) -> str:
    """Return what a person does next about a job that was given up; empty for another end."""
    if outcome.kind is not OutcomeKind.ESCALATED:
        return ""
    lines = ["\nnext: remove the cause, then start the same command again"]
    if not outcome.is_at_start and not outcome.is_observed:
        lines.append(" (--reset-budgets allows all restarts anew)")
    shown = outcome.incident_id or incident_id
    lines.append("" if shown is None else f"; the evidence: `rankmend why {shown}`")
    return "".join(lines)


def unprinted(lines: Sequence[LauncherLine], printed: int) -> list[LauncherLine]:
    """Return the lines that a launcher has not printed yet, in order."""
    return sorted((line for line in lines if line.number > printed), key=lambda line: line.number)
