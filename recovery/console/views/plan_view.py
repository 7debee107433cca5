"""Plans as the API and the commands show them: the one that waits, and the one that a failure now would cause."""

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec

from detectors.finding import Blame, Finding, Kind, Severity, Symptom, SymptomKind
from recovery.api import wire
from recovery.controller.cluster.gate import Answer, Judgement, PlanRequest
from recovery.controller.job.plan_progress import CONFIRM_BY, OBSERVED
from recovery.controller.job.planner import Scene, plan
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import StartWaits
from recovery.journal.incident_records import Plan, WaitCause, WaitsFor
from recovery.journal.ledger import Ledger, OpenIncident

START: Final = "start"  # the step of a held start, which has no incident


def view_plan(ledger: Ledger, job_id: str, name: str) -> wire.PlanView | None:
    """Return the job's pending plan, or None."""
    incident = ledger.incident
    if incident is None and ledger.start_waits is not None and ledger.start_approved_by is None:
        return _view_start(ledger.start_waits, ledger.attempt, job_id, name)
    if incident is None or incident.waits is None:
        return None
    made, reason = incident.waits
    return wire.PlanView(
        job_id=job_id,
        job=name,
        incident_id=incident.state.incident_id,
        try_number=incident.state.try_number,
        step=made.step.value,
        reason=made.reason,
        judgement=Judgement.WAIT.value,
        judgement_reason=reason,
        without=list(made.without),
        plan_id=plan_id(incident.state.incident_id, incident.state.try_number, made),
        waits_for=incident.waits_for.value,
        gives_up_after_s=_patience_s(incident),
    )


def _patience_s(incident: OpenIncident) -> float | None:
    """Return how long the plan waits for what no approval brings until the job is given up."""
    if incident.waits_for is WaitsFor.NODES:
        return incident.policy.spare_wait_s
    if incident.waits_for is WaitsFor.STORAGE or incident.waits_cause is WaitCause.CHECKPOINT:
        return incident.policy.checkpoint_wait_s
    return None


def _view_start(waits: StartWaits, attempt: int, job_id: str, name: str) -> wire.PlanView:
    """Return a start that is held as a plan of no incident."""
    does = msgspec.json.encode((attempt, START, waits.about))
    return wire.PlanView(
        job_id=job_id,
        job=name,
        incident_id="",
        try_number=1,
        step=START,
        reason="the job is started",
        judgement=Judgement.WAIT.value,
        judgement_reason=waits.reason,
        plan_id=hashlib.sha256(does).hexdigest()[:16],
        waits_for=(WaitsFor.STORAGE if waits.is_for_storage else WaitsFor.LEAVE).value,
    )


def plan_id(incident_id: str, try_number: int, plan: Plan) -> str:
    """Return an id of what a plan does, so that an approval can't apply to another plan."""
    does = msgspec.json.encode((incident_id, try_number, plan.step, plan.without))
    return hashlib.sha256(does).hexdigest()[:16]


def foresee(
    ledger: Ledger,
    settings: JobSettings,
    name: str,
    scene: Scene,
    judge: Callable[[PlanRequest], Answer],
    node: str | None,
) -> wire.PlanView:
    """Return the pending plan if there is one, else that for the loss of ``node`` or of a rank.

    ``scene`` is what there would be to run on; ``judge`` must change nothing.
    """
    waiting = view_plan(ledger, settings.job_id, name)
    if waiting is not None:
        return waiting
    finding = _finding(ledger, settings.job_id, node)
    made = plan(finding, ledger, settings.policy, None, scene)
    incident_id = settings.incident_id(ledger.incident_base + ledger.incidents + 1)
    nodes = len(ledger.placement)
    request = PlanRequest(
        settings.job_id, incident_id, 1, made.step, finding, made.without, nodes, is_standing=True
    )
    answer = judge(request)
    if settings.policy.observe and answer.judgement is Judgement.ALLOWED:
        answer = Answer(Judgement.WAIT, OBSERVED.text, OBSERVED.cause)
    if ledger.unconfirmed is not None and answer.judgement is Judgement.ALLOWED:
        answer = Answer(Judgement.WAIT, f"{ledger.unconfirmed}; {CONFIRM_BY}")
    if ledger.paused_by is not None and answer.judgement is Judgement.ALLOWED:
        answer = Answer(Judgement.WAIT, f"the job is paused by {ledger.paused_by}")
    return wire.PlanView(
        job_id=settings.job_id,
        job=name,
        incident_id=incident_id,
        try_number=1,
        step=made.step.value,
        reason=f"{made.reason}; {_restorable_text(ledger)}",
        judgement=answer.judgement.value,
        judgement_reason=answer.reason,
        without=list(made.without),
        plan_id=plan_id(incident_id, 1, made),
    )


def _finding(ledger: Ledger, job_id: str, node: str | None) -> Finding:
    what = f"node {node} is lost" if node else "a rank fails"
    return Finding(
        kind=Kind.HOST if node else Kind.RANK_FAILED,
        severity=Severity.CRITICAL,
        blame=Blame.RANK if node else Blame.NOBODY,
        summary=f"dry run: {what}",
        job_id=job_id,
        attempt=ledger.attempt,
        node=node or "",
        ranks=(),
        victims=(),
        since_age_s=0.0,
        symptom=Symptom(SymptomKind.DRY_RUN, "node" if node else "rank"),
    )


def _restorable_text(ledger: Ledger) -> str:
    """Return what a failure could restore where memory has nothing newer, what it would pass over, and what to type to choose otherwise."""
    seen = ledger.restorable
    if seen is None:
        return "no checkpoint has been checked yet: a failure looks for one"
    step = "" if seen.step is None else f" at step {seen.step}"
    lines = [f"can restore {seen.path}{step} ({seen.label})"]
    lines += [
        f"passed over when that was checked: {verdict.path}: {verdict.reason}"
        for verdict in seen.passed_over
    ]
    return "; ".join(lines)
