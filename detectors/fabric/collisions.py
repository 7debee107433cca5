"""Which flows share an uplink while others idle, and source ports that spread them. Pure.

A path is the routers that a traceroute with the flow's own ports shows. A router answers with the address of the interface by which the
packet came in, so an address stands for one link. The first is the node's own cable, which all of its flows share whatever the
port. Links that different ports of one pair take at the same distance are alternatives.

Flows of running programs as the judge of collisions takes them: which count, and between which nodes a queue pair sends.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from detectors.formats.rdma_qps import ROCE_PORT, source_port
from rankmend.errors import SourceError

COUNTS_FROM: Final = 0.1  # of the fastest flow: a slower one takes nobody's share of a link


@dataclass(frozen=True, slots=True)
class NodeFlow:
    """A flow from one node's rail. ``target``: number of the node it goes to, None for a host that takes no part."""

    node: int
    rail: int
    source_port: int
    address: str
    port: int
    protocol: str
    program: str
    bytes_per_s: float | None
    target: int | None
    is_held_up: bool = False  # it had more to send than its path took


@dataclass(frozen=True, slots=True)
class NodePair:
    """A queue pair of a node, by its number and the other end's."""

    node: int
    rail: int
    own: int
    other: int
    program: str


def flows_that_count(flows: Sequence[NodeFlow]) -> tuple[NodeFlow, ...]:
    """Return the flows that can fill a link: those not far below the fastest, those held up by their path, and all whose rate nobody counts.

    Of two flows that share a link, TCP may starve one for seconds: its rate says little, what it has yet to send says all.
    """
    fastest = max((flow.bytes_per_s or 0.0 for flow in flows), default=0.0)
    return tuple(
        flow
        for flow in flows
        if flow.bytes_per_s is None or flow.is_held_up or flow.bytes_per_s >= COUNTS_FROM * fastest
    )


def join_pairs(
    pairs: Sequence[NodePair], addresses: Mapping[tuple[int, int], str]
) -> tuple[tuple[NodeFlow, ...], int]:
    """Return the flows of queue pairs whose two ends name each other, and how many pairs have no other end or several.

    Numbers of queue pairs are unique to a device only, so two nodes may use the same ones. ``addresses``: of node and rail.
    """
    ends: dict[tuple[int, int], list[NodePair]] = defaultdict(list)
    for pair in pairs:
        ends[pair.own, pair.other].append(pair)
    flows, unpaired = [], 0
    for pair in pairs:
        others = [end for end in ends[pair.other, pair.own] if end.node != pair.node]
        if len(others) != 1 or len(ends[pair.own, pair.other]) != 1:
            unpaired += 1
            continue
        there = others[0]
        flows.append(
            NodeFlow(
                pair.node, pair.rail, source_port(pair.own, pair.other),
                addresses[there.node, there.rail], ROCE_PORT, "udp", pair.program, None, there.node,
            )
        )  # fmt: skip
    return tuple(flows), unpaired


ROUNDS_MAX: Final = 20  # of improvement; each moves a flow, or it was the last


@dataclass(frozen=True, slots=True)
class TracedFlow:
    """A flow, and the links on its way for each source port that was tried. ``source_port``: the one it has."""

    name: str
    pair: tuple[str, str]
    source_port: int
    paths: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SharedLink:
    link: str
    flows: tuple[str, ...]
    idle: tuple[str, ...]  # alternatives that carry no flow


@dataclass(frozen=True, slots=True)
class PathPlan:
    ports: tuple[int, ...]  # of each flow, in their order
    worst_before: int  # flows on the link with most of them
    worst_after: int
    collisions: tuple[SharedLink, ...]  # before
    expected_before_ratio: (
        float  # of a link's rate that the mean flow gets, if each link serves its flows alike
    )
    expected_after_ratio: float
    single_path: (
        bool  # no port changed any path: there is nothing to choose, or the tunnel hides it
    )


def plan_ports(flows: Sequence[TracedFlow]) -> PathPlan:
    """Return a source port for each flow with which the fullest link carries as few as possible."""
    for flow in flows:
        if not flow.paths.get(flow.source_port):
            raise SourceError(
                f"flow {flow.name}: no path is known for its source port {flow.source_port}"
            )
    before = [flow.source_port for flow in flows]
    ports = list(before)
    load = _load(flows, ports)
    for _round in range(ROUNDS_MAX):
        moved = [_improve(flows, ports, load, at) for at in range(len(flows))]
        if not any(moved):
            break
    alternatives = _alternatives(flows)
    return PathPlan(
        tuple(ports),
        max(_load(flows, before).values(), default=0),
        max(load.values(), default=0),
        _collisions(flows, before, alternatives),
        _expected(flows, before),
        _expected(flows, ports),
        all(len(set(flow.paths.values())) < 2 for flow in flows),
    )


def _links(flow: TracedFlow, port: int) -> tuple[str, ...]:
    return tuple(hop for hop in flow.paths[port][1:] if hop)


def _load(flows: Sequence[TracedFlow], ports: Sequence[int]) -> Counter[str]:
    return Counter(
        hop for flow, port in zip(flows, ports, strict=True) for hop in _links(flow, port)
    )


def _fullest(flow: TracedFlow, port: int, load: Mapping[str, int]) -> int:
    return max((load[hop] for hop in _links(flow, port)), default=0)


def _improve(flows: Sequence[TracedFlow], ports: list[int], load: Counter[str], at: int) -> bool:
    """Move a flow from a shared link if that is better, if need be with another flow that makes room; return whether."""
    own = _links(flows[at], ports[at])
    if max((load[hop] for hop in own), default=0) < 2:
        return False
    load.subtract(own)
    alone, best, room = _price(load, own), (0, ports[at]), (0, ports[at], at, 0)
    for port in _distinct(flows[at]):
        links = _links(flows[at], port)
        best = min(best, (_price(load, links) - alone, port))
        load.update(links)
        for other in range(len(flows)):
            if other == at or not set(links) & set(theirs := _links(flows[other], ports[other])):
                continue
            load.subtract(theirs)
            before = _price(load, theirs)
            for turn in _distinct(flows[other]):
                gain = _price(load, _links(flows[other], turn)) - before
                load.subtract(links)
                gain += _price(load, links) - alone
                load.update(links)
                room = min(room, (gain, port, other, turn))
            load.update(theirs)
        load.subtract(links)
    if best[0] < 0 and best[0] <= room[0]:
        ports[at] = best[1]
    elif room[0] < 0:
        _gain, ports[at], other, turn = room
        load.subtract(_links(flows[other], ports[other]))
        ports[other] = turn
        load.update(_links(flows[other], turn))
    load.update(_links(flows[at], ports[at]))
    return min(best[0], room[0]) < 0


def _price(load: Mapping[str, int], links: Sequence[str]) -> int:
    """Return by how much the sum of the squares of all loads grows with a flow over these links."""
    return sum(2 * load[hop] + 1 for hop in links)


def _distinct(flow: TracedFlow) -> list[int]:
    """Return one port for each path, the lowest."""
    ports = {hops: port for port, hops in sorted(flow.paths.items(), reverse=True)}
    return [port for hops, port in sorted(ports.items(), key=lambda item: item[1]) if hops[1:]]


def _alternatives(flows: Sequence[TracedFlow]) -> dict[str, frozenset[str]]:
    """Return for each link the links that stand for it at the same distance, itself included."""
    group: dict[str, set[str]] = {}
    for flow in flows:
        by_distance: dict[int, set[str]] = defaultdict(set)
        for hops in flow.paths.values():
            for distance, hop in enumerate(hops):
                if distance and hop:
                    by_distance[distance].add(hop)
        for links in by_distance.values():
            merged = set(links).union(*(group.get(link, set()) for link in links))
            for link in merged:
                group[link] = merged
    return {link: frozenset(links) for link, links in group.items()}


def _collisions(
    flows: Sequence[TracedFlow], ports: Sequence[int], alternatives: Mapping[str, frozenset[str]]
) -> tuple[SharedLink, ...]:
    users: dict[str, list[str]] = defaultdict(list)
    for flow, port in zip(flows, ports, strict=True):
        for hop in _links(flow, port):
            users[hop].append(flow.name)
    return tuple(
        SharedLink(link, tuple(names), idle)
        for link, names in sorted(users.items(), key=lambda item: (-len(item[1]), item[0]))
        if len(names) > 1
        and (idle := tuple(sorted(item for item in alternatives[link] if item not in users)))
    )


def _expected(flows: Sequence[TracedFlow], ports: Sequence[int]) -> float:
    load = _load(flows, ports)
    shares = [
        1.0 / max(1, _fullest(flow, port, load)) for flow, port in zip(flows, ports, strict=True)
    ]
    return sum(shares) / len(shares) if shares else 1.0
