"""The rounds of one test of the network: what each node is told to do, and the report that comes of it. On the first node."""

import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final

from detectors.fabric import collisions, cost_model
from detectors.fabric.network import Network, PairTest, Reading
from detectors.fabric.pair_rounds import first_rounds
from detectors.fabric.slow_part import judge
from detectors.fabric.slow_search import plan
from rankmend.errors import ConfigError, LaunchError, RankmendError
from recovery.lab.fabric.coordinator import Coordinator
from recovery.lab.fabric.fabric_messages import (
    CollectiveWork,
    FlowFault,
    FlowOrder,
    FlowResult,
    FlowWork,
    PeerFindings,
    TraceOrder,
    TraceWork,
    Transport,
    Work,
)
from recovery.lab.fabric.fabric_options import FabricKind, FabricOptions
from recovery.lab.fabric.fabric_report import CollectiveFigure, FabricReport, PathTrial
from recovery.lab.fabric.rdma_probe import step_s_max
from recovery.lab.fabric.running_paths import find_running_flows
from recovery.lab.fabric.tcp_probe import GRACE_S, HELLO_S_MAX, SOURCE_PORTS_FIRST
from recovery.lab.fabric.transport_choice import (
    TransportChoice,
    choose_after_failure,
    choose_transport,
)

ALL_TO_ALL_NODES_MAX: Final = 128
PATH_TRIES_MAX: Final = 64
AT_ONCE_S_MIN: Final = (
    4.0  # programs don't start at the same moment: ib_write_bw counts the middle half
)
VAIN_ROUNDS_MAX: Final = 3  # over RDMA, where a program that hangs costs a round 20 s
_SLACK_S: Final = 10.0  # beyond the flows' own timeouts


class FabricRounds:
    """The rounds of one test."""

    def __init__(self, coordinator: Coordinator, count: int, options: FabricOptions) -> None:
        self._coordinator = coordinator
        self._options = options
        self._count = count
        self._until_s = time.monotonic() + options.limit_s
        self._absent: set[int] = set()
        self._problems: list[str] = []
        self._network: Network
        self._choice: TransportChoice
        self._left_out: set[int] = set()  # nodes whose programs fail: others would wait for them
        self._vain: dict[int, int] = {}  # rounds of a node that gave no reading

    def run(self) -> FabricReport:
        options = self._options
        peers = self._coordinator.wait_for_peers(options.join_s)
        self._peers = [peers[rank] for rank in range(self._count)]
        names = tuple(peer.node for peer in self._peers)
        rails = tuple(rail.name for rail in self._peers[0].rails)
        leaf_of = {name: options.leaf_of[name] for name in names if name in options.leaf_of}
        self._network = Network(names, rails, leaf_of)
        kind = options.kind
        self._choice = choose_transport(options.transport, kind, self._peers)
        report = self._carry_out(kind)
        if self._choice.transport is Transport.RDMA and not report.readings:
            self._choice = choose_after_failure(options.transport, self._peers, self._problems)
            self._problems, self._left_out = [], set()
            report = self._carry_out(kind)
        return report

    def _carry_out(self, kind: FabricKind) -> FabricReport:
        if kind in (FabricKind.FIND, FabricKind.PAIRS):
            return self._search(all_pairs=kind is FabricKind.PAIRS)
        if kind is FabricKind.COLLECTIVES:
            return self._collectives()
        if kind is FabricKind.PATHS:
            return self._paths()
        if kind is FabricKind.FLOWS:
            return self._running_flows()
        return self._at_once(_patterns(kind, self._network))

    def _report(self, **found: object) -> FabricReport:
        return FabricReport(
            kind=self._options.kind.value,
            at_unix_s=time.time(),
            network=self._network,
            absent=tuple(self._network.nodes[rank] for rank in sorted(self._absent)),
            problems=tuple(dict.fromkeys(self._problems))[:100],
            transport=self._choice.transport,
            transport_reason=self._choice.reason,
            unmeasured=self._unmeasured(found.get("readings", ())),  # type: ignore[arg-type]
            **found,  # type: ignore[arg-type]
        )

    def _unmeasured(self, readings: Sequence[Reading]) -> tuple[str, ...]:
        """Return the nodes that answered, but none of whose tests gave a reading."""
        if self._choice.transport is Transport.TCP:
            return ()
        measured = {node for reading in readings for node in (reading.sender, reading.receiver)}
        names = enumerate(self._network.nodes)
        return tuple(name for at, name in names if at not in measured and at not in self._absent)

    def _search(self, *, all_pairs: bool) -> FabricReport:
        readings: list[Reading] = []
        number = 0
        while tests := plan(self._network, readings, number, all_pairs=all_pairs):
            readings += self._pair_round(tests, number)
            number += 1
            if self._choice.transport is Transport.RDMA and not readings:
                break  # nothing works, so nobody waits for more of it
        return self._report(readings=tuple(readings), verdict=judge(self._network, readings))

    def _pair_round(self, tests: Sequence[PairTest], number: int) -> list[Reading]:
        sends = [
            (test.low, test.high, rail, test.path)
            for test in tests
            for rail in range(len(self._network.rails))
        ]
        results = self._flows(sends, both_ways=True)
        readings = []
        is_rdma = self._choice.transport is Transport.RDMA
        for (low, high, rail, path), (first, second) in zip(sends, results, strict=True):
            if is_rdma:
                readings += _rdma_readings(number, (low, high, rail), first, second)
            else:
                readings += _readings(number, (low, high, rail, path), first, second)
        if is_rdma:
            self._note_vain(tests, readings)
        return readings

    def _note_vain(self, tests: Sequence[PairTest], readings: Sequence[Reading]) -> None:
        measured = {node for reading in readings for node in (reading.sender, reading.receiver)}
        for node in {node for test in tests for node in (test.low, test.high)}:
            self._vain[node] = 0 if node in measured else self._vain.get(node, 0) + 1
            if self._vain[node] == VAIN_ROUNDS_MAX:
                self._left_out.add(node)

    def _at_once(self, sends: Sequence[tuple[int, int]]) -> FabricReport:
        flows = [(a, b, rail, 0) for a, b in sends for rail in range(len(self._network.rails))]
        readings = []
        is_rdma = self._choice.transport is Transport.RDMA
        for (a, b, rail, path), (first, second) in zip(flows, self._flows(flows), strict=True):
            if is_rdma:
                readings += _rdma_readings(0, (a, b, rail), first, second)
            elif (
                second is not None and second.received_bytes_per_s is not None and first is not None
            ):
                readings.append(Reading(0, a, b, rail, path, second.received_bytes_per_s, first.latency_s, first.resent_ratio))  # fmt: skip
        total = sum(reading.bytes_per_s for reading in readings)
        return self._report(readings=tuple(readings), total_bytes_per_s=total)

    def _flows(
        self, sends: Sequence[tuple[int, int, int, int]], *, both_ways: bool = False
    ) -> list[tuple[FlowResult | None, FlowResult | None]]:
        """Run flows (sender, receiver, rail, path) side by side; return what both ends told of each."""
        number, seconds = self._coordinator.next_number(), self._options.seconds
        transport, step_s = Transport.TCP, seconds + GRACE_S
        if self._choice.transport is Transport.RDMA:
            if not both_ways:
                seconds = max(seconds, AT_ONCE_S_MIN)
            transport, step_s = Transport.RDMA, step_s_max(seconds)
        orders: dict[int, list[FlowOrder]] = {}
        for at, (a, b, rail, path) in enumerate(sends):
            if {a, b} & (self._absent | self._left_out):
                continue
            token = secrets.token_hex(16)
            for rank, other, connects in ((a, b, True), (b, a, False)):
                there = self._peers[other].rails[rail]
                orders.setdefault(rank, []).append(
                    FlowOrder(at, token, connects, rail, there.address, there.port, path,
                              sends=connects or both_ways, receives=not connects or both_ways)
                )  # fmt: skip
        works = {rank: FlowWork(number, seconds, tuple(some), transport) for rank, some in orders.items()}  # fmt: skip
        reported = self._hand_out(works, 2 * step_s + 3 * HELLO_S_MAX + _SLACK_S)
        ends = {(rank, flow.id): flow for rank, some in reported.items() for flow in some.flows}
        if transport is Transport.RDMA:
            self._note_failures(sends, ends)
        return [(ends.get((a, at)), ends.get((b, at))) for at, (a, b, _r, _p) in enumerate(sends)]

    def _note_failures(
        self,
        sends: Sequence[tuple[int, int, int, int]],
        ends: Mapping[tuple[int, int], FlowResult],
    ) -> None:
        """Have the report say which node's program failed, and in which words."""
        names, rails = self._network.nodes, self._network.rails
        for (rank, at), end in ends.items():
            if end.fault is not None:
                low, high, rail, _path = sends[at]
                other = high if rank == low else low
                text = end.text or end.fault.value
                self._problems.append(f"{names[rank]}, {rails[rail]} with {names[other]}: {text}")

    def _hand_out(self, works: Mapping[int, Work], limit_s: float) -> dict[int, PeerFindings]:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise LaunchError(f"the fabric test did not end within {self._options.limit_s:g} s")
        reported = self._coordinator.run(works, min(limit_s, left_s)) if works else {}
        self._absent |= set(works) - set(reported)
        self._problems += [item.failure for item in reported.values() if item.failure]
        return reported

    def _collectives(self) -> FabricReport:
        readings: list[Reading] = []
        for number, pairs in enumerate(first_rounds(self._network)):
            readings += self._pair_round([PairTest(low, high) for low, high in pairs], number)
        options, first = self._options, self._peers[0].rails[0].address
        limit_s = min(600.0, max(10.0, self._until_s - time.monotonic() - _SLACK_S))
        port = _free_port(first)
        number = self._coordinator.next_number()
        works = {
            rank: CollectiveWork(number, first, port, rank, self._count, options.sizes_bytes, options.backend, limit_s)
            for rank in range(self._count)
        }  # fmt: skip
        reported = self._hand_out(works, limit_s + _SLACK_S)
        times: dict[tuple[str, int], list[float]] = {}
        for findings in reported.values():
            for result in findings.collectives:
                times.setdefault((result.operation, result.size_bytes), []).append(result.seconds)
        classes = cost_model.path_classes(self._network, readings)
        figures = tuple(
            self._figure(operation, size, max(found), classes)
            for (operation, size), found in times.items()
            if len(found) == self._count
        )
        verdict = judge(self._network, readings)
        order = cost_model.preferred_order(self._network)
        return self._report(
            readings=tuple(readings),
            verdict=verdict,
            collectives=figures,
            preferred_order=tuple(self._network.nodes[node] for node in order),
        )

    def _figure(
        self, operation: str, size: int, seconds: float, classes: Sequence[cost_model.PathClass]
    ) -> CollectiveFigure:
        network, expected, preferred = self._network, None, None
        try:
            if operation == "all_reduce":
                rank_order, best = range(self._count), cost_model.preferred_order(network)
                expected = cost_model.ring_all_reduce_s(network, classes, rank_order, size)
                preferred = cost_model.ring_all_reduce_s(network, classes, best, size)
            else:
                expected = cost_model.all_to_all_s(network, classes, size)
        except RankmendError as error:
            self._problems.append(f"no expected time of {operation}: {error}")
        bus = cost_model.bus_bytes_per_s(operation, size, seconds, self._count)
        return CollectiveFigure(operation, size, seconds, bus, expected, preferred)

    def _paths(self) -> FabricReport:
        options, half = self._options, self._count // 2
        ports = min(options.ports, PATH_TRIES_MAX)
        pairs = [(node, (node + half) % self._count) for node in range(self._count)]
        flows = [(a, b, 0, at) for a, b in pairs for at in range(options.flows)]
        traced = self._trace(flows, ports)
        plan_found = collisions.plan_ports(traced)
        before = self._flows(flows)
        planned = [
            (a, b, rail, port - SOURCE_PORTS_FIRST[0])
            for (a, b, rail, _path), port in zip(flows, plan_found.ports, strict=True)
        ]
        after = self._flows(planned)
        for (_a, _b, _rail, path), (first, _second) in zip(planned, after, strict=True):
            if first is not None and first.source_port not in (0, SOURCE_PORTS_FIRST[0] + path):
                self._problems.append(f"source port {SOURCE_PORTS_FIRST[0] + path} was taken: a flow went by {first.source_port}")  # fmt: skip
        return self._report(paths=PathTrial(plan_found, _rates(before), _rates(after)))

    def _running_flows(self) -> FabricReport:
        ports = min(self._options.ports, PATH_TRIES_MAX)
        next_number, hand_out = self._coordinator.next_number, self._hand_out
        found = find_running_flows(self._peers, self._options.seconds, ports, next_number, hand_out)
        return self._report(running=found)

    def _trace(
        self, flows: Sequence[tuple[int, int, int, int]], ports: int
    ) -> list[collisions.TracedFlow]:
        number = self._coordinator.next_number()
        orders: dict[int, list[TraceOrder]] = {}
        for at, (a, b, rail, path) in enumerate(flows):
            there = self._peers[b].rails[rail]
            for turn in range(ports):
                port = SOURCE_PORTS_FIRST[0] + path + turn * self._options.flows
                order = TraceOrder(at * ports + turn, port, there.address, there.port, rail)
                orders.setdefault(a, []).append(order)
        works = {
            rank: TraceWork(number, self._options.protocol, tuple(some), 120.0)
            for rank, some in orders.items()
        }
        reported = self._hand_out(works, 130.0)
        hops: dict[int, dict[int, tuple[str, ...]]] = {}
        for findings in reported.values():
            for result in findings.traces:
                if result.hops:
                    hops.setdefault(result.id // ports, {})[result.source_port] = result.hops
                elif result.text:
                    self._problems.append(f"trace: {result.text}")
        names = self._network.nodes
        return [
            collisions.TracedFlow(
                f"{names[a]} -> {names[b]}" + (f" #{path}" if self._options.flows > 1 else ""),
                (names[a], names[b]),
                SOURCE_PORTS_FIRST[0] + path,
                hops.get(at, {}),
            )
            for at, (a, b, _rail, path) in enumerate(flows)
        ]


def _patterns(kind: FabricKind, network: Network) -> list[tuple[int, int]]:
    count = len(network.nodes)
    order = cost_model.preferred_order(network)
    if kind is FabricKind.RING:
        return [(order[at], order[(at + 1) % count]) for at in range(count)]
    if kind is FabricKind.BISECT:
        half = count // 2
        there = [(order[at], order[at + half]) for at in range(half)]
        return there + [(b, a) for a, b in there]
    if count > ALL_TO_ALL_NODES_MAX:
        raise ConfigError(f"all-to-all of {count} nodes: at most {ALL_TO_ALL_NODES_MAX}")
    return [(a, b) for a in range(count) for b in range(count) if a != b]


def _readings(
    number: int,
    flow: tuple[int, int, int, int],
    first: FlowResult | None,
    second: FlowResult | None,
) -> list[Reading]:
    """Return the two readings of a test; none where an end did not tell, as that says nothing of the network."""
    low, high, rail, path = flow
    if first is None or second is None:
        return []
    if first.fault is FlowFault.UNREACHABLE and second.fault is FlowFault.NO_PEER:
        return [Reading(number, low, high, rail, path, 0.0), Reading(number, high, low, rail, path, 0.0)]  # fmt: skip
    made = []
    if (rate := _rate(first, second)) is not None:
        made.append(Reading(number, low, high, rail, path, rate, first.latency_s, first.resent_ratio))  # fmt: skip
    if (rate := _rate(second, first)) is not None:
        made.append(Reading(number, high, low, rail, path, rate, first.latency_s, second.resent_ratio))  # fmt: skip
    return made


def _rdma_readings(
    number: int,
    flow: tuple[int, int, int],
    first: FlowResult | None,
    second: FlowResult | None,
) -> list[Reading]:
    """Return a reading of each direction that both programs report. A program that failed says nothing of the network's speed."""
    low, high, rail = flow
    made = []
    for sender, receiver, a, b in ((first, second, low, high), (second, first, high, low)):
        sent = sender.sent_bytes_per_s if sender is not None else None
        if sent is not None and receiver is not None and receiver.received_bytes_per_s is not None:
            made.append(Reading(number, a, b, rail, 0, sent))  # no source port is chosen
    return made


def _rate(sender: FlowResult, receiver: FlowResult) -> float | None:
    """Return what the path carried: by the sender's kernel, else by what the receiver's program got to see."""
    if receiver.received_bytes_per_s is None or sender.sent_bytes_per_s is None:
        return receiver.received_bytes_per_s
    return sender.sent_bytes_per_s


def _rates(ends: Sequence[tuple[FlowResult | None, FlowResult | None]]) -> tuple[float, ...]:
    return tuple(
        second.received_bytes_per_s or 0.0 if second is not None else 0.0 for _first, second in ends
    )


def _free_port(address: str) -> int:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:  # fmt: skip
        return int(listener.getsockname()[1])
