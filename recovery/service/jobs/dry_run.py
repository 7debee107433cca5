"""The plan that would be made if something failed now: the planner's own, judged as it would be, and not carried out."""

from recovery.api import wire
from recovery.console.views.plan_view import foresee
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.plan_verdict import judge
from recovery.controller.job.planner import Scene
from recovery.controller.job.spare_choice import FleetState, bar_spares, gone_nodes
from recovery.controller.job.spelling import say_unknown
from recovery.journal.ledger import Ledger
from recovery.journal.node_records import LeaveCause, LeaveReason
from recovery.service.jobs.served_job import Job, NotTakenUpError
from recovery.service.roles import UnknownNodeError


def foresee_job(job: Job, desk: ClusterController, node: str | None) -> wire.PlanView:
    """Return the plan that waits, where one does; else that for the loss of ``node`` or of a rank."""
    if job.controller is None:
        raise NotTakenUpError(f"the controller can't manage job {job.job_id} now: {job.problem}")
    ledger, name = job.controller.ledger, job.stored.join.name
    if node is not None and node not in ledger.members:
        raise UnknownNodeError("the job has " + say_unknown("node", node, ledger.members), node)
    return foresee(
        ledger,
        job.settings,
        name,
        _scene(job, ledger, desk, node),
        lambda request: judge(request, name, desk.ledger, desk.policy, desk.now_unix_s()),
        node,
    )


def _scene(job: Job, ledger: Ledger, desk: ClusterController, lost: str | None) -> Scene:
    """Return the job's nodes as a plan would find them, without ``lost``."""
    placed = tuple(place.node for place in ledger.placement)
    must = {lost: LeaveReason(LeaveCause.SILENT)} if lost is not None and lost in placed else {}
    must |= {
        node: LeaveReason(LeaveCause.HELD, held)
        for node in placed
        if (held := desk.unusable(node)) is not None
    }
    silent_at_s = job.hearing.now_s() - job.settings.policy.node_silent_s
    there = {node for node in ledger.members if job.heard_at_s.get(node, silent_at_s) > silent_at_s}
    spares = {
        node
        for node in there.difference((*placed, lost))
        if (member := ledger.members[node]).left is None
        and member.slots in (0, job.settings.slots_of(member.slots))
        and desk.unusable(node) is None
    }
    if not job.settings.policy.spares_below_broken_parts:
        gone = gone_nodes(ledger, there) | must.keys() & {lost}
        spares -= bar_spares(spares, placed, gone, FleetState(desk.parts, desk.broken_parts)).keys()
    return Scene(placed, len(spares), job.settings.sizes, must)
