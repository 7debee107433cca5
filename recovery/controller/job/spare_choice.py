"""Which spare takes the place of which lost node, and which spares may take no place. Pure.

The nearest spare comes first: in the same NVLink domain, else below the same leaf switch or in the
same Slurm block, whichever is smaller, else in the same chassis or rack, else below the smallest
switch above. So ranks that were neighbours stay neighbours, a tensor-parallel group that spans
nodes stays within NVLink, and no ring crosses one more uplink.

Nodes that a job leaves together may share a broken part. A spare below that part would be the next
to fail, so it comes last, like one whose network a probe has found slow. After all others comes a
spare that an alert rules out: its fault is known, and that of a node below a part is only possible.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from detectors.parts.fleet_parts import FleetPart, FleetParts, SharedKind
from detectors.parts.shared_blame import PlacedWorker, explain_shared
from recovery.controller.cluster.broken_parts import find_blamed
from recovery.journal.ledger import Ledger
from recovery.journal.node_records import GONE

# The nearest first.
_NEAR: Final = {
    SharedKind.NVLINK_DOMAIN: 0,
    SharedKind.BLOCK: 1,
    SharedKind.LEAF: 1,
    SharedKind.CHASSIS: 2,
    SharedKind.RACK: 2,
    SharedKind.SWITCH: 3,
}

NOBODY_BARRED: Final[Mapping[str, str]] = {}


class Spares:
    def __init__(
        self,
        spares: Sequence[str],
        before: Sequence[str],
        lost: Sequence[str],
        parts: FleetParts,
        slow: Collection[str] = (),
        accused: Collection[str] = (),
    ) -> None:
        """``spares``: the first comes first where nothing else decides; ``before``: nodes of the last attempt.

        ``slow`` are taken after the others, and last of all ``accused``.
        """
        self._parts = parts
        avoided = _broken(spares, before, lost, parts) if lost and parts.on else frozenset()
        last = {item for item in spares if parts.of_node(item) & avoided} if avoided else set()
        last |= set(slow) & set(spares)
        last |= set(accused) & set(spares)
        # Dicts are ordered sets here.
        self._left = dict.fromkeys(
            sorted(spares, key=lambda spare: (spare in accused, spare in last))
        )
        self._last = last
        self._below: dict[FleetPart, dict[str, None]] = {}
        if parts.on:
            for spare in self._left:
                if spare not in last:
                    for part in parts.of_node(spare):
                        self._below.setdefault(part, {})[spare] = None

    def take(self, lost: str) -> str | None:
        """Return the spare for the place of a node, which no other place gets; None: there is none."""
        own = [
            part
            for part in self._parts.of_node(lost)
            if part.kind in _NEAR and self._below.get(part)
        ]
        own.sort(
            key=lambda part: (_NEAR[part.kind], len(self._parts.nodes_of.get(part, ())), part.name)
        )
        found = next(iter(self._below[own[0]] if own else self._left), None)
        if found is not None:
            self._drop(found)
        return found

    def take_first(self, count: int) -> list[str]:
        """Return so many spares for places that nobody had."""
        found = list(self._left)[:count]
        for thread in found:
            self._drop(thread)
        return found

    def _drop(self, spare: str) -> None:
        del self._left[spare]
        if self._below and spare not in self._last:
            for part in self._parts.of_node(spare):
                self._below[part].pop(spare, None)


def _broken(
    spares: Sequence[str], before: Sequence[str], lost: Sequence[str], parts: FleetParts
) -> frozenset[FleetPart]:
    """Return the shared parts that explain the lost nodes, also those that explain them equally well."""
    workers = [PlacedWorker(node, node) for node in dict.fromkeys((*before, *spares))]
    found = explain_shared(workers, lost, parts)
    return frozenset(item.part for item in (*found.named, *found.tied))


def gone_nodes(ledger: Ledger, there: Collection[str]) -> set[str]:
    """Return the nodes that the job has lost and that are gone still; ``there``: those that can be reached now."""
    members = ledger.members
    gone = {node for node, member in members.items() if member.left_cause in GONE}
    placed = (place.node for place in ledger.placement)
    lost = ((node, members.get(node)) for node in placed if node not in there)
    return gone | {node for node, item in lost if item is not None and item.left is None}


@dataclass(frozen=True, slots=True)
class FleetState:
    """What the nodes share, and the parts that are known to be broken, each with the reason."""

    parts: FleetParts
    broken: Mapping[FleetPart, str]


def bar_spares(
    spares: Collection[str], before: Collection[str], gone: Collection[str], fleet: FleetState
) -> Mapping[str, str]:
    """Return the spares that may take no place, and why: they hang on a shared part that is known to be broken.

    A part is known to be broken by an alert, or as the one explanation of the nodes that the job
    has lost and that are still missing. A part that is only one of several explanations bars no
    spare: its spares come last.

    ``before``: nodes of the last attempt; ``gone``: those of them, and those that the job has left
    earlier, that can't be reached or are accused now.
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
            (part for part in fleet.parts.of_node(spare) if part in broken),
            key=lambda part: (part.kind.value, part.name),
        )
        if found:
            barred[spare] = f"below {found[0]}, which {broken[found[0]]}"
    return barred
