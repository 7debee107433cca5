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
    told = hand_out(works, seconds + LOOK_S_MAX)
    flows, unpaired = _flows(peers, told)
    hops: dict[int, dict[int, tuple[str, ...]]] = {}
    reasons: list[str] = []
    for protocol in ("tcp", "udp"):
        reasons += _trace(peers, flows, protocol, ports, next_number, hand_out, hops)
    names = [_name(peers, one) for one in flows]
    traced = [
        TracedFlow(
            f"{names[at]} port {one.source_port}", (peers[one.node].node, one.address), one.source_port, hops[at]
        )
        for at, one in enumerate(flows)
        if hops.get(at, {}).get(one.source_port)
    ]  # fmt: skip
    return RunningFlows(
        tuple(
            RunningFlow(names[at], one.protocol, one.program, one.source_port, one.bytes_per_s)
            for at, one in enumerate(flows)
        ),
        plan_ports(traced) if traced else None,
        tuple(names[at] for at, one in enumerate(flows) if not hops.get(at, {}).get(one.source_port)),
        tuple(dict.fromkeys(reasons))[:REASONS_MAX],
        unpaired,
        tuple((peers[rank].node, port) for rank, one in sorted(told.items()) for port in one.ports),
    )  # fmt: skip


def _flows(
    peers: Sequence[JoinFabric], told: Mapping[int, PeerFindings]
) -> tuple[tuple[NodeFlow, ...], int]:
    owner = {rail.address: rank for rank, peer in enumerate(peers) for rail in peer.rails}
    tcp = [
        NodeFlow(
            rank, one.rail, one.source_port, one.address, one.port, "tcp", one.program,
            one.bytes_per_s, owner.get(one.address), one.is_held_up,
        )
        for rank, some in sorted(told.items())
        for one in some.seen
        if one.rail < len(peers[rank].rails) and owner.get(one.address) != rank
    ]  # fmt: skip
    pairs = [
        NodePair(rank, one.rail, one.own, one.other, one.program)
        for rank, some in sorted(told.items())
        for one in some.pairs
        if one.rail < len(peers[rank].rails)
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
    chosen = [(at, one) for at, one in enumerate(flows) if one.protocol == protocol]
    if not chosen:
        return []
    number = next_number()
    orders: dict[int, list[TraceOrder]] = {}
    of_node = {
        one.node: sum(other.node == one.node for _at, other in chosen) for _at, one in chosen
    }
    for at, one in chosen:
        others = min(ports, max(1, TRACES_MAX // of_node[one.node] - 1))
        first = SOURCE_PORTS_FIRST[0]
        for source_port in dict.fromkeys((one.source_port, *range(first, first + others))):
            order = TraceOrder(at, source_port, one.address, one.port, one.rail, is_silent=True)
            orders.setdefault(one.node, []).append(order)
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
