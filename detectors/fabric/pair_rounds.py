"""Rounds of disjoint pairs: every node is in one test at most. Pure.

All pairs of N nodes fit into N - 1 rounds (N of an odd number) by the circle method of round-robin tournaments.
A search needs far fewer. Its first rounds pair each node with log2 N others; where the leaf switches are known, some
of the pairs stay below one leaf and the others cross, so that a slow uplink shows in the latter only.
"""

from collections.abc import Collection, Sequence
from math import ceil, log2

from detectors.fabric.network import Network

Pairs = tuple[tuple[int, int], ...]


def tournament(count: int) -> tuple[Pairs, ...]:
    """Return rounds in which each of ``count`` players meets each other one once."""
    seats = list(range(count)) + ([-1] if count % 2 else [])
    rounds: list[Pairs] = []
    for _round in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append(tuple(sorted(_pair(a, b) for a, b in facing if min(a, b) >= 0)))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(rounds)


def first_rounds(network: Network) -> tuple[Pairs, ...]:
    """Return about log2 N rounds in which no two nodes meet twice, if N allows that."""
    wanted = max(1, ceil(log2(len(network.nodes))))
    leaves = _leaves(network)
    if len(leaves) < 2:
        return _coded_rounds(len(network.nodes), wanted)
    inner_wanted = 1 if wanted < 6 else 2
    rounds: list[Pairs] = []
    met: set[tuple[int, int]] = set()
    for number in range(inner_wanted):
        pairs = [pair for members in leaves for pair in _inside(members, number)]
        rounds.append(_completed(pairs, len(network.nodes), met))
    meetings = tournament(len(leaves))
    spread = max(1, len(meetings) // max(1, wanted - inner_wanted))
    for number in range(wanted - inner_wanted):
        meeting = meetings[number * spread % len(meetings)]
        turn = number // len(meetings)  # few leaves: later rounds pair other members
        pairs = [pair for a, b in meeting for pair in _across(leaves[a], leaves[b], turn)]
        rounds.append(_completed(pairs, len(network.nodes), met))
    return tuple(rounds)


def _leaves(network: Network) -> list[list[int]]:
    members: dict[str, list[int]] = {}
    for node in range(len(network.nodes)):
        leaf = network.leaf(node)
        if leaf is None:
            return []  # known in part: no better than unknown
        members.setdefault(leaf, []).append(node)
    return list(members.values())


def _coded_rounds(count: int, wanted: int) -> tuple[Pairs, ...]:
    """Pair numbers that differ in one bit, as a hypercube's dimensions do."""
    met: set[tuple[int, int]] = set()
    rounds = []
    for bit in range(wanted):
        pairs = [(a, a ^ (1 << bit)) for a in range(count) if a < a ^ (1 << bit) < count]
        rounds.append(_completed(pairs, count, met))
    return tuple(rounds)


def _inside(members: Sequence[int], number: int) -> Pairs:
    bit = 1 << number
    places = range(len(members))
    return tuple(
        (members[place], members[place ^ bit])
        for place in places
        if place < place ^ bit < len(members)
    )


def _across(item: Sequence[int], other: Sequence[int], turn: int) -> Pairs:
    size = min(len(item), len(other))
    return tuple(_pair(item[at], other[(at + turn) % size]) for at in range(size))


def _completed(pairs: Sequence[tuple[int, int]], count: int, met: set[tuple[int, int]]) -> Pairs:
    """Return the pairs, with those whom nobody was left for paired among themselves; note all in ``met``."""
    busy = {node for pair in pairs for node in pair}
    free = [node for node in range(count) if node not in busy]
    made = [*pairs, *match_free(free, free, {*met, *pairs})]
    met.update(made)
    return tuple(sorted(made))


def match_free(
    wanted: Sequence[int], partners: Sequence[int], met: Collection[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return disjoint pairs of each wanted node with the first partner that is free and unmet."""
    taken: set[int] = set()
    made: list[tuple[int, int]] = []
    for node in wanted:
        if node in taken:
            continue
        for partner in partners:
            if partner != node and partner not in taken and _pair(node, partner) not in met:
                made.append(_pair(node, partner))
                taken |= {node, partner}
                break
    return made


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
