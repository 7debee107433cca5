"""What a person's command means for a job: records, or why not. Pure.

A person's word wins: it cancels what is under way. It is journaled with who said it, and a
command whose key is known does nothing again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from detectors.finding import Blame, Finding, Kind, Severity
from recovery.ledger import Ledger, OpenIncident
from recovery.machine import Outcome, answer
from recovery.outside import PersonAct, PersonCommand
from recovery.planner import PERSON
from recovery.records import (
    BudgetsReset,
    Failure,
    IncidentEvent,
    NodeLeft,
    PersonActed,
    Record,
)


@dataclass(frozen=True, slots=True)
class Floor:
    """What the controller knows beside the ledger."""

    can_leave: Callable[[str], bool]  # there are nodes enough without this one
    is_heard: Callable[[str], bool]  # the node's launcher speaks
    failure: Callable[[Finding], Failure]


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
    refusal = _refusal(command, ledger, floor)
    if refusal is not None:
        return Reply(PersonActed(command, refusal, is_refused=True))
    return _REPLIES[command.act](command, ledger, floor)


def _refusal(command: PersonCommand, ledger: Ledger, floor: Floor) -> str | None:
    act, node = command.act, command.node
    reason = None
    if ledger.ended is not None or ledger.closing is not None:
        reason = "the job has ended or is ending"
    elif act in (PersonAct.APPROVE, PersonAct.REJECT, PersonAct.CANCEL):
        reason = _refuse_judging(command, ledger)
    elif act is PersonAct.RESTART and not ledger.is_attempt_open and ledger.incident is None:
        reason = "no attempt runs"
    elif act is PersonAct.RESUME and node is not None and node not in ledger.members:
        reason = f"node {node} is not in the job"
    elif act is PersonAct.LEAVE_NODE:
        reason = _refuse_leaving(node, ledger, floor)
    elif act is PersonAct.CONFIRM_GONE:
        if node is None or not _is_placed(node, ledger):
            reason = f"node {node} has no ranks that could be left"
        elif floor.is_heard(node):
            reason = f"the launcher of {node} speaks: its own word counts"
    return reason


def _refuse_judging(command: PersonCommand, ledger: Ledger) -> str | None:
    incident = ledger.incident
    if incident is None or command.incident_id not in (None, incident.state.incident_id):
        return f"incident {command.incident_id or ''} is not open"
    if command.act is not PersonAct.CANCEL and incident.waits is None:
        return f"no plan of incident {incident.state.incident_id} waits"
    return None


def _refuse_leaving(node: str | None, ledger: Ledger, floor: Floor) -> str | None:
    member = ledger.members.get(node or "")
    if member is None:
        return f"node {node} is not in the job"
    if member.left is not None:
        return f"node {node} is left already: {member.left}"
    if _is_placed(member.node, ledger) and not floor.can_leave(member.node):
        return f"there is no node in the place of {node}, and the job can't go on with fewer"
    return None


def _is_placed(node: str, ledger: Ledger) -> bool:
    return ledger.is_attempt_open and any(place.node == node for place in ledger.placement)


def _why(command: PersonCommand) -> str:
    return f"by {command.who}" + (f": {command.reason}" if command.reason else "")


def _cancelled(command: PersonCommand, incident: OpenIncident | None) -> tuple[Record, ...]:
    if incident is None:
        return ()
    event = answer(incident.state, Outcome.CANCEL, f"{command.act.value} {_why(command)}")
    return (IncidentEvent(event),)


def _obey(command: PersonCommand, _ledger: Ledger, _floor: Floor) -> Reply:
    return Reply(PersonActed(command, "done"))


def _reject(command: PersonCommand, ledger: Ledger, _floor: Floor) -> Reply:
    assert ledger.incident is not None, "checked before"
    event = answer(
        ledger.incident.state, Outcome.ESCALATE, f"the plan was rejected {_why(command)}"
    )
    return Reply(PersonActed(command, "the incident is escalated"), after=(IncidentEvent(event),))


def _cancel(command: PersonCommand, ledger: Ledger, _floor: Floor) -> Reply:
    result = "cancelled; nothing is decided until resumed"
    return Reply(PersonActed(command, result), before=_cancelled(command, ledger.incident))


def _restart(command: PersonCommand, ledger: Ledger, floor: Floor) -> Reply:
    failure = floor.failure(_finding(command, ledger, "the ranks are restarted"))
    acted = PersonActed(command, "the ranks are restarted")
    return Reply(acted, before=_cancelled(command, ledger.incident), opens=failure)


def _leave(command: PersonCommand, ledger: Ledger, floor: Floor) -> Reply:
    node = command.node or ""
    left = NodeLeft(node, f"left {_why(command)}", is_lost=False)
    if not _is_placed(node, ledger):
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
        signature=f"{PERSON}{command.act.value}",
    )


_REPLIES: Final[dict[PersonAct, Callable[[PersonCommand, Ledger, Floor], Reply]]] = {
    PersonAct.APPROVE: _obey,
    PersonAct.REJECT: _reject,
    PersonAct.CANCEL: _cancel,
    PersonAct.PAUSE: _obey,
    PersonAct.RESUME: _obey,
    PersonAct.RESTART: _restart,
    PersonAct.LEAVE_NODE: _leave,
    PersonAct.CONFIRM_GONE: _obey,
    PersonAct.STOP: _stop,
    PersonAct.RESET_BUDGETS: _reset,
}
