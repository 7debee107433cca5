"""What is wrong now, one value for each incident, node with findings, slow rank or spent budget. Pure.

Troubles of one cause make one message (`recovery.service.paging.causes`). A trouble's key stays the same while it lasts, also
over restarts of the controller.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from shlex import quote
from typing import Final

from detectors.finding import Blame, Finding, Severity, SymptomKind
from detectors.node.node_alerts import alert_name, check_of
from detectors.parts.shared_blame import PLANE_CHECK
from detectors.parts.symptoms import SharedSymptom, symptom_of
from detectors.wording import counted, names_in_words
from recovery.controller.cluster.broken_parts import LOSSES
from recovery.controller.cluster.notices import Notice, NoticeKind, RunningJob
from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import WaitsFor
from recovery.journal.ledger import Ledger, OpenIncident, Wish
from recovery.messages.outside import trains

ESCALATED: Final = NoticeKind.INCIDENT_ESCALATED.value
QUARANTINED: Final = NoticeKind.NODE_QUARANTINED.value
FINDING: Final = "RankmendFinding"  # of a node, by its agent or another exporter
PLANE_DEGRADED: Final = alert_name(PLANE_CHECK)
NODES_MAX: Final = 200
_SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
_PHASES: Final = {
    Phase.OPENED: "deciding what to do",
    Phase.FENCING: "stopping the old ranks",
    Phase.RESTORING: "restarting",
    Phase.VERIFYING: "restarted; waits for its first steps",
}


class Stage(Enum):
    """How far rankmend can help by itself: the later, the more a person has to do. A label of the message."""

    RECOVERS = ""  # or it is no incident
    WAITS = "waits"  # for a person's decision, or for a node
    GIVEN_UP = "given_up"


STAGES: Final = tuple(Stage)
_STAGE_OF: Final = {
    NoticeKind.PLAN_WAITS: Stage.WAITS,
    NoticeKind.GONE_UNPROVED: Stage.WAITS,
    NoticeKind.JOB_ORPHANED: Stage.WAITS,
    NoticeKind.INCIDENT_ESCALATED: Stage.GIVEN_UP,
}


@dataclass(frozen=True, slots=True)
class PresentTrouble:
    key: str
    kind: str  # "RankmendIncident", "RankmendFinding", or a notice's name
    severity: Severity  # how much it needs a person now
    what: str  # one sentence
    since_unix_s: float
    job_id: str = ""
    job: str = ""
    nodes: tuple[str, ...] = ()
    need: str = ""  # what it waits for, in a few words
    command: str = ""  # the one to run next
    done: tuple[str, ...] = ()  # already, oldest first
    gpus_idle: int | None = None  # None: not known, as of a job that has ended
    is_incident: bool = False
    blames_node: bool = True  # False: its nodes are only where it happened
    is_loss: bool = False  # of nodes or of the network: others may be lost with it
    is_lasting: bool = True  # known again at once after a restart: it is in a journal
    runbook: str = ""  # section of the controller's runbook
    about: str = ""  # of a finding: its alert's name
    ports: tuple[str, ...] = ()  # of its node, with findings of the network
    stage: Stage = Stage.RECOVERS


@dataclass(frozen=True, slots=True)
class NodeAlert:
    """An alert about a node that the controller has taken in."""

    alertname: str
    node: str
    severity: str
    summary: str
    since_unix_s: float
    device: str = ""  # of the node; of a degraded plane the plane


def worse(severity: Severity, other: Severity) -> Severity:
    return max(severity, other, key=_SEVERITIES.index)


def later(stage: Stage, other: Stage) -> Stage:
    return max(stage, other, key=STAGES.index)


def is_port_alert(alertname: str) -> bool:
    """Return whether an alert is about one port or link of its node's networks."""
    is_network = symptom_of(check_of(alertname)) is SharedSymptom.NETWORK
    return is_network and alertname != PLANE_DEGRADED


def find_troubles(
    running: Iterable[RunningJob],
    notices: Iterable[Notice],
    alerts: Iterable[NodeAlert],
    placed: Mapping[str, str],
    now_unix_s: float,
    *,
    knows_all: bool = True,
) -> tuple[PresentTrouble, ...]:
    """Return what is wrong now. ``placed``: the nodes that run ranks, with a job's name; ``knows_all``: no job may run elsewhere.

    What is found of an incident's nodes is why it is being recovered, and asks for nobody by itself. So an incident has no node that is
    contested: a launcher that names another's node must not silence what is found there.
    """
    found: dict[str, PresentTrouble] = {}
    contested: dict[str, frozenset[str]] = {}
    for job in running:
        contested[job.job_id] = job.contested
        if job.ledger.incident is not None:
            item = _of_incident(job, job.ledger.incident)
            found[item.key] = item
    for notice in notices:
        key = _key_of(notice)
        before = found.get(key)
        found[key] = (
            _of_notice(notice, key, now_unix_s) if before is None else _joined(before, notice)
        )
    for item in _of_alerts(alerts, placed, knows_all=knows_all):
        found[item.key] = item
    return tuple(_without(item, contested.get(item.job_id, frozenset())) for item in found.values())


def _without(trouble: PresentTrouble, contested: frozenset[str]) -> PresentTrouble:
    if not trouble.is_incident or contested.isdisjoint(trouble.nodes):
        return trouble
    nodes = tuple(node for node in trouble.nodes if node not in contested)
    return replace(trouble, nodes=nodes, is_loss=trouble.is_loss and bool(nodes))


def _of_incident(job: RunningJob, incident: OpenIncident) -> PresentTrouble:
    ledger, finding = job.ledger, incident.last_failure.finding
    incident_id = incident.state.incident_id
    blamed, waiting = _left_by(incident)
    return PresentTrouble(
        key=incident_id,
        kind="RankmendIncident",
        severity=Severity.INFO,  # a notice about it says where a person is needed
        what=finding.summary,
        since_unix_s=incident.opened_at.unix_s - incident.fault_age_s,
        job_id=job.job_id,
        job=job.name,
        nodes=nodes_of(ledger, incident)[:NODES_MAX],
        need=_PHASES.get(incident.state.phase, incident.state.phase.value),
        command=f"rankmend why {incident_id}",
        done=tuple(_done(ledger, incident)),
        gpus_idle=0 if _trains_on(ledger, incident) else ledger.world_size,
        is_incident=True,
        blames_node=finding.blame is Blame.RANK or bool(blamed or waiting) or _is_loss(finding),
        is_loss=_is_loss(finding),
        runbook="rankmendincident",
    )


def nodes_of(ledger: Ledger, incident: OpenIncident) -> tuple[str, ...]:
    """Return the nodes that an incident is about, by the word of its job's launchers."""
    blamed, waiting = _left_by(incident)
    named = (incident.last_failure.finding.node, *blamed, *waiting, *ledger.fence_waits)
    return tuple(dict.fromkeys(node for node in named if node))


def _left_by(incident: OpenIncident) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes that the incident's plan leaves, and those that a plan which waits would leave."""
    blamed = () if incident.plan is None else incident.plan.without
    waiting = () if incident.waits is None else incident.waits[0].without
    return blamed, waiting


def _trains_on(ledger: Ledger, incident: OpenIncident) -> bool:
    """Return whether the incident is about ranks that train, and no plan has stopped them yet."""
    is_untouched = incident.stopped_at is None and ledger.wish is Wish.RANKS
    return is_untouched and trains(incident.last_failure.finding)


def _is_loss(finding: Finding) -> bool:
    return finding.symptom.kind is SymptomKind.HOST or finding.blame is Blame.COMMUNICATION


def _done(ledger: Ledger, incident: OpenIncident) -> Iterator[str]:
    """Return what rankmend has done about an incident, oldest first."""
    state, plan = incident.state, incident.plan
    if incident.approved_by is not None:
        yield f"{incident.approved_by} approved the plan"
    if plan is not None:
        left = f", without {', '.join(plan.without[:8])}" if plan.without else ""
        yield f"decided: {plan.step.in_words}{left}"
    if state.try_number > 1:
        yield f"tried {counted(state.try_number - 1, 'time')} before"
    if state.phase in (Phase.RESTORING, Phase.VERIFYING):
        yield "stopped the old ranks, and proved that none is left"
    started = ledger.started
    if started is not None and started.incident_id == state.incident_id:
        step = started.choice.begins_at
        begins = "from the beginning" if step is None else f"from step {step}"
        nodes = [place.node for place in ledger.placement]
        more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
        where = f" on {', '.join(nodes[:8])}{more}" if nodes else ""
        yield f"started attempt {started.attempt}{where}, {begins}"
    if incident.waits is not None and incident.waits_for is WaitsFor.NODES:
        yield "waits for a node that it may use"
    if incident.waits is not None and incident.waits_for is WaitsFor.STORAGE:
        yield "waits for a checkpoint folder that can be written"


def _key_of(notice: Notice) -> str:
    """Return the key of the trouble that a notice is about."""
    kind = notice.kind
    if notice.incident_id and kind is not NoticeKind.BUDGET_SPENT:
        return notice.incident_id
    job = notice.job_id[:8]
    keys = {
        NoticeKind.RANK_SLOW: f"slow-{job}-{notice.node or notice.rank}",
        NoticeKind.RANK_HUNG: f"hung-{job}",
        NoticeKind.JOB_ORPHANED: f"orphaned-{job}",
        NoticeKind.BUDGET_SPENT: f"budget-{job or 'cluster'}",
        NoticeKind.NODE_QUARANTINED: f"held-{notice.node}",
        NoticeKind.QUARANTINE_REFUSED: f"unheld-{notice.node}",
    }
    return keys.get(kind, f"job-{job}")


def _of_notice(notice: Notice, key: str, now_unix_s: float) -> PresentTrouble:
    since = now_unix_s if notice.since_unix_s is None else notice.since_unix_s
    # Known again only after agents or launchers have spoken.
    is_watched = notice.kind in (
        NoticeKind.RANK_SLOW,
        NoticeKind.RANK_HUNG,
        NoticeKind.JOB_ORPHANED,
    )
    return PresentTrouble(
        key=key,
        kind=notice.kind.value,
        severity=notice.severity,
        what=notice.what or notice.summary,
        since_unix_s=since,
        job_id=notice.job_id,
        job=notice.job,
        nodes=(notice.node,) if notice.node else (),
        need=notice.need,
        command=notice.command,
        gpus_idle=None if notice.kind is NoticeKind.INCIDENT_ESCALATED else 0,
        is_incident=bool(notice.incident_id),
        is_lasting=not is_watched,
        runbook=notice.kind.value.lower(),
        stage=_STAGE_OF.get(notice.kind, Stage.RECOVERS),
    )


def _joined(trouble: PresentTrouble, notice: Notice) -> PresentTrouble:
    """Return the trouble with what one more notice about it says; the notice that needs a person most decides."""
    nodes = tuple(dict.fromkeys((*trouble.nodes, *((notice.node,) if notice.node else ()))))
    stage = later(trouble.stage, _STAGE_OF.get(notice.kind, Stage.RECOVERS))
    joined = replace(trouble, nodes=nodes[:NODES_MAX], stage=stage)
    if notice.kind is NoticeKind.RANK_HUNG and trouble.is_incident:
        return joined  # the incident itself says that the job hung
    is_worse = worse(trouble.severity, notice.severity) is not trouble.severity
    if not is_worse and trouble.runbook != "rankmendincident":
        return joined
    return replace(
        joined,
        severity=worse(trouble.severity, notice.severity),
        need=notice.need or trouble.need,
        command=notice.command or trouble.command,
        runbook=notice.kind.value.lower(),
    )


def _of_alerts(
    alerts: Iterable[NodeAlert], placed: Mapping[str, str], *, knows_all: bool
) -> Iterator[PresentTrouble]:
    """Return one trouble for each node: what is found of its devices has one cause, or one person looks at all."""
    by_node: dict[str, list[NodeAlert]] = {}
    for alert in alerts:
        if alert.node and alert.severity != Severity.INFO.value:
            by_node.setdefault(alert.node, []).append(alert)
    for node, every in by_node.items():
        ports = [item for item in every if is_port_alert(item.alertname)]
        # A port and the plane that it belongs to are one fault: the port's finding says what to do.
        planes = [item for item in every if ports and item.alertname == PLANE_DEGRADED]
        found = [item for item in every if item not in planes]
        found.sort(key=lambda item: (item.severity != Severity.CRITICAL.value, item.since_unix_s))
        first, job = found[0], placed.get(node, "")
        is_critical = first.severity == Severity.CRITICAL.value and bool(job)
        others = len(found) - 1
        more = f" (and {others} more finding{'s' * (others > 1)})" if others else ""
        if planes:
            networks = sorted({plane.device for plane in planes if plane.device})
            more += f"; {names_in_words(networks)} network degraded" if networks else ""
        where = "; no job of rankmend uses the node" if knows_all else ""
        where = f"; job {job} uses the node" if job else where
        yield PresentTrouble(
            key=f"node-{node}",
            kind=FINDING,
            severity=Severity.CRITICAL if is_critical else Severity.WARNING,
            what=f"{first.summary}{more}{where}",
            since_unix_s=min(item.since_unix_s for item in every),
            job=job,
            nodes=(node,),
            need="inspect the node",
            command=f"rankmend drain {quote(node)} --reason {quote(first.alertname)}",
            gpus_idle=0,
            is_loss=any(item.alertname in LOSSES for item in found),
            is_lasting=False,
            runbook="rankmendfinding",
            about=first.alertname,
            ports=tuple(sorted({port.device for port in ports if port.device})),
        )
