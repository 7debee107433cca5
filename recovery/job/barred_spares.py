"""Which spares may take no place, since they hang on a shared part that is known to be broken. Pure.

Known is what an alert tells of the part, or what is named as the one explanation of the nodes that the job has lost and that are still gone. A part that
is only one of several explanations bars nobody: its spares are taken last (`recovery.job.spare_choice`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from detectors.parts.fleet_parts import FleetPart, FleetParts
from recovery.cluster.broken_parts import find_blamed
from recovery.journal.leaving import GONE
from recovery.journal.ledger import Ledger

NOBODY_BARRED: Final[Mapping[str, str]] = {}


def gone_nodes(ledger: Ledger, there: Collection[str]) -> set[str]:
    """Return the nodes that the job has lost and that are gone still; ``there``: those that can be reached now."""
    members = ledger.members
    gone = {node for node, one in members.items() if one.left_cause in GONE}
    placed = (place.node for place in ledger.placement)
    lost = ((node, members.get(node)) for node in placed if node not in there)
    return gone | {node for node, one in lost if one is not None and one.left is None}


@dataclass(frozen=True, slots=True)
class FleetState:
    """What the nodes share, and the parts that are known to be broken, each with the reason."""

    parts: FleetParts
    broken: Mapping[FleetPart, str]


def bar_spares(
    spares: Collection[str], before: Collection[str], gone: Collection[str], fleet: FleetState
) -> Mapping[str, str]:
    """Return the spares that may take no place, and why.

    ``before``: nodes of the last attempt; ``gone``: those of them, and those that the job has left earlier, that can't be reached or are accused now.
    """
    if not spares or not before or not fleet.parts.on:
        return NOBODY_BARRED
    blamed = find_blamed({*before, *spares}, gone, fleet.parts)
    broken = {**blamed, **fleet.broken}
    if not broken:
        return NOBODY_BARRED
    barred = {}
    for spare in spares:
        found = sorted(
            (one for one in fleet.parts.of_node(spare) if one in broken),
            key=lambda one: (one.kind.value, one.name),
        )
        if found:
            barred[spare] = f"below {found[0]}, which {broken[found[0]]}"
    return barred
