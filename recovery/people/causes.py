"""Which troubles have one cause, and so make one message. Pure.

A trouble joins the open cause that has it, its node or its job; a lost node or link joins a cause of losses that began
within `TOGETHER_S`, since a switch or a rack takes many at once. Otherwise it opens a cause of its own, whose id is the
incident's, so that a message and its incident have one name. Each change is a record of the cluster's journal: a controller
that starts anew goes on with the same causes, and closes those that are over.

A cause with incidents is over when they are; findings of its nodes that outlast it, or begin soon after, open no other. What
senders tell (findings, watched jobs) counts as there until the controller has listened for `RELISTEN_S`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.finding import Severity
from recovery.cluster.cluster_limits import PeopleRules
from recovery.journal.cluster_records import CauseTold
from recovery.people.trouble import ESCALATED, FINDING, QUARANTINED, PresentTrouble, worse

# A switch's nodes fall silent within seconds of each other, and their agents are missed after 1 min. Independent losses of
# a large cluster are hours apart (Llama 3: one failure in 3.1 h at 16,384 GPUs).
TOGETHER_S: Final = 120.0
# An incident opens up to 10 s after its node's findings: they wait so long before they count as a cause of their own.
FINDING_WAIT_S: Final = 30.0
LATE_S: Final = 600.0  # after the end: findings that begin until then belong to the cause
RELISTEN_S: Final = 300.0  # agents and Alertmanager repeat all that is so within minutes
# A message stands so long at least. The second Alertmanager of a cluster waits 15 s for the word of the first: if the end came
# before, it would send the message once more, after its end.
STANDS_S: Final = 60.0
MEMBERS_MAX: Final = 200


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
    stands_s: float = STANDS_S,
) -> CauseChanges:
    """Return the causes as they are now, and what to journal of them.

    ``causes``: the newest record of each with its time, the open and the newest closed ones. ``ends``: in words, how each
    job stands now. ``unmanaged``: jobs of which nothing is known at the moment. ``listened_s``: since the start.
    """
    closed_lately = [(at_s, one) for at_s, one in causes.values() if one.is_over]
    places = _Places({key: one for key, (_at_s, one) in causes.items() if not one.is_over})
    open_now = places.causes
    members: dict[str, list[PresentTrouble]] = {key: [] for key in open_now}
    for trouble in sorted(troubles, key=lambda one: (not one.is_incident, one.since_unix_s)):
        if trouble.kind == QUARANTINED:
            continue  # a repair that can wait: in the daily record
        cause_id = places.cause_of(trouble)
        if cause_id is None:
            is_late = any(_belongs_late(trouble, one, at_s) for at_s, one in closed_lately)
            is_early = (
                trouble.kind == FINDING and now_unix_s - trouble.since_unix_s < FINDING_WAIT_S
            )
            if is_late or is_early:
                continue
            cause_id = trouble.key
            open_now[cause_id] = _opened(trouble)
        places.add(cause_id, trouble)
        members.setdefault(cause_id, []).append(trouble)
    records, still, over = [], [], []
    for cause_id, told in open_now.items():
        at_s, before = causes.get(cause_id, (now_unix_s, None))
        new = _updated(told, before, members[cause_id], rules, at_s, now_unix_s)
        # A cause with incidents is over with them: the node's finding stays until its repair.
        is_there = any(one.is_incident or not new.incident_ids for one in members[cause_id])
        has_stood = new.paged_unix_s is None or now_unix_s - new.paged_unix_s >= stands_s
        if not is_there and has_stood and _is_over(new, unmanaged, listened_s):
            new = replace(new, is_over=True, end=_end_of(new, ends))
            over.append(new)
        else:
            still.append(OpenCause(new, tuple(members[cause_id])))
        if before is None or _is_news(before, new):
            records.append(new)
    lately = [one for at_s, one in closed_lately if now_unix_s - at_s < LATE_S]
    return CauseChanges(tuple(still), (*lately, *over), tuple(over), tuple(records))


class _Places:
    """The open causes, and which of them has a trouble, a node or a job."""

    def __init__(self, causes: dict[str, CauseTold]) -> None:
        self.causes = causes
        self._of_member: dict[str, str] = {}
        self._of_node: dict[str, str] = {}
        self._of_blamed: dict[str, str] = {}
        self._of_job: dict[str, str] = {}
        self._losses: list[str] = []
        for cause_id in causes:
            self._note(cause_id)

    def _note(self, cause_id: str) -> None:
        told = self.causes[cause_id]
        for index, names in (
            (self._of_member, told.members),
            (self._of_node, told.nodes),
            (self._of_blamed, told.nodes if told.blames_node else ()),
            (self._of_job, told.job_ids),
        ):
            for name in names:
                index.setdefault(name, cause_id)
        if told.is_loss and cause_id not in self._losses:
            self._losses.append(cause_id)

    def cause_of(self, trouble: PresentTrouble) -> str | None:
        found = self._of_member.get(trouble.key) or self._of_job.get(trouble.job_id)
        # Two programs that fail on one node are two causes; a fault of the node is one.
        places = self._of_node if trouble.kind == FINDING else self._of_blamed
        nodes = trouble.nodes if trouble.blames_node else ()
        found = found or next((places[node] for node in nodes if node in places), None)
        if found is not None or not trouble.is_loss:
            return found
        return next((key for key in self._losses if _is_together(trouble, self.causes[key])), None)

    def add(self, cause_id: str, trouble: PresentTrouble) -> None:
        self.causes[cause_id] = _with_member(self.causes[cause_id], trouble)
        self._note(cause_id)


def _is_together(trouble: PresentTrouble, told: CauseTold) -> bool:
    return abs(trouble.since_unix_s - told.since_unix_s) <= TOGETHER_S


def _belongs_late(trouble: PresentTrouble, told: CauseTold, closed_unix_s: float) -> bool:
    """Return whether a finding began before the end of a cause that took its node, or soon after."""
    if trouble.kind != FINDING or trouble.since_unix_s > closed_unix_s + LATE_S:
        return False
    is_of_loss = trouble.is_loss and told.is_loss and _is_together(trouble, told)
    return is_of_loss or trouble.nodes[0] in told.nodes


def _opened(trouble: PresentTrouble) -> CauseTold:
    node = trouble.nodes[0] if trouble.nodes else ""
    return CauseTold(
        cause_id=trouble.key,
        since_unix_s=trouble.since_unix_s,
        job_id=trouble.job_id,
        job=trouble.job,
        node=node,
        severity=Severity.INFO.value,
        what=trouble.what[:1_000],
    )


def _with_member(told: CauseTold, trouble: PresentTrouble) -> CauseTold:
    def joined(before: tuple[str, ...], *new: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*before, *(one for one in new if one))))[:MEMBERS_MAX]

    is_other_job = bool(trouble.job_id) and trouble.job_id not in told.job_ids
    jobs = (*told.jobs, trouble.job)[:MEMBERS_MAX] if is_other_job else told.jobs
    return replace(
        told,
        members=joined(told.members, trouble.key),
        incident_ids=joined(told.incident_ids, trouble.key if trouble.is_incident else ""),
        nodes=joined(told.nodes, *trouble.nodes),
        job_ids=joined(told.job_ids, trouble.job_id),
        jobs=jobs,
        is_loss=told.is_loss or trouble.is_loss,
        blames_node=told.blames_node or trouble.blames_node,
        since_unix_s=min(told.since_unix_s, trouble.since_unix_s),
    )


def _updated(
    told: CauseTold,
    before: CauseTold | None,
    members: Sequence[PresentTrouble],
    rules: PeopleRules,
    at_unix_s: float,
    now_unix_s: float,
) -> CauseTold:
    """Return the record with its severity, which never falls, and what it has cost."""
    severity = Severity(told.severity)
    for trouble in members:
        severity = worse(severity, trouble.severity)
        waited_s = now_unix_s - trouble.since_unix_s
        is_long = trouble.is_incident and 0 < rules.page_after_s <= waited_s
        if is_long or (rules.page_every_incident and trouble.is_incident):
            severity = worse(severity, Severity.WARNING)
        if is_long and trouble.gpus_idle:
            severity = Severity.CRITICAL
    known = [one.gpus_idle for one in members if one.gpus_idle is not None]
    idle = sum(known)
    given_up = any(one.kind == ESCALATED or one.gpus_idle is None for one in members)
    stood = told.gpus_idle if given_up and not idle else idle
    lost_s = told.gpu_s_lost
    if before is None:
        lost_s = sum(
            (one.gpus_idle or 0) * max(0.0, now_unix_s - one.since_unix_s) for one in members
        )
    elif not before.is_ended:
        lost_s += before.gpus_idle * max(0.0, now_unix_s - at_unix_s)
    is_paged = severity is not Severity.INFO and told.paged_unix_s is None
    return replace(
        told,
        severity=severity.value,
        paged_unix_s=now_unix_s if is_paged else told.paged_unix_s,
        gpus_idle=stood,
        gpu_s_lost=lost_s,
        is_ended=given_up and not idle,
    )


def _is_over(told: CauseTold, unmanaged: frozenset[str], listened_s: float) -> bool:
    if unmanaged & set(told.job_ids):
        return False  # its journal can't be read now
    return bool(told.incident_ids) or listened_s >= RELISTEN_S


def _end_of(told: CauseTold, ends: Mapping[str, str]) -> str:
    said = [
        f"{name}: {ends[job_id]}"
        for job_id, name in zip(told.job_ids, told.jobs, strict=False)
        if job_id in ends
    ]
    more = f"; and {len(said) - 8} more jobs" if len(said) > 8 else ""
    return "; ".join(said[:8]) + more if said else "it is no longer there"


def _is_news(before: CauseTold, now: CauseTold) -> bool:
    """Return whether the journal has to hear of a change; what it has cost so far is counted from the newest record."""
    return replace(before, gpu_s_lost=0.0) != replace(now, gpu_s_lost=0.0)
