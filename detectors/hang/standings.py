"""Where each rank of a hung job stands in each of its groups, from its dump.

A dump has thousands of entries, and a verdict needs few: how many collectives of each group a rank
has launched and completed, the first outstanding one, and the outstanding point-to-point operations.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from detectors.hang.flight_dump import (
    NO_FORM,
    CollectiveForm,
    FlightDump,
    Operation,
    OperationState,
    record_histories,
)
from detectors.parallel_groups import Group, Parallelism

# Of a trimmed dump. Ranks that have come apart stay apart until they hang, and a mismatch that comes
# and goes hangs within some steps; the rest of a ring (2,000) would be 16 kB a rank.
HISTORY_MAX: Final = 256
RING_MAX: Final = 20_000  # where nothing is sent: ten times PyTorch's ring
ATTEMPT_GAP_S: Final = 1800.0  # PyTorch's longest default timeout: a hang's dumps lie closer

FOREIGN_GAP_S: Final = 60.0  # hosts launch ahead by steps; recorded hangs: 0.03 s over 16 ranks
# These can end on one rank without another rank's part (roots and non-roots differ).
ONE_SIDED: Final = frozenset(
    {"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter", "send", "recv"}
)


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """The progress of one rank in one group, in collectives since the job's start."""

    group: str
    enqueued: int
    completed: int
    first: Operation | None  # the first one outstanding, where the dump still has it

    @property
    def is_waiting(self) -> bool:
        """Return whether it has launched something that isn't done."""
        return self.enqueued > self.completed


@dataclass(frozen=True, slots=True)
class RankStandings:
    """Where one rank stands in all its groups."""

    rank: int
    standings: tuple[GroupStanding, ...]
    pending_p2p: tuple[Operation, ...]  # outstanding, in the order of launching


@dataclass(frozen=True, slots=True)
class JobStandings:
    """Everything known of a hung job. ``unread`` are ranks whose dump can't be used."""

    groups: tuple[Group, ...]
    views: tuple[RankStandings, ...]
    unread: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()  # what makes a verdict less sure
    forms: tuple[CollectiveForm, ...] = ()
    # By group and rank: number of the first collective, and the forms from there on, as places in `forms`.
    histories: Mapping[str, Mapping[int, tuple[int, tuple[int, ...]]]] = field(default_factory=dict)


def trim_dump(dump: FlightDump, history_max: int = HISTORY_MAX) -> FlightDump:
    """Return a dump with only those operations that a verdict looks at.

    What isn't done, the last done one of each group and the newest: some 10 of 2,000. The forms of the
    newest ``history_max`` collectives remain, to compare the past of the ranks.
    """
    forms, histories = record_histories(dump.operations, history_max)
    last: dict[tuple[str, bool], Operation] = {}
    retained = []
    newest: Operation | None = None
    for operation in dump.operations:
        if operation.enter_s is not None and (
            newest is None or newest.enter_s is None or operation.enter_s >= newest.enter_s
        ):
            newest = operation
        if operation.state is OperationState.DONE:
            key = (operation.group, operation.is_p2p)
            if key not in last or last[key].sequence < operation.sequence:
                last[key] = operation
        else:
            retained.append(operation)
    retained += last.values()
    if newest is not None and newest not in retained:
        retained.append(newest)
    operations = tuple(sorted(retained, key=lambda operation: operation.record))
    return replace(dump, operations=operations, forms=forms, histories=histories)


def view_job(dumps: Mapping[int, FlightDump], unread: frozenset[int] = frozenset()) -> JobStandings:
    """Return the view of a job whose ranks wrote these dumps."""
    dumps, warnings = _one_attempt(dumps)
    groups, names, conflicts = _merge_groups(dumps, unread)
    warnings += conflicts
    # Ranks that share a group may share one object: thousands of tuples of thousands are slow to hash and to search.
    shared = {id(group): group for dump in dumps.values() for group in dump.groups}
    members = {place: frozenset(group.ranks) for place, group in shared.items()}
    outside = [
        rank
        for rank, dump in dumps.items()
        if any(group.ranks and rank not in members[id(group)] for group in dump.groups)
    ]
    if outside:
        warnings.append(f"ranks {outside} are left out: they are not members of their own groups")
        unread |= set(outside)
    foreign = _of_other_times(dumps, names, frozenset(outside))
    if foreign:
        warnings.append(
            f"ranks {foreign} are left out: their counts and times can't be from the others' attempt"
        )
        unread |= set(foreign)
    # Sends and receives of pipelines may all have left the ring: their counters are never compared.
    mixed = {group.name for group in groups if group.parallelism is Parallelism.PIPELINE}
    mixed |= {
        names[rank, operation.group]
        for rank, dump in dumps.items()
        for operation in dump.operations
        if operation.is_p2p
        if (rank, operation.group) in names
    }
    views = tuple(
        _view(rank, dump, names, mixed)
        for rank, dump in sorted(dumps.items())
        if rank not in unread
    )
    said = sorted({warning for dump in dumps.values() for warning in dump.warnings})
    forms, histories = _merge_histories(
        {rank: dump for rank, dump in dumps.items() if rank not in unread}, names
    )
    return JobStandings(groups, views, unread, (*warnings, *said), forms, histories)


def _merge_histories(
    dumps: Mapping[int, FlightDump], names: Mapping[tuple[int, str], str]
) -> tuple[tuple[CollectiveForm, ...], dict[str, dict[int, tuple[int, tuple[int, ...]]]]]:
    """Return what the rings hold, by group and rank, with one table of forms for all ranks."""
    table: dict[CollectiveForm, int] = {}
    merged: dict[str, dict[int, tuple[int, tuple[int, ...]]]] = defaultdict(dict)
    for rank, dump in sorted(dumps.items()):
        forms, histories = dump.forms, dump.histories
        if not histories:
            forms, histories = record_histories(dump.operations, RING_MAX)
        own = [table.setdefault(form, len(table)) for form in forms]
        for history in histories:
            name = names.get((rank, history.group))
            if name is not None:
                places = (own[form] if 0 <= form < len(own) else NO_FORM for form in history.forms)
                merged[name][rank] = history.first, tuple(places)
    return tuple(table), dict(merged)


def _one_attempt(dumps: Mapping[int, FlightDump]) -> tuple[dict[int, FlightDump], list[str]]:
    """Return the dumps of the newest attempt, and what was left out.

    Ranks of one hang stop within one timeout of each other, so dumps whose newest operations lie
    further apart are not of one hang. A dump without operations has no time and stays.
    """
    times_s = {rank: dump.newest_s for rank, dump in dumps.items()}
    newest_s = max((time_s for time_s in times_s.values() if time_s is not None), default=0.0)
    gap_s = max([ATTEMPT_GAP_S, *(dump.timeout_s or 0.0 for dump in dumps.values())])
    old = [r for r, time_s in times_s.items() if time_s is not None and newest_s - time_s > gap_s]
    if not old:
        return dict(dumps), []
    retained = {rank: dump for rank, dump in dumps.items() if rank not in old}
    text = f"ranks {sorted(old)} are left out: more than {gap_s:g} s older, from an earlier attempt"
    return retained, [text]


def _of_other_times(
    dumps: Mapping[int, FlightDump], names: Mapping[tuple[int, str], str], outside: frozenset[int]
) -> list[int]:
    """Return the ranks whose dump contradicts most of some group, and is of another time, too.

    A collective to which all contribute ends on nobody before all have launched it: who ended one
    that another has not launched was not recorded at the same time. Counts alone prove nothing: an
    abort ends what hangs on the ranks that it reaches.
    """
    times_s = {r: dump.newest_s for r, dump in dumps.items() if r not in outside}
    known_s = sorted(time_s for time_s in times_s.values() if time_s is not None)
    if len(known_s) < 3:
        return []
    usual_s = known_s[len(known_s) // 2]
    one_sided = {
        name
        for rank in times_s
        for operation in dumps[rank].operations
        if operation.kind in ONE_SIDED and (name := names.get((rank, operation.group))) is not None
    }
    ended: dict[str, dict[int, int]] = defaultdict(dict)
    launched: dict[str, dict[int, int]] = defaultdict(dict)
    for rank in times_s:
        done: dict[str, int] = {}
        counts: dict[str, int] = {}
        for status in dumps[rank].statuses:
            done[status.group] = status.completed or 0
            counts[status.group] = status.enqueued or 0
        for operation in dumps[rank].operations:
            group, number = operation.group, operation.sequence
            counts[group] = max(counts.get(group, 0), number)
            if operation.state is OperationState.DONE:
                done[group] = max(done.get(group, 0), number)
        for group, count in counts.items():
            name = names.get((rank, group))
            if name is not None and count and name not in one_sided:
                launched[name][rank] = count
                ended[name][rank] = done.get(group, 0)
    found = set()
    for name, counted in launched.items():
        ends = sorted(ended[name].values())
        starts = sorted(counted.values())
        for rank, count in counted.items():
            behind = len(ends) - bisect_right(ends, count)
            ahead = bisect_left(starts, ended[name][rank])
            time_s = times_s[rank]
            is_apart = time_s is not None and abs(time_s - usual_s) > FOREIGN_GAP_S
            if is_apart and 2 * max(behind, ahead) > len(counted) - 1 > 1:
                found.add(rank)
    return sorted(found)


def _merge_groups(
    dumps: Mapping[int, FlightDump], unread: frozenset[int]
) -> tuple[tuple[Group, ...], dict[tuple[int, str], str], list[str]]:
    """Return all groups, the job-wide name of each rank's groups, and what contradicts itself.

    One name may stand for several groups that share no rank (each made by its members alone).
    Groups of one name that overlap and differ are of different attempts or wrong: not judged.
    """
    kinds: dict[str, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    described: dict[str, Group] = {}
    tellers_of: dict[int, tuple[Group, list[int]]] = {}
    for rank, dump in dumps.items():
        for group in dump.groups:
            tellers_of.setdefault(id(group), (group, []))[1].append(rank)
            described[group.name] = group
    for group, tellers in tellers_of.values():
        kinds[group.name][group.ranks] += tellers
    world = range(max([*dumps, *unread], default=-1) + 1)
    groups: list[Group] = []
    names: dict[tuple[int, str], str] = {}
    conflicts = []
    for name, by_members in kinds.items():
        template = described[name]
        seen = by_members.pop((), [])
        if seen and not by_members:  # gloo: the members are those who have used it
            is_world = template.parallelism is Parallelism.WORLD
            by_members[tuple(world) if is_world else tuple(sorted(seen))] = seen
        members = [rank for ranks in by_members for rank in ranks]
        if len(set(members)) != len(members):
            conflicts.append(f"ranks disagree about the members of group {name}; it is not judged")
            continue
        for ranks, tellers in by_members.items():
            unique = name if len(by_members) == 1 else f"{name}@{ranks[0]}"
            groups.append(replace(template, name=unique, ranks=ranks))
            names |= {(rank, name): unique for rank in tellers}
    return tuple(groups), names, conflicts


def _view(
    rank: int, dump: FlightDump, names: Mapping[tuple[int, str], str], mixed: set[str]
) -> RankStandings:
    collectives: dict[str, list[Operation]] = defaultdict(list)
    pending_p2p = []
    for operation in dump.operations:
        name = names.get((rank, operation.group))
        if name is None:
            continue
        if operation.is_p2p:
            if operation.state is not OperationState.DONE:
                pending_p2p.append(operation)
        else:
            collectives[name].append(operation)
    # The counters of a group that also sends and receives count both, and can't be compared.
    counted = {
        names[rank, status.group]: status
        for status in dump.statuses
        if (rank, status.group) in names and names[rank, status.group] not in mixed
    }
    standings = []
    for name in {**counted, **collectives}:
        operations = collectives.get(name, [])
        status = counted.get(name)
        enqueued = max((operation.sequence for operation in operations), default=0)
        done = 0
        if status is not None:
            enqueued = max(enqueued, status.enqueued or 0)
            done = status.completed or 0
        waiting = [
            operation
            for operation in operations
            if operation.state is not OperationState.DONE and operation.sequence > done
        ]
        first = min(waiting, key=lambda operation: operation.sequence, default=None)
        if status is None:
            done = first.sequence - 1 if first else enqueued
        elif first is None and not (operations and status.completed is None):
            pass  # the counter alone says what is outstanding: the ring has lost the entry
        elif first is not None and first.sequence > done + 1:
            first = None  # an older one is outstanding and no longer in the ring
        standings.append(GroupStanding(name, enqueued, done, first))
    return RankStandings(rank, tuple(standings), tuple(pending_p2p))
