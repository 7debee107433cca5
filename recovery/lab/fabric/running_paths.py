"""Which links the flows of running programs share: nodes tell their flows, trace each with its own ports and with others, and the judge decides.

No connection is made to a program's port, and nothing is sent but the packets of the traces, which end at a router or are dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from detectors.fabric.collisions import (
    NodeFlow,
    NodePair,
    TracedFlow,
    flows_that_count,
    join_pairs,
    plan_ports,
)
from recovery.lab.fabric.fabric_messages import (
    JoinFabric,
    LookWork,
    PeerFindings,
    TraceOrder,
    TraceWork,
    Work,
)
from recovery.lab.fabric.fabric_report import RunningFlow, RunningFlows
from recovery.lab.fabric.tcp_probe import SOURCE_PORTS_FIRST

LOOK_S_MAX: Final = 120.0  # beyond the time of watching: four calls of tools
TRACE_S: Final = 60.0
REASONS_MAX: Final = 20
TRACES_MAX: Final = 1024  # of one node; with more flows, fewer other ports are tried

HandOut = Callable[[Mapping[int, Work], float], dict[int, PeerFindings]]


def find_running_flows(
    peers: Sequence[JoinFabric],
    seconds: float,
    ports: int,
    next_number: Callable[[], int],
    hand_out: HandOut,
) -> RunningFlows:
    """Return what programs send between nodes at present. ``ports``: source ports that are tried beside each flow's own."""
    number = next_number()
    works: dict[int, Work] = {rank: LookWork(number, seconds) for rank in range(len(peers))}
    reported = hand_out(works, seconds + LOOK_S_MAX)
    flows, unpaired = _flows(peers, reported)
    hops: dict[int, dict[int, tuple[str, ...]]] = {}
    reasons: list[str] = []
    for protocol in ("tcp", "udp"):
        reasons += _trace(peers, flows, protocol, ports, next_number, hand_out, hops)
    names = [_name(peers, flow) for flow in flows]
    traced = [
        TracedFlow(
            f"{names[at]} port {flow.source_port}", (peers[flow.node].node, flow.address), flow.source_port, hops[at]
        )
        for at, flow in enumerate(flows)
        if hops.get(at, {}).get(flow.source_port)
    ]  # fmt: skip
    return RunningFlows(
        tuple(
            RunningFlow(names[at], flow.protocol, flow.program, flow.source_port, flow.bytes_per_s)
            for at, flow in enumerate(flows)
        ),
        plan_ports(traced) if traced else None,
        tuple(names[at] for at, flow in enumerate(flows) if not hops.get(at, {}).get(flow.source_port)),
        tuple(dict.fromkeys(reasons))[:REASONS_MAX],
        unpaired,
        tuple((peers[rank].node, port) for rank, item in sorted(reported.items()) for port in item.ports),
    )  # fmt: skip


def _flows(
    peers: Sequence[JoinFabric], reported: Mapping[int, PeerFindings]
) -> tuple[tuple[NodeFlow, ...], int]:
    owner = {rail.address: rank for rank, peer in enumerate(peers) for rail in peer.rails}
    tcp = [
        NodeFlow(
            rank, item.rail, item.source_port, item.address, item.port, "tcp", item.program,
            item.bytes_per_s, owner.get(item.address), item.is_held_up,
        )
        for rank, some in sorted(reported.items())
        for item in some.seen
        if item.rail < len(peers[rank].rails) and owner.get(item.address) != rank
    ]  # fmt: skip
    pairs = [
        NodePair(rank, pair.rail, pair.own, pair.other, pair.program)
        for rank, some in sorted(reported.items())
        for pair in some.pairs
        if pair.rail < len(peers[rank].rails)
    ]
    addresses = {
        (rank, at): rail.address
        for rank, peer in enumerate(peers)
        for at, rail in enumerate(peer.rails)
    }
    roce, unpaired = join_pairs(pairs, addresses)
    return (*flows_that_count(tcp), *roce), unpaired


def _trace(
    peers: Sequence[JoinFabric],
    flows: Sequence[NodeFlow],
    protocol: str,
    ports: int,
    next_number: Callable[[], int],
    hand_out: HandOut,
    hops: dict[int, dict[int, tuple[str, ...]]],
) -> list[str]:
    """Note in ``hops`` the routers of each flow, by its own source port and by others; return why some are not known."""
    chosen = [(at, flow) for at, flow in enumerate(flows) if flow.protocol == protocol]
    if not chosen:
        return []
    number = next_number()
    orders: dict[int, list[TraceOrder]] = {}
    of_node = {
        item.node: sum(other.node == item.node for _at, other in chosen) for _at, item in chosen
    }
    for at, item in chosen:
        others = min(ports, max(1, TRACES_MAX // of_node[item.node] - 1))
        first = SOURCE_PORTS_FIRST[0]
        for source_port in dict.fromkeys((item.source_port, *range(first, first + others))):
            order = TraceOrder(at, source_port, item.address, item.port, item.rail, is_silent=True)
            orders.setdefault(item.node, []).append(order)
    works: dict[int, Work] = {
        node: TraceWork(number, protocol, tuple(some), TRACE_S) for node, some in orders.items()
    }
    reasons = []
    for node, found in hand_out(works, TRACE_S + LOOK_S_MAX).items():
        for result in found.traces:
            if result.hops and 0 <= result.id < len(flows):
                hops.setdefault(result.id, {})[result.source_port] = result.hops
            elif result.text:
                reasons.append(f"{peers[node].node}: {result.text}")
    return reasons


def _name(peers: Sequence[JoinFabric], flow: NodeFlow) -> str:
    there = peers[flow.target].node if flow.target is not None else flow.address
    return f"{peers[flow.node].node} -> {there}"
