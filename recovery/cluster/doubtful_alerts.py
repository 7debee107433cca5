"""Which alerts accuse too much to be believed alone: a circuit breaker for rules gone mad. Pure.

A rule with a typo, a driver whose new message no table knows, a metric that has changed its unit: such a rule accuses
every node at once, and each job would leave all of its nodes at its next ordinary failure, and end. Hardware seldom fails so: Llama 3 had
eight interruptions a day on 16,384 GPUs. So alerts of one name by one sender that accuse, within ten minutes, more than
`nodes_held_percent` of the nodes, or of a job's nodes, are doubted. Nodes below one rack, switch, feed or loop
count as one: what breaks there breaks together, and its alerts are true.

A doubted alert moves nothing by itself. It counts where something else agrees: a rank that dies on the node, or its silence. An
agent that posts its own findings is a sender of its own, so its word is never doubted for what others say.
NVSentinel has a breaker for the same reason (its documentation, "circuit breaker").
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from detectors.parts.fleet_parts import FleetParts, SharedKind
from recovery.cluster.active_alerts import ActiveAlert

WINDOW_S: Final = 600.0
CAUSES_MIN: Final = 2  # one node is one node, whatever its share of a small job
_TOGETHER: Final = frozenset(SharedKind) - {SharedKind.NIC, SharedKind.NODE, SharedKind.RAIL}


def find_doubtful(
    alerts: Iterable[ActiveAlert],
    nodes_of_jobs: Mapping[str, Collection[str]],
    nodes_active: int,
    percent: float,
    parts: FleetParts,
) -> dict[str, str]:
    """Return by identity the alerts that are doubted, and why.

    ``nodes_of_jobs``: nodes with ranks, by job; ``nodes_active``: nodes of the fleet; ``percent``: nodes_held_percent.
    """
    rules: dict[tuple[str, str], list[ActiveAlert]] = defaultdict(list)
    for alert in alerts:
        if alert.is_firing and alert.ends_use and alert.node:
            rules[alert.sender.name, alert.target.alertname].append(alert)
    doubted: dict[str, str] = {}
    for (_sender, name), told in rules.items():
        newest_unix_s = max(one.started_unix_s for one in told)
        lately = [one for one in told if one.started_unix_s >= newest_unix_s - WINDOW_S]
        why = _why_doubtful(lately, nodes_of_jobs, nodes_active, percent, parts)
        if why:
            doubted |= {one.target.key: f"{name} accuses {why}" for one in lately}
    return doubted


def _why_doubtful(
    lately: Collection[ActiveAlert],
    nodes_of_jobs: Mapping[str, Collection[str]],
    nodes_active: int,
    percent: float,
    parts: FleetParts,
) -> str:
    accused = {one.node for one in lately}
    scopes = [("nodes", accused, nodes_active)]
    for nodes in nodes_of_jobs.values():
        scopes.append(("nodes of one job", accused.intersection(nodes), len(nodes)))
    for what, found, count in scopes:
        causes = count_causes(found, parts)
        if causes >= CAUSES_MIN and 100.0 * causes > percent * count:
            return f"{len(found)} of {max(count, len(found))} {what} within {WINDOW_S / 60:.0f} minutes"
    return ""


def count_causes(nodes: Collection[str], parts: FleetParts) -> int:
    """Return of how many causes the faults of these nodes are: those below one rack, feed or loop have one."""
    group_of: dict[object, object] = {}

    def top(one: object) -> object:
        while group_of.setdefault(one, one) is not one:
            one = group_of[one]
        return one

    for node in nodes:
        top(node)
        for part in parts.of_node(node):
            if part.kind in _TOGETHER:
                group_of[top(node)] = top(part)
    return len({top(node) for node in nodes})
