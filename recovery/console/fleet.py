"""The fleet as the console shows it: every node with its state, by rack, and its state in Kubernetes. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, Protocol, TypeAlias
from urllib.parse import quote

from rankmend.printable import duration
from recovery.api import wire
from recovery.console.views.state_words import TRAINS
from recovery.controller.watched.verdict import WatchedState
from recovery.journal.cluster_records import Hold

_REQUESTS_MAX: Final = 8  # of one node, the newest; open ones come first

SILENT_S: Final = 15.0  # a launcher reports once a second
_RACK_NODES_MAX: Final = 64  # a rack without a name of its own is shown in blocks of so many

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# Names a node's rack; None where no racks are configured.
RackFinder: TypeAlias = Callable[[], Callable[[str], str | None] | None]


def is_noted(state: wire.KubernetesNodeView) -> bool:
    """Return whether there is something to say of a node: it is not plainly ready."""
    return bool(state.is_cordoned or state.conditions or state.taints)


@dataclass(frozen=True, slots=True)
class NodeInKubernetes:
    """A node's page: its state there, our cordons of it, and what was queried about it."""

    state: wire.KubernetesNodeView | None
    cordons: wire.SlurmNodeView | None
    requests: Sequence[wire.SlurmRequestView]

    @classmethod
    def of(cls, view: wire.SlurmView, name: str) -> "NodeInKubernetes | None":
        """Return None where Kubernetes has nothing about the node."""
        state = next((item for item in view.states if item.node == name), None)
        cordons = next((node for node in view.nodes if node.node == name), None)
        requested = [request for request in view.requests if name in request.nodes]
        requested.sort(key=lambda request: bool(request.outcome))
        if state is None and cordons is None and not requested:
            return None
        return cls(state, cordons, requested[:_REQUESTS_MAX])


class NodeUse(Enum):
    """The worst that is known of a node, the worst first."""

    SILENT = "silent"  # its launcher has not reported for a while
    HELD = "held"  # accused, left by its job, or otherwise unusable
    QUARANTINED = "quarantined"
    DRAINED = "drained"
    MAINTENANCE = "maintenance"
    WAITING = "waiting"  # its ranks' job does not train now
    TRAINING = "training"
    SPARE = "spare"
    UNASSIGNED = "unassigned"  # no job that is known here has it; what runs on it, or is left there, nobody says

    @property
    def is_good(self) -> bool:
        return self in (NodeUse.WAITING, NodeUse.TRAINING, NodeUse.SPARE, NodeUse.UNASSIGNED)


ORDER: Final = {state: place for place, state in enumerate(NodeUse)}


class NamedJob(Protocol):
    """What a node's row needs of its job."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node with what all jobs say of it."""

    name: str
    state: NodeUse
    rack: str
    why: str  # it gets no ranks; empty: nothing is against it
    ranks: int
    jobs: tuple[tuple[str, str], ...]  # id and name
    heard_age_s: float | None
    leaf: str = ""  # switch; empty: not known
    nvlink_domain: str = ""
    block: str = ""  # of Slurm's topology/block

    @property
    def path(self) -> str:
        """Return the name as a part of an address; most names are one as they are."""
        return self.name if _PLAIN.fullmatch(self.name) else quote(self.name, safe="")

    @property
    def label(self) -> str:
        return f"{self.name}: {self.state.value}" + (f", {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True)
class Rack:
    name: str
    nodes: tuple[NodeRow, ...]

    @property
    def bad(self) -> int:
        return sum(not node.state.is_good for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Fleet:
    nodes: tuple[NodeRow, ...]
    racks: tuple[Rack, ...]
    counts: Mapping[NodeUse, int]


def view_fleet(
    nodes: Sequence[wire.NodeView],
    known: Iterable[str],
    cluster: wire.Cluster,
    jobs: Mapping[str, NamedJob],
    rack_of: Callable[[str], str | None] | None,
    now_unix_s: float,
    watched: Sequence[wire.WatchedView] = (),
) -> Fleet:
    """Return all nodes; ``jobs``: by id, ``rack_of``: names a node's rack, None where none are configured.

    ``watched``: jobs of other launchers, which use the nodes that no job of our own uses.
    """
    by_node: dict[str, list[wire.NodeView]] = {name: [] for name in known}
    for node in nodes:
        by_node.setdefault(node.node, []).append(node)
    holds = {item.node: item for item in cluster.held}
    for name in holds:
        by_node.setdefault(name, [])
    windows = [
        window
        for window in cluster.windows
        if window.from_unix_s <= now_unix_s < window.until_unix_s
    ]
    uses: dict[str, NodeUse] = {}
    for job in watched:
        if job.state != WatchedState.ENDED.value:
            trains = job.state in (WatchedState.TRAINING.value, WatchedState.SLOW.value)
            use = NodeUse.TRAINING if trains else NodeUse.WAITING
            for name in job.nodes:
                uses[name] = min(uses.get(name, use), use, key=ORDER.__getitem__)
    named = _own_rack if rack_of is None else lambda name: rack_of(name) or "other"
    rows = tuple(
        _row(
            name,
            by_node[name],
            holds.get(name),
            windows,
            jobs,
            named(name),
            uses.get(name, NodeUse.UNASSIGNED),
        )
        for name in sorted(by_node, key=natural)
    )
    racks: dict[str, list[NodeRow]] = {}
    for row in rows:
        racks.setdefault(row.rack, []).append(row)
    shown = tuple(rack for name, members in racks.items() for rack in _blocks(name, members))
    return Fleet(rows, shown, Counter(row.state for row in rows))


def _row(
    name: str,
    views: Sequence[wire.NodeView],
    hold: wire.HoldView | None,
    windows: Sequence[wire.WindowView],
    jobs: Mapping[str, NamedJob],
    rack: str,
    otherwise: NodeUse,
) -> NodeRow:
    window = next(
        (item for item in windows if any(fnmatchcase(name, pattern) for pattern in item.nodes)),
        None,
    )
    held = next((view.held for view in views if view.held), None)
    ages = [view.heard_age_s for view in views if view.heard_age_s is not None]
    age_s = min(ages, default=None)
    ranks = sum(len(view.ranks) for view in views)
    is_silent = bool(views) and (age_s is None or age_s > SILENT_S)
    state, why = otherwise, ""
    if hold is not None:
        is_drain = hold.hold == Hold.DRAIN.value
        state = NodeUse.DRAINED if is_drain else NodeUse.QUARANTINED
        why = f"by {hold.who}: {hold.reason}" if hold.reason else f"by {hold.who}"
    elif window is not None:
        state, why = NodeUse.MAINTENANCE, f"by {window.who}: {window.reason}"
    elif held:
        state, why = NodeUse.HELD, held
    elif is_silent:
        state = NodeUse.SILENT
        why = "no report yet" if age_s is None else f"last report {duration(round(age_s))} ago"
    elif views:
        states = [jobs[view.job_id].state for view in views if view.ranks and view.job_id in jobs]
        trains = TRAINS in states
        state = (NodeUse.TRAINING if trains else NodeUse.WAITING) if ranks else NodeUse.SPARE
    found = tuple(
        (view.job_id, jobs[view.job_id].name if view.job_id in jobs else view.job_id)
        for view in views
    )
    leaf = next((view.leaf for view in views if view.leaf), "")
    domain = next((view.nvlink_domain for view in views if view.nvlink_domain), "")
    block = next((view.block for view in views if view.block), "")
    return NodeRow(name, state, rack, why, ranks, found, age_s, leaf, domain, block)


def _own_rack(name: str) -> str:
    """Return a node's name without its last number."""
    return name.rstrip("0123456789").rstrip("-_.")


def _blocks(name: str, members: Sequence[NodeRow]) -> list[Rack]:
    if len(members) <= _RACK_NODES_MAX:
        return [Rack(name or "nodes", tuple(members))]
    return [
        Rack(f"{block[0].name} to {block[-1].name}", tuple(block))
        for start in range(0, len(members), _RACK_NODES_MAX)
        for block in (members[start : start + _RACK_NODES_MAX],)
    ]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts gpu-2 before gpu-10."""
    return [
        (0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
        for part in re.split(r"([0-9]{1,9})", name)
        if part
    ]


def choose(rows: Sequence[NodeRow], wanted: str, state: str, job: str = "") -> list[NodeRow]:
    """Return the rows whose name contains ``wanted``, of one state or of all, the worst first."""
    lowered = wanted.lower()
    chosen = [
        row
        for row in rows
        if lowered in row.name.lower()
        and state in ("", row.state.value)
        and (not job or any(job in item for item in row.jobs))
    ]
    return sorted(chosen, key=lambda row: ORDER[row.state])
