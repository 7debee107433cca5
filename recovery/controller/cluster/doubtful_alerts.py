"""Which alerts accuse too much to be believed alone: a circuit breaker for rules gone mad. Pure.

A rule with a typo, a driver whose new message no table knows, a metric that has changed its unit: such a rule accuses
every node at once, and each job would leave all of its nodes at its next ordinary failure, and end. Hardware seldom fails so: Llama 3 had
eight interruptions a day on 16,384 GPUs. So alerts of one name by one sender that accuse, within ten minutes, more than
`nodes_held_percent` of the nodes, or of a job's nodes, are doubted. Nodes below one rack, chassis, NVLink domain, switch, feed or loop
count as one: what breaks there breaks together, and its alerts are true. But a part on which more than half of the fleet hangs, as the
switch above all others, explains nothing: any two nodes are below it. And one such part breaks at a time: where the nodes outside of it
are too many by themselves, the rule is mad, however few racks a fleet of large racks has.

What is doubted for its share of one job is doubted by that job alone: which nodes a job has is its launchers' word, and a tenant who
starts a job "on" two nodes whose GPUs are lost must not keep others from leaving them.

A doubted alert moves nothing by itself. It counts where something else agrees: a rank that dies on the node, or its silence. An
agent that posts its own findings is a sender of its own, so its word is never doubted for what others say.
NVSentinel has a breaker for the same reason (its documentation, "circuit breaker").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from detectors.parts.fleet_parts import FleetParts, SharedKind
from recovery.controller.cluster.active_alerts import ActiveAlert

WINDOW_S: Final = 600.0
CAUSES_MIN: Final = 2  # one node is one node, whatever its share of a small job
_TOGETHER: Final = frozenset(SharedKind) - {SharedKind.NIC, SharedKind.NODE, SharedKind.RAIL}


@dataclass(frozen=True, slots=True)
class Doubts:
    """Alerts that are doubted: why, by identity."""

    by_all: Mapping[str, str] = field(default_factory=dict)  # for their share of the fleet
    by_job: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of the job's nodes
    alertnames: Mapping[str, str] = field(default_factory=dict)  # by reason

    def of(self, job_id: str) -> Mapping[str, str]:
        """Return the alerts that this job doubts."""
        own = self.by_job.get(job_id)
        return {**own, **self.by_all} if own else self.by_all

    @property
    def reasons(self) -> frozenset[str]:
        """Return why anything is doubted, each once."""
        own = (why for doubted in self.by_job.values() for why in doubted.values())
        return frozenset((*self.by_all.values(), *own))


NO_DOUBTS: Final = Doubts()


def find_doubtful(
    alerts: Iterable[ActiveAlert],
    nodes_of_jobs: Mapping[str, Collection[str]],
    nodes_active: int,
    percent: float,
    parts: FleetParts,
) -> Doubts:
    """Return the alerts that are doubted, and why.

    ``nodes_of_jobs``: nodes with ranks, by job; ``nodes_active``: nodes of the fleet, 0 where its size isn't known;
    ``percent``: nodes_held_percent.
    """
    rules: dict[tuple[str, str], list[ActiveAlert]] = defaultdict(list)
    for alert in alerts:
        if alert.is_firing and alert.ends_use and alert.node:
            rules[alert.sender.name, alert.target.alertname].append(alert)
    jobs_on: dict[str, list[str]] = defaultdict(list)
    for job_id, nodes in nodes_of_jobs.items():
        for node in nodes:
            jobs_on[node].append(job_id)
    scope = _Scope(
        jobs_on, {job_id: len(nodes) for job_id, nodes in nodes_of_jobs.items()}, nodes_active
    )
    by_all: dict[str, str] = {}
    by_job: dict[str, dict[str, str]] = defaultdict(dict)
    alertnames: dict[str, str] = {}
    for (_sender, name), reported in rules.items():
        for together in _within_window(reported):
            for job_id, why in _why_doubtful(together, scope, percent, parts).items():
                doubted = by_job[job_id] if job_id else by_all
                reason = f"{name} accuses {why}"
                doubted |= {item.target.key: reason for item in together}
                alertnames[reason] = name
    return Doubts(by_all, dict(by_job), alertnames)


@dataclass(frozen=True, slots=True)
class _Scope:
    jobs_on: Mapping[str, Collection[str]]  # by node
    nodes_of_job: Mapping[str, int]
    nodes_active: int


def _within_window(reported: Iterable[ActiveAlert]) -> Iterator[list[ActiveAlert]]:
    """Yield the alerts that began within ten minutes of each other: each such group that is no part of a larger one.

    Of all times, and not only before the newest alert: one more, an hour after a flood, makes the flood no truer.
    """
    alerts = sorted(reported, key=lambda alert: alert.started_unix_s)
    end = 0
    for first, alert in enumerate(alerts):
        before = end
        while end < len(alerts) and alerts[end].started_unix_s <= alert.started_unix_s + WINDOW_S:
            end += 1
        if end > before:
            yield alerts[first:end]


def _why_doubtful(
    together: Collection[ActiveAlert], scope: _Scope, percent: float, parts: FleetParts
) -> dict[str, str]:
    """Return which scopes are accused too much, and how: by job; empty: the fleet."""
    accused = {alert.node for alert in together}
    of_jobs: dict[str, set[str]] = defaultdict(set)
    for node in accused:
        for job_id in scope.jobs_on.get(node, ()):
            of_jobs[job_id].add(node)
    why: dict[str, str] = {}
    for job_id, found in ("", accused), *of_jobs.items():
        count = scope.nodes_of_job[job_id] if job_id else scope.nodes_active
        what = "nodes of one job" if job_id else "nodes"
        if not count:
            continue  # nothing ran within a day: how large the fleet is isn't known, nor which share of it is accused
        if len(found) < CAUSES_MIN or 100.0 * len(found) <= percent * count:
            continue  # there are at most as many causes
        sizes = sizes_of_causes(found, parts, scope.nodes_active)
        most = max(len(sizes), len(found) - max(sizes))
        if len(sizes) >= CAUSES_MIN and 100.0 * most > percent * count:
            why[job_id] = (
                f"{len(found)} of {max(count, len(found))} {what} within {WINDOW_S / 60:.0f} minutes"
            )
    return why


def count_causes(nodes: Collection[str], parts: FleetParts) -> int:
    """Return of how many causes the faults of these nodes are: those below one shared part have one."""
    return len(sizes_of_causes(nodes, parts))


def sizes_of_causes(nodes: Collection[str], parts: FleetParts, fleet: int = 0) -> list[int]:
    """Return how many of these nodes each cause of their faults has: those below one shared part have one.

    ``fleet``: how many nodes it has: a part on which more than half of them hang joins none; 0: every part joins.
    """
    parts_of = {
        node: [part for part in parts.of_node(node) if part.kind in _TOGETHER] for node in nodes
    }
    below = Counter(part for found in parts_of.values() for part in found)
    most = max(fleet, len(parts.on)) / 2 if fleet else math.inf
    wide = {
        part
        for part, count in below.items()
        if max(count, len(parts.nodes_of.get(part, ()))) > most
    }
    group_of: dict[object, object] = {}

    def top(item: object) -> object:
        while group_of.setdefault(item, item) is not item:
            item = group_of[item]
        return item

    for node, found in parts_of.items():
        top(node)
        for part in found:
            if part not in wide:
                group_of[top(node)] = top(part)
    return list(Counter(top(node) for node in parts_of).values())
