"""The topology file: which node hangs on which switches, rack, power feeds and coolant loops, how sure that is, and where it is from.

JSON, so that a person can read it and every part can use it: `detectors.parts.fleet_parts` gives its parts to blame, `leaf_switches` its leaves to the judge
of fabric tests. Where sources disagree about a node's leaf, the surer one holds; both stay in the file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

import msgspec

from rankmend.errors import SourceError

EDGES_MAX: Final = 400_000  # 20,000 nodes with 16 rails, and switches
FORMAT: Final = "rankmend-topology-1"


class EdgeOrigin(Enum):
    SLURM = "topology.conf"  # written by a person: as sure as that person
    LLDP = "lldp"  # the neighbour of the cable itself
    IBNETDISCOVER = "ibnetdiscover"  # the same, by the subnet's own management
    LATENCY = "latency"  # guessed from round trips
    SITE = "site"  # the site's own file of racks, power feeds and coolant loops


class HangsOn(Enum):
    """What the upper end of an edge is."""

    SWITCH = "switch"
    RACK = "rack"
    POWER_FEED = "power_feed"
    COOLANT_LOOP = "coolant_loop"


# How sure each is. A cable's own word holds before a file that somebody may have forgotten to change; latency is a guess.
CONFIDENCE: Final = {
    EdgeOrigin.IBNETDISCOVER: 0.99,
    EdgeOrigin.LLDP: 0.98,
    EdgeOrigin.SLURM: 0.9,
    EdgeOrigin.LATENCY: 0.5,
    EdgeOrigin.SITE: 0.9,
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
class NetworkTopology:
    edges: tuple[TopologyEdge, ...]
    format: str = FORMAT


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


def merge(sources: Iterable[Iterable[TopologyEdge]]) -> NetworkTopology:
    """Return all edges, each once, in one order. Raises SourceError for too many."""
    edges = sorted(
        {one for source in sources for one in source},
        key=lambda one: (
            *(one.below, one.kind.value, one.above),
            *(one.port, one.origin.value, one.confidence),
        ),
    )
    if len(edges) > EDGES_MAX:
        raise SourceError(f"{len(edges)} edges of topology: more than {EDGES_MAX}")
    return NetworkTopology(tuple(edges))


def leaf_switches(topology: NetworkTopology) -> dict[str, str]:
    """Return the leaf switch of each node; of several, that of the surest edge, then the first port (the first rail)."""
    best: dict[str, TopologyEdge] = {}
    for one in topology.edges:
        if not one.below_is_node or one.kind is not HangsOn.SWITCH:
            continue
        held = best.get(one.below)
        if held is None or (-one.confidence, one.port, one.above) < (
            -held.confidence,
            held.port,
            held.above,
        ):
            best[one.below] = one
    return {node: one.above for node, one in best.items()}


def contradictions(topology: NetworkTopology) -> tuple[tuple[TopologyEdge, TopologyEdge], ...]:
    """Return pairs of edges that name different switches for one port of one node."""
    held: dict[tuple[str, str], TopologyEdge] = {}
    found = []
    for one in topology.edges:
        if one.below_is_node and one.port and one.kind is HangsOn.SWITCH:
            other = held.setdefault((one.below, one.port), one)
            if other.above != one.above:
                found.append((other, one))
    return tuple(found)


def encode_topology(topology: NetworkTopology) -> bytes:
    return msgspec.json.format(msgspec.json.encode(topology), indent=1)


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
    return topology


def cluster_by_latency(
    nodes: Sequence[str], latency_s: Mapping[tuple[int, int], float], gap_ratio: float = 1.3
) -> tuple[TopologyEdge, ...]:
    """Return groups of nodes whose round trips to each other are short, as switches that nobody named.

    The round trips must fall into two classes with a gap of ``gap_ratio`` between them, else there is nothing to see
    (single linkage below the largest gap). Confidence falls with the share of pairs that contradict the groups.
    """
    times = sorted(latency_s.values())
    if len(times) < 3:
        return ()
    gap, limit = max(
        (after / max(before, 1e-9), (after + before) / 2) for before, after in pairwise(times)
    )
    if gap < gap_ratio:
        return ()
    root = list(range(len(nodes)))

    def find(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    for (a, b), time_s in sorted(latency_s.items()):
        if time_s < limit:
            root[find(max(a, b))] = find(min(a, b))
    groups = sorted({find(node) for node in range(len(nodes))})
    if len(groups) < 2:
        return ()
    names = {group: f"group{number + 1}" for number, group in enumerate(groups)}
    right = sum((find(a) == find(b)) == (time_s < limit) for (a, b), time_s in latency_s.items())
    sure = CONFIDENCE[EdgeOrigin.LATENCY] * right / len(latency_s)
    return tuple(
        edge(node, names[find(at)], EdgeOrigin.LATENCY, confidence=round(sure, 2))
        for at, node in enumerate(nodes)
    )
