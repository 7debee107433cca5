"""How far each member of each group has come, for the groups in which somebody waits.

A level is one collective of a group: its members have either launched it and wait for it to end, or
have finished everything before it and not launched it yet.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from detectors.hang.flight_dump import Operation
from detectors.hang.standings import ONE_SIDED, GroupStanding, JobStandings, RankStandings
from detectors.parallel_groups import Group

BEHIND_RATIO_MAX: Final = 0.5  # share of a group, or of the job: if more lag, they share one cause


@dataclass(frozen=True, slots=True)
class WaitLevel:
    """The members whose first outstanding, or next, collective has this number."""

    sequence: int
    waiting: tuple[int, ...]  # have launched it
    idle: tuple[int, ...]  # have not


@dataclass(frozen=True, slots=True)
class GroupLevels:
    """A group with waiting ranks."""

    group: Group
    levels: tuple[WaitLevel, ...]  # ascending
    unseen: tuple[int, ...]  # members without a usable dump


@dataclass(frozen=True, slots=True)
class JobPositions:
    """The position of each rank, indexed for the wait graph."""

    job: JobStandings
    ranks: Mapping[int, RankStandings]
    standings: Mapping[tuple[int, str], GroupStanding]  # by rank and group
    blocking: Mapping[int, GroupStanding | None]  # where a rank's oldest collective is outstanding
    older_transfers: Mapping[int, tuple[Operation, ...]]  # launched before that collective
    missing: frozenset[int]  # members of groups that wrote no dump
    groups: tuple[GroupLevels, ...]

    @property
    def known(self) -> int:
        """Return how many ranks the job is known to have."""
        return len(self.ranks) + len(self.missing) + len(self.job.unread)

    def first(self, rank: int, group: str) -> Operation | None:
        """Return a rank's first outstanding collective in a group, where its dump still has it."""
        return self.standings[rank, group].first

    def is_held_elsewhere(self, rank: int, group: str) -> bool:
        """Return whether a rank has something older outstanding than its collective in a group."""
        blocking = self.blocking[rank]
        return (blocking is not None and blocking.group != group) or rank in self.older_transfers


def positions_of(job: JobStandings) -> JobPositions:
    """Return where everybody stands."""
    ranks = {view.rank: view for view in job.views}
    standings = {
        (view.rank, standing.group): standing for view in job.views for standing in view.standings
    }
    blocking = {view.rank: _blocking(view) for view in job.views}
    transfers = {view.rank: _older_transfers(view, blocking[view.rank]) for view in job.views}
    members = {rank for group in job.groups for rank in group.ranks}
    levels = (_levels(group, ranks, standings, blocking) for group in job.groups)
    return JobPositions(
        job=job,
        ranks=ranks,
        standings=standings,
        blocking=blocking,
        older_transfers={rank: found for rank, found in transfers.items() if found},
        missing=frozenset(members - set(ranks) - job.unread),
        groups=tuple(level for level in levels if level is not None),
    )


def find_overtaken(positions: JobPositions) -> dict[int, list[tuple[GroupLevels, int]]]:
    """Return the ranks whose peers finished what they have not, with group and level.

    If most of a group is behind, the others are ahead and nobody was overtaken.
    """
    overtaken: dict[int, list[tuple[GroupLevels, int]]] = defaultdict(list)
    for group in positions.groups:
        behind = 0
        for number, level in enumerate(group.levels[:-1]):
            behind += len(level.waiting) + len(level.idle)
            if behind > BEHIND_RATIO_MAX * len(group.group.ranks):
                break
            for rank in level.waiting:
                first = positions.first(rank, group.group.name)
                if first is None or first.kind not in ONE_SIDED:
                    overtaken[rank].append((group, number))
    return dict(overtaken)


def _blocking(view: RankStandings) -> GroupStanding | None:
    """Return the group in which a rank launched its oldest outstanding collective."""
    waiting = [standing for standing in view.standings if standing.is_waiting]
    return min(waiting, key=_record, default=None)


def _record(standing: GroupStanding) -> int:
    return standing.first.record if standing.first else -1


def _older_transfers(view: RankStandings, blocking: GroupStanding | None) -> tuple[Operation, ...]:
    """Return the outstanding sends and receives launched before the blocking collective."""
    if blocking is None:
        return view.pending_p2p
    return tuple(
        operation for operation in view.pending_p2p if operation.record < _record(blocking)
    )


def _levels(
    group: Group,
    ranks: Mapping[int, RankStandings],
    standings: Mapping[tuple[int, str], GroupStanding],
    blocking: Mapping[int, GroupStanding | None],
) -> GroupLevels | None:
    """Return the levels of a group, or None if no rank waits in it."""
    waiting: dict[int, list[int]] = defaultdict(list)
    idle: dict[int, list[int]] = defaultdict(list)
    unseen: list[int] = []
    uncounted: list[int] = []
    has_completed = False
    for rank in group.ranks:
        standing = standings.get((rank, group.name))
        if standing is None:
            (uncounted if rank in ranks else unseen).append(rank)
            continue
        has_completed = has_completed or standing.completed > 0
        (waiting if standing.is_waiting else idle)[standing.completed + 1].append(rank)
    if not waiting or len(group.ranks) < 2:
        return None
    for rank in uncounted:  # its dump doesn't tell how far it came
        if not has_completed:
            idle[1].append(rank)
        elif blocking[rank] is None and not ranks[rank].pending_p2p:
            # Anything it had launched would be outstanding: its peers wait for all members.
            idle[min(waiting)].append(rank)
        else:
            unseen.append(rank)
    levels = tuple(
        WaitLevel(number, tuple(waiting.get(number, ())), tuple(idle.get(number, ())))
        for number in sorted({*waiting, *idle})
    )
    return GroupLevels(group, levels, tuple(unseen))
