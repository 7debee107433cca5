"""The parts that each node hangs on, from the topology file. Pure."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import islice
from typing import Final, TypeAlias

from detectors.network_topology import (
    GpuChassis,
    HangsOn,
    LayoutNic,
    NetworkTopology,
    NodeBlock,
    NodeLayout,
    TopologyEdge,
)

RackFinder: TypeAlias = Callable[[str], str | None]
ABOVE_MAX: Final = (
    64  # switches above a node: 16 rails with a leaf, a spine and a core each, and some
)


class SharedKind(Enum):
    """A kind of part, the narrowest first; the value is its name in words."""

    NIC = "NIC"
    NODE = "node"
    RAIL = "rail"
    NVLINK_DOMAIN = "NVLink domain"
    BLOCK = "block"  # of Slurm's topology/block: nodes that the site calls near each other
    LEAF = "leaf switch"
    SWITCH = "switch"  # above the leaves
    CHASSIS = "chassis"  # of GPUs: the trays of an NVL72 are nodes of one
    RACK = "rack"
    POWER_FEED = "power feed"
    COOLANT_LOOP = "coolant loop"


_SWITCH_KINDS: Final = frozenset({SharedKind.LEAF, SharedKind.SWITCH})
NETWORK: Final = _SWITCH_KINDS | {
    *(SharedKind.NIC, SharedKind.RAIL, SharedKind.NVLINK_DOMAIN),
    SharedKind.BLOCK,  # what makes its nodes near each other is some network
}
# Where the file has one of these, the block that a scheduler told may be another name of it.
_BLOCK_KINDS: Final = _SWITCH_KINDS | {SharedKind.BLOCK, SharedKind.NVLINK_DOMAIN}
_KINDS: Final = {
    HangsOn.RACK: SharedKind.RACK,
    HangsOn.POWER_FEED: SharedKind.POWER_FEED,
    HangsOn.COOLANT_LOOP: SharedKind.COOLANT_LOOP,
}


@dataclass(frozen=True, slots=True)
class FleetPart:
    kind: SharedKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class HungPart:
    """A part on which a node hangs, and by which of its ports ("": by all of it)."""

    part: FleetPart
    port: str = ""


@dataclass(frozen=True)
class FleetParts:
    """``on``: what each node hangs on, leaves before the switches above them.

    ``rack_of``: names the rack of nodes for which ``on`` names none, as a naming scheme does.
    ``layouts``: what each node is made of.
    """

    on: Mapping[str, tuple[HungPart, ...]]
    rack_of: RackFinder | None = None
    layouts: Mapping[str, NodeLayout] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return all nodes of which something is known."""
        return tuple(dict.fromkeys((*self.on, *self.layouts)))

    def of_node(self, node: str) -> frozenset[FleetPart]:
        return frozenset(part.part for part in self.hung(node))

    def of_worker(self, node: str, nic: str | None = None) -> frozenset[FleetPart]:
        """Return the parts of a rank: of the switches only those of its own NIC, where both are known."""
        found = self.hung(node)
        if nic is not None:
            names = self.names_of_nic(node, nic)
            own = [part for part in found if not part.port or _is_port_of_any(part.port, names)]
            found = tuple(own) if any(part.port for part in own) else found
        return frozenset(part.part for part in found)

    def layout_of(self, node: str) -> NodeLayout | None:
        found = self.layouts.get(node)
        return self.layouts.get(node.partition(".")[0]) if found is None else found

    def ports_of(self, node: str, nic: str) -> tuple[LayoutNic, ...]:
        """Return the ports of a NIC, by its RDMA device or its interface; none: it is not known."""
        layout = self.layout_of(node)
        if layout is None:
            return ()
        return tuple(item for item in layout.nics if nic in (item.device, item.interface))

    def names_of_nic(self, node: str, nic: str) -> frozenset[str]:
        """Return all names of a NIC: a source may know it as ``mlx5_0``, another as ``ibp24s0``."""
        ports = self.ports_of(node, nic)
        return frozenset(
            {nic, *(port.device for port in ports), *(port.interface for port in ports)}
        )

    def rail_of(self, node: str, nic: str) -> str:
        """Return the rail of a NIC: its name where the file tells none, or several for its ports."""
        rails = {port.rail for port in self.ports_of(node, nic) if port.rail}
        return next(iter(rails)) if len(rails) == 1 else nic

    def name_of(self, node: str, kind: SharedKind) -> str | None:
        """Return the node's part of a kind, the first rail's where there are several."""
        return next((part.part.name for part in self.hung(node) if part.part.kind is kind), None)

    @property
    def has_racks(self) -> bool:
        return self.rack_of is not None or any(
            item.part.kind is SharedKind.RACK for hung in self.on.values() for item in hung
        )

    @cached_property
    def nodes_of(self) -> Mapping[FleetPart, frozenset[str]]:
        """Return the nodes of each part that ``on`` names."""
        found: dict[FleetPart, set[str]] = {}
        for node in self.on:
            for item in self.hung(node):
                found.setdefault(item.part, set()).add(node)
        shared: dict[frozenset[str], frozenset[str]] = {}  # spines have the same nodes below
        return {part: shared.setdefault(own := frozenset(nodes), own) for part, nodes in found.items()}  # fmt: skip

    def hung(self, node: str) -> tuple[HungPart, ...]:
        """Return what a node hangs on; a long name counts as its short one where only that is known."""
        found = self.on.get(node)
        if found is None:
            found = self.on.get(node.partition(".")[0], ())
        if self.rack_of is None or any(item.part.kind is SharedKind.RACK for item in found):
            return found
        rack = self.rack_of(node)
        return found if rack is None else (*found, HungPart(FleetPart(SharedKind.RACK, rack)))


NO_PARTS: Final = FleetParts({})


def is_port_of(port: str, nic: str) -> bool:
    """Return whether a port such as ``mlx5_0/1`` is of the NIC ``mlx5_0``, or is the interface itself."""
    return nic in (port, port.partition("/")[0])


def _is_port_of_any(port: str, names: Iterable[str]) -> bool:
    return any(is_port_of(port, name) for name in names)


def find_parts(topology: NetworkTopology) -> FleetParts:
    """Return the parts of each node: of contradicting leaves of one port the surer one."""
    above_switch: dict[str, dict[str, None]] = {}  # each once, in the file's order
    above_rack: dict[str, list[TopologyEdge]] = {}
    of_node: dict[str, list[TopologyEdge]] = {}
    for edge in topology.edges:
        if HangsOn.OTHER in (edge.kind, edge.below_kind):
            continue
        if edge.below_is_node:
            of_node.setdefault(edge.below, []).append(edge)
        elif edge.kind is HangsOn.SWITCH:
            above_switch.setdefault(edge.below, {})[edge.above] = None
        else:
            above_rack.setdefault(edge.below, []).append(edge)
    joined: dict[str, list[HungPart]] = {}
    for domain in topology.nvlink_domains:
        part = HungPart(FleetPart(SharedKind.NVLINK_DOMAIN, domain.name))
        for node in domain.nodes:
            joined.setdefault(node, []).append(part)
    switches = _Switches(above_switch)
    network = {
        node: (*joined.get(node, ()), *switches.of_node(of_node.get(node, [])))
        for node in dict.fromkeys((*of_node, *joined))
    }
    in_block: dict[str, list[HungPart]] = {}
    for block in _own_blocks(topology.blocks, network):
        part = HungPart(FleetPart(SharedKind.BLOCK, block.name))
        for node in dict.fromkeys(block.nodes):
            in_block.setdefault(node, []).append(part)
    at_site = {node: _site_parts(edges, above_rack) for node, edges in of_node.items()}
    in_chassis: dict[str, list[HungPart]] = {}
    for chassis in _own_chassis(topology.chassis, at_site):
        part = HungPart(FleetPart(SharedKind.CHASSIS, chassis.name))
        for node in dict.fromkeys(chassis.nodes):
            in_chassis.setdefault(node, []).append(part)
    return FleetParts(
        {
            node: (
                *in_block.get(node, ()),
                *network.get(node, ()),
                *in_chassis.get(node, ()),
                *at_site.get(node, ()),
            )
            for node in dict.fromkeys((*network, *in_block, *in_chassis))
        },
        layouts={node: layout for layout in topology.layouts for node in layout.nodes},
    )


@dataclass(frozen=True, slots=True)
class ToldDomain:
    """What a node hangs on as its scheduler told it: the widest switch first, or its block."""

    names: tuple[str, ...] = ()
    is_block: bool = False


NO_DOMAIN: Final = ToldDomain()


def with_domains(parts: FleetParts, domains: Mapping[str, ToldDomain]) -> FleetParts:
    """Return the parts with the switches or the block of nodes as their scheduler told them, where the file names none of theirs."""
    reported: dict[str, tuple[HungPart, ...]] = {}
    for node, domain in domains.items():
        held = parts.on.get(node, ())
        known = _BLOCK_KINDS if domain.is_block else _SWITCH_KINDS
        if domain.names and not any(item.part.kind in known for item in held):
            lowest = SharedKind.BLOCK if domain.is_block else SharedKind.LEAF
            above = [FleetPart(SharedKind.SWITCH, name) for name in reversed(domain.names[:-1])]
            own = [FleetPart(lowest, domain.names[-1]), *above]
            reported[node] = (*(HungPart(item) for item in own), *held)
    return replace(parts, on={**parts.on, **reported}) if reported else parts


def _own_blocks(
    blocks: Sequence[NodeBlock], network: Mapping[str, Sequence[HungPart]]
) -> Iterator[NodeBlock]:
    """Yield the blocks that are no other name of an NVLink domain or switch: these have other nodes."""
    if not blocks:
        return
    parts_of = {node: {item.part for item in hung} for node, hung in network.items()}
    below = Counter(part for parts in parts_of.values() for part in parts)
    for block in blocks:
        nodes = set(block.nodes)
        shared = set.intersection(*(parts_of.get(node, set()) for node in nodes)) if nodes else ()
        if not any(below[part] == len(nodes) for part in shared):
            yield block


def _own_chassis(
    chassis: Sequence[GpuChassis], at_site: Mapping[str, Sequence[HungPart]]
) -> Iterator[GpuChassis]:
    """Yield the chassis that are no other name of a rack in the site's file: a rack with the same nodes."""
    racks: dict[str, set[str]] = {}
    for node, hung in at_site.items():
        for item in hung:
            if item.part.kind is SharedKind.RACK:
                racks.setdefault(item.part.name, set()).add(node)
    known = {frozenset(nodes) for nodes in racks.values()}
    return (item for item in chassis if frozenset(item.nodes) not in known)


class _Switches:
    """The switches that nodes hang on. What hangs on one leaf shares what is above it: a fleet has many nodes below few switches."""

    def __init__(self, above: Mapping[str, Iterable[str]]) -> None:
        self._above = above
        self._from: dict[tuple[str, str], tuple[HungPart, ...]] = {}

    def of_node(self, edges: Iterable[TopologyEdge]) -> tuple[HungPart, ...]:
        """Return the leaves of all ports, then the switches above them."""
        best: dict[str, TopologyEdge] = {}
        for edge in edges:
            if edge.kind is HangsOn.SWITCH:
                held = best.get(edge.port)
                if held is None or (-edge.confidence, edge.above) < (-held.confidence, held.above):
                    best[edge.port] = edge
        if any(port for port in best):
            sure = max(edge.confidence for port, edge in best.items() if port)
            if "" in best and best[""].confidence <= sure:
                del best[""]  # a cable's own word holds before a file that names no port
        chains = [self._chain(edge.above, edge.port) for _port, edge in sorted(best.items())]
        above = (part for chain in chains for part in chain[1:])
        return (
            *(chain[0] for chain in chains),
            *islice(above, max(0, ABOVE_MAX - len(chains))),
        )

    def _chain(self, leaf: str, port: str) -> tuple[HungPart, ...]:
        """Return the leaf, and the switches above it from near to far."""
        known = self._from.get((leaf, port))
        if known is not None:
            return known
        found = [HungPart(FleetPart(SharedKind.LEAF, leaf), port)]
        seen = {leaf}
        due = deque(islice(self._above.get(leaf, ()), ABOVE_MAX))
        while due and len(found) < ABOVE_MAX:
            switch = due.popleft()
            if switch not in seen:  # a ring of cables ends here
                seen.add(switch)
                found.append(HungPart(FleetPart(SharedKind.SWITCH, switch), port))
                due += islice(self._above.get(switch, ()), ABOVE_MAX)
        self._from[leaf, port] = tuple(found)
        return self._from[leaf, port]


def _site_parts(
    edges: Iterable[TopologyEdge], above_rack: Mapping[str, list[TopologyEdge]]
) -> tuple[HungPart, ...]:
    own = [edge for edge in edges if edge.kind is not HangsOn.SWITCH]
    racks = [edge.above for edge in own if edge.kind is HangsOn.RACK]
    own += [item for rack in racks for item in above_rack.get(rack, ())]
    return tuple(dict.fromkeys(HungPart(FleetPart(_KINDS[edge.kind], edge.above)) for edge in own))
