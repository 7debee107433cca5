"""What a person's command means for a job: records, or why not. Pure.

A person's word wins: it cancels what is under way. It is journaled with who said it, and a
command whose key is known does nothing again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.job.refusals import Floor, is_placed, refusal_of
from recovery.journal.incident_machine import Outcome, Phase, answer
from recovery.journal.incident_records import Failure, IncidentEvent
from recovery.journal.job_records import BudgetsReset, PersonActed
from recovery.journal.leaving import LeaveCause
from recovery.journal.ledger import Ledger, OpenIncident, Wish
from recovery.journal.node_records import NodeLeft
from recovery.journal.records import Record
from recovery.messages.outside import PersonAct, PersonCommand


@dataclass(frozen=True, slots=True)
class Reply:
    """The command as it is journaled, what follows from it, and the incident that it opens."""

    acted: PersonActed
    before: tuple[Record, ...] = ()
    after: tuple[Record, ...] = ()
    opens: Failure | None = None
    stops: str | None = None  # the job, with this reason

    @property
    def records(self) -> tuple[Record, ...]:
        return (*self.before, self.acted, *self.after)


def reply_to(command: PersonCommand, ledger: Ledger, floor: Floor) -> Reply:
    """Return what comes of a command. Nothing does where it can't be obeyed."""
    refused = refusal_of(command, ledger, floor)
    if refused is not None:
        why, text = refused
        return Reply(PersonActed(command, text, is_refused=True, refusal=why))
    return _REPLIES[command.act](command, ledger, floor)


def _why(command: PersonCommand) -> str:
    return f"by {command.who}" + (f": {command.reason}" if command.reason else "")


def _cancelled(command: PersonCommand, incident: OpenIncident | None) -> tuple[Record, ...]:
    if incident is None:
        return ()
    event = answer(incident.state, Outcome.CANCEL, f"{command.act.value} {_why(command)}")
    return (IncidentEvent(event),)


def _approve(command: PersonCommand, ledger: Ledger, _floor: Floor) -> Reply:
    incident = ledger.incident
    if incident is None:
        return Reply(PersonActed(command, "the job starts, at step 0 if nothing can be restored"))
    assert incident.waits is not None, "checked before"
    step = incident.waits[0].step.value
    return Reply(PersonActed(command, f"carrying out the plan {step}"))


def _pause(command: PersonCommand, _ledger: Ledger, _floor: Floor) -> Reply:
    result = "the job is paused: its ranks keep running, and plans about failures wait"
    return Reply(PersonActed(command, result))


def _resume(command: PersonCommand, ledger: Ledger, _floor: Floor) -> Reply:
    if command.node is None:
        return Reply(PersonActed(command, "the job is resumed"))
    acted = PersonActed(command, f"the job may use {command.node} again")
    incident = ledger.incident
    is_about_it = (
        incident is not None
        and incident.state.phase is Phase.OPENED
        and incident.last_failure.finding.kind is Kind.RANK_SLOW
        and incident.last_failure.finding.node == command.node
    )
    # The plan would stop training ranks only because of the node that the person has just cleared.
    return Reply(acted, before=_cancelled(command, incident if is_about_it else None))


def _confirm(command: PersonCommand, _ledger: Ledger, _floor: Floor) -> Reply:
    result = f"every process of the job on {command.node} counts as gone"
    return Reply(PersonActed(command, result))


def _reject(command: PersonCommand, ledger: Ledger, _floor: Floor) -> Reply:
    assert ledger.incident is not None, "checked before"
    event = answer(
        ledger.incident.state, Outcome.ESCALATE, f"the plan was rejected {_why(command)}"
    )
    return Reply(PersonActed(command, "the incident is given up"), after=(IncidentEvent(event),))


def _cancel(command: PersonCommand, ledger: Ledger, _floor: Floor) -> Reply:
    ranks = "the ranks are left as they are"
    if ledger.wish is Wish.NOTHING:
        ranks = "the ranks are already stopped"
    result = f"cancelled: {ranks}, and rankmend takes no action until the job is resumed"
    # The person's act comes first, so that the incident is still open when the act is folded.
    return Reply(PersonActed(command, result), after=_cancelled(command, ledger.incident))


def _restart(command: PersonCommand, ledger: Ledger, floor: Floor) -> Reply:
    failure = floor.failure(_finding(command, ledger, "the ranks are restarted"))
    acted = PersonActed(command, "the ranks are restarted")
    return Reply(acted, before=_cancelled(command, ledger.incident), opens=failure)


def _leave(command: PersonCommand, ledger: Ledger, floor: Floor) -> Reply:
    node = command.node or ""
    left = NodeLeft(node, f"left {_why(command)}", is_lost=False, cause=LeaveCause.PERSON)
    if not is_placed(node, ledger):
        return Reply(PersonActed(command, f"{node} gets no ranks"), after=(left,))
    failure = floor.failure(_finding(command, ledger, f"the job leaves {node}"))
    acted = PersonActed(command, f"the job leaves {node}")
    return Reply(acted, _cancelled(command, ledger.incident), (left,), failure)


def _stop(command: PersonCommand, _ledger: Ledger, _floor: Floor) -> Reply:
    return Reply(PersonActed(command, "the job is stopped"), stops=_why(command))


def _reset(command: PersonCommand, _ledger: Ledger, _floor: Floor) -> Reply:
    reset = BudgetsReset(command.who, command.reason or "asked for")
    return Reply(PersonActed(command, "the budgets are reset"), after=(reset,))


def _finding(command: PersonCommand, ledger: Ledger, summary: str) -> Finding:
    return Finding(
        kind=Kind.HOST if command.node else Kind.RANK_FAILED,
        severity=Severity.INFO,
        blame=Blame.USER,
        summary=f"{summary} {_why(command)}",
        job_id=ledger.job_id or "",
        attempt=ledger.attempt,
        node=command.node or "",
        ranks=(),
        victims=(),
        since_age_s=0.0,
        symptom=Symptom(SymptomKind.PERSON, command.act.value),
    )


_REPLIES: Final[dict[PersonAct, Callable[[PersonCommand, Ledger, Floor], Reply]]] = {
    PersonAct.APPROVE: _approve,
    PersonAct.REJECT: _reject,
    PersonAct.CANCEL: _cancel,
    PersonAct.PAUSE: _pause,
    PersonAct.RESUME: _resume,
    PersonAct.RESTART: _restart,
    PersonAct.LEAVE_NODE: _leave,
    PersonAct.CONFIRM_GONE: _confirm,
    PersonAct.STOP: _stop,
    PersonAct.RESET_BUDGETS: _reset,
}
