"""What to test next to find a slow part in at most 2 log2 N rounds, or all pairs in N - 1. Pure.

The first half of the rounds pairs every node with log2 N others. The rest, only if something was slow, tests

1. suspects with each other: two that are fast together are slow by something that they share,
2. suspects with nodes that were sound,
3. single slow pairs again, in turn with the same source port and with another.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from detectors.fabric.network import Network, PairTest, Reading, Round
from detectors.fabric.pair_rounds import first_rounds, match_free, tournament
from detectors.fabric.slow_part import RETESTS, FabricLook, look_at, split_by_path

CONFIRMATIONS: Final = 3  # further tests of a suspect with sound nodes
TOGETHER_ROUNDS: Final = 2  # of suspects with each other
LEAF_ROUNDS: Final = 1  # the same where leaf switches are known: one repeat decides between a slow uplink and slow nodes


def rounds_max(network: Network, *, all_pairs: bool = False) -> int:
    """Return the bound on the rounds of a search: 2 log2 N, or all pairs and their repeats."""
    if not all_pairs:
        return network.rounds_max
    count = len(network.nodes)
    return count - 1 + count % 2 + RETESTS


def plan(
    network: Network, readings: Sequence[Reading], done: int, *, all_pairs: bool = False
) -> Round | None:
    """Return the round with number ``done``."""
    base = tournament(len(network.nodes)) if all_pairs else first_rounds(network)
    if done < len(base):
        return tuple(PairTest(low, high) for low, high in base[done])
    if done >= rounds_max(network, all_pairs=all_pairs):
        return None
    look = look_at(network, readings)
    tests = [] if all_pairs else _suspect_tests(look, done - len(base))
    busy = {node for test in tests for node in (test.low, test.high)}
    tests += _cell_tests(look, busy)
    return tuple(sorted(tests)) or None


def _suspect_tests(look: FabricLook, extra: int) -> list[PairTest]:
    if not look.suspects or extra >= CONFIRMATIONS + TOGETHER_ROUNDS:
        return []
    network = look.tests.network
    met = {_ordered(reading.sender, reading.receiver) for reading in look.tests.readings}
    suspects = sorted(look.suspects)
    sound = _sound_first(look)
    if network.leaf_of and extra < LEAF_ROUNDS:
        pairs = _pairs_below_leaves(network, suspects)
    elif not network.leaf_of and extra < TOGETHER_ROUNDS and len(suspects) > 1:
        pairs = match_free(suspects, suspects, met)
    else:
        pairs = match_free(suspects, sound, met)
    busy = {node for pair in pairs for node in pair}
    left = [node for node in suspects if node not in busy]
    pairs += match_free(left, [node for node in sound if node not in busy], met)
    return [PairTest(low, high) for low, high in pairs]


def _pairs_below_leaves(network: Network, suspects: Sequence[int]) -> list[tuple[int, int]]:
    members: dict[str | None, list[int]] = {}
    for node in suspects:
        members.setdefault(network.leaf(node), []).append(node)
    return [pair for leaf, some in members.items() if leaf for pair in match_free(some, some, ())]


def _sound_first(look: FabricLook) -> list[int]:
    """Return the nodes that are not suspected, those first whose tests were slow least often."""
    tests, count = look.tests, len(look.tests.network.nodes)
    slow = np.bincount(tests.sender[tests.is_slow], minlength=count)
    slow += np.bincount(tests.receiver[tests.is_slow], minlength=count)
    return [node for node in np.argsort(slow, kind="stable").tolist() if node not in look.suspects]


def _cell_tests(look: FabricLook, busy: set[int]) -> list[PairTest]:
    """Return repeats of slow pairs, those first that were repeated most: they are nearly decided."""
    readings = look.tests.readings
    open_pairs: list[tuple[int, tuple[int, int], int]] = []
    for (sender, receiver, _rail), rows in look.cells.items():
        if sender in look.suspects or receiver in look.suspects:
            continue
        same, others = split_by_path(readings, rows)
        repeats = len(rows) - 1
        if not all(look.is_slow(same)) or repeats >= RETESTS:
            continue
        first = readings[same[0]].path
        path = first if repeats % 2 == 0 else first + 1 + len(others)
        open_pairs.append((-repeats, _ordered(sender, receiver), path))
    made: list[PairTest] = []
    for _repeats, (low, high), path in sorted(open_pairs):
        if low not in busy and high not in busy:
            made.append(PairTest(low, high, path))
            busy |= {low, high}
    return made


def _ordered(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
