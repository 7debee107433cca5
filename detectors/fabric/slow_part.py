"""Which part of a network is slow, from readings of disjoint pairs: the judge of `rankmend fabric`. Pure.

The matrix is judged by the detectors of live data: `locate_delay` finds hot rows (senders), columns (receivers) and cells (links), and
`locate` the largest part that explains the slow ends: switch, node, rail or NIC. Ends that are slow to the rest but fast among themselves
share something above them: the uplink of their leaf switch, or, where the topology is unknown, a group that is only named.

A single slow cell proves nothing until it was tested again: with the same source port, and with others, which the
network's hash may send over other paths (ECMP).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.fabric.delay_matrix import Tests, delay_matrix, tabulate
from detectors.fabric.fabric_verdict import (
    Cell,
    Direction,
    FabricOutcome,
    FabricVerdict,
    PartKind,
    SlowPart,
)
from detectors.fabric.network import Network, Reading
from detectors.parts.fleet_parts import FleetPart, FleetParts, HungPart, SharedKind
from detectors.parts.shared_blame import SHARE_MIN
from detectors.slow.placement import RATIO, locate, locate_delay
from detectors.slow.work_table import Matrix, TracedWorker
from rankmend.errors import SourceError

SUSPECT_SHARE: Final = 1 / 3  # of an end's tests slow: worth another look
SUSPECT_MIN: Final = 2  # slow tests of an end
PARTNERS_MIN: Final = 3  # an end is accused by tests with so many others
RETESTS: Final = 8  # of one cell, at most: half with the same source port, half with others
# Tests that must all be slow. With 2 % of chance slow tests, 200 cells of 1,024 nodes are slow once, and 3 in 100,000 such searches five times.
LINK_TESTS_MIN: Final = 5
PATH_TESTS_MIN: Final = 5  # with one source port; some with others must be fast
UNEXPLAINED_MAX: Final = 0.1  # share of slow tests that no part explains, in a network called sound
SPREAD_QUANTILE: Final = (
    0.8  # of the delays of sound tests: above the usual 2 % and 10 % of chance slow ones
)
SPREAD_TESTS_MIN: Final = 4
NODES_MIN: Final = 3  # of two, either may be the slow one

End = tuple[int, int]  # node, rail


@dataclass(frozen=True, slots=True, eq=False)
class FabricLook:
    """What the readings show so far; the search plans by it."""

    tests: Tests
    hot: Mapping[End, Direction]
    suspects: frozenset[int]  # nodes of which an end may be slow
    cells: Mapping[
        Cell, tuple[int, ...]
    ]  # slow at first sight, unexplained by a hot end; rows of ``tests``

    def is_slow(self, rows: Iterable[int]) -> list[bool]:
        return [bool(self.tests.delay[row] >= RATIO) for row in rows]


def judge(network: Network, readings: Sequence[Reading]) -> FabricVerdict:
    """Return the verdict on all readings so far. Raises nothing for odd ones: it abstains."""
    look = look_at(network, readings)
    tests = look.tests
    everywhere = [(node, rail) for node in range(len(network.nodes)) for rail in tests.slow_rails]
    rails = [
        _part(
            look, PartKind.RAIL, network.rails[rail], [end for end in everywhere if end[1] == rail]
        )
        for rail in tests.slow_rails
    ]
    shared = _shared_parts(look)
    links, unconfirmed = _links(look)
    unexplained = _unexplained_ratio(look, [*shared, *links])
    if unexplained > UNEXPLAINED_MAX:
        shared = []  # where much is slow without a pattern, some nodes are slow often by chance
    spread = _usual_spread(look, shared)
    clear = [part for part in shared if _severity(look, part) >= RATIO * spread]
    is_noisy, shared = len(clear) < len(shared), clear
    parts = (*rails, *shared, *links)
    if is_noisy or unexplained > UNEXPLAINED_MAX or len(network.nodes) < NODES_MIN or not readings:
        outcome = FabricOutcome.UNCLEAR
    elif parts:
        outcome = FabricOutcome.FOUND
    else:
        outcome = FabricOutcome.UNCLEAR if unconfirmed else FabricOutcome.SOUND
    slow_ratio = float((tests.plain_delay >= RATIO).mean()) if readings else 0.0
    return FabricVerdict(
        outcome, parts, len({reading.round for reading in readings}), tests.usual_bytes_per_s, slow_ratio,
        unexplained, tuple(unconfirmed),
    )  # fmt: skip


def look_at(network: Network, readings: Sequence[Reading]) -> FabricLook:
    tests = tabulate(network, readings)
    hot: dict[End, Direction] = {}
    suspects: set[int] = set()
    if len(network.nodes) >= NODES_MIN:
        for rail in sorted(set(tests.rail.tolist())):
            matrix = delay_matrix(tests, rail)
            seen = _suspects(matrix)
            suspects |= seen
            hot |= {(node, rail): way for node, way in _hot_ends(matrix, seen).items()}
    return FabricLook(tests, hot, frozenset(suspects), _slow_cells(tests, hot))


def _slow_cells(tests: Tests, hot: Mapping[End, Direction]) -> dict[Cell, tuple[int, ...]]:
    """Return the cells with a slow test that no hot end explains, if the first test was slow."""
    slow = {
        (int(tests.sender[row]), int(tests.receiver[row]), int(tests.rail[row]))
        for row in np.flatnonzero(tests.is_slow).tolist()
    }
    wanted = {
        (sender, receiver, rail)
        for sender, receiver, rail in slow
        if hot.get((sender, rail)) not in (Direction.BOTH, Direction.SENDS)
        and hot.get((receiver, rail)) not in (Direction.BOTH, Direction.RECEIVES)
    }
    rows: dict[Cell, list[int]] = defaultdict(list)
    for row, reading in enumerate(tests.readings if wanted else ()):
        if (cell := (reading.sender, reading.receiver, reading.rail)) in wanted:
            rows[cell].append(row)
    return {
        cell: tuple(found)
        for cell, found in rows.items()
        if tests.delay[min(found, key=lambda row: tests.readings[row].round)] >= RATIO
    }


def _suspects(matrix: Matrix) -> set[int]:
    """Return the nodes many of whose tests in one direction are slow: the worst first, whose tests then count for nobody else."""
    known = np.isfinite(matrix)
    with np.errstate(invalid="ignore"):
        slow = known & (matrix >= RATIO)
    found: set[int] = set()
    tested = np.stack([known.sum(axis=1), known.sum(axis=0)])
    hits = np.stack([slow.sum(axis=1), slow.sum(axis=0)])
    while len(found) < len(matrix):
        share = hits / np.maximum(tested, 1)
        score = np.where((hits >= SUSPECT_MIN) & (share >= SUSPECT_SHARE), hits + share, 0.0)
        score[:, list(found)] = 0.0
        way, node = np.unravel_index(int(np.argmax(score)), score.shape)
        if not score[way, node]:
            break
        found.add(int(node))
        tested -= np.stack([known[:, node], known[node]]).astype(tested.dtype)
        hits -= np.stack([slow[:, node], slow[node]]).astype(hits.dtype)
    return found


def _hot_ends(matrix: Matrix, suspects: set[int]) -> dict[int, Direction]:
    """Return the ends that are slow to the rest: tests between two suspects say which of them share something."""
    partners_min = min(PARTNERS_MIN, len(matrix) - 1)
    rows = np.array(sorted(suspects), dtype=np.intp)
    outer = matrix.copy()
    if 0 < len(rows) < len(matrix) - 1:
        outer[np.ix_(rows, rows)] = np.nan
    try:
        parts = locate_delay([str(node) for node in range(len(matrix))], outer, 1.0)
    except SourceError:
        return {}
    known = np.isfinite(outer)
    tested = {"sender": known.sum(axis=1), "receiver": known.sum(axis=0)}
    ends: dict[int, set[str]] = defaultdict(set)
    for part in parts:
        if part.kind in tested and tested[part.kind][int(part.name)] >= partners_min:
            ends[int(part.name)].add(part.kind)
    return {
        node: Direction.BOTH
        if len(kinds) == 2
        else (Direction.SENDS if kinds == {"sender"} else Direction.RECEIVES)
        for node, kinds in ends.items()
    }


def _severity(look: FabricLook, part: SlowPart) -> float:
    return max(part.delay_ratio, RATIO * (part.resent_ratio or 0.0) / look.tests.loss_limit)


def _usual_spread(look: FabricLook, parts: Sequence[SlowPart]) -> float:
    """Return a delay that a test without accused nodes rarely exceeds; 1 with too few of them.

    Busy processors make rates vary: then a part must stand out from that, too.
    """
    sound = look.tests.delay[~_touched(look, parts)]
    return float(np.quantile(sound, SPREAD_QUANTILE)) if len(sound) >= SPREAD_TESTS_MIN else 1.0


def _touched(look: FabricLook, parts: Sequence[SlowPart]) -> NDArray[np.bool_]:
    tests, accused = look.tests, {name for part in parts for name in part.nodes}
    is_accused = np.array([name in accused for name in tests.network.nodes])
    touched: NDArray[np.bool_] = is_accused[tests.sender] | is_accused[tests.receiver]
    return touched


def _unexplained_ratio(look: FabricLook, parts: Sequence[SlowPart]) -> float:
    """Return the share of readings that are slow and touch no accused node."""
    tests = look.tests
    if not tests.readings:
        return 0.0
    return float((tests.is_slow & ~_touched(look, parts)).mean())


def _shared_parts(look: FabricLook) -> list[SlowPart]:
    """Return the fewest, largest parts that explain the hot ends."""
    network, clusters = look.tests.network, _clusters(look)
    together = {end for cluster in clusters for end in cluster if len(cluster) > 1}
    parts: list[SlowPart] = []
    for name, ends in _leaves_of(network, together):
        parts.append(_part(look, PartKind.UPLINK, name, ends))
        together -= set(ends)
    for cluster in clusters:
        if left := sorted(set(cluster) & together):
            nodes = ",".join(network.nodes[node] for node in sorted({node for node, _rail in left}))
            parts.append(_part(look, PartKind.GROUP, nodes, left))
    alone = {cluster[0] for cluster in clusters if len(cluster) == 1}
    for name, ends in _leaves_of(network, alone):
        parts.append(_part(look, PartKind.SWITCH, name, ends))
        alone -= set(ends)
    by_node: dict[int, list[End]] = defaultdict(list)
    for end in sorted(alone):
        by_node[end[0]].append(end)
    for node, ends in by_node.items():
        if len(ends) >= SHARE_MIN * len(network.rails):
            parts.append(_part(look, PartKind.NODE, network.nodes[node], ends))
        else:
            names = [f"{network.nodes[node]} {network.rails[rail]}" for _node, rail in ends]
            parts += [_part(look, PartKind.NIC, name, [end]) for name, end in zip(names, ends, strict=True)]  # fmt: skip
    return parts


def _leaves_of(network: Network, ends: set[End]) -> list[tuple[str, list[End]]]:
    """Return the leaf switches that explain hot ends, by the rule of live data."""
    if len(ends) < 2 or not network.leaf_of:
        return []
    everyone = [
        (node, rail) for node in range(len(network.nodes)) for rail in range(len(network.rails))
    ]
    workers = [
        TracedWorker(rank=row, host=network.nodes[node], nic=network.rails[rail])
        for row, (node, rail) in enumerate(everyone)
    ]
    rows = [row for row, end in enumerate(everyone) if end in ends]
    parts = FleetParts(
        {
            node: (HungPart(FleetPart(SharedKind.LEAF, name)),)
            for node, name in network.leaf_of.items()
        }
    )
    names = {part.name for part in locate(workers, rows, parts) if part.kind == "switch"}
    return [
        (name, sorted(end for end in ends if network.leaf(end[0]) == name))
        for name in sorted(names)
    ]


def _clusters(look: FabricLook) -> list[list[End]]:
    """Return the hot ends, those together that were fast to each other both ways."""
    tests, fast = look.tests, dict[Cell, bool]()
    for reading, delay in zip(
        tests.readings if look.hot else (), tests.delay.tolist(), strict=False
    ):
        if (reading.sender, reading.rail) in look.hot and (
            reading.receiver,
            reading.rail,
        ) in look.hot:
            cell = (reading.sender, reading.receiver, reading.rail)
            fast[cell] = fast.get(cell, False) or delay < RATIO
    root = {end: end for end in look.hot}

    def find(end: End) -> End:
        while root[end] != end:
            end = root[end]
        return end

    for (sender, receiver, rail), is_fast in fast.items():
        if is_fast and fast.get((receiver, sender, rail)):
            root[find((sender, rail))] = find((receiver, rail))
    found: dict[End, list[End]] = defaultdict(list)
    for end in sorted(look.hot):
        found[find(end)].append(end)
    return list(found.values())


def _links(look: FabricLook) -> tuple[list[SlowPart], list[Cell]]:
    """Return the links and paths that were slow each time, and the cells that nobody tested often enough."""
    readings = look.tests.readings
    found: dict[tuple[PartKind, int, int, int], list[int]] = defaultdict(list)
    directions: dict[tuple[PartKind, int, int, int], set[bool]] = defaultdict(set)
    unconfirmed: list[Cell] = []
    for cell, rows in look.cells.items():
        same, others = split_by_path(readings, rows)
        if not all(look.is_slow(same)):
            continue  # slow once: chance
        # Ports that share the slow path are slow, too; a link is slow whatever the port.
        is_link = all(look.is_slow(others))
        kind = PartKind.LINK if is_link else PartKind.PATH
        is_enough = len(rows) >= LINK_TESTS_MIN if is_link else len(same) >= PATH_TESTS_MIN
        if not is_enough or len(others) < 2:
            if len(same) > 1:
                unconfirmed.append(cell)
            continue
        sender, receiver, rail = cell
        key = (kind, min(sender, receiver), max(sender, receiver), rail)
        slow = zip(rows, look.is_slow(rows), strict=True)
        found[key] += [row for row, is_slow in slow if is_slow]
        directions[key].add(sender < receiver)
    parts = [_link(look, *key, found[key], directions[key]) for key in found]
    return parts, unconfirmed


def _link(
    look: FabricLook,
    kind: PartKind,
    low: int,
    high: int,
    rail: int,
    rows: list[int],
    ways: set[bool],
) -> SlowPart:
    network = look.tests.network
    first, second = (low, high) if True in ways else (high, low)
    names = (network.nodes[first], network.nodes[second])
    paths = {look.tests.readings[row].path for row in rows} if kind is PartKind.PATH else ()
    return SlowPart(
        kind,
        f"{names[0]} {'<->' if len(ways) == 2 else '->'} {names[1]}",
        Direction.BOTH if len(ways) == 2 else Direction.SENDS,
        float(np.median(look.tests.rate_delay[rows])),
        names,
        network.rails[rail] if len(network.rails) > 1 else None,
        len(rows),
        _resent(look, rows),
        tuple(sorted(paths)),
    )


def split_by_path(readings: Sequence[Reading], rows: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return the tests with the source port of the first, and those with others."""
    rows = list(rows)
    first = readings[min(rows, key=lambda row: readings[row].round)].path
    same = [row for row in rows if readings[row].path == first]
    return same, [row for row in rows if readings[row].path != first]


def _part(look: FabricLook, kind: PartKind, name: str, ends: Sequence[End]) -> SlowPart:
    tests, network = look.tests, look.tests.network
    is_in = np.zeros((len(network.nodes), len(network.rails)), dtype=np.bool_)
    for end in ends:
        is_in[end] = True
    sends, receives = is_in[tests.sender, tests.rail], is_in[tests.receiver, tests.rail]
    inner = kind in (PartKind.SWITCH, PartKind.RAIL)
    delay = tests.plain_delay if kind is PartKind.RAIL else tests.delay
    shown = tests.plain_delay if kind is PartKind.RAIL else tests.rate_delay
    touched = sends | receives if inner else sends != receives
    slow = np.flatnonzero(touched & (delay >= RATIO))
    directions = {look.hot.get(end, Direction.BOTH) for end in ends}
    rails = {rail for _node, rail in ends}
    return SlowPart(
        kind,
        name,
        directions.pop() if len(directions) == 1 else Direction.BOTH,
        float(np.median(shown[slow])) if len(slow) else 1.0,
        tuple(network.nodes[node] for node in sorted({node for node, _rail in ends})),
        network.rails[rails.pop()] if len(rails) == 1 and len(network.rails) > 1 else None,
        int(touched.sum()),
        _resent(look, slow.tolist()),
    )


def _resent(look: FabricLook, rows: Sequence[int]) -> float | None:
    known = [ratio for row in rows if (ratio := look.tests.readings[row].resent_ratio) is not None]
    return median(known) if known else None
