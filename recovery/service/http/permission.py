"""Decides what a subject may touch: the one place, asked before any handler runs.

`recovery.service.http.routes` gives each route its roles and its `Touches`. From these and from the request itself
`touch_of` makes a `Touch`, and `permit` holds it against the limits of the subject's token or certificate. docs/operate/security.md
has the rules as a table. Pure: values in, values or an error out.

A job's nodes are shared with other jobs. So job patterns (``--job``) never reach a whole node, and node patterns
(``--node``) alone never reach a whole job.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

import msgspec

from recovery.api import wire
from recovery.console.acts import MayAct
from recovery.controller.cluster.incoming_alerts import AlertTarget
from recovery.journal.cluster_records import WindowAdded
from recovery.journal.job_records import JobOutcome
from recovery.messages.outside import PersonAct
from recovery.service.roles import DeniedError, Role, Subject, UnknownError

_ACTS_ON_A_NODE: Final = frozenset({PersonAct.LEAVE_NODE, PersonAct.CONFIRM_GONE, PersonAct.RESUME})


class Touches(Enum):
    """What the requests of a route concern."""

    NOTHING = "nothing"  # the answer is the same for everybody
    CLUSTER = "the cluster"
    OWN_PART = "its own part"  # a list, which leaves out what lies outside the limits
    JOB = "a job"  # named by path, query or incident
    NODE = "a node"
    NODES = "nodes"  # the nodes of a maintenance window
    SCOPE = "the scope"  # `cluster`, `job:UUID` or `node:NAME`
    OWN_JOB = "its own job"  # a launcher's: the job must be its subject's own
    REPORTED_NODE = "the reported node"  # an agent's: the body names it
    ALERTS = "alerts"  # their nodes; their jobs, where the subject is limited to some


class OwnedJob(Protocol):
    @property
    def owner(self) -> str: ...
    @property
    def name(self) -> str: ...


class KnownJob(OwnedJob, Protocol):
    @property
    def outcome(self) -> JobOutcome | None: ...
    @property
    def incident_prefix(self) -> str: ...


class JobQuery(msgspec.Struct):
    """A query that may name one job."""

    job: wire.Uuid | None = None


# One of each is made for every request: a Struct takes a seventh of the time of a frozen dataclass.


class Asked(msgspec.Struct, frozen=True):
    """A request, decoded."""

    parts: Mapping[str, str]  # parts of the path
    query: Any = None
    body: Any = None
    targets: tuple[AlertTarget, ...] = ()  # what the alerts concern
    is_act: bool = False


class World(msgspec.Struct, frozen=True):
    """What requests name."""

    jobs: Mapping[str, KnownJob]  # by job id
    windows: Mapping[str, WindowAdded]


class Touch(msgspec.Struct, frozen=True):
    """What one request concerns."""

    is_cluster: bool = False
    job_ids: tuple[str, ...] = ()  # known jobs; an incident may belong to one of several
    job_names: tuple[str, ...] = ()  # name of a joining job
    absent: str = "no job"  # what to answer where none of them is within the limits
    owner_only: bool = False  # the jobs must belong to the subject
    is_read: bool = False  # nothing is done: others' jobs take a role of their own
    is_whole_job: bool = False  # commands the job on all of its nodes
    nodes: tuple[str, ...] = ()  # names or patterns: with all that runs there
    job_nodes: tuple[str, ...] = ()  # what the one job has there
    alerts: tuple[tuple[str, str], ...] = ()  # node and job of each; either may be empty


def demand(subject: Subject, *roles: Role) -> None:
    """Raise DeniedError where the subject has none of the roles."""
    if not subject.roles.intersection(roles):
        wanted = " or ".join(role.value for role in roles)
        raise DeniedError(f"{subject.name} does not have the role {wanted}", 403)


def permit(subject: Subject, touch: Touch, jobs: Mapping[str, KnownJob]) -> tuple[str, ...]:
    """Return the jobs among ``touch.job_ids`` that the subject may touch, or raise.

    A job outside the limits does not exist for the subject: UnknownError (404). All else is DeniedError (403).
    """
    if touch.is_cluster and is_limited(subject):
        raise DeniedError(f"{_limits(subject)}: this concerns the whole cluster", 403)
    for name in touch.job_names:
        if not subject.may_use_job(name):
            raise DeniedError(f"{subject.name} may not run a job named {name!r}", 403)
    allowed = tuple(item for item in touch.job_ids if _may_touch(subject, jobs[item], touch))
    if touch.job_ids and not allowed:
        raise UnknownError(touch.absent)
    if touch.is_whole_job and subject.nodes and not subject.jobs:
        raise DeniedError(f"{_limits(subject)}: this concerns a job on all of its nodes", 403)
    for node in touch.nodes:
        if subject.jobs:
            raise DeniedError(f"{_limits(subject)}: node {node} is shared by all jobs", 403)
        _check_node(subject, node)
    for node in touch.job_nodes:
        _check_node(subject, node)
    for node, job_id in touch.alerts:
        _check_alert(subject, node, job_id, jobs)
    return allowed


def may_act_on(subject: Subject) -> MayAct:
    """Return on what of what it sees a subject with the role act may act."""

    def may(touch: Touch) -> bool:
        try:
            permit(subject, touch, {})
        except DeniedError:
            return False
        return True

    return MayAct(
        cluster=may(Touch(is_cluster=True)),
        job=may(Touch(is_whole_job=True)),
        node=may(Touch(nodes=subject.nodes or ("*",))),
    )


def is_limited(subject: Subject) -> bool:
    return bool(subject.nodes or subject.jobs)


def may_read_job(subject: Subject, job: OwnedJob) -> bool:
    """Return whether a job exists for a subject that reads: its own, or with `fleet-read` any, within its limits."""
    return may_read(subject, job.owner, job.name)


def may_read(subject: Subject, owner: str, name: str) -> bool:
    is_open = not subject.reads_own_jobs_only or (owner != "" and owner == subject.name)
    return is_open and subject.may_use_job(name)


def reads_all(subject: Subject) -> bool:
    """Return whether nothing is hidden from a subject that reads."""
    return not subject.reads_own_jobs_only and not is_limited(subject)


def covers(patterns: Iterable[str], wanted: str) -> bool:
    """Return whether one of the patterns matches every node that ``wanted``, a name or a pattern, matches.

    Certain or not at all: of two patterns only the same one, and one whose plain beginning goes on from ``NAME*``.
    """
    head = _plain_head(wanted)
    if head == wanted:
        return any(fnmatchcase(wanted, pattern) for pattern in patterns)
    return any(
        pattern in (wanted, "*")
        or (pattern.endswith("*") and _plain_head(pattern) == pattern[:-1] and head.startswith(pattern[:-1]))
        for pattern in patterns
    )  # fmt: skip


def _plain_head(pattern: str) -> str:
    return pattern[: next((at for at, char in enumerate(pattern) if char in "*?["), len(pattern))]


def _may_touch(subject: Subject, job: KnownJob, touch: Touch) -> bool:
    if touch.is_read:
        return may_read_job(subject, job)
    is_owned = job.owner == subject.name or not touch.owner_only
    return is_owned and subject.may_use_job(job.name)


def _check_node(subject: Subject, node: str) -> None:
    if subject.nodes and not covers(subject.nodes, node):
        raise DeniedError(f"{subject.name} may not speak for node {node!r:.80}", 403)


def _check_alert(subject: Subject, node: str, job_id: str, jobs: Mapping[str, KnownJob]) -> None:
    if subject.nodes and not (node and covers(subject.nodes, node)):
        raise DeniedError(f"{subject.name} may not send alerts about node {node!r:.80}", 403)
    job = jobs.get(job_id)
    if subject.jobs and (job is None or not subject.may_use_job(job.name)):
        raise DeniedError(f"{subject.name} may not send alerts about job {job_id!r:.80}", 403)


def _limits(subject: Subject) -> str:
    limits = [
        f"{what} {', '.join(patterns[:5])}"
        for what, patterns in (("jobs", subject.jobs), ("nodes", subject.nodes))
        if patterns
    ]
    return f"{subject.name} is limited to {' and '.join(limits)}"


# From a request to what it touches.


def touch_of(touches: Touches, requested: Asked, world: World) -> Touch:
    """Return what a request concerns; raise UnknownError for an unknown job."""
    return _TOUCH[touches](requested, world)


def _nothing(_asked: Asked, _world: World) -> Touch:
    return Touch()


def _cluster(_asked: Asked, _world: World) -> Touch:
    return Touch(is_cluster=True)


def _job(requested: Asked, world: World) -> Touch:
    if "incident" in requested.parts:
        return _incident(requested.parts["incident"], requested, world)
    job_id = requested.parts.get("job")
    if isinstance(requested.query, JobQuery):
        job_id = requested.query.job
    if job_id is None:  # the limits of all jobs
        return Touch()
    if job_id not in world.jobs:
        raise UnknownError(f"no job {job_id}")
    if isinstance(requested.body, wire.JobCommand):
        return _command(job_id, requested.body)
    return Touch(job_ids=(job_id,), absent=f"no job {job_id}", is_read=True)


def _command(job_id: str, command: wire.JobCommand) -> Touch:
    is_whole = command.act not in _ACTS_ON_A_NODE or command.node is None
    nodes = () if command.node is None else (command.node,)
    absent = f"no job {job_id}"
    return Touch(job_ids=(job_id,), absent=absent, is_whole_job=is_whole, job_nodes=nodes)


def _incident(wanted: str, requested: Asked, world: World) -> Touch:
    """Return the jobs that an incident, or a job's own id, may belong to."""
    found = (wanted,) if wanted in world.jobs else tuple(
        job_id for job_id, job in world.jobs.items() if wanted.startswith(f"{job.incident_prefix}-")
    )  # fmt: skip
    absent = f"no incident {wanted}" if requested.is_act else f"no incident or job {wanted}"
    if not found:
        raise UnknownError(absent)
    return Touch(
        job_ids=found, absent=absent, is_whole_job=requested.is_act, is_read=not requested.is_act
    )


def _node(requested: Asked, _world: World) -> Touch:
    return Touch(nodes=(requested.parts["node"],))


def _nodes(requested: Asked, world: World) -> Touch:
    if isinstance(requested.body, wire.Window):
        return Touch(nodes=tuple(requested.body.nodes))
    window = world.windows.get(requested.parts["window"])
    return Touch(is_cluster=True) if window is None else Touch(nodes=window.nodes)


def _scope(requested: Asked, world: World) -> Touch:
    kind, _colon, name = requested.parts["scope"].partition(":")
    if kind == "job" and name in world.jobs:
        return Touch(job_ids=(name,), absent=f"no job {name}", is_whole_job=True)
    if kind == "node" and name:
        return Touch(nodes=(name,))
    return Touch(is_cluster=True)  # also of a job that has ended and was forgotten


def _own_job(requested: Asked, world: World) -> Touch:
    if isinstance(requested.body, wire.Join):
        return Touch(job_names=(requested.body.name,), job_nodes=(requested.body.node,))
    job_id = requested.parts["job"]
    if job_id not in world.jobs:
        raise UnknownError(f"no job {job_id}")
    node = requested.parts.get("node") or requested.body.node
    absent = f"no job {job_id}"
    return Touch(job_ids=(job_id,), absent=absent, owner_only=True, job_nodes=(node,))


def _alerts(requested: Asked, _world: World) -> Touch:
    return Touch(alerts=tuple({(target.node, target.job_id): None for target in requested.targets}))


def _reported_node(requested: Asked, _world: World) -> Touch:
    return Touch(alerts=((requested.body.node, ""),))


_TOUCH: Final[dict[Touches, Callable[[Asked, World], Touch]]] = {
    Touches.NOTHING: _nothing,
    Touches.CLUSTER: _cluster,
    Touches.OWN_PART: _nothing,
    Touches.JOB: _job,
    Touches.NODE: _node,
    Touches.NODES: _nodes,
    Touches.SCOPE: _scope,
    Touches.OWN_JOB: _own_job,
    Touches.REPORTED_NODE: _reported_node,
    Touches.ALERTS: _alerts,
}


# Lists: what of them a subject may see.


@dataclass(frozen=True, slots=True)
class Sight:
    """The part of the cluster's lists that a subject may see."""

    subject: Subject
    jobs: frozenset[str] = field(default_factory=frozenset)  # ids, of all that it may see
    job_nodes: frozenset[str] = field(default_factory=frozenset)  # nodes of these jobs

    @property
    def is_of_some_jobs(self) -> bool:
        """Return whether the subject sees some jobs, and of nodes those that they have."""
        return bool(self.subject.jobs) or self.subject.reads_own_jobs_only

    def sees_job(self, job_id: str) -> bool:
        return not self.is_of_some_jobs or job_id in self.jobs

    def sees_node(self, node: str) -> bool:
        """Return whether a node is within the limits; of who sees some jobs: whether one of these has it."""
        is_own = not self.is_of_some_jobs or node in self.job_nodes
        return is_own and self.subject.may_use_node(node)

    def sees_note(self, about: str) -> bool:
        """Return whether a note about a node is shown. Its text may name jobs that others had there before."""
        return bool(about) and not self.subject.reads_own_jobs_only and self.sees_node(about)

    def part_of(self, cluster: wire.Cluster) -> wire.Cluster:
        """Return what of pauses, holds, windows and notes the subject may see."""
        if reads_all(self.subject):
            return cluster
        windows = [
            wire.WindowView(
                window.window_id,
                seen,
                window.from_unix_s,
                window.until_unix_s,
                window.who,
                window.reason,
            )
            for window in cluster.windows
            if (seen := [pattern for pattern in window.nodes if self._sees_pattern(pattern)])
        ]
        reported = zip(cluster.notes, cluster.notes_about, strict=True)
        noted = [(text, about) for text, about in reported if self.sees_note(about)]
        return wire.Cluster(
            paused=[item for item in cluster.paused if self._sees_scope(item.scope)],
            held=[item for item in cluster.held if self.sees_node(item.node)],
            windows=windows,
            notes=[text for text, _about in noted],
            notes_about=[about for _text, about in noted],
            findings=[finding for finding in cluster.findings if self.sees_node(finding.node)],
        )

    def _sees_scope(self, scope: str) -> bool:
        kind, _colon, name = scope.partition(":")
        if kind == "job":
            return self.sees_job(name)
        return kind == "cluster" or self.sees_node(name)

    def _sees_pattern(self, pattern: str) -> bool:
        if any(fnmatchcase(node, pattern) and self.sees_node(node) for node in self.job_nodes):
            return True
        return not self.is_of_some_jobs and covers(self.subject.nodes, pattern)
