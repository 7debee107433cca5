"""The API's views of jobs, nodes, incidents and plans.

`view_job` and `view_nodes` are for any thread: they read values that the deciding thread replaces as a whole, and copies
of what it adds to. Two nodes of one view may be a moment apart. The others are for that thread, or read files.
"""

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from detectors.finding import Severity
from detectors.parts.fleet_parts import SharedKind
from detectors.parts.shared_blame import explain_network
from rankmend.errors import RankmendError
from recovery.api import nccl_shares, wire
from recovery.console.views.job_view import (
    UNMANAGED,
    raise_highest,
    reason_of,
    script_of,
    state_of,
    view_ledger,
)
from recovery.console.views.plan_view import view_plan
from recovery.console.views.snapshot_view import view_snapshots
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.job.alert_intake import fatal
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.service.jobs.job_store import FoundJobs
from recovery.service.jobs.served_job import Core, Job
from recovery.service.paging.trouble import PLANE_DEGRADED, is_port_alert
from recovery.service.roles import JOBS_OWN

_WORST_FIRST: Final = {Severity.CRITICAL.value: 0, Severity.INFO.value: 2}


def view_job(job: Job, desk: ClusterController, may_use: Callable[[str], bool]) -> wire.JobView:
    """Return the view of a managed job; ``may_use``: whether the asking one may see a node."""
    controller = job.controller  # the deciding thread can drop it meanwhile
    ledger = Ledger() if controller is None else controller.ledger
    orphaned = job.orphaned()
    problem = job.problem
    if problem is None and orphaned is not None:
        problem = orphaned.describe(job.stored.owner)
    memories = [] if controller is None else controller.memories()
    name = job.stored.join.name
    view = view_ledger(
        ledger,
        job.job_id,
        name,
        state=_state_of(controller, ledger),
        owner=person_of(job.stored.owner),
        reason=reason_of(ledger, name),
        problem=problem,
        attributes=job.stored.join.attributes,
        policy=job.settings.policy,
        now_unix_s=job.clock.unix_s(),
        snapshots=view_snapshots(memories, ledger),
    )
    planes = view_planes(
        {p.node for p in ledger.placement if may_use(p.node)}, desk, {*ledger.members}
    )
    shares = () if controller is None else controller.nccl_shares()
    shown = [
        msgspec.structs.replace(item, nodes=[node for node in item.nodes if may_use(node)])
        for item in nccl_shares.to_wire(shares)
    ]
    refused = [] if orphaned is None else [node for node in orphaned.nodes if may_use(node)]
    tokens = job.token_ids
    began_unix_s, now_unix_s = job.began_unix_s, job.clock.unix_s()
    if controller is not None and controller.highest_step is not None:
        raise_highest(view, controller.highest_step)
    view.script = script_of(job.stored.join.program)
    view.began_unix_s = began_unix_s
    view.lasted_s = None if began_unix_s is None else max(0.0, now_unix_s - began_unix_s)
    if not (planes or shown or refused or tokens):
        return view
    return msgspec.structs.replace(view, planes=planes, nccl=shown, orphans=refused, tokens=tokens)


def view_planes(
    nodes: Collection[str], desk: ClusterController, known: Collection[str] = ()
) -> list[wire.PlaneView]:
    """Return the networks of these nodes that are degraded, as the nodes' agents tell, and the switch that explains it.

    ``known``: further nodes whose agents would have reported.
    """
    found: dict[str, wire.PlaneView] = {}
    ports: dict[str, list[str]] = {}
    degraded: dict[str, set[str]] = {}  # of the whole fleet, by plane
    for alert in desk.alerts.active:
        target = alert.target
        if not alert.is_firing:
            continue
        if is_port_alert(target.alertname):
            ports.setdefault(alert.node, []).append(target.device)
        elif target.alertname == PLANE_DEGRADED:
            degraded.setdefault(target.device, set()).add(alert.node)
            if alert.node in nodes:
                new = wire.PlaneView(target.device, [], alert.summary)
                found.setdefault(target.device, new).nodes.append(alert.node)
    if desk.parts.on and found:
        everybody = desk.known_nodes() | set(known)
        for plane, view in found.items():
            bad = {node: ports.get(node, ()) for node in degraded[plane]}
            view.part = explain_network(bad, everybody, desk.parts).part
    return [found[plane] for plane in sorted(found)]


def view_ended(found: FoundJobs) -> wire.JobView:
    """Return what is kept of a job that has ended; its journal has the rest."""
    assert found.ended is not None, "called for ended jobs"
    ledger = Ledger()
    problem, began_unix_s = None, None
    try:
        entries = found.journal.read()
        ledger = fold_all(entries)
        began_unix_s = entries[0].unix_s if entries else None
    except RankmendError as error:
        problem = str(error)
    outcome = found.ended.outcome
    view = view_ledger(
        ledger,
        found.job_id,
        found.stored.join.name,
        state=outcome.kind.value,
        owner=person_of(found.stored.owner),
        reason=outcome.reason,
        problem=problem,
        attributes=found.stored.join.attributes,
    )
    ended_s = found.ended.unix_s
    return msgspec.structs.replace(
        view,
        incident_id=outcome.incident_id,
        is_paused=False,
        began_unix_s=began_unix_s,
        lasted_s=None if began_unix_s is None else max(0.0, ended_s - began_unix_s),
        script=script_of(found.stored.join.program),
    )


def person_of(owner: str) -> str:
    """Return who started a job; nobody's name where its launchers host the controller."""
    return "" if owner == JOBS_OWN else owner


def _state_of(controller: Core | None, ledger: Ledger) -> str:
    if controller is None or controller.journal_trouble is not None:
        return UNMANAGED
    return "not adopted" if controller.waits is not None else state_of(ledger)


def view_nodes(job: Job, desk: ClusterController) -> list[wire.NodeView]:
    """Return the nodes of a job, those with ranks first, in the order of group ranks."""
    controller = job.controller
    if controller is None:
        return []
    ledger = controller.ledger
    ranks = {place.node: place.ranks for place in ledger.placement}
    accused = {
        retained.evidence.node: f"accused by {retained.evidence.alertname}: {retained.evidence.summary}"
        for retained in fatal(ledger)
    }
    starts = controller.starts()
    now_s = job.hearing.now_s()
    views = []
    for node in [*ranks, *sorted(ledger.members.keys() - ranks.keys())]:
        member = ledger.members.get(node)
        reported_at_s = job.reported_at_s.get(node)
        held = desk.unusable(node)
        if held is None and member is not None:
            held = member.left
        if held is None:
            held = accused.get(node)
        views.append(
            wire.NodeView(
                node=node,
                job_id=job.job_id,
                heard_age_s=None if reported_at_s is None else max(0.0, now_s - reported_at_s),
                attempt=ledger.attempt,
                ranks=list(ranks.get(node, ())),
                is_spare=node not in ranks,
                leaf=desk.parts.name_of(node, SharedKind.LEAF) or "",
                rack=desk.parts.name_of(node, SharedKind.RACK) or "",
                nvlink_domain=desk.parts.name_of(node, SharedKind.NVLINK_DOMAIN) or "",
                block=desk.parts.name_of(node, SharedKind.BLOCK) or "",
                boot_id=member.boot_id if member is not None else "",
                held=held,
                starts=[
                    wire.StartView(start.kind.value, alike, start.why_not_forked)
                    for start, alike in starts.get(node, {}).items()
                ],
            )
        )
    return views


def view_plans(job: Job) -> list[wire.PlanView]:
    """Return the plan of a job that waits, if one does."""
    ledger = Ledger() if job.controller is None else job.controller.ledger
    found = view_plan(ledger, job.job_id, job.stored.join.name)
    return [] if found is None else [found]


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
        observe=cluster.why_observed(name) is not None or policy.observe,
        limits=raw(policy),
        budgets=raw(cluster.budgets),
        quarantine=raw(cluster.quarantine),
        alerts=raw(cluster.alerts),
        watched=msgspec.to_builtins(cluster.watched),
        lemons=msgspec.to_builtins(cluster.lemons),
    )


def view_cluster(desk: ClusterController) -> wire.Cluster:
    ledger, now_s = desk.ledger, desk.now_unix_s()
    notes = [(note.text, note.about) for note in desk.notes]
    if names := desk.told_names.in_words():
        notes.append((names, ""))  # last, since few of them are shown
    holds = ((node, ledger.hold_of(node, now_s)) for node in ledger.nodes)
    return wire.Cluster(
        paused=[wire.Pause(item.scope, item.who, item.reason) for item in ledger.paused.values()],
        held=[
            wire.HoldView(
                node,
                hold.hold.value,
                hold.who,
                hold.reason,
                hold.until_unix_s,
                ledger.past(node).held_unix_s,
            )
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
        notes=[text for text, _about in notes],
        notes_about=[about for _text, about in notes],
        observe=list(desk.policy.observed_scopes()),
        findings=view_findings(desk),
    )


def view_findings(desk: ClusterController) -> list[wire.NodeFindingView]:
    """Return the findings of nodes that are open now, the worst and newest first."""
    found = [
        wire.NodeFindingView(
            node=alert.node,
            check=alert.target.alertname,
            severity=alert.target.severity,
            device=alert.target.device,
            summary=alert.summary,
            action=alert.target.action,
            since_unix_s=alert.started_unix_s,
        )
        for alert in desk.alerts.active
        if alert.is_firing and alert.node
    ]
    found.sort(key=lambda item: (_WORST_FIRST.get(item.severity, 1), -item.since_unix_s))
    return found[: wire.FINDINGS_MAX]
