"""The plan that would be made if something failed now: the planner's own, judged as it would be, and not carried out."""

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.api import wire
from recovery.cluster.cluster import ClusterController
from recovery.cluster.gate import Answer, Judgement, PlanRequest
from recovery.cluster.plan_verdict import judge
from recovery.job.plan_progress import CONFIRM_BY
from recovery.job.planner import Scene, plan
from recovery.job.spelling import say_unknown
from recovery.journal.leaving import LeaveCause, LeaveReason
from recovery.journal.ledger import Ledger
from recovery.service import views
from recovery.service.roles import UnknownNodeError
from recovery.service.served_job import Job, NotTakenUpError


def foresee(job: Job, desk: ClusterController, node: str | None) -> wire.PlanView:
    """Return the plan that waits, where one does; else that for the loss of ``node`` or of a rank."""
    if job.controller is None:
        raise NotTakenUpError(f"the controller can't manage job {job.job_id} now: {job.problem}")
    ledger = job.controller.ledger
    if node is not None and node not in ledger.members:
        raise UnknownNodeError("the job has " + say_unknown("node", node, ledger.members), node)
    waiting = views.view_plans(job)
    if waiting:
        return waiting[0]
    what = f"node {node} is lost" if node else "a rank fails"
    finding = Finding(
        kind=Kind.HOST if node else Kind.RANK_FAILED,
        severity=Severity.CRITICAL,
        blame=Blame.RANK if node else Blame.NOBODY,
        summary=f"dry run: {what}",
        job_id=job.job_id,
        attempt=ledger.attempt,
        node=node or "",
        ranks=(),
        victims=(),
        since_age_s=0.0,
        symptom=Symptom(SymptomKind.DRY_RUN, "node" if node else "rank"),
    )
    made = plan(finding, ledger, job.settings.policy, None, _scene(job, ledger, desk, node))
    incident_id = job.settings.incident_id(ledger.incident_base + ledger.incidents + 1)
    nodes = len(ledger.placement)
    request = PlanRequest(
        job.job_id, incident_id, 1, made.step, finding, made.without, nodes, is_standing=True
    )
    name = job.stored.join.name
    answer = judge(request, name, desk.ledger, desk.policy, desk.now_unix_s())
    if ledger.unconfirmed is not None and answer.judgement is Judgement.ALLOWED:
        answer = Answer(Judgement.WAIT, f"{ledger.unconfirmed}; {CONFIRM_BY}")
    return wire.PlanView(
        job_id=job.job_id,
        job=name,
        incident_id=incident_id,
        try_number=1,
        step=made.step.value,
        reason=f"{made.reason}; {_say_restorable(ledger)}",
        judgement=answer.judgement.value,
        judgement_reason=answer.reason,
        without=list(made.without),
        plan_id=views.plan_id(incident_id, 1, made),
    )


def _say_restorable(ledger: Ledger) -> str:
    seen = ledger.restorable
    if seen is None:
        return "no restorable checkpoint has been found"
    step = "" if seen.step is None else f" at step {seen.step}"
    return f"restore {seen.path}{step} ({seen.label})"


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
    spares = sum(
        member.left is None
        and member.slots in (0, job.settings.slots)
        and node not in (*placed, lost)
        and desk.unusable(node) is None
        and job.heard_at_s.get(node, silent_at_s) > silent_at_s
        for node, member in ledger.members.items()
    )
    return Scene(placed, spares, job.settings.sizes, must)
