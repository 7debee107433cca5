"""Who differs from the rest of the fleet in a version: driver, firmware, kernel, BIOS. Pure.

The reference is what most nodes have. Where no version has more than half of the nodes there is no reference, and nobody
is called different: the fleet is in the middle of an upgrade, or has two kinds of nodes.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NODES_MIN: Final = 3  # with two, neither is the odd one


@dataclass(frozen=True, slots=True)
class Drift:
    """One component, and who has another version of it than most."""

    component: str
    usual: str | None  # None: there is no majority
    nodes: int  # that have the component
    others: tuple[tuple[str, str], ...]  # node and its version, if there is a majority
    counts: tuple[tuple[str, int], ...]  # version and nodes, the most frequent first


def find_drift(versions: Mapping[str, Mapping[str, str]]) -> list[Drift]:
    """Return the components whose versions differ; ``versions``: by node, then by component."""
    components = sorted({name for found in versions.values() for name in found})
    drifts = []
    for component in components:
        having = {node: found[component] for node, found in versions.items() if component in found}
        counts = Counter(having.values()).most_common()
        if len(counts) < 2:
            continue
        top, count = counts[0]
        is_clear = len(having) >= NODES_MIN and count * 2 > len(having)
        others = sorted((node, version) for node, version in having.items() if version != top)
        drifts.append(
            Drift(
                component,
                top if is_clear else None,
                len(having),
                tuple(others) if is_clear else (),
                tuple(counts),
            )
        )
    return drifts
