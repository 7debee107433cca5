"""Answers what people ask the controller of a job on one node. For the controller's thread."""

from recovery.api import wire
from recovery.api.job_socket import JobAnswer, JobAsk
from recovery.cluster.gate import OpenGate
from recovery.job.controller import Controller
from recovery.job.planner import Scene
from recovery.job.settings import JobSettings
from recovery.job.spelling import say_unknown
from recovery.journal.leaving import LeaveCause, LeaveReason
from recovery.journal.ledger import Ledger
from recovery.messages.outside import PersonCommand
from recovery.views.plan_view import foresee, view_plan


def answer_person(
    controller: Controller, settings: JobSettings, ask: JobAsk, who: str
) -> JobAnswer:
    """Carry out the command, or return the plan that is asked for. Raises JournalError."""
    if ask.command is not None:
        return _obey(controller, settings, ask.command, who)
    ledger, node = controller.ledger, ask.node
    if ledger.ended is not None:
        return _refused(410, f"the job has ended: {ledger.ended.reason}")
    if node is not None and node not in ledger.members:
        return _refused(404, f"the job has {say_unknown('node', node, ledger.members)}")
    scene = _scene(settings, ledger, node)
    judge = OpenGate().judge
    return JobAnswer(plan=foresee(ledger, settings, settings.name, scene, judge, node))


def _obey(
    controller: Controller, settings: JobSettings, asked: wire.JobCommand, who: str
) -> JobAnswer:
    if asked.plan_id:
        pending = view_plan(controller.ledger, settings.job_id, settings.name)
        if pending is None or pending.plan_id != asked.plan_id:
            return _refused(409, "the named plan is no longer pending")
    acted = controller.take_command(
        PersonCommand(asked.act, who, asked.reason, asked.incident_id, asked.node, asked.key)
    )
    if acted.is_refused:
        refusal = "" if acted.refusal is None else acted.refusal.value
        return _refused(409, acted.result, refusal)
    return JobAnswer(done=wire.Done(acted.result))


def _refused(status: int, text: str, refusal: str = "") -> JobAnswer:
    return JobAnswer(problem=wire.Problem(text, refusal=refusal), status=status)


def _scene(settings: JobSettings, ledger: Ledger, lost: str | None) -> Scene:
    """Return the job's only node as a plan would find it, or as lost."""
    placed = tuple(place.node for place in ledger.placement)
    must = {lost: LeaveReason(LeaveCause.SILENT)} if lost in placed and lost is not None else {}
    return Scene(placed, 0, settings.sizes, must)
