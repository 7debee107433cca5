"""The culprits of a hang, from the wait graph: ranks that others wait for and that wait for none.

    nothing outstanding        its host has stopped before launching         host-stuck
    overtaken by its peers     its device doesn't finish what others did     device-stuck
    has written no dump        its process is gone                           process-gone
    ranks wait in a circle     the program's order of operations             deadlock

What all members have launched, and which group that is, is returned as `equal`. Sends and receives
are followed but accuse nobody unless nothing else speaks: an idle pipeline stage always has
receives outstanding.

Where the chains of a directed graph end.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from detectors.hang.positions import BEHIND_RATIO_MAX, JobPositions
from detectors.hang.wait_graph import Wait, WaitGraph


def find_sinks(edges: Callable[[int], Sequence[int]], nodes: Sequence[int]) -> list[list[int]]:
    """Return the strongly connected components from which no edge leads to another one.

    Tarjan's algorithm with an explicit stack: chains are as long as a job has ranks.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        work = [(root, iter(edges(root)))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(edges(target))))
                    break
                if target not in component:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    members = []
                    while True:
                        member = stack.pop()
                        component[member] = len(found)
                        members.append(member)
                        if member == node:
                            break
                    found.append(members)
    return [
        members
        for number, members in enumerate(found)
        if all(component[target] == number for node in members for target in edges(node))
    ]


MISSING_RATIO_MAX: Final = 0.5  # if more dumps are missing, nobody is called gone
TRANSFER_WAITERS_MIN: Final = 2  # one alone may be the one that doesn't take what it was sent


class HangClass(Enum):
    """The class of a hang; the value is the `class` of the diagnosis."""

    HOST_STUCK = "host-stuck"
    DEVICE_STUCK = "device-stuck"
    PROCESS_GONE = "process-gone"
    NETWORK = "network"
    PROGRAM = "program"
    DEADLOCK = "deadlock"
    MIXED = "mixed"  # several culprits of several classes


@dataclass(frozen=True, slots=True)
class WaitVerdict:
    """What the ends of all chains of waiting say."""

    culprits: Mapping[int, HangClass] = field(default_factory=dict)
    circles: tuple[tuple[int, ...], ...] = ()  # ranks that wait for each other
    equal: tuple[Wait, ...] = ()  # collectives that all members have launched
    pairs: frozenset[int] = frozenset()  # in transfers that both sides launched and don't end


def judge_waits(graph: WaitGraph) -> WaitVerdict:
    """Return what the graph says, from where its chains of waiting end."""
    ends = [_judge_end(graph, nodes) for nodes in find_sinks(graph.edges, graph.nodes)]
    culprits = {rank: cause for end in ends for rank, cause in end.culprits.items()}
    if may_be_gone(graph.positions):
        culprits |= dict.fromkeys(graph.gone, HangClass.PROCESS_GONE)
    return WaitVerdict(
        culprits=culprits,
        circles=tuple(circle for end in ends for circle in end.circles),
        equal=tuple(wait for end in ends for wait in end.equal),
        pairs=frozenset(rank for end in ends for rank in end.pairs),
    )


def judge_transfers(graph: WaitGraph) -> dict[int, HangClass]:
    """Return who is to blame by sends and receives alone; empty if they don't tell."""
    positions = graph.positions
    waiters = Counter(
        peer for node, peers in graph.weak.items() if node >= 0 for peer in set(peers)
    )
    alone = [
        rank
        for rank in sorted(waiters)
        if waiters[rank] >= TRANSFER_WAITERS_MIN
        and not graph.edges(rank)
        and rank not in positions.job.unread
        and not _is_like_peers(positions, rank)
    ]
    if graph.accusations or len(alone) > len(positions.ranks) // 2:
        return {}
    if not positions.missing.isdisjoint(alone) and not may_be_gone(positions):
        return {}
    return {
        rank: HangClass.PROCESS_GONE if rank in positions.missing else HangClass.HOST_STUCK
        for rank in alone
    }


def may_be_gone(positions: JobPositions) -> bool:
    """Return whether enough ranks wrote a dump for a missing one to mean something."""
    return len(positions.missing) < MISSING_RATIO_MAX * positions.known


def _judge_end(graph: WaitGraph, nodes: Sequence[int]) -> WaitVerdict:
    """Judge nodes that wait for no other node."""
    ranks = [node for node in nodes if node >= 0]
    waits = tuple(graph.waits[node] for node in nodes if node < 0)
    if not ranks:
        return _judge_collectives(waits)
    if len(ranks) > 1:
        return _judge_circle(graph, nodes)
    if (cause := _cause(graph, ranks[0])) is not None:
        return WaitVerdict(culprits={ranks[0]: cause})
    return WaitVerdict(equal=waits)


def _judge_collectives(waits: Sequence[Wait]) -> WaitVerdict:
    """Judge collectives whose members all wait in them."""
    culprits: dict[int, HangClass] = {}
    equal = []
    for wait in waits:
        waiting = wait.level.waiting
        is_last = wait.number == len(wait.at.levels) - 1
        if not is_last and len(waiting) <= BEHIND_RATIO_MAX * len(wait.at.group.ranks):
            culprits |= dict.fromkeys(waiting, HangClass.DEVICE_STUCK)
        elif not wait.at.unseen:
            equal.append(wait)
    return WaitVerdict(culprits=culprits, equal=tuple(equal))


def _judge_circle(graph: WaitGraph, nodes: Sequence[int]) -> WaitVerdict:
    """Judge ranks that wait for each other by their strong waits alone."""
    inside = set(nodes)

    def strong_inside(node: int) -> list[int]:
        return [item for item in graph.strong.get(node, ()) if item in inside]

    named: dict[int, HangClass] = {}
    circles: list[tuple[int, ...]] = []
    for inner in find_sinks(strong_inside, nodes):
        ranks = sorted(node for node in inner if node >= 0)
        if len(ranks) > 1:
            circles.append(tuple(ranks))
        elif ranks and (cause := _cause(graph, ranks[0])) is not None:
            named[ranks[0]] = cause
    unclear = _unclear_hosts(graph, named, inside)
    if not named and not circles and not any(map(graph.is_before_transfer, nodes)):
        circles.append(tuple(sorted(node for node in nodes if node >= 0)))
    return WaitVerdict(
        culprits={rank: cause for rank, cause in named.items() if rank not in unclear},
        circles=tuple(circles),
        pairs=frozenset(
            partner for rank in unclear for partner in {rank, *(_partners(graph, rank) & inside)}
        ),
    )


def _unclear_hosts(
    graph: WaitGraph, named: Mapping[int, HangClass], inside: Collection[int]
) -> set[int]:
    """Return the hosts that may wait rather than be stuck.

    A transfer that both sides have launched may hold a host. Two hosts of which one sends to or
    receives from the other can't be told apart.
    """
    hosts = {rank for rank, cause in named.items() if cause is HangClass.HOST_STUCK}
    return {
        rank
        for rank in hosts
        if not _partners(graph, rank).isdisjoint(inside)
        or not hosts.isdisjoint(graph.weak.get(rank, ()))
    }


def _partners(graph: WaitGraph, rank: int) -> set[int]:
    """Return who sends what this rank receives, or receives what it sends, both launched."""
    positions = graph.positions
    other = {"send": "recv", "recv": "send"}
    return {
        mine.peer
        for mine in positions.older_transfers.get(rank, ())
        if mine.peer is not None and mine.peer in positions.ranks
        for theirs in positions.ranks[mine.peer].pending_p2p
        if theirs.peer == rank and theirs.kind == other.get(mine.kind)
    }


def _cause(graph: WaitGraph, rank: int) -> HangClass | None:
    """Return why a rank that waits for none is to blame; None if nothing accuses it."""
    if rank not in graph.positions.ranks or rank not in graph.accusations:
        return None
    if rank in graph.overtaken or graph.positions.blocking[rank] is not None:
        return HangClass.DEVICE_STUCK
    return HangClass.HOST_STUCK


def _is_like_peers(positions: JobPositions, rank: int) -> bool:
    """Return whether all of some group stand where this rank does, and none of them waits."""
    for group in positions.job.groups:
        if rank not in group.ranks or len(group.ranks) < 2:
            continue
        standings = [positions.standings.get((item, group.name)) for item in group.ranks]
        counts = {standing.completed if standing else None for standing in standings}
        is_still = not any(
            item not in positions.ranks
            or positions.blocking[item]
            or positions.ranks[item].pending_p2p
            for item in group.ranks
        )
        if is_still and len(counts) == 1 and counts.isdisjoint({None, 0}):
            return True
    return False
