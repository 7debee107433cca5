"""Flows of running programs as the judge of collisions takes them: which count, and between which nodes a queue pair sends. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from detectors.formats.rdma_qps import ROCE_PORT, source_port

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
    fastest = max((one.bytes_per_s or 0.0 for one in flows), default=0.0)
    return tuple(
        one
        for one in flows
        if one.bytes_per_s is None or one.is_held_up or one.bytes_per_s >= COUNTS_FROM * fastest
    )


def join_pairs(
    pairs: Sequence[NodePair], addresses: Mapping[tuple[int, int], str]
) -> tuple[tuple[NodeFlow, ...], int]:
    """Return the flows of queue pairs whose two ends name each other, and how many pairs have no other end or several.

    Numbers of queue pairs are unique to a device only, so two nodes may use the same ones. ``addresses``: of node and rail.
    """
    ends: dict[tuple[int, int], list[NodePair]] = defaultdict(list)
    for one in pairs:
        ends[one.own, one.other].append(one)
    flows, unpaired = [], 0
    for one in pairs:
        others = [end for end in ends[one.other, one.own] if end.node != one.node]
        if len(others) != 1 or len(ends[one.own, one.other]) != 1:
            unpaired += 1
            continue
        there = others[0]
        flows.append(
            NodeFlow(
                one.node, one.rail, source_port(one.own, one.other),
                addresses[there.node, there.rail], ROCE_PORT, "udp", one.program, None, there.node,
            )
        )  # fmt: skip
    return tuple(flows), unpaired
