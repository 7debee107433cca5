"""What a person's command means for a job: records, or a refusal with its reason. Pure.

A person's command wins: it cancels what is under way. The journal names the person, and a command
whose key is known does nothing again. No command without effect is answered with "done": the answer
is a reason, as a `Refusal` for programs and as a sentence for people.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeAlias

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.controller.job.spelling import say_unknown
from recovery.journal.attempt_records import StartWaits
from recovery.journal.incident_machine import Outcome, Phase, answer
from recovery.journal.incident_records import Failure, IncidentEvent, WaitsFor
from recovery.journal.job_records import BudgetsReset, PersonActed
from recovery.journal.ledger import Ledger, OpenIncident, Wish
from recovery.journal.node_records import LeaveCause, NodeLeft
from recovery.journal.records import Record
from recovery.messages.outside import PersonAct, PersonCommand, Refusal

_No: TypeAlias = tuple[Refusal, str]

_BEFORE_ADOPTION: Final = frozenset({PersonAct.CONFIRM_GONE, PersonAct.PAUSE, PersonAct.RESUME})
"""Commands that a person can give for a job whose launchers still follow another controller.

Resetting budgets is not among them: the adoption itself counts them as spent.
"""


@dataclass(frozen=True, slots=True)
class Floor:
    """What the controller knows beside the ledger."""

    # Why no attempt could be started without these nodes: too few others may be used; or None.
    shortage: Callable[[frozenset[str]], str | None]
    is_accused: Callable[[str], bool]  # by an alert that ends the use of what ranks stand on
    is_heard: Callable[[str], bool]  # the node's launcher speaks
    failure: Callable[[Finding], Failure]
    waits: str | None = None  # why the job is not taken over yet
    claimed: Collection[str] = ()  # nodes of an attempt that is not adopted yet


def refusal_of(command: PersonCommand, ledger: Ledger, floor: Floor) -> _No | None:
    """Return why the command can't be obeyed, or None."""
    if ledger.ended is not None:
        return Refusal.ENDED, f"the job has ended: {ledger.ended.reason}"
    if ledger.closing is not None:
        return Refusal.ENDED, f"the job is ending: {ledger.closing.outcome.reason}"
    if floor.waits is not None and command.act not in _BEFORE_ADOPTION:
        return Refusal.NOT_TAKEN_OVER, (
            f"this controller has not taken over the job yet ({floor.waits}), so its launchers don't follow "
            f"its orders; to stop the job, send SIGTERM to a launcher that has ranks"
        )
    refuse = _REFUSALS.get(command.act)
    return None if refuse is None else refuse(command, ledger, floor)


def _unknown(node: str | None, ledger: Ledger) -> _No:
    return Refusal.UNKNOWN_NODE, f"the job has {say_unknown('node', node or '', ledger.members)}"


def _refuse_judging(command: PersonCommand, ledger: Ledger, _floor: Floor) -> _No | None:
    incident = ledger.incident
    is_start = command.act is PersonAct.APPROVE and command.incident_id is None
    if is_start and incident is None and ledger.start_waits is not None:
        return _refuse_start(ledger.start_waits)
    if incident is None or command.incident_id not in (None, incident.state.incident_id):
        return Refusal.NOT_OPEN, f"incident {command.incident_id or ''} is not open"
    if command.act is PersonAct.CANCEL:
        return None
    incident_id = incident.state.incident_id
    if incident.waits is None:
        return Refusal.NO_PLAN_WAITS, f"incident {incident_id} has no pending plan"
    return _refuse_approval(incident) if command.act is PersonAct.APPROVE else None


def _refuse_start(waits: StartWaits) -> _No | None:
    if not waits.is_for_storage:
        return None
    return Refusal.NEEDS_STORAGE, f"the start waits for storage, not for approval: {waits.reason}"


def _refuse_approval(incident: OpenIncident) -> _No | None:
    incident_id, reason = incident.state.incident_id, incident.waits[1] if incident.waits else ""
    if incident.waits_for is WaitsFor.NODES:
        return Refusal.NEEDS_NODES, (
            f"the plan of {incident_id} waits for nodes, not for approval: "
            f"{reason}; it continues by itself once there are enough"
        )
    if incident.waits_for is WaitsFor.STORAGE:
        text = f"the plan of {incident_id} waits for storage, not for approval: {reason}"
        return Refusal.NEEDS_STORAGE, text
    return None


def _refuse_restart(_command: PersonCommand, ledger: Ledger, floor: Floor) -> _No | None:
    if not ledger.is_attempt_open and ledger.incident is None:
        return Refusal.NO_ATTEMPT, "no attempt runs"
    shortage = floor.shortage(frozenset())
    if shortage is not None:
        # Never kill training ranks for an attempt that can't start.
        return Refusal.NEEDS_NODES, f"no new attempt could start: {shortage}"
    return None


def _refuse_resuming(command: PersonCommand, ledger: Ledger, floor: Floor) -> _No | None:
    node = command.node
    if node is None:
        if ledger.paused_by is None:
            return Refusal.NOT_PAUSED, "the job is not paused"
        return None
    member = ledger.members.get(node)
    if member is None:
        return _unknown(node, ledger)
    if member.ended_through is not None:
        return Refusal.LAUNCHER_ENDED, f"the launcher of {node} has ended: restart it"
    is_suspect = node in (ledger.node_run[0], ledger.run_before[0]) or _is_slow(node, ledger)
    if member.left is None and not is_suspect and not floor.is_accused(node):
        return Refusal.NOT_HELD, f"the job does not avoid {node}"
    return None


def _is_slow(node: str, ledger: Ledger) -> bool:
    """Return whether a rank on the node counts as slow, so that it may be moved."""
    ranks = {rank for place in ledger.placement if place.node == node for rank in place.ranks}
    return bool(ranks & ledger.slow.keys()) and node not in ledger.taken_back


def _refuse_leaving(command: PersonCommand, ledger: Ledger, floor: Floor) -> _No | None:
    node = command.node
    member = ledger.members.get(node or "")
    if member is None:
        return _unknown(node, ledger)
    if member.left is not None:
        return Refusal.LEFT_ALREADY, f"the job has already left node {node}: {member.left}"
    if not is_placed(member.node, ledger):
        return None
    shortage = floor.shortage(frozenset({member.node}))
    if shortage is not None:
        return Refusal.NEEDS_NODES, (
            f"no other node can replace {node}, and the job can't continue with fewer nodes: "
            f"{shortage}"
        )
    return None


def _refuse_confirming(command: PersonCommand, ledger: Ledger, floor: Floor) -> _No | None:
    node = command.node
    is_claimed = node in floor.claimed
    if node is not None and node not in ledger.members and not is_claimed:
        return _unknown(node, ledger)
    if node is None or not (is_claimed or is_placed(node, ledger)):
        return Refusal.NO_RANKS, f"no ranks can be left on node {node}"
    if floor.is_heard(node):
        return (
            Refusal.NODE_SPEAKS,
            f"the launcher of {node} is reporting: only its own report counts",
        )
    return None


def is_placed(node: str, ledger: Ledger) -> bool:
    """Return whether the newest attempt, as long as it is not gone, has ranks on the node."""
    return ledger.is_attempt_open and any(place.node == node for place in ledger.placement)


_REFUSALS: Final[dict[PersonAct, Callable[[PersonCommand, Ledger, Floor], _No | None]]] = {
    PersonAct.APPROVE: _refuse_judging,
    PersonAct.REJECT: _refuse_judging,
    PersonAct.CANCEL: _refuse_judging,
    PersonAct.RESTART: _refuse_restart,
    PersonAct.RESUME: _refuse_resuming,
    PersonAct.LEAVE_NODE: _refuse_leaving,
    PersonAct.CONFIRM_GONE: _refuse_confirming,
}


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
    step = incident.waits[0].step.in_words
    return Reply(PersonActed(command, f"carrying out the plan to {step}"))


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
    reset = BudgetsReset(command.who, command.reason or "requested")
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
