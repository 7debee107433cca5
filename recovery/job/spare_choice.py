"""Which spare takes the place of which lost node: the nearest one, and one below the part that may have broken, or a slow one, the last. Pure.

Near is who shares the NVLink domain, else the leaf switch or Slurm's block, whichever is smaller, else the chassis or rack, else the smallest switch above: ranks that were neighbours stay neighbours, a tensor-parallel group that spans nodes
stays within NVLink, and no ring crosses one more uplink. Nodes that a job
leaves together may share what broke. A spare below that part would be the next to fail, so it is taken last: only where the job would stand without it. One below a part that is known to be broken
does not get here (`recovery.job.barred_spares`), unless the policy wants it. A spare whose network a probe has found slow is taken last, too,
and after all others one that an alert rules out: its fault is known, and that of a node below a part only may be.
"""

from collections.abc import Collection, Sequence
from typing import Final

from detectors.parts.fleet_parts import FleetPart, FleetParts, SharedKind
from detectors.parts.shared_blame import PlacedWorker, explain_shared

# The nearest first.
_NEAR: Final = {
    SharedKind.NVLINK_DOMAIN: 0,
    SharedKind.BLOCK: 1,
    SharedKind.LEAF: 1,
    SharedKind.CHASSIS: 2,
    SharedKind.RACK: 2,
    SharedKind.SWITCH: 3,
}


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
        last = {one for one in spares if parts.of_node(one) & avoided} if avoided else set()
        last |= set(slow) & set(spares)
        last |= set(accused) & set(spares)
        # Dicts are ordered sets here.
        self._left = dict.fromkeys(sorted(spares, key=lambda one: (one in accused, one in last)))
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
            one for one in self._parts.of_node(lost) if one.kind in _NEAR and self._below.get(one)
        ]
        own.sort(
            key=lambda one: (_NEAR[one.kind], len(self._parts.nodes_of.get(one, ())), one.name)
        )
        found = next(iter(self._below[own[0]] if own else self._left), None)
        if found is not None:
            self._drop(found)
        return found

    def take_first(self, count: int) -> list[str]:
        """Return so many spares for places that nobody had."""
        found = list(self._left)[:count]
        for one in found:
            self._drop(one)
        return found

    def _drop(self, spare: str) -> None:
        del self._left[spare]
        if self._below and spare not in self._last:
            for part in self._parts.of_node(spare):
                self._below[part].pop(spare, None)


def _broken(
    spares: Sequence[str], before: Sequence[str], lost: Sequence[str], parts: FleetParts
) -> frozenset[FleetPart]:
    """Return the shared parts that explain the lost nodes, also those of which one can't be told from another."""
    workers = [PlacedWorker(node, node) for node in dict.fromkeys((*before, *spares))]
    found = explain_shared(workers, lost, parts)
    return frozenset(one.part for one in (*found.named, *found.tied))
