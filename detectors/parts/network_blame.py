"""Which switch explains nodes whose network is degraded, by the ports that are bad on them. Pure.

A node hangs on a leaf of each of its networks, so without its bad ports all of these explain it equally well.
"""

from collections.abc import Collection, Mapping
from typing import Final

from detectors.parts.fleet_parts import FleetParts, SharedKind
from detectors.parts.shared_blame import PlacedWorker, SharedBlame, explain_shared

PLANE_CHECK: Final = "plane_degraded"
# A rail is the same port on all nodes, by name only: what breaks it is its switch.
_KINDS: Final = frozenset({SharedKind.NODE, SharedKind.LEAF, SharedKind.SWITCH})


def explain_network(
    bad: Mapping[str, Collection[str]], known: Collection[str], parts: FleetParts
) -> SharedBlame:
    """Return what explains these nodes, each with its bad ports such as ``mlx5_0/1`` or ``eth2``; none: they are not known.

    ``known``: all nodes that would have told of a fault.
    """
    workers, hit = [], []
    for node, ports in bad.items():
        nics: list[str | None] = [*sorted({one.partition("/")[0] for one in ports})] or [None]
        for nic in nics:
            name = node if nic is None else f"{node} {nic}"
            workers.append(PlacedWorker(name, node, nic))
            hit.append(name)
    workers += [PlacedWorker(node, node) for node in sorted(set(known) - bad.keys())]
    return explain_shared(workers, hit, parts, _KINDS)
