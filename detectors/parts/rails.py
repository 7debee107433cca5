"""Which rail each NIC of the fleet is. Pure.

A rail is the same NIC of all nodes that are built alike: what has one place on the PCI bus has one rail, also on a node that lacks a GPU or a card and would count
its own NICs otherwise. Nodes are alike where they have RDMA ports of the same models at the same places.

What the agents say holds: their configuration, else their guess by the PCIe switch that a NIC shares with a GPU. Ports that are down or slower than the fastest are
not counted, unless they are configured. Where no PCIe switch shows, as in a virtual machine, rails are the RDMA ports of the fastest rate in the order of the PCI bus,
which is less sure.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from detectors.network_topology import (
    CONFIDENCE,
    EdgeOrigin,
    HangsOn,
    LayoutGpu,
    LayoutNic,
    NetworkTopology,
    NodeLayout,
)
from detectors.parts.fleet_parts import FleetParts, find_parts
from detectors.parts.node_facts import NodeFacts, ToldGpu, ToldNic
from detectors.wording import counted

CONFIGURED: Final = 0.95
BY_SWITCHES: Final = CONFIDENCE[EdgeOrigin.SYSFS]
BY_ORDER: Final = 0.6
RATE_SHARE: Final = 0.9  # of the fastest: a slower class of NIC is there for something else
RAIL_SHARE: Final = (
    0.75  # of the ports on a leaf switch that are of one rail: then the fabric is built by rails
)
PORTS_MIN: Final = 4
_CLASSES_MAX: Final = 64  # kinds of nodes that others are compared with
_NICS_LISTED_MAX: Final = 64  # of a node; of more, only those with a known plane
_COMPUTE: Final = "compute"
_UNKNOWN: Final = "unknown"
_OTHER_PLANES: Final = frozenset({"in-band", "out-of-band", "management", "service", "storage"})
_CLOSENESS: Final = ("PIX", "PXB", "PHB", "NODE")  # nearest first; SYS is near to nothing

_Place: TypeAlias = tuple[str, str]
_Hardware: TypeAlias = frozenset[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class RailDoubt:
    """A node whose agent counts a NIC as another rail than the nodes that are built alike do."""

    node: str
    nic: str
    told: int | None  # None: of no rail
    usual: int
    alike: int  # nodes that say so
    is_configured: bool  # on this node: then its own word holds

    def in_words(self) -> str:
        own = "no rail" if self.told is None else f"rail {self.told}"
        by = "its configuration" if self.is_configured else "its own agent"
        text = "says" if self.alike == 1 else "say"
        return f"{self.node} {self.nic}: {by} says {own}, {counted(self.alike, 'node')} built alike {text} rail {self.usual}"


@dataclass(frozen=True, slots=True)
class CrossedCable:
    """A port that hangs on a leaf switch of another rail."""

    node: str
    port: str
    rail: str
    leaf: str
    usual: str  # rail of the leaf's other ports
    ports: int  # these
    origin: EdgeOrigin

    def in_words(self) -> str:
        return (
            f"{self.node} {self.port}: {EdgeOrigin.SYSFS.value} says rail {self.rail}, {self.origin.value} says {self.leaf}, "
            f"on which {counted(self.ports, 'port')} of rail {self.usual} hang"
        )


@dataclass(frozen=True, slots=True)
class _ClassRails:
    """The rail of each place on the nodes of one kind."""

    rails: dict[_Place, int]
    votes: dict[_Place, tuple[int, int]]  # what most of their agents say, and how many
    confidence: float


def find_layouts(
    nodes: Sequence[NodeFacts],
) -> tuple[tuple[NodeLayout, ...], tuple[RailDoubt, ...]]:
    """Return what each node is made of, alike nodes together, and where agents contradict those of alike nodes."""
    classes: dict[_Hardware, list[NodeFacts]] = {}
    for node in nodes:
        classes.setdefault(_hardware(node), []).append(node)
    ordered = sorted(classes.items(), key=lambda item: (-len(item[1]), sorted(item[0])))
    largest = [key for key, _members in ordered[:_CLASSES_MAX]]
    reference = {key: _reference(key, largest) for key in classes}
    rails_of = {key: _class_rails(classes[key]) for key in set(reference.values())}
    totals = {len(set(rail.rails.values())) for rail in rails_of.values() if rail.rails}
    layouts: dict[NodeLayout, list[str]] = {}
    doubts: list[RailDoubt] = []
    for key, members in ordered:
        found = rails_of[reference[key]]
        for member in members:
            alike = _layout(member, found, has_kinds=len(totals) > 1)
            layouts.setdefault(alike, []).append(member.node)
            doubts += _doubts(member, found)
    named = [replace(item, nodes=tuple(sorted(own))) for item, own in layouts.items()]
    return tuple(sorted(named, key=lambda item: item.nodes)), tuple(doubts)


def find_crossed(topology: NetworkTopology) -> tuple[CrossedCable, ...]:
    """Return the ports that hang on a leaf switch of another rail, where leaf switches are of one rail each."""
    parts = find_parts(topology)
    hung: dict[str, dict[tuple[str, str], tuple[str, EdgeOrigin]]] = {}
    for edge in topology.edges:
        if edge.below_is_node and edge.kind is HangsOn.SWITCH and edge.port:
            rail = _rail_of_port(parts, edge.below, edge.port)
            if rail:
                hung.setdefault(edge.above, {}).setdefault(
                    (edge.below, edge.port), (rail, edge.origin)
                )
    found = []
    for leaf, ports in sorted(hung.items()):
        usual, count = Counter(rail for rail, _origin in ports.values()).most_common(1)[0]
        if len(ports) >= PORTS_MIN and count >= RAIL_SHARE * len(ports):
            found += [
                CrossedCable(node, port, rail, leaf, usual, count, origin)
                for (node, port), (rail, origin) in sorted(ports.items())
                if rail != usual
            ]
    return tuple(found)


def _rail_of_port(parts: FleetParts, node: str, port: str) -> str:
    """Return the rail of a port such as ``mlx5_0/1`` or ``ibp24s0``; empty: not known."""
    nic, _, number = port.partition("/")
    ports = parts.ports_of(node, nic)
    rails = {item.rail for item in ports if item.rail and number in ("", item.port)}
    return next(iter(rails)) if len(rails) == 1 else ""


def _hardware(facts: NodeFacts) -> _Hardware:
    """Return what nodes that are built alike have in common. A virtual function, whose plane is not known, comes and goes."""
    cards = [nic for nic in facts.nics if nic.is_rdma or nic.plane == _COMPUTE]
    known = [nic for nic in cards if nic.plane != _UNKNOWN]
    return frozenset((*nic.place, nic.model) for nic in known or cards)


def _reference(key: _Hardware, largest: Sequence[_Hardware]) -> _Hardware:
    """Return the most frequent kind of node that has all cards of this one, which lacks at most half of them."""
    if not key:
        return key
    return next((other for other in largest if key <= other and 2 * len(key) >= len(other)), key)


def _class_rails(members: Sequence[NodeFacts]) -> _ClassRails:
    ports: dict[_Place, list[ToldNic]] = {}
    for member in members:
        for nic in member.nics:
            ports.setdefault(nic.place, []).append(nic)
    votes = _votes(ports, len(members))
    usable = _fastest({place: own for place, own in ports.items() if place in votes or not votes})
    if votes:
        retained = [place for place in votes if place in usable or _is_configured(ports[place])]
        retained.sort(key=lambda place: (votes[place][0], place))
        is_whole = len(retained) == len(votes)
        rails = {
            place: votes[place][0] if is_whole else number for number, place in enumerate(retained)
        }
        share = sum(votes[place][1] for place in retained) / max(1, len(retained) * len(members))
        is_configured = all(_is_configured(ports[place]) for place in retained)
        sure = CONFIGURED if is_configured else BY_SWITCHES
        return _ClassRails(rails, votes, round(sure * share, 2))
    named = {place for place, own in ports.items() if _is_configured(own)}
    has_gpus = 2 * sum(bool(member.gpus) for member in members) > len(members)
    order = sorted(named or usable) if named or has_gpus else []
    if len(order) < 2:  # a single NIC is no rail among others
        return _ClassRails({}, {}, 0.0)
    return _ClassRails({place: number for number, place in enumerate(order)}, {}, BY_ORDER)


def _votes(ports: dict[_Place, list[ToldNic]], count: int) -> dict[_Place, tuple[int, int]]:
    """Return the rail of each place that more than half of the agents tell."""
    found = {}
    for place, own in ports.items():
        reported = Counter(
            nic.rail for nic in own if nic.plane == _COMPUTE and nic.rail is not None
        )
        if reported:
            rail, voters = reported.most_common(1)[0]
            if 2 * voters > count:
                found[place] = rail, voters
    return found


def _is_configured(own: Sequence[ToldNic]) -> bool:
    return 2 * sum(nic.is_configured and nic.plane == _COMPUTE for nic in own) > len(own)


def _fastest(ports: dict[_Place, list[ToldNic]]) -> set[_Place]:
    """Return the places of RDMA ports whose link is up on most nodes and which have the fastest rate."""
    rates = {
        place: max((nic.bytes_per_s or 0.0 for nic in own), default=0.0)
        for place, own in ports.items()
        if 2 * sum(nic.is_up is not False for nic in own) > len(own)
        and 2 * sum(nic.is_rdma and nic.plane not in _OTHER_PLANES for nic in own) > len(own)
    }
    best = max(rates.values(), default=0.0)
    return {place for place, rate in rates.items() if rate >= RATE_SHARE * best}


def _rails_of(facts: NodeFacts, found: _ClassRails) -> dict[_Place, int]:
    """Return the rails of a node: its own configuration holds."""
    rails = dict(found.rails)
    for nic in facts.nics:
        if nic.is_configured and nic.plane != _COMPUTE:
            rails.pop(nic.place, None)
        elif nic.is_configured and nic.rail is not None:
            rails[nic.place] = nic.rail
    return rails


def _doubts(facts: NodeFacts, found: _ClassRails) -> Iterable[RailDoubt]:
    """Yield the first NIC about which a node's agent contradicts those of alike nodes."""
    for nic in facts.nics:
        usual, voters = found.votes.get(nic.place, (None, 0))
        reported = nic.rail if nic.plane == _COMPUTE else None
        if usual is not None and reported != usual:
            yield RailDoubt(facts.node, nic.device, reported, usual, voters, nic.is_configured)
            return


def _layout(facts: NodeFacts, found: _ClassRails, *, has_kinds: bool) -> NodeLayout:
    """Return the node's layout without its name; ``has_kinds``: there are nodes with other numbers of rails."""
    rails = _rails_of(facts, found)
    total = len(set(found.rails.values()))

    def name(place: _Place) -> str:
        rail = rails.get(place)
        return "" if rail is None else f"{rail} of {total}" if has_kinds else str(rail)

    nics = tuple(
        LayoutNic(
            *(nic.device, nic.port, nic.interface, nic.pci_bus_id, nic.numa_node),
            *(nic.link_layer, nic.bytes_per_s),
            _COMPUTE if nic.place in rails else nic.plane,
            name(nic.place),
        )
        for nic in _listed(facts.nics, rails)
    )
    numbers = {gpu.pci_bus_id: number for number, gpu in enumerate(facts.gpus)}
    gpus = tuple(_gpu(facts, gpu, numbers, nics) for gpu in facts.gpus)
    sure = found.confidence if any(nic.rail for nic in nics) else 0.0
    return NodeLayout((), gpus, nics, sure)


def _listed(nics: Sequence[ToldNic], rails: dict[_Place, int]) -> Sequence[ToldNic]:
    if len(nics) <= _NICS_LISTED_MAX:
        return nics
    return [nic for nic in nics if nic.plane != _UNKNOWN or nic.place in rails]


def _gpu(
    facts: NodeFacts, gpu: ToldGpu, numbers: dict[str, int], nics: Sequence[LayoutNic]
) -> LayoutGpu:
    near = {
        nic.device: reported
        for nic in nics
        if nic.rail
        and (reported := facts.closeness.get((gpu.pci_bus_id, nic.device))) in _CLOSENESS
    }
    best = min(near.values(), key=_CLOSENESS.index, default="")
    return LayoutGpu(
        numbers[gpu.pci_bus_id],
        gpu.pci_bus_id,
        gpu.numa_node,
        tuple(device for device, reported in near.items() if reported == best),
        best,
        tuple(
            sorted(numbers[peer] for peer, links in gpu.peers.items() if links and peer in numbers)
        ),
        gpu.nvswitch_links,
    )
