"""The notices to people that are active now, from all jobs and the cluster's ledger. Pure.

Level-triggered: a notice is there as long as its reason is, no matter who was notified before. docs/operate/alerts.md
lists the names; docs/operate/runbooks/controller.md says what to do about each.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from detectors.finding import Kind, Severity
from detectors.wording import ranks_in_words
from recovery.controller.cluster.cluster_ledger import ClusterLedger, NodeBlame
from recovery.controller.cluster.cluster_limits import DAY_S, ClusterPolicy
from recovery.controller.cluster.plan_verdict import quarantine, stops_within_an_hour
from recovery.journal.attempt_records import StandKind, StandStill
from recovery.journal.cluster_records import Hold
from recovery.journal.incident_records import WaitCause, WaitsFor
from recovery.journal.job_records import JobOutcome, OutcomeKind
from recovery.journal.ledger import Ledger, OpenIncident, stands_paused
from recovery.journal.limits import Policy, exhausted
from recovery.journal.witnesses import Witness, agreeing
from recovery.messages.outside import trains

# Names of the alerts to people that carry these notices (`recovery.service.paging.alerts`).
MESSAGE: Final = "RankmendIncident"  # one for each cause
MARK: Final = "RankmendCovered"  # a node or job of such a cause; nobody receives it
DAILY_RECORD: Final = "RankmendDailyRecord"
NOTICES_MAX: Final = 1_000  # at once; Alertmanager groups them, and nobody reads more
TOLD_S_MAX: Final = 7 * DAY_S  # who has not acknowledged within a week has not read it
_NODES_MAX: Final = 100  # notices about unproved nodes per job
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SLOW_MAX: Final = 32  # ranks of one job; more of them have a common cause


_NEEDS: Final = {
    WaitCause.UNKNOWN: "the plan waits",
    WaitCause.UNCONFIRMED: "its budgets are unknown",
    WaitCause.PAUSED: "held by a pause",
    WaitCause.DRY_RUN: "dry run: approve the plan",
    WaitCause.APPROVAL: "approve the plan",
    WaitCause.CLUSTER: "the plan waits",
    WaitCause.NODES: "waits for a node",
    WaitCause.OBSERVE: "observe mode: nothing is done",
    WaitCause.CHECKPOINT: "nothing to restore",
    WaitCause.STORAGE: "the checkpoint folder can't be written",
}


class NoticeKind(Enum):
    """Why a person is notified: names of metrics and runbooks. As alerts, none of them accuses a node."""

    INCIDENT_ESCALATED = "RankmendIncidentEscalated"
    PLAN_WAITS = "RankmendPlanWaits"
    PLAN_OBSERVED = "RankmendPlanObserved"  # observe mode: it waits for nobody
    GONE_UNPROVED = "RankmendGoneUnproved"
    JOB_ORPHANED = "RankmendJobOrphaned"  # its launchers are turned away
    BUDGET_SPENT = "RankmendBudgetSpent"
    NODE_QUARANTINED = "RankmendNodeQuarantined"
    QUARANTINE_REFUSED = "RankmendQuarantineRefused"
    # The names of agents' alerts about the same: a node's agent repeats what a launcher reports to it.
    RANK_SLOW = "RankmendRankSlow"
    RANK_HUNG = "RankmendRankHung"


@dataclass(frozen=True, slots=True)
class Notice:
    kind: NoticeKind
    severity: Severity
    summary: str
    todo: str
    job_id: str = ""
    job: str = ""
    incident_id: str = ""
    node: str = ""
    rank: str = ""  # several: ascending, with commas between
    since_unix_s: float | None = None  # None: since it was first seen
    what: str = ""  # the fact alone, where the summary has more
    need: str = ""  # what it waits for, in a few words
    command: str = ""  # the one command to run next, as it can be typed
    owner: str = ""  # of the job; empty: it is about the cluster

    @property
    def key(self) -> tuple[str, ...]:
        """Return what makes two notices the same."""
        return (self.kind.value, self.job_id, self.incident_id, self.node, self.rank)


def job_argument(name: str, job_id: str) -> str:
    """Return how a command line names the job: by its name, or by its UUID if a shell would read the name otherwise."""
    return name if _PLAIN.fullmatch(name) else job_id


@dataclass(frozen=True, slots=True)
class RunningJob:
    job_id: str
    name: str
    ledger: Ledger
    policy: Policy
    silent: frozenset[str]  # nodes without a report for node_silent_s
    orphaned: str = (
        ""  # which of its launchers are turned away, why, and what to do; empty: none is
    )
    owner: str = ""
    # Nodes of its incident on which others are, and where nobody but its launchers says that it is.
    contested: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EndedJob:
    job_id: str
    name: str
    outcome: JobOutcome
    ended_unix_s: float
    owner: str = ""

    @property
    def incident_id(self) -> str:
        """Return the incident that ended it, or a name for an end without one."""
        return self.outcome.incident_id or f"{self.job_id[:8]}-at-{self.ended_unix_s:.0f}"


def find_notices(
    running: Iterable[RunningJob],
    ended: Iterable[EndedJob],
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    nodes_active: int,
    now_unix_s: float,
) -> tuple[Notice, ...]:
    """Return all active notices, the most urgent first."""
    found: list[Notice] = []
    for job in running:
        found += (replace(notice, owner=job.owner) for notice in _of_job(job))
    found += _escalated(ended, ledger, now_unix_s)
    found += _of_cluster(ledger, policy, nodes_active, now_unix_s)
    return most_urgent(found)


def most_urgent(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    """Return the notices, the most urgent first. Where they are too many, each owner's in turn: no subject's jobs hide what others need."""
    ordered = sorted(notices, key=lambda notice: notice.severity is not Severity.CRITICAL)
    if len(ordered) <= NOTICES_MAX:
        return tuple(ordered)
    counts: Counter[tuple[bool, str]] = Counter()
    turns: list[tuple[bool, int, Notice]] = []
    for notice in ordered:
        is_less = notice.severity is not Severity.CRITICAL
        turns.append((is_less, counts[is_less, notice.owner], notice))
        counts[is_less, notice.owner] += 1
    turns.sort(key=lambda turn: turn[:2])
    return tuple(notice for _is_less, _turn, notice in turns[:NOTICES_MAX])


def _of_job(job: RunningJob) -> Iterator[Notice]:
    ledger, incident = job.ledger, job.ledger.incident
    argument = job_argument(job.name, job.job_id)
    if incident is not None and incident.waits is not None:
        is_approved = incident.approved_by is not None and incident.waits_for is WaitsFor.LEAVE
        if not is_approved:
            yield _waiting(job, incident)
    if ledger.start_waits is not None and ledger.start_approved_by is None:
        leave, need = _leave(ledger.start_waits.model_alone)
        todo = (
            f"put a valid checkpoint back; or let the job {leave} (`rankmend approve {job.name}`)"
        )
        if ledger.start_waits.is_for_storage:
            todo, need = "make the checkpoint folder writable", _NEEDS[WaitCause.STORAGE]
        yield Notice(
            NoticeKind.PLAN_WAITS,
            Severity.CRITICAL,
            f"job {job.name} is not started: {ledger.start_waits.reason}",
            f"{todo} or end it (`rankmend stop {job.name}`)",
            job.job_id,
            job.name,
            need=need,
            command=f"rankmend plan {argument}",
        )
    if job.orphaned:
        yield Notice(
            NoticeKind.JOB_ORPHANED,
            Severity.CRITICAL,  # the next failure stops it for good
            f"job {job.name} is orphaned: {job.orphaned}",
            "give its launchers a valid token: they read their token file again by themselves",
            job.job_id,
            job.name,
            need="its launchers need a valid token",
            command=f"rankmend status {argument}",
        )
    if stands_paused(ledger):
        yield Notice(
            NoticeKind.PLAN_WAITS,
            Severity.WARNING,
            f"job {job.name} is not training: {ledger.paused_by} left it stopped",
            f"`rankmend resume --job {job.name}` recovers it, `rankmend stop {job.name}` ends it",
            job.job_id,
            job.name,
            need="left stopped in a pause",
            command=f"rankmend resume --job {argument}",
        )
    if incident is not None and incident.last_failure.finding.kind is Kind.RANK_HUNG:
        yield _hung(job, incident)
    if ledger.standing is not None and ledger.standing.kind is StandKind.WAITS:
        yield _waits_to_go_on(job, ledger.standing)
    yield from _slow(job)
    incident_id = incident.state.incident_id if incident is not None else ""
    unproved = [node for node in ledger.fence_waits if node in job.silent]
    for node in unproved[:_NODES_MAX] if ledger.is_attempt_open else ():
        yield Notice(
            NoticeKind.GONE_UNPROVED,
            Severity.CRITICAL,
            f"{node} is silent, and attempt {ledger.attempt} of job {job.name} is not proved gone from it: "
            f"rankmend starts no other attempt",
            f"power {node} off or inspect it, then: `rankmend confirm-gone {node} --job {job.name}`",
            job.job_id,
            job.name,
            incident_id,
            node,
            need=f"power {node} off, then confirm",
            command=f"rankmend confirm-gone {node} --job {argument}",
        )
    spent = exhausted(ledger.spent, job.policy)
    if (unconfirmed := ledger.unconfirmed) is not None:
        yield Notice(
            NoticeKind.BUDGET_SPENT,
            Severity.WARNING,
            f"job {job.name}: {unconfirmed}; its budgets count as spent, and the next failure waits",
            f"drain any node that must not get ranks, then: `rankmend reset-budgets {job.name}`",
            job.job_id,
            job.name,
            need="budgets count as spent",
            command=f"rankmend reset-budgets {argument}",
        )
    elif spent is not None:
        yield Notice(
            NoticeKind.BUDGET_SPENT,
            Severity.WARNING,
            f"job {job.name}: {spent}; after the next such failure the job is given up",
            f"find out why it fails so often, then: `rankmend reset-budgets {job.name}`",
            job.job_id,
            job.name,
            need="no restart is left",
            command=f"rankmend incidents {argument}",
        )


def _leave(model_alone: str) -> tuple[str, str]:
    """Return what an approval makes a held job do, and why it needs one."""
    if model_alone:
        leave = f"go on from {model_alone}, without its optimizer's state"
        return leave, "the optimizer's state would be lost"
    return "begin at step 0", "it would begin at step 0"


def _waiting(job: RunningJob, incident: OpenIncident) -> Notice:
    assert incident.waits is not None, "called for a pending plan"
    plan, reason = incident.waits
    finding, incident_id = incident.last_failure.finding, incident.state.incident_id
    todo = f"`rankmend approve {incident_id}` or reject it, or end the pause that holds it"
    if incident.waits_cause is WaitCause.CHECKPOINT:
        alone = "" if plan.choice is None else plan.choice.model_alone
        leave, _need = _leave(alone)
        todo = (
            f"put a valid checkpoint back; or let the job {leave} (`rankmend approve {incident_id}`) "
            f"or end it (`rankmend reject {incident_id}`)"
        )
    if incident.waits_for is WaitsFor.NODES:
        todo = (
            "bring a node back, or return a healthy one to service: `rankmend resume --node NODE`"
        )
    if incident.waits_for is WaitsFor.STORAGE:
        todo = f"make the checkpoint folder writable; or end it (`rankmend reject {incident_id}`)"
    kind, need = NoticeKind.PLAN_WAITS, _NEEDS[incident.waits_cause]
    severity = Severity.WARNING if trains(finding) else Severity.CRITICAL
    if incident.waits_cause is WaitCause.OBSERVE:
        kind, severity = NoticeKind.PLAN_OBSERVED, Severity.INFO
        need = f"would {plan.step.in_words}"
    return Notice(
        kind,
        severity,
        f"job {job.name}: the plan to {plan.step.in_words} is waiting: {reason}",
        f"`rankmend why {incident_id}` shows the plan; {todo}",
        job.job_id,
        job.name,
        incident_id,
        finding.node,
        need=need,
        command=_command_for(job, incident),
    )


def _command_for(job: RunningJob, incident: OpenIncident) -> str:
    """Return the command that lets the waiting plan go on, or the one that explains what is missing."""
    incident_id = incident.state.incident_id
    explained = (WaitCause.CHECKPOINT, WaitCause.OBSERVE, WaitCause.STORAGE)
    if incident.waits_for is WaitsFor.NODES or incident.waits_cause in explained:
        return f"rankmend why {incident_id}"
    if incident.waits_cause is not WaitCause.PAUSED:
        return f"rankmend approve {incident_id}"
    scope = incident.waits_about.partition(" ")[0]
    if scope == "cluster":
        return "rankmend resume --cluster"
    if scope.startswith("node:"):
        return f"rankmend resume --node {scope.removeprefix('node:')}"
    return f"rankmend resume --job {job_argument(job.name, job.job_id)}"


def _slow(job: RunningJob) -> Iterator[Notice]:
    if not job.ledger.is_attempt_open:
        return
    slowest = sorted(job.ledger.slow.values(), key=lambda item: -item.found.factor)
    for item in slowest[:_SLOW_MAX]:
        finding, why = item.found.finding, ""
        if item.why is not None:
            why = f"; {item.why.reason}"
        yield Notice(
            NoticeKind.RANK_SLOW,
            finding.severity,
            f"job {job.name}: {finding.summary}{why}",
            f"inspect {finding.node or 'its node'}; `rankmend status` shows it; training continues",
            job.job_id,
            job.name,
            node=finding.node,
            rank=str(item.found.rank),
            need="trains on, slower",
            command=f"rankmend status {job_argument(job.name, job.job_id)}",
        )


def _waits_to_go_on(job: RunningJob, standing: StandStill) -> Notice:
    return Notice(
        NoticeKind.RANK_HUNG,
        Severity.WARNING,
        f"job {job.name} stands still and is not restarted yet: {standing.reason}",
        f"let the ranks go on (`kill -CONT` a stopped one), or end the job (`rankmend stop {job.name}`)",
        job.job_id,
        job.name,
        rank=",".join(str(rank) for rank in sorted(standing.ranks)[:_SLOW_MAX]),
        need="a restart would begin at step 0",
        command=f"rankmend status {job_argument(job.name, job.job_id)}",
    )


def _hung(job: RunningJob, incident: OpenIncident) -> Notice:
    finding, incident_id = incident.last_failure.finding, incident.state.incident_id
    who = f"it waits for {ranks_in_words(finding.ranks)}" if finding.ranks else "no rank is blamed"
    return Notice(
        NoticeKind.RANK_HUNG,
        Severity.WARNING,  # recovery is automatic; a plan that needs a person has its own alert
        f"job {job.name} hung, {who}: {finding.summary}",
        f"`rankmend why {incident_id}` shows the evidence, `rankmend bundle {incident_id}` packs it; "
        "recovery is automatic",
        job.job_id,
        job.name,
        incident_id,
        finding.node,
        ",".join(str(rank) for rank in sorted(finding.ranks)[:_SLOW_MAX]),
    )


def _escalated(
    ended: Iterable[EndedJob], ledger: ClusterLedger, now_unix_s: float
) -> Iterator[Notice]:
    for job in ended:
        is_old = job.ended_unix_s < now_unix_s - TOLD_S_MAX
        if job.outcome.kind is not OutcomeKind.ESCALATED or is_old:
            continue
        if job.incident_id in ledger.acknowledged or job.outcome.is_observed:
            continue  # in observe mode a job ends as it would without rankmend
        yield Notice(
            NoticeKind.INCIDENT_ESCALATED,
            Severity.CRITICAL,
            f"rankmend has given up on job {job.name}: {job.outcome.reason}",
            f"`rankmend why {job.incident_id}` explains it; start the job again, or "
            f"`rankmend acknowledge {job.incident_id}`",
            job.job_id,
            job.name,
            job.incident_id,
            since_unix_s=job.ended_unix_s,
            what=job.outcome.reason,
            need="given up",
            command=f"rankmend why {job.incident_id}"
            if job.outcome.incident_id
            else f"rankmend why {job_argument(job.name, job.job_id)}",
            owner=job.owner,
        )


def _vouched(blames: tuple[NodeBlame, ...], policy: ClusterPolicy) -> tuple[NodeBlame, ...]:
    """Return the blames for which not only launchers of one subject stand: what these report sends nobody to another's node."""
    were_there = [(blame.subject, blame.was_there) for blame in blames]
    return tuple(
        blame
        for blame in blames
        if policy.single_tenant
        or not blame.subject
        or blame.witness is not Witness.LAUNCHER
        or agreeing(blame.subject, were_there)
    )


def _of_cluster(
    ledger: ClusterLedger, policy: ClusterPolicy, nodes_active: int, now_unix_s: float
) -> Iterator[Notice]:
    stops = stops_within_an_hour(ledger, now_unix_s).total()
    if stops and stops >= policy.budgets.stops_per_hour_max:
        yield Notice(
            NoticeKind.BUDGET_SPENT,
            Severity.WARNING,
            f"rankmend stopped {stops} training jobs within an hour, the limit (stops_per_hour_max), and "
            f"stops no more",
            "check whether an alert rule is too sensitive; stopped jobs are still restarted",
            need="rankmend stops no more",
            command="rankmend incidents",
        )
    for node, past in ledger.nodes.items():
        held = ledger.hold_of(node, now_unix_s)
        if held is not None and held.hold is Hold.QUARANTINE:
            yield Notice(
                NoticeKind.NODE_QUARANTINED,
                Severity.INFO,  # the jobs have left it: the repair can wait for the day
                f"{node} gets no ranks: {held.reason}",
                f"inspect and repair {node}, then: `rankmend resume --node {node}`",
                node=node,
                need="waits for its repair",
                command=f"rankmend resume --node {node}",
            )
        elif held is None and len(past.blames) >= policy.quarantine.blames:
            since_s = now_unix_s - policy.quarantine.window_s
            late = tuple(blame for blame in past.blames if blame.unix_s >= since_s)
            vouched = ledger.with_blames(node, _vouched(late, policy))
            refused = quarantine(node, nodes_active, vouched, policy, now_unix_s)
            if isinstance(refused, str):
                yield Notice(
                    NoticeKind.QUARANTINE_REFUSED,
                    Severity.CRITICAL,
                    refused,
                    f"drain {node} by hand, or repair and resume quarantined nodes; so many blamed nodes "
                    f"may share one cause",
                    node=node,
                    need="still gets ranks",
                    command=f"rankmend drain {node} --reason 'blamed repeatedly'",
                )
