"""The topology file: which node hangs on which switches, rack, power feeds, coolant loops, NVLink domain, chassis and block of Slurm, which rail each of its NICs is, how sure that is, and where it is from.

JSON, so that a person can read it and every part can use it: `detectors.parts.fleet_parts` gives its parts to blame, `leaf_switches` its leaves to the judge
of fabric tests. Where sources disagree about a node's leaf, the surer one holds; both stay in the file.

Versions read each other's files. Keys that a reader does not know are passed over, so what is new gets a key of its own: a reader of 0.1 refuses an edge of
a kind or origin that it does not know. Later readers pass over such an edge.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final

import msgspec

from rankmend.errors import SourceError
from rankmend.printable import is_printable

# 20,000 nodes with 16 rails take 320,000, and each tier of a fat tree above the leaves as many again.
EDGES_MAX: Final = 1_000_000
BYTES_MAX: Final = 256 << 20  # so many edges with names of 40 characters
FORMAT: Final = "rankmend-topology-1"
_LEVELS: Final = ("group", "pod")  # of what round trips show, the narrowest first
_GAPS_MAX: Final = 8  # that are tried, the clearest first: one slow pair must not hide the others
NAME_CHARACTERS_MAX: Final = 256  # of a node, switch, rack, feed, loop, rail or NIC
NICS_MAX: Final = 1024  # of a node, virtual functions among them
GPUS_MAX: Final = 64


class EdgeOrigin(Enum):
    SLURM = "topology.conf"  # written by a person: as sure as that person
    LLDP = "lldp"  # the neighbour of the cable itself
    IBNETDISCOVER = "ibnetdiscover"  # the same, by the subnet's own management
    LATENCY = "latency"  # guessed from round trips
    SITE = "site"  # the site's own file of racks, power feeds and coolant loops
    SYSFS = "sysfs"  # by a node's agent: where its cards sit
    NVML = "nvml"  # by a node's agent: what the GPUs' driver tells
    OTHER = "other"  # of a newer version

    @classmethod
    def _missing_(cls, _value: object) -> "EdgeOrigin":
        return cls.OTHER


class HangsOn(Enum):
    """What the upper end of an edge is."""

    SWITCH = "switch"
    RACK = "rack"
    POWER_FEED = "power_feed"
    COOLANT_LOOP = "coolant_loop"
    OTHER = "other"  # of a newer version

    @classmethod
    def _missing_(cls, _value: object) -> "HangsOn":
        return cls.OTHER


# How sure each is. A cable's own word holds before a file that somebody may have forgotten to change; latency is a guess.
CONFIDENCE: Final = {
    EdgeOrigin.IBNETDISCOVER: 0.99,
    EdgeOrigin.LLDP: 0.98,
    EdgeOrigin.SLURM: 0.9,
    EdgeOrigin.LATENCY: 0.5,
    EdgeOrigin.SITE: 0.9,
    EdgeOrigin.SYSFS: 0.9,  # less where alike nodes disagree or the order of cards alone tells: detectors.parts.rails
    EdgeOrigin.NVML: 0.99,
}


@dataclass(frozen=True, slots=True)
class TopologyEdge:
    """``below`` hangs on ``above``; ``below`` is a node, else a switch, or the rack that a feed or loop supplies."""

    below: str
    above: str
    below_is_node: bool
    port: str  # interface of the node, or port of the switch; "": unknown
    confidence: float
    origin: EdgeOrigin
    kind: HangsOn = HangsOn.SWITCH  # of ``above``
    below_kind: HangsOn | None = None  # of ``below``; None: a node, or a switch


@dataclass(frozen=True, slots=True)
class LayoutNic:
    """A port of an RDMA device, or a network device without RDMA."""

    device: str  # mlx5_0, or the interface
    port: str = ""
    interface: str = ""  # the network device, also of an RDMA device
    pci_bus_id: str = ""
    numa_node: int | None = None
    link_layer: str = ""  # InfiniBand, Ethernet
    bytes_per_s: float | None = None  # that the link ought to have
    plane: str = ""  # compute, storage, ...
    rail: str = ""  # of compute NICs; "": not known, or of no rail


@dataclass(frozen=True, slots=True)
class LayoutGpu:
    number: int  # in the order of bus ids
    pci_bus_id: str
    numa_node: int | None = None
    nics: tuple[str, ...] = ()  # the nearest of those with a rail
    closeness: str = ""  # of these, as `nvidia-smi topo -m` has it
    nvlink_gpus: tuple[int, ...] = ()  # at the other ends of its own NVLinks
    nvswitch_links: int = 0


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """What nodes that are alike are made of."""

    nodes: tuple[str, ...]
    gpus: tuple[LayoutGpu, ...] = ()
    nics: tuple[LayoutNic, ...] = ()
    confidence: float = 0.0  # of the rails
    origin: EdgeOrigin = EdgeOrigin.SYSFS


@dataclass(frozen=True, slots=True)
class NvlinkDomain:
    """Nodes whose GPUs are joined by NVLink."""

    name: str  # cluster UUID and clique, as the label nvidia.com/gpu.clique has them
    nodes: tuple[str, ...]
    confidence: float
    origin: EdgeOrigin = EdgeOrigin.NVML


@dataclass(frozen=True, slots=True)
class GpuChassis:
    """Nodes whose GPUs sit in one chassis, as the compute trays of an NVL72 do: it is powered and cooled as a whole."""

    name: str  # serial number: nvmlPlatformInfo_v2_t of nvml.h
    nodes: tuple[str, ...]
    confidence: float
    origin: EdgeOrigin = EdgeOrigin.NVML


@dataclass(frozen=True, slots=True)
class NodeBlock:
    """Nodes that the site has told Slurm are near each other: an NVLink domain, a rack, what hangs on some switches. The name alone doesn't say."""

    name: str
    nodes: tuple[str, ...]
    confidence: float = CONFIDENCE[EdgeOrigin.SLURM]
    origin: EdgeOrigin = EdgeOrigin.SLURM


@dataclass(frozen=True, slots=True)
class NetworkTopology:
    edges: tuple[TopologyEdge, ...]
    format: str = FORMAT
    layouts: tuple[NodeLayout, ...] = ()
    nvlink_domains: tuple[NvlinkDomain, ...] = ()
    blocks: tuple[NodeBlock, ...] = ()
    chassis: tuple[GpuChassis, ...] = ()


def edge(
    below: str,
    above: str,
    origin: EdgeOrigin,
    *,
    is_node: bool = True,
    port: str = "",
    confidence: float | None = None,
    kind: HangsOn = HangsOn.SWITCH,
) -> TopologyEdge:
    """Return an edge; what hangs on a switch and is no node is a switch, on anything else a rack."""
    sure = CONFIDENCE[origin] if confidence is None else confidence
    below_kind = None if is_node or kind is HangsOn.SWITCH else HangsOn.RACK
    return TopologyEdge(below, above, is_node, port, sure, origin, kind, below_kind)


def merge(
    sources: Iterable[Iterable[TopologyEdge]],
    layouts: tuple[NodeLayout, ...] = (),
    nvlink_domains: tuple[NvlinkDomain, ...] = (),
    blocks: Iterable[NodeBlock] = (),
    chassis: tuple[GpuChassis, ...] = (),
) -> NetworkTopology:
    """Return all edges and blocks, each once, in one order. Raises SourceError for too many, and for a block that has other nodes in another source."""
    edges = sorted(
        {item for source in sources for item in source},
        key=lambda item: (
            *(item.below, item.kind.value, item.above),
            *(item.port, item.origin.value, item.confidence),
        ),
    )
    if len(edges) > EDGES_MAX:
        raise SourceError(f"{len(edges)} edges of topology: more than {EDGES_MAX}")
    named: dict[str, NodeBlock] = {}
    for block in blocks:
        if named.setdefault(block.name, block).nodes != block.nodes:
            raise SourceError(f"block {block.name} has other nodes in another source")
    in_order = tuple(named[name] for name in sorted(named))
    return NetworkTopology(tuple(edges), FORMAT, layouts, nvlink_domains, in_order, chassis)


def leaf_switches(topology: NetworkTopology) -> dict[str, str]:
    """Return the leaf switch of each node; of several, that of the surest edge, then the first port (the first rail)."""
    best: dict[str, TopologyEdge] = {}
    for item in topology.edges:
        if not item.below_is_node or item.kind is not HangsOn.SWITCH:
            continue
        held = best.get(item.below)
        if held is None or (-item.confidence, item.port, item.above) < (
            -held.confidence,
            held.port,
            held.above,
        ):
            best[item.below] = item
    return {node: item.above for node, item in best.items()}


def contradictions(topology: NetworkTopology) -> tuple[tuple[TopologyEdge, TopologyEdge], ...]:
    """Return pairs of edges that name different switches for one port of one node."""
    held: dict[tuple[str, str], TopologyEdge] = {}
    found = []
    for item in topology.edges:
        if item.below_is_node and item.port and item.kind is HangsOn.SWITCH:
            other = held.setdefault((item.below, item.port), item)
            if other.above != item.above:
                found.append((other, item))
    return tuple(found)


def encode_topology(topology: NetworkTopology) -> bytes:
    """Return the file, each edge on one line. Raises SourceError where it would be too long to be read."""
    edges = b",\n  ".join(msgspec.json.encode(item) for item in topology.edges)
    reported = msgspec.json.format(msgspec.json.encode(replace(topology, edges=())), indent=1)
    body = reported.replace(
        b'"edges": []', b'"edges": [\n  ' + edges + b"\n ]" if edges else b'"edges": []', 1
    )
    if len(body) > BYTES_MAX:
        raise SourceError(f"a topology file of {len(body)} bytes: at most {BYTES_MAX} are read")
    return body


def decode_topology(body: bytes | str) -> NetworkTopology:
    """Return the topology of a file; raise SourceError that says what is wrong with it."""
    try:
        topology = msgspec.json.decode(body, type=NetworkTopology)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SourceError(f"not a topology file of rankmend: {error}") from error
    if topology.format != FORMAT or len(topology.edges) > EDGES_MAX:
        raise SourceError(
            f"topology file of format {topology.format!r:.40} with {len(topology.edges)} edges: want {FORMAT}, at most {EDGES_MAX}"
        )
    listed = sum(len(layout.nodes) for layout in topology.layouts)
    listed += sum(len(domain.nodes) for domain in topology.nvlink_domains)
    listed += sum(len(block.nodes) for block in topology.blocks)
    listed += sum(len(item.nodes) for item in topology.chassis)
    if listed > EDGES_MAX or any(len(layout.nics) > NICS_MAX or len(layout.gpus) > GPUS_MAX for layout in topology.layouts):  # fmt: skip
        raise SourceError(
            f"topology file with {listed} nodes in layouts, NVLink domains, chassis and blocks: at most {EDGES_MAX}, each layout of {NICS_MAX} NICs and {GPUS_MAX} GPUs at most"
        )
    for name in _names(topology):
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not is_printable(name):
            raise SourceError(
                f"topology file with the name {name!r:.80}: 1 to {NAME_CHARACTERS_MAX} printable characters"
            )
    return topology


def _names(topology: NetworkTopology) -> Iterator[str]:
    for item in topology.edges:
        yield item.below
        yield item.above
    for layout in topology.layouts:
        yield from layout.nodes
        for nic in layout.nics:
            yield nic.device
            yield from filter(None, (nic.rail, nic.interface))
    for domain in topology.nvlink_domains:
        yield domain.name
        yield from domain.nodes
    for chassis in topology.chassis:
        yield chassis.name
        yield from chassis.nodes
    for block in topology.blocks:
        yield block.name
        yield from block.nodes


def cluster_by_latency(
    nodes: Sequence[str], latency_s: Mapping[tuple[int, int], float], gap_ratio: float = 1.3
) -> tuple[TopologyEdge, ...]:
    """Return groups of nodes whose round trips to each other are short, and pods of such groups, as switches that nobody named.

    The round trips must fall into classes with gaps of ``gap_ratio`` between them, else there is nothing to see: each class but the
    longest makes a level, by single linkage below the gap. Confidence falls with the share of pairs that contradict a level, and of those that
    were not measured: two groups may then be one.
    """
    times = sorted(latency_s.values())
    if len(times) < 3:
        return ()
    measured = len(times) / (len(nodes) * (len(nodes) - 1) / 2)
    gaps = [(after / max(before, 1e-9), (after + before) / 2) for before, after in pairwise(times)]
    clear = sorted((gap for gap in gaps if gap[0] >= gap_ratio), reverse=True)
    levels: list[tuple[float, list[int]]] = []
    for _ratio, limit_s in clear[:_GAPS_MAX]:
        group_of = _linked(
            len(nodes), [pair for pair, time_s in latency_s.items() if time_s < limit_s]
        )
        sizes = Counter(group_of)
        in_groups = sum(size for size in sizes.values() if size > 1)
        if len(sizes) > 1 and 2 * in_groups >= len(nodes) and len(levels) < len(_LEVELS):
            levels.append((limit_s, group_of))
    levels.sort()
    edges: list[TopologyEdge] = []
    below, is_node = list(nodes), True
    for (limit_s, group_of), level in zip(levels, _LEVELS, strict=False):
        right = sum(
            (group_of[a] == group_of[b]) == (time_s < limit_s)
            for (a, b), time_s in latency_s.items()
        )
        sure = round(CONFIDENCE[EdgeOrigin.LATENCY] * measured * right / len(latency_s), 2)
        numbers = {group: number + 1 for number, group in enumerate(sorted(set(group_of)))}
        above = [f"{level}{numbers[group]}" for group in group_of]
        edges += [
            edge(item, over, EdgeOrigin.LATENCY, is_node=is_node, confidence=sure)
            for item, over in dict(zip(below, above, strict=True)).items()
        ]
        below, is_node = above, False
    return tuple(edges)


def _linked(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the lowest member of each node's group, where pairs are of one group."""
    root = list(range(count))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for a, b in pairs:
        first, second = sorted((find(a), find(b)))
        root[second] = first
    return [find(node) for node in range(count)]
