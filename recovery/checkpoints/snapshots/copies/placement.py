"""Which nodes hold the copies of a node's snapshots. Pure.

Nodes form groups of COPIES + 1; in a group, each node's copies lie on the next COPIES nodes of the ring. So each
node holds as many as it gives, and a loss of COPIES nodes never costs a snapshot. More losses cost one only if a whole
group is among them, which is rarer with small groups than with one ring (Gemini, SOSP 2023, section 4.1:
https://doi.org/10.1145/3600006.3613145). Where COPIES + 1 doesn't divide the nodes, some groups are larger.

The nodes are dealt out in the order of their failure domains, as cards are: a domain with at most as many nodes as
there are groups has no two in one group. A larger domain can't avoid it, because memory bounds what a node
may hold; then as few copies as possible stay inside their domain. After domains, copies keep apart racks, then
coolant loops, then power feeds. Of dealings that are equally good the one that stays nearest is taken: below one spine, as far as
that is possible.

A change of nodes keeps each group that is still whole, unless dealing anew puts fewer copies into their own domain.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from detectors.parts.fleet_parts import NO_DOMAIN, FleetParts, SharedKind, ToldDomain

Domain = tuple[str, ...]  # from the widest part to the narrowest: ("spine1", "leaf3"); (): unknown
Groups = tuple[tuple[str, ...], ...]

_WEIGHT: Final = 1_000_000  # above the copies of all nodes that there can be
_TURNS: Final = (1, 2, 4, 8, 16)
_SHARED: Final = (SharedKind.RACK, SharedKind.COOLANT_LOOP, SharedKind.POWER_FEED)
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
    # What else it shares with others and may fail with them: rack or, where none is known, chassis, else NVLink domain, else Slurm's block; coolant loop, power feed; "": unknown.
    shares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    domain: Domain
    shares: tuple[str, ...]


def placed_node(node: str, reported: Domain, parts: FleetParts) -> PlacedNode:
    """Return where a node is by the topology file; ``told``: the switches above it as its scheduler told them, where the file has none."""
    hung = parts.hung(node)
    leaf = next((part for part in hung if part.part.kind is SharedKind.LEAF), None)
    domain = reported
    if leaf is not None:
        above = [
            part.part.name
            for part in hung
            if part.part.kind is SharedKind.SWITCH and part.port == leaf.port
        ]
        domain = (*reversed(above), leaf.part.name)
    told_of = {
        kind: "+".join(sorted(part.part.name for part in hung if part.part.kind is kind))
        for kind in (*_SHARED, SharedKind.CHASSIS, SharedKind.NVLINK_DOMAIN, SharedKind.BLOCK)
    }
    # An NVLink domain of several nodes stands in one rack, or two: what powers and cools these takes them all. So do most blocks.
    nearest = (
        *(SharedKind.RACK, SharedKind.CHASSIS),
        *(SharedKind.NVLINK_DOMAIN, SharedKind.BLOCK),
    )
    told_of[SharedKind.RACK] = next((told_of[kind] for kind in nearest if told_of[kind]), "")
    shares = [told_of[kind] for kind in _SHARED]
    return PlacedNode(node, domain, tuple(shares) if any(shares) else ())


def failure_domain(environment: Mapping[str, str]) -> ToldDomain:
    """Return the switches above this node, or its block, as Slurm tells them; none if it tells none, or nothing that we understand."""
    address = environment.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    if len(address) > ADDRESS_CHARACTERS_MAX or not _PATTERN.fullmatch(pattern):
        return NO_DOMAIN
    parts = address.split(".")
    if len(parts) > ADDRESS_PARTS_MAX or len(parts) != pattern.count(".") + 1:
        return NO_DOMAIN
    if not all(_PART.fullmatch(part) for part in parts):
        return NO_DOMAIN
    if environment.get("SLURMD_NODENAME", parts[-1]) != parts[-1]:
        return NO_DOMAIN  # inherited from another node, over ssh
    return ToldDomain(tuple(parts[:-1]), is_block=pattern.startswith("block."))


def place(nodes: Sequence[PlacedNode], copies: int = 1, before: Groups = ()) -> Groups:
    """Return the groups of the nodes, which come in ring order; ``before``: the groups in force."""
    if not 0 <= copies <= COPIES_MAX:
        raise ValueError(f"{copies} copies of a snapshot: want 0 to {COPIES_MAX}")
    places = dict(zip((node.node for node in nodes), _places(nodes), strict=True))
    if len(places) != len(nodes):
        raise ValueError(f"a node is named twice: {[node.node for node in nodes]}")
    fresh = _deal(list(places), places, copies)
    retained = _repair(places, copies, before)
    return fresh if _cost(fresh, places, copies) < _cost(retained, places, copies) else retained


def _places(nodes: Sequence[PlacedNode]) -> list[_Place]:
    """Return where the nodes are; what all of them share, such as both feeds of a hall, tells none from another."""
    width = max((len(node.shares) for node in nodes), default=0)
    padded = [(*node.shares, *("",) * (width - len(node.shares))) for node in nodes]
    common = [len({shares[at] for shares in padded}) < 2 for at in range(width)]
    return [
        _Place(
            node.domain,
            tuple(
                "" if is_common else name for name, is_common in zip(shares, common, strict=True)
            ),
        )
        for node, shares in zip(nodes, padded, strict=True)
    ]


def holders(groups: Groups, copies: int = 1) -> dict[str, tuple[str, ...]]:
    """Return for each node those that hold its copies: as many as requested, or all others of its group."""
    return {
        node: (*group[at + 1 :], *group[:at])[:copies]
        for group in groups
        for at, node in enumerate(group)
    }


def _repair(places: Mapping[str, _Place], copies: int, before: Groups) -> Groups:
    """Return the groups with those of ``before`` that are whole, and the other nodes in new ones."""
    size = copies + 1
    left = [tuple(node for node in group if node in places) for group in before]
    retained = [group for group in left if size <= len(group) < 2 * size]
    taken = {node for group in retained for node in group}
    free = [node for node in places if node not in taken]
    if not free:
        return tuple(retained)
    dealt = _deal(free, places, copies)
    # Nodes that can't form good groups of their own are mixed with those of some group.
    for _try in range(2):
        costs = _cost(dealt, places, copies), _extra(dealt, size)
        if not retained or costs == (0, 0):
            break
        options = []
        for at, group in enumerate(retained):
            mixed = _deal([*free, *group], places, copies)
            cost = _cost(mixed, places, copies) - _cost((group,), places, copies)
            options.append((cost, _extra(mixed, size) - _extra((group,), size), at, mixed))
        best = min(options)
        if best[:2] >= costs and len(free) >= size:
            break
        free, dealt = [*free, *retained.pop(best[2])], best[3]
    return (*retained, *dealt)


def _deal(nodes: Sequence[str], places: Mapping[str, _Place], copies: int) -> Groups:
    """Return new groups: the best of a few orders in which the nodes can be dealt."""
    plain = _deal_all(nodes, places, copies)
    options = [plain]
    if any(len(places[node].domain) > 1 for node in nodes):
        options.append(_deal_near(nodes, places, copies))
    best = min(
        options, key=lambda option: (_cost(option, places, copies), _distance(option, places))
    )
    if not _cost(best, places, copies):
        return best
    # What nodes share beside switches may cut across these: some other order or turn may keep it apart.
    groups_total = max(1, len(nodes) // (copies + 1))
    for at in range(max((len(places[node].shares) for node in nodes), default=0)):
        ordered = sorted(nodes, key=lambda node: (places[node].shares[at : at + 1], places[node]))
        for turn in (0, *(item for item in _TURNS if item < groups_total)):
            options.append(_dealt(ordered, copies, turn))
    return min(
        options, key=lambda option: (_cost(option, places, copies), _distance(option, places))
    )


def _deal_all(nodes: Sequence[str], places: Mapping[str, _Place], copies: int) -> Groups:
    # stable: the ring's order within a domain
    return _dealt(sorted(nodes, key=lambda node: places[node]), copies)


def _dealt(order: Sequence[str], copies: int, turn: int = 0) -> Groups:
    """Return the nodes dealt like cards; ``turn``: by how many places each further round is turned."""
    groups_total = max(1, len(order) // (copies + 1))
    rounds = [order[start : start + groups_total] for start in range(0, len(order), groups_total)]
    return tuple(
        tuple(
            item[(group + number * turn) % len(item)]
            for number, item in enumerate(rounds)
            if group < len(item)
        )
        for group in range(groups_total)
        if order
    )


def _deal_near(nodes: Sequence[str], places: Mapping[str, _Place], copies: int) -> Groups:
    """Return groups that stay below one switch wherever its nodes can be dealt without two of a domain in a group."""
    found: list[tuple[str, ...]] = []
    left = list(nodes)
    depth = max(len(places[node].domain) for node in nodes) - 1
    for level in range(depth, -1, -1):
        below: dict[Domain, list[str]] = {}
        for node in left:
            below.setdefault(places[node].domain[:level], []).append(node)
        left = []
        for some in below.values():
            members = list(some)
            while level == 0 and len(members) <= copies and found:
                members += found.pop()
            groups = _deal_all(members, places, copies)
            # no two of a domain
            is_whole = len(members) > copies and _cost(groups, places, copies) < _WEIGHT**3
            if is_whole or level == 0:
                found += groups
            else:
                left += members
    return tuple(found)


def _extra(groups: Groups, size: int) -> int:
    """Return how many nodes the groups have too many or too few."""
    return sum(abs(len(group) - size) for group in groups)


def _cost(groups: Groups, places: Mapping[str, _Place], copies: int) -> int:
    """Return how many copies lack or stay in their node's domain or in that of another copy of it.

    Racks, loops and feeds count behind that, each less than all of what is before it.
    """
    cost = 0
    for node, held_by in holders(groups, copies).items():
        some = [places[item] for item in (node, *held_by)]
        cost += (copies + 1 - len({item.domain for item in some})) * _WEIGHT**3
        for at, weight in enumerate((_WEIGHT**2, _WEIGHT, 1)):
            known = [item.shares[at] for item in some if at < len(item.shares) and item.shares[at]]
            cost += (len(known) - len(set(known))) * weight
    return cost


def _distance(groups: Groups, places: Mapping[str, _Place]) -> int:
    """Return over how many levels of switches the members of groups stand apart."""
    apart = 0
    for group in groups:
        first = places[group[0]].domain
        for node in group[1:]:
            domain = places[node].domain
            pairs = zip(first, domain, strict=False)
            common = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(domain)))  # fmt: skip
            apart += max(len(first), len(domain)) - common
    return apart
