"""What the API shows of jobs, nodes, incidents and plans. Read by the worker's thread, or from disk."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from detectors.finding import Finding
from rankmend.errors import RankmendError
from recovery.api import wire
from recovery.cluster.cluster import ClusterController
from recovery.job.alert_intake import fatal
from recovery.journal.accounting import Account, account_all
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import CaughtUp, EvidenceCollected, IncidentOpened, Plan
from recovery.journal.job_records import JobEnded
from recovery.journal.ledger import Ledger, Wish, stands_paused
from recovery.journal.limits import Policy, patience_left, restarts_left
from recovery.journal.narrator import details, narrate
from recovery.journal.records import Entry, kind_of
from recovery.journal.store import open_readonly
from recovery.service.served_job import Job
from recovery.service.stored_jobs import FoundJobs

_PHASES = ("detect", "decide", "fence", "retries", "start", "restore", "first_step")


def view_job(job: Job) -> wire.JobView:
    """Return what is known of a job that is looked after."""
    ledger = Ledger() if job.controller is None else job.controller.ledger
    reason = None
    policy = job.settings.policy
    if ledger.incident is not None:
        reason = ledger.incident.failure.finding.summary
        if ledger.incident.waits is not None:
            reason = f"{reason}; waits: {ledger.incident.waits[1]}"
    elif ledger.start_waits is not None:
        reason = ledger.start_waits.reason
    elif stands_paused(ledger):
        reason = (
            f"does not train: {ledger.paused_by} left it stopped "
            f"(rankmend resume --job {job.stored.join.name})"
        )
    elif (unconfirmed := ledger.unconfirmed) is not None:
        reason = f"{unconfirmed}; budgets count as spent until `rankmend reset-budgets`"
    return wire.JobView(
        job_id=job.job_id,
        name=job.stored.join.name,
        owner=job.stored.owner,
        state=_state_of(job, ledger),
        attempt=ledger.attempt,
        world_size=ledger.world_size,
        nodes=len(ledger.placement),
        restarts=ledger.restarts,
        restarts_without_progress=ledger.restarts_without_progress,
        highest_step=ledger.highest_step,
        incidents=ledger.incidents,
        incident_id=ledger.incident.state.incident_id if ledger.incident is not None else None,
        reason=reason,
        is_paused=ledger.paused_by is not None,
        problem=job.problem,
        attributes=job.stored.join.attributes,
        restarts_left=_left(restarts_left(ledger.spent, policy), ledger),
        no_progress_left=_left(patience_left(ledger.spent, policy), ledger),
        adopted_attempt=_adopted_attempt(ledger),
    )


def _adopted_attempt(ledger: Ledger) -> int | None:
    is_known = ledger.adopted is None or ledger.unconfirmed is None
    return None if is_known or ledger.adopted is None else ledger.adopted.attempt


def _left(left: int, ledger: Ledger) -> int:
    return 0 if ledger.unconfirmed is not None else left


def view_ended(found: FoundJobs) -> wire.JobView:
    """Return what is kept of a job that has ended; its journal has the rest."""
    assert found.ended is not None, "called for ended jobs"
    ledger = Ledger()
    problem = None
    try:
        ledger = _fold(found.path)
    except RankmendError as error:
        problem = str(error)
    return wire.JobView(
        job_id=found.job_id,
        name=found.stored.join.name,
        owner=found.stored.owner,
        state=found.ended.outcome.kind.value,
        attempt=ledger.attempt,
        world_size=ledger.world_size,
        nodes=len(ledger.placement),
        restarts=ledger.restarts,
        restarts_without_progress=ledger.restarts_without_progress,
        highest_step=ledger.highest_step,
        incidents=ledger.incidents,
        incident_id=found.ended.outcome.incident_id,
        reason=found.ended.outcome.reason,
        problem=problem,
        attributes=found.stored.join.attributes,
    )


def _fold(folder: Path) -> Ledger:
    return fold_all(open_readonly(folder / "journal.db").entries)


def _state_of(job: Job, ledger: Ledger) -> str:
    if job.controller is None:
        return "not managed"
    return "not adopted" if job.controller.waits is not None else _state(ledger)


def _state(ledger: Ledger) -> str:
    if ledger.closing is not None:
        return "stopping"
    if ledger.incident is not None and ledger.incident.state.phase is not Phase.RECOVERED:
        return "waiting" if ledger.incident.waits is not None else "recovering"
    if ledger.start_waits is not None:
        return "waiting"
    if stands_paused(ledger):
        return "standing"
    return "running" if ledger.wish is Wish.RANKS else "starting"


def view_nodes(job: Job, desk: ClusterController) -> list[wire.NodeView]:
    """Return the nodes of a job, those with ranks first, in the order of group ranks."""
    if job.controller is None:
        return []
    ledger = job.controller.ledger
    ranks = {place.node: place.ranks for place in ledger.placement}
    accused = {
        kept.evidence.node: f"accused by {kept.evidence.alertname}: {kept.evidence.summary}"
        for kept in fatal(ledger)
    }
    now_s = job.hearing.now_s()
    views = []
    for node in [*ranks, *sorted(ledger.members.keys() - ranks.keys())]:
        member = ledger.members.get(node)
        heard_at_s = job.heard_at_s.get(node)
        held = desk.unusable(node)
        if held is None and member is not None:
            held = member.left
        if held is None:
            held = accused.get(node)
        views.append(
            wire.NodeView(
                node=node,
                job_id=job.job_id,
                heard_age_s=None if heard_at_s is None else max(0.0, now_s - heard_at_s),
                attempt=ledger.attempt,
                ranks=list(ranks.get(node, ())),
                is_spare=node not in ranks,
                boot_id=member.boot_id if member is not None else "",
                held=held,
            )
        )
    return views


def view_plans(job: Job) -> list[wire.PlanView]:
    """Return the plan of a job that waits, if one does."""
    incident = job.controller.ledger.incident if job.controller is not None else None
    if incident is None or incident.waits is None:
        return []
    plan, reason = incident.waits
    return [
        wire.PlanView(
            job_id=job.job_id,
            job=job.stored.join.name,
            incident_id=incident.state.incident_id,
            try_number=incident.state.try_number,
            step=plan.step.value,
            reason=plan.reason,
            judgement="wait",
            judgement_reason=reason,
            without=list(plan.without),
            plan_id=plan_id(incident.state.incident_id, incident.state.try_number, plan),
            waits_for=incident.waits_for.value,
        )
    ]


def plan_id(incident_id: str, try_number: int, plan: Plan) -> str:
    """Return what names a plan by what it does, so that nobody approves another one than he saw."""
    does = msgspec.json.encode((incident_id, try_number, plan.step, plan.without))
    return hashlib.sha256(does).hexdigest()[:16]


def view_policy(desk: ClusterController, policy: Policy, job: Job | None = None) -> wire.PolicyView:
    """Return what holds for a job; without one, for a job that no override names."""
    name = job.stored.join.name if job is not None else ""
    cluster = desk.policy

    def raw(value: object) -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(value))

    return wire.PolicyView(
        job_id=job.job_id if job is not None else None,
        job=name if job is not None else None,
        approval=cluster.approval_for(name).value,
        dry_run=cluster.is_dry_for(name),
        limits=raw(policy),
        budgets=raw(cluster.budgets),
        quarantine=raw(cluster.quarantine),
        alerts=raw(cluster.alerts),
    )


def view_cluster(desk: ClusterController) -> wire.Cluster:
    ledger, now_s = desk.ledger, desk.now_unix_s()
    holds = ((node, ledger.hold_of(node, now_s)) for node in ledger.nodes)
    return wire.Cluster(
        paused=[wire.Pause(one.scope, one.who, one.reason) for one in ledger.paused.values()],
        held=[
            wire.HoldView(node, hold.hold.value, hold.who, hold.reason, hold.until_unix_s)
            for node, hold in holds
            if hold is not None
        ],
        windows=[
            wire.WindowView(
                window.window_id,
                list(window.nodes),
                window.from_unix_s,
                window.until_unix_s,
                window.who,
                window.reason,
            )
            for window in ledger.windows.values()
        ],
        notes=[note.text for note in desk.notes],
        notes_about=[note.about for note in desk.notes],
    )


def read_incidents(folder: Path, name: str) -> list[wire.IncidentView]:
    """Return the incidents in a job's journal, oldest first."""
    entries = open_readonly(folder / "journal.db").entries
    # Dumps and stacks know more than what was seen of the job while it hung.
    judged = {
        entry.record.incident_id: entry.record.finding
        for entry in entries
        if isinstance(entry.record, EvidenceCollected)
    }
    return [
        _incident(account, name, judged.get(account.incident_id) or account.opened.failure.finding)
        for account in account_all(entries)
    ]


def _incident(account: Account, name: str, finding: Finding) -> wire.IncidentView:
    return wire.IncidentView(
        incident_id=account.incident_id,
        job_id=finding.job_id,
        job=name,
        opened_unix_s=account.opened_unix_s,
        attempt=account.opened.failure.attempt,
        cause=finding.kind.value,
        signature=finding.signature,
        summary=finding.summary,
        blame=finding.blame.value,
        node=finding.node,
        ranks=list(finding.ranks),
        victims=list(finding.victims),
        outcome=account.state.phase.name.lower(),
        tries=account.state.try_number,
        steps=[plan.step.value for plan in account.plans],
        phases={f"{phase}_s": getattr(account.phases, f"{phase}_s") for phase in _PHASES},
        notes=list(account.notes),
        total_s=account.total_s,
        recovered_s=account.recovered_s,
        steps_recomputed=account.steps_recomputed,
        caught_up_s=account.caught_up_s,
    )


def read_story(folder: Path, job_id: str, name: str, incident_id: str | None) -> wire.Story | None:
    """Return a job's story, or that of one of its incidents; None where it has no such one."""
    entries: Iterable[Entry] = open_readonly(folder / "journal.db").entries
    if incident_id is not None:
        entries = _of_incident(list(entries), incident_id)
        if not entries:
            return None
    return wire.Story(job_id, name, incident_id, [_line(entry) for entry in entries])


def _of_incident(entries: list[Entry], wanted: str) -> list[Entry]:
    """Return the entries from an incident's opening to its end, or to the next one's opening."""
    opened = [
        place
        for place, entry in enumerate(entries)
        if isinstance(entry.record, IncidentOpened) and entry.record.incident_id == wanted
    ]
    if not opened:
        return []
    found = entries[opened[0] : opened[0] + 1]
    for entry in entries[opened[0] + 1 :]:
        record = entry.record
        if isinstance(record, IncidentOpened):
            break
        found.append(entry)
        is_caught_up = isinstance(record, CaughtUp) and record.incident_id == wanted
        if is_caught_up or isinstance(record, JobEnded):
            break
    return found


def _line(entry: Entry) -> wire.StoryLine:
    return wire.StoryLine(
        entry.number,
        entry.unix_s,
        entry.monotonic_s,
        entry.boot_id,
        kind_of(entry.record),
        narrate(entry.record),
        details(entry.record),
        msgspec.Raw(msgspec.json.encode(entry.record)),
    )
