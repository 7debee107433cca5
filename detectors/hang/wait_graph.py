"""The wait graph of a hung job: which rank waits for which, and what accuses each rank.

Nodes are ranks (0 and up) and waits of groups (below 0). A strong edge is a fact. A weak edge is a
send or receive, or a member that has launched the collective but has something older outstanding in
another group.

An *overtaken* rank waits for nobody, whatever it has outstanding: a peer that has completed a
collective to which every rank contributes proves that this rank took part. Only a rank that is
even further behind can hold it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from detectors.hang.flight_dump import Operation, OperationState
from detectors.hang.positions import GroupLevels, JobPositions, WaitLevel, find_overtaken
from detectors.parallel_groups import Group


@dataclass(frozen=True, slots=True)
class NotLaunched:
    """Members wait in a collective that this rank has not launched."""

    group: Group
    sequence: int
    waiting: int  # members in this collective or a later one


@dataclass(frozen=True, slots=True)
class NotFinished:
    """Members have finished collectives after the one that this rank is in."""

    group: Group
    sequence: int
    kind: str
    finished: int  # number of the last collective that another member finished


@dataclass(frozen=True, slots=True)
class NotBegun:
    """This rank has launched a collective that its device has not begun, unlike other devices."""

    group: Group
    sequence: int
    begun: tuple[int, ...]  # ranks whose devices have


@dataclass(frozen=True, slots=True)
class NoDump:
    """Members wait for this rank alone, and it has written no dump."""

    group: Group
    sequence: int
    waiting: tuple[int, ...]


Accusation = NotLaunched | NotFinished | NotBegun | NoDump


@dataclass(frozen=True, slots=True)
class Wait:
    """A node for the members of one level, or for all members up to it (``is_below``)."""

    at: GroupLevels
    number: int
    is_below: bool

    @property
    def level(self) -> WaitLevel:
        return self.at.levels[self.number]

    @property
    def key(self) -> tuple[str, int]:
        return self.at.group.name, self.level.sequence


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The graph, with what else was learned from the positions while drawing it."""

    positions: JobPositions
    waits: Mapping[int, Wait]
    strong: Mapping[int, Sequence[int]]
    weak: Mapping[int, Sequence[int]]
    overtaken: frozenset[int]
    accusations: Mapping[int, Sequence[Accusation]]  # by rank, from strong edges
    gone: frozenset[int]  # ranks without a dump that explain some wait alone

    @property
    def nodes(self) -> list[int]:
        return [*self.positions.ranks, *self.waits]

    def edges(self, node: int) -> list[int]:
        """Return all that a node waits for."""
        return [*self.strong.get(node, ()), *self.weak.get(node, ())]

    def is_before_transfer(self, rank: int) -> bool:
        """Return whether an older send or receive may be what a rank waits for."""
        return rank in self.positions.older_transfers and rank not in self.overtaken


def draw_waits(positions: JobPositions) -> WaitGraph:
    """Return the wait graph of a job."""
    overtaken = find_overtaken(positions)
    waits = dict(enumerate_waits(positions))
    wait_of = {wait.key: node for node, wait in waits.items() if not wait.is_below}
    up_to = {wait.key: node for node, wait in waits.items() if wait.is_below}
    strong: dict[int, list[int]] = {}
    weak: dict[int, list[int]] = {}
    accusations: dict[int, list[Accusation]] = defaultdict(list)
    behind = set(overtaken)
    for node, wait in waits.items():
        strong[node] = _strong_targets(wait, up_to)
        if wait.is_below:
            continue
        weak[node] = [
            rank
            for rank in wait.level.waiting
            if positions.is_held_elsewhere(rank, wait.at.group.name)
        ]
        begun, late = _not_begun(positions, wait, weak[node])
        strong[node] += late
        behind |= set(late)
        for rank in late:
            accusations[rank].append(NotBegun(wait.at.group, wait.level.sequence, begun))
    for group in positions.groups:
        for rank, accusation in _accusations(positions, group):
            accusations[rank].append(accusation)
    for rank in positions.ranks:
        if rank in behind:
            strong[rank] = _further_behind(overtaken.get(rank, ()), up_to)
        else:
            strong[rank] = _own_wait(positions, rank, wait_of)
            weak[rank] = _peers(rank, positions.older_transfers.get(rank, ()))
    gone = _gone(positions, waits, strong, weak, behind)
    for rank, absent in gone.items():
        accusations[rank] += absent
    return WaitGraph(
        positions=positions,
        waits=waits,
        strong=strong,
        weak=weak,
        overtaken=frozenset(behind),
        accusations=dict(accusations),
        gone=frozenset(gone),
    )


def enumerate_waits(positions: JobPositions) -> Iterator[tuple[int, Wait]]:
    """Yield a node for each level that somebody waits in, and one for all up to each but the last."""
    node = -1
    for group in positions.groups:
        for number, level in enumerate(group.levels):
            if level.waiting:
                yield node, Wait(group, number, is_below=False)
                node -= 1
            if number < len(group.levels) - 1:
                yield node, Wait(group, number, is_below=True)
                node -= 1


def _strong_targets(wait: Wait, up_to: Mapping[tuple[str, int], int]) -> list[int]:
    level = wait.level
    targets = [*level.waiting, *level.idle] if wait.is_below else [*level.idle, *wait.at.unseen]
    if wait.number > 0:
        targets.append(up_to[wait.at.group.name, wait.at.levels[wait.number - 1].sequence])
    return targets


def _not_begun(
    positions: JobPositions, wait: Wait, held_elsewhere: Sequence[int]
) -> tuple[tuple[int, ...], list[int]]:
    """Return the ranks whose devices have begun a collective, and those that only launched it."""
    firsts = {rank: positions.first(rank, wait.at.group.name) for rank in wait.level.waiting}
    begun = tuple(
        rank for rank, first in firsts.items() if first and first.state is OperationState.STARTED
    )
    if not begun:
        return (), []
    return begun, sorted(set(firsts) - set(begun) - set(held_elsewhere))


def _accusations(positions: JobPositions, levels: GroupLevels) -> Iterator[tuple[int, Accusation]]:
    """Yield what strong waits in one group say against its members."""
    furthest = levels.levels[-1]
    here_and_above = sum(len(level.waiting) for level in levels.levels)
    for level in levels.levels:
        if not here_and_above:
            return
        absent = NotLaunched(levels.group, level.sequence, here_and_above)
        yield from ((rank, absent) for rank in level.idle)
        here_and_above -= len(level.waiting)
        if level is furthest or not (here_and_above or furthest.idle):
            continue
        for rank in level.waiting:
            first = positions.first(rank, levels.group.name)
            kind = first.kind if first else "a collective"
            yield rank, NotFinished(levels.group, level.sequence, kind, furthest.sequence - 1)


def _further_behind(
    overtaken: Sequence[tuple[GroupLevels, int]], up_to: Mapping[tuple[str, int], int]
) -> list[int]:
    """Return the nodes of all that are even further behind than an overtaken rank."""
    return [
        up_to[item.group.name, item.levels[number - 1].sequence]
        for item, number in overtaken
        if number > 0
    ]


def _own_wait(
    positions: JobPositions, rank: int, wait_of: Mapping[tuple[str, int], int]
) -> list[int]:
    blocking = positions.blocking[rank]
    if blocking is None:
        return []
    wait = wait_of.get((blocking.group, blocking.completed + 1))
    return [] if wait is None else [wait]


def _peers(rank: int, transfers: Sequence[Operation]) -> list[int]:
    return [
        transfer.peer
        for transfer in transfers
        if transfer.peer is not None and transfer.peer != rank
    ]


def _gone(
    positions: JobPositions,
    waits: Mapping[int, Wait],
    strong: Mapping[int, Sequence[int]],
    weak: Mapping[int, Sequence[int]],
    behind: set[int],
) -> dict[int, list[NoDump]]:
    """Return the ranks without a dump that alone explain some wait, with those waits."""
    gone: dict[int, list[NoDump]] = defaultdict(list)
    for node, wait in waits.items():
        targets = {*strong[node], *weak.get(node, ())}
        if not targets or not targets <= set(wait.at.unseen) or targets & positions.job.unread:
            continue
        waiting = sorted(
            rank
            for rank in wait.level.waiting
            if strong[rank] == [node] and (rank in behind or rank not in positions.older_transfers)
        )
        if waiting:
            absent = NoDump(wait.at.group, wait.level.sequence, tuple(waiting))
            for rank in targets & positions.missing:
                gone[rank].append(absent)
    return dict(gone)
