"""Which troubles have one cause, and so make one message. Pure.

A trouble joins the open cause that has it, its node or its job; a lost node or link joins a cause of losses that began
within `TOGETHER_S`, since a switch or a rack takes many at once; the same finding on many nodes is one cause. Otherwise it opens a cause of its own, whose id is the
incident's, so that a message and its incident have one name. Each change is a record of the cluster's journal: a controller
that starts anew goes on with the same causes, and closes those that are over.

A cause with incidents is over when they are; findings of its nodes that outlast it, or begin soon after, open no other. What
senders tell (findings, watched jobs) counts as there until the controller has listened for `RELISTEN_S`.

An incident is its job's launchers' word, and its cause needs nobody while it recovers. So by time alone an incident joins only causes of its own
subject's jobs, and a finding only causes of findings; and an incident joins no finding that other nodes have, too: one subject's losses
silence nothing that is found of others' nodes. Where all users are one party, all are the same subject.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.finding import Severity
from detectors.node.node_alerts import check_of
from detectors.parts.fleet_parts import NO_PARTS, FleetParts
from detectors.parts.shared_blame import PlacedWorker, explain_network, explain_shared
from detectors.parts.symptoms import CAUSES_OF, SharedSymptom, symptom_of
from recovery.controller.cluster.cluster_limits import PeopleRules
from recovery.journal.cluster_records import CauseTold
from recovery.service.paging.trouble import (
    ESCALATED,
    FINDING,
    QUARANTINED,
    PresentTrouble,
    Stage,
    later,
    worse,
)

# A switch's nodes fall silent within seconds of each other, and their agents are missed after 1 min. Independent losses of
# a large cluster are hours apart (Llama 3: one failure in 3.1 h at 16,384 GPUs).
TOGETHER_S: Final = 120.0
# An incident opens up to 10 s after its node's findings: they wait so long before they count as a cause of their own.
FINDING_WAIT_S: Final = 30.0
LATE_S: Final = 600.0  # after the end: findings that begin until then belong to the cause
RELISTEN_S: Final = 300.0  # agents and Alertmanager repeat all that is so within minutes
MEMBERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class SharedBy:
    """The nodes that would have told of a fault, and what they share."""

    nodes: Collection[str] = ()
    parts: FleetParts = NO_PARTS


@dataclass(frozen=True, slots=True)
class OpenCause:
    """A cause with the troubles that there are of it now."""

    told: CauseTold
    troubles: tuple[PresentTrouble, ...]  # (): it is over, or not heard of yet


@dataclass(frozen=True, slots=True)
class CauseChanges:
    open: tuple[OpenCause, ...]
    lately: tuple[CauseTold, ...]  # over for less than LATE_S: they still cover their nodes
    closed: tuple[CauseTold, ...]
    records: tuple[CauseTold, ...]  # what to journal


def follow(
    causes: Mapping[str, tuple[float, CauseTold]],
    troubles: Sequence[PresentTrouble],
    rules: PeopleRules,
    now_unix_s: float,
    *,
    ends: Mapping[str, str],
    unmanaged: frozenset[str] = frozenset(),
    listened_s: float = RELISTEN_S,
    shared: SharedBy = SharedBy(),
    owner_of: Callable[[str], str] = lambda _job_id: "",
) -> CauseChanges:
    """Return the causes as they are now, and what to journal of them.

    ``causes``: the newest record of each with its time, the open and the newest closed ones. ``ends``: in words, how each
    job stands now. ``unmanaged``: jobs of which nothing is known at the moment. ``listened_s``: since the start. ``shared``: by whose parts several nodes are explained.
    ``owner_of`` returns the subject of a job; empty: all users are one party.
    """
    closed = [(at_s, cause) for at_s, cause in causes.values() if cause.is_over]
    past = _Past(closed, owner_of)
    still_open = {key: item for key, (_at_s, item) in causes.items() if not item.is_over}
    places = _Places(still_open, owner_of)
    for trouble in sorted(
        troubles, key=lambda trouble: (not trouble.is_incident, trouble.since_unix_s)
    ):
        if trouble.kind == QUARANTINED:
            continue  # a repair that can wait: in the daily record
        cause_id = places.cause_of(trouble)
        if cause_id is None:
            is_early = (
                trouble.kind == FINDING and now_unix_s - trouble.since_unix_s < FINDING_WAIT_S
            )
            if is_early or past.covers(trouble):
                continue
            cause_id = places.open(trouble)
        places.add(cause_id, trouble)
    members = {key: cause.troubles for key, cause in places.causes.items()}
    open_now = {key: cause.told() for key, cause in places.causes.items()}
    records, still, over = [], [], []
    for cause_id, reported in open_now.items():
        at_s, before = causes.get(cause_id, (now_unix_s, None))
        new = _updated(reported, before, members[cause_id], rules, at_s, now_unix_s)
        new = replace(new, part=_part_of(new, before, members[cause_id], shared))
        # A cause with incidents is over with them: the node's finding stays until its repair.
        is_there = any(item.is_incident or not new.incident_ids for item in members[cause_id])
        has_stood = new.paged_unix_s is None or now_unix_s - new.paged_unix_s >= rules.stands_s
        if not is_there and has_stood and _is_over(new, unmanaged, listened_s):
            new = replace(new, is_over=True, end=_end_of(new, ends))
            over.append(new)
        else:
            still.append(OpenCause(new, tuple(members[cause_id])))
        if before is None or _is_news(before, new):
            records.append(new)
    lately = [item for at_s, item in closed if now_unix_s - at_s < LATE_S]
    return CauseChanges(tuple(still), (*lately, *over), tuple(over), tuple(records))


class _Gathered:
    """A cause while its troubles are put together."""

    def __init__(self, base: CauseTold) -> None:
        self.base = base
        self.troubles: list[PresentTrouble] = []
        self.is_loss, self.has_incident = base.is_loss, bool(base.incident_ids)
        self.nodes, self.job_ids = set(base.nodes), set(base.job_ids)

    def add(self, trouble: PresentTrouble) -> None:
        self.troubles.append(trouble)
        self.nodes.update(trouble.nodes)
        self.job_ids.add(trouble.job_id)
        self.is_loss |= trouble.is_loss
        self.has_incident |= trouble.is_incident

    def told(self) -> CauseTold:
        base, troubles = self.base, self.troubles

        def joined(before: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
            names = dict.fromkeys((*before, *(item for item in new if item)))
            return tuple(names)[:MEMBERS_MAX]

        jobs = dict(zip(base.job_ids, base.jobs, strict=False))
        for trouble in troubles:
            if trouble.job_id and len(jobs) < MEMBERS_MAX:
                jobs.setdefault(trouble.job_id, trouble.job)
        return replace(
            base,
            members=joined(base.members, (trouble.key for trouble in troubles)),
            incident_ids=joined(base.incident_ids, (o.key for o in troubles if o.is_incident)),
            nodes=joined(base.nodes, (node for trouble in troubles for node in trouble.nodes)),
            job_ids=tuple(jobs),
            jobs=tuple(jobs.values()),
            is_loss=self.is_loss,
            blames_node=base.blames_node or any(trouble.blames_node for trouble in troubles),
            since_unix_s=min([base.since_unix_s, *(trouble.since_unix_s for trouble in troubles)]),
        )


class _Places:
    """The open causes, and which of them has a trouble, a node or a job."""

    def __init__(self, causes: Mapping[str, CauseTold], owner_of: Callable[[str], str]) -> None:
        self._owner_of = owner_of
        self.causes = {key: _Gathered(cause) for key, cause in causes.items()}
        self._of_member: dict[str, str] = {}
        self._of_node: dict[str, str] = {}
        self._of_blamed: dict[str, str] = {}
        self._of_finding: dict[str, str] = {}
        self._of_job: dict[str, str] = {}
        for key, cause in causes.items():
            self._note(
                key, cause.members, cause.nodes, cause.job_ids, blames_node=cause.blames_node
            )
            if cause.about:
                self._of_finding.setdefault(cause.about, key)

    def _note(
        self,
        cause_id: str,
        keys: Iterable[str],
        nodes: Sequence[str],
        job_ids: Iterable[str],
        *,
        blames_node: bool,
    ) -> None:
        for index, names in (
            (self._of_member, keys),
            (self._of_node, nodes),
            (self._of_blamed, nodes if blames_node else ()),
            (self._of_job, job_ids),
        ):
            for name in names:
                index.setdefault(name, cause_id)

    def cause_of(self, trouble: PresentTrouble) -> str | None:
        found = self._of_member.get(trouble.key) or self._of_job.get(trouble.job_id)
        # Two programs that fail on one node are two causes; a fault of the node is one.
        places = self._of_node if trouble.kind == FINDING else self._of_blamed
        nodes = trouble.nodes if trouble.blames_node else ()
        by_node = (places[node] for node in nodes if node in places)
        found = found or next((key for key in by_node if self._may_join(trouble, key)), None)
        if found is None and trouble.about:  # the same on many nodes: a driver, a cooling loop
            alike = self._of_finding.get(trouble.about)
            found = alike if alike is None or not self.causes[alike].has_incident else None
        if found is not None or not trouble.is_loss:
            return found
        party = self._parties((trouble.job_id,))
        lost = (
            (key, cause)
            for key, cause in self.causes.items()
            if cause.is_loss and self._parties(cause.job_ids) == party
        )
        return next((key for key, cause in lost if _is_together(trouble, cause.base)), None)

    def _may_join(self, trouble: PresentTrouble, cause_id: str) -> bool:
        """Return whether a trouble of a cause's node belongs to it: an incident ends it, and with it what is found of other nodes."""
        cause = self.causes[cause_id]
        is_of_one = trouble.is_incident and bool(self._parties((trouble.job_id,)))
        return not is_of_one or cause.has_incident or cause.nodes <= set(trouble.nodes)

    def _parties(self, job_ids: Iterable[str]) -> frozenset[str]:
        return _parties(job_ids, self._owner_of)

    def open(self, trouble: PresentTrouble) -> str:
        owner = self._owner_of(trouble.job_id) if trouble.job_id else ""
        self.causes[trouble.key] = _Gathered(_opened(trouble, owner))
        if trouble.about:
            self._of_finding.setdefault(trouble.about, trouble.key)
        return trouble.key

    def add(self, cause_id: str, trouble: PresentTrouble) -> None:
        self.causes[cause_id].add(trouble)
        job_ids = (trouble.job_id,) if trouble.job_id else ()
        blames = trouble.blames_node
        self._note(cause_id, (trouble.key,), trouble.nodes, job_ids, blames_node=blames)


def _parties(job_ids: Iterable[str], owner_of: Callable[[str], str]) -> frozenset[str]:
    """Return the subjects by whose launchers' word a cause is one; none: senders', or all users are one party."""
    return frozenset(owner_of(job_id) for job_id in job_ids if job_id) - {""}


def _is_together(trouble: PresentTrouble, reported: CauseTold) -> bool:
    return abs(trouble.since_unix_s - reported.since_unix_s) <= TOGETHER_S


class _Past:
    """The causes that are over: what is found of their nodes belongs to them if it began before their end, or soon after."""

    def __init__(
        self, closed: Sequence[tuple[float, CauseTold]], owner_of: Callable[[str], str]
    ) -> None:
        self._of_node: dict[str, float] = {}
        self._losses = [
            (at_s, item)
            for at_s, item in closed
            if item.is_loss and not _parties(item.job_ids, owner_of)
        ]
        for at_s, item in closed:
            for node in item.nodes:
                self._of_node[node] = max(at_s, self._of_node.get(node, at_s))

    def covers(self, trouble: PresentTrouble) -> bool:
        if trouble.kind != FINDING:
            return False
        until_s = self._of_node.get(trouble.nodes[0]) if trouble.nodes else None
        if until_s is not None and trouble.since_unix_s <= until_s + LATE_S:
            return True
        return trouble.is_loss and any(
            _is_together(trouble, loss) and trouble.since_unix_s <= at_s + LATE_S
            for at_s, loss in self._losses
        )


def _opened(trouble: PresentTrouble, owner: str) -> CauseTold:
    node = trouble.nodes[0] if trouble.nodes else ""
    return CauseTold(
        cause_id=trouble.key,
        since_unix_s=trouble.since_unix_s,
        job_id=trouble.job_id,
        job=trouble.job,
        node=node,
        severity=Severity.INFO.value,
        what=trouble.what[:1_000],
        about=trouble.about,
        owner=owner,
    )


def _updated(
    reported: CauseTold,
    before: CauseTold | None,
    members: Sequence[PresentTrouble],
    rules: PeopleRules,
    at_unix_s: float,
    now_unix_s: float,
) -> CauseTold:
    """Return the record with its severity and stage, which never fall, and what it has cost."""
    severity, stage = Severity(reported.severity), Stage(reported.stage)
    # What is found of the node of an incident is why it is being recovered, and asks for nobody by itself.
    deciding = [
        member for member in members if not (member.kind == FINDING and reported.incident_ids)
    ]
    for trouble in deciding:
        severity, stage = worse(severity, trouble.severity), later(stage, trouble.stage)
        waited_s = now_unix_s - trouble.since_unix_s
        is_long = trouble.is_incident and 0 < rules.page_after_s <= waited_s
        if is_long or (rules.page_every_incident and trouble.is_incident):
            severity = worse(severity, Severity.WARNING)
        if is_long and trouble.gpus_idle:
            severity = Severity.CRITICAL
    known = [member.gpus_idle for member in members if member.gpus_idle is not None]
    idle = sum(known)
    given_up = any(member.kind == ESCALATED or member.gpus_idle is None for member in members)
    stood = reported.gpus_idle if given_up and not idle else idle
    lost_s = reported.gpu_s_lost
    if before is None:
        lost_s = sum(
            (member.gpus_idle or 0) * max(0.0, now_unix_s - member.since_unix_s)
            for member in members
        )
    elif not before.is_ended:
        lost_s += before.gpus_idle * max(0.0, now_unix_s - at_unix_s)
    is_paged = severity is not Severity.INFO and reported.paged_unix_s is None
    return replace(
        reported,
        severity=severity.value,
        stage=stage.value,
        paged_unix_s=now_unix_s if is_paged else reported.paged_unix_s,
        gpus_idle=stood,
        gpu_s_lost=lost_s,
        is_ended=given_up and not idle,
    )


def _part_of(
    reported: CauseTold,
    before: CauseTold | None,
    troubles: Sequence[PresentTrouble],
    shared: SharedBy,
) -> str:
    """Return the part that explains the nodes of a cause; looked for anew when these change."""
    if len(reported.nodes) < 2 or not shared.parts.on or not reported.blames_node:
        return reported.part
    if before is not None and before.nodes == reported.nodes:
        return before.part
    bad = {*reported.nodes, *(node for trouble in troubles for node in trouble.nodes)}
    symptoms = {symptom_of(check_of(trouble.about)) for trouble in troubles if trouble.about}
    if symptoms == {SharedSymptom.NETWORK} and all(trouble.about for trouble in troubles):
        ports = {node: trouble.ports for trouble in troubles for node in trouble.nodes}
        hit = {node: ports.get(node, ()) for node in bad}
        return explain_network(hit, shared.nodes, shared.parts).part
    workers = [PlacedWorker(node, node) for node in {*shared.nodes, *bad}]
    symptom = (
        SharedSymptom.ANYTHING
        if reported.is_loss
        else symptom_of(check_of(reported.about.partition(":")[0]))
    )
    return explain_shared(workers, bad, shared.parts, CAUSES_OF[symptom]).part


def _is_over(reported: CauseTold, unmanaged: frozenset[str], listened_s: float) -> bool:
    if unmanaged & set(reported.job_ids):
        return False  # its journal can't be read now
    return bool(reported.incident_ids) or listened_s >= RELISTEN_S


def _end_of(reported: CauseTold, ends: Mapping[str, str]) -> str:
    if len(reported.job_ids) == 1 and reported.job_ids[0] in ends:
        return ends[reported.job_ids[0]]
    said = [
        f"{name}: {ends[job_id]}"
        for job_id, name in zip(reported.job_ids, reported.jobs, strict=False)
        if job_id in ends
    ]
    more = f"; and {len(said) - 8} more jobs" if len(said) > 8 else ""
    return "; ".join(said[:8]) + more if said else "it is no longer there"


def _is_news(before: CauseTold, now: CauseTold) -> bool:
    """Return whether the journal has to hear of a change; what it has cost so far is counted from the newest record."""
    return replace(before, gpu_s_lost=0.0) != replace(now, gpu_s_lost=0.0)
