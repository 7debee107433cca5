"""Which nodes hold the copies of a node's snapshots. Pure.

Nodes form groups of COPIES + 1; in a group, each node's copies lie on the next COPIES nodes of the ring. So each
node holds as many as it gives, and a loss of COPIES nodes never costs a snapshot. More losses cost one only if a whole
group is among them, which is rarer with small groups than with one ring (Gemini, SOSP 2023, section 4.1:
https://doi.org/10.1145/3600006.3613145). Where COPIES + 1 doesn't divide the nodes, some groups are larger.

The nodes are dealt out in the order of their failure domains, as cards are: a domain with at most as many nodes as
there are groups has no two in one group. A larger domain can't avoid it, because memory bounds what a node
may hold; then as few copies as possible stay inside their domain.

A change of nodes keeps each group that is still whole, unless dealing anew puts fewer copies into their own domain.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Domain = tuple[str, ...]  # from the widest part to the narrowest: ("spine1", "leaf3"); (): unknown
Groups = tuple[tuple[str, ...], ...]

COPIES_MAX: Final = 8  # three replicas are usual; each takes memory on another node
ADDRESS_CHARACTERS_MAX: Final = 1024
ADDRESS_PARTS_MAX: Final = 16
# A tree has "switch.switch.node", blocks have "block.node" (Slurm's topology plugins); "node" is flat.
_PATTERN: Final = re.compile(r"(?:(?:switch|block)\.)*node")
_PART: Final = re.compile(r"[\w\[\],:-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class PlacedNode:
    node: str
    domain: Domain = ()


def failure_domain(environment: Mapping[str, str]) -> Domain:
    """Return the switches above this node, as Slurm tells them; () if it tells none, or nothing that we understand."""
    address = environment.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    if len(address) > ADDRESS_CHARACTERS_MAX or not _PATTERN.fullmatch(pattern):
        return ()
    parts = address.split(".")
    if len(parts) > ADDRESS_PARTS_MAX or len(parts) != pattern.count(".") + 1:
        return ()
    if not all(_PART.fullmatch(part) for part in parts):
        return ()
    if environment.get("SLURMD_NODENAME", parts[-1]) != parts[-1]:
        return ()  # inherited from another node, over ssh
    return tuple(parts[:-1])


def place(nodes: Sequence[PlacedNode], copies: int = 1, before: Groups = ()) -> Groups:
    """Return the groups of the nodes, which come in ring order; ``before``: the groups in force."""
    if not 0 <= copies <= COPIES_MAX:
        raise ValueError(f"{copies} copies of a snapshot: want 0 to {COPIES_MAX}")
    domains = {one.node: one.domain for one in nodes}
    if len(domains) != len(nodes):
        raise ValueError(f"a node is named twice: {[one.node for one in nodes]}")
    fresh = _deal(list(domains), domains, copies)
    kept = _repair(domains, copies, before)
    return fresh if _cost(fresh, domains, copies) < _cost(kept, domains, copies) else kept


def holders(groups: Groups, copies: int = 1) -> dict[str, tuple[str, ...]]:
    """Return for each node those that hold its copies: as many as asked for, or all others of its group."""
    return {
        node: (*group[at + 1 :], *group[:at])[:copies]
        for group in groups
        for at, node in enumerate(group)
    }


def _repair(domains: Mapping[str, Domain], copies: int, before: Groups) -> Groups:
    """Return the groups with those of ``before`` that are whole, and the other nodes in new ones."""
    size = copies + 1
    left = [tuple(node for node in group if node in domains) for group in before]
    kept = [group for group in left if size <= len(group) < 2 * size]
    taken = {node for group in kept for node in group}
    free = [node for node in domains if node not in taken]
    if not free:
        return tuple(kept)
    dealt = _deal(free, domains, copies)
    # Nodes that can't form good groups of their own are mixed with those of some group.
    for _try in range(2):
        costs = _cost(dealt, domains, copies), _extra(dealt, size)
        if not kept or costs == (0, 0):
            break
        options = []
        for at, group in enumerate(kept):
            mixed = _deal([*free, *group], domains, copies)
            cost = _cost(mixed, domains, copies) - _cost((group,), domains, copies)
            options.append((cost, _extra(mixed, size) - _extra((group,), size), at, mixed))
        best = min(options)
        if best[:2] >= costs and len(free) >= size:
            break
        free, dealt = [*free, *kept.pop(best[2])], best[3]
    return (*kept, *dealt)


def _deal(nodes: Sequence[str], domains: Mapping[str, Domain], copies: int) -> Groups:
    order = sorted(
        nodes, key=lambda node: domains[node]
    )  # stable: the ring's order within a domain
    groups_total = max(1, len(order) // (copies + 1))
    return tuple(tuple(order[start::groups_total]) for start in range(groups_total) if order)


def _extra(groups: Groups, size: int) -> int:
    """Return how many nodes the groups have too many or too few."""
    return sum(abs(len(group) - size) for group in groups)


def _cost(groups: Groups, domains: Mapping[str, Domain], copies: int) -> int:
    """Return how many copies lack or stay in their node's domain or in that of another copy of it."""
    cost = 0
    for node, held_by in holders(groups, copies).items():
        found = Counter(domains[one] for one in (node, *held_by))
        cost += copies + 1 - len(found)
    return cost
