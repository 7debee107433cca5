"""A small training job that hangs: hosts launch ahead, devices carry out in order, some stop.

Every rank runs the same program over its groups. A collective ends when the devices of all members
have come to it; a host launches at most ``ahead`` operations beyond its device. Nothing random
but what the caller draws.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from detectors.hang.flight_dump import CollectiveShape, Operation, OperationState
from detectors.hang.standings import GroupStanding, JobStandings, RankStandings
from detectors.parallel_groups import Group, Parallelism, Sizes, layout_groups


@dataclass(frozen=True)
class Call:
    """One operation in the program of one rank."""

    key: tuple[str, int]  # equal for all ranks that carry it out together
    group: str
    kind: str
    sequence: int
    members: tuple[int, ...]
    peer: int | None = None


@dataclass(frozen=True)
class Fault:
    """``at`` counts the rank's operations. A device may go on after its last word.

    "link": nobody ends the next collective of the rank. "program": its next collective is another
    operation than its peers'.
    """

    kind: str  # "host", "device", "gone", "link", "program"
    at: int
    unheard: int = 0  # operations that a stuck device still took part in


def program_of(rank: int, groups: tuple[Group, ...], steps: int, microbatches: int) -> list[Call]:
    mine = {group.parallelism: group for group in groups if rank in group.ranks}
    counts: dict[str, int] = {}
    calls: list[Call] = []

    def collective(parallelism: Parallelism, kind: str) -> None:
        if (group := mine.get(parallelism)) is not None:
            number = counts[group.name] = counts.get(group.name, 0) + 1
            calls.append(Call((group.name, number), group.name, kind, number, group.ranks))

    def transfer(other: int, kind: str) -> None:
        pipe = mine[Parallelism.PIPELINE]
        low, high = sorted((rank, other))
        sender = rank if kind == "send" else other
        name = f"{pipe.name}:{low}-{high}:{sender}"
        number = counts[name] = counts.get(name, 0) + 1
        calls.append(Call((name, number), pipe.name, kind, number, (low, high), other))

    stages = mine[Parallelism.PIPELINE].ranks if Parallelism.PIPELINE in mine else (rank,)
    stage = stages.index(rank)
    for _step in range(steps):
        for direction in (1, -1):
            before, after = stage - direction, stage + direction
            for _microbatch in range(microbatches):
                if 0 <= before < len(stages):
                    transfer(stages[before], "recv")
                collective(Parallelism.TENSOR, "_all_gather_base")
                collective(Parallelism.EXPERT, "all_to_all")
                collective(Parallelism.TENSOR, "_reduce_scatter_base")
                if 0 <= after < len(stages):
                    transfer(stages[after], "send")
        collective(Parallelism.DATA, "all_reduce")
    return calls


@dataclass(frozen=True)
class Hung:
    """What the dumps show, and which faults have come into effect."""

    job: JobStandings
    effective: frozenset[int]


def hang(
    sizes: Sizes,
    faults: Mapping[int, Fault],
    *,
    steps: int = 3,
    microbatches: int = 2,
    ahead: int = 4,
    is_timed: bool = False,
) -> Hung:
    """Run the job until nothing moves any more. ``is_timed``: devices tell what they begin."""
    groups = tuple(g for g in layout_groups(sizes) if g.parallelism is not Parallelism.WORLD)
    programs = [program_of(rank, groups, steps, microbatches) for rank in range(sizes.ranks)]
    broken: set[tuple[str, int]] = set()
    for rank, fault in faults.items():
        if fault.kind in {"link", "program"}:
            place = next(
                n for n, c in enumerate(programs[rank]) if n >= fault.at and c.peer is None
            )
            call = programs[rank][place]
            broken.add(call.key)
            if fault.kind == "program":
                programs[rank][place] = replace(call, kind="broadcast")
    done = [0] * sizes.ranks

    def launched(rank: int) -> int:
        fault = faults.get(rank)
        bound = len(programs[rank])
        if fault is not None and fault.kind in {"host", "gone"}:
            bound = min(bound, fault.at)
        heard = done[rank]
        if fault is not None and fault.kind == "device":
            heard = min(heard, fault.at)  # the host waits for what it never hears of
            return min(bound, max(heard + ahead, done[rank]))
        return min(bound, heard + ahead)

    def is_at(rank: int, key: tuple[str, int]) -> bool:
        fault = faults.get(rank)
        if fault is not None and fault.kind == "device" and done[rank] >= fault.at + fault.unheard:
            return False
        here = done[rank]
        return here < launched(rank) and programs[rank][here].key == key

    has_moved = True
    while has_moved:
        has_moved = False
        for rank, program in enumerate(programs):
            while done[rank] < len(program):
                call = program[done[rank]]
                if call.key in broken or not all(
                    is_at(member, call.key) for member in call.members
                ):
                    break
                for member in call.members:
                    done[member] += 1
                has_moved = True

    views = []
    for rank in range(sizes.ranks):
        fault = faults.get(rank)
        if fault is not None and fault.kind == "gone":
            continue
        heard = min(done[rank], fault.at) if fault and fault.kind == "device" else done[rank]
        is_stuck = fault is not None and fault.kind == "device" and done[rank] >= fault.at
        views.append(_view(rank, programs[rank], heard, launched(rank), is_timed and not is_stuck))
    reached = {
        rank
        for rank, fault in faults.items()
        if fault.at < len(programs[rank]) and done[rank] >= fault.at + fault.unheard
        if fault.kind not in {"link", "program"}
    }
    return Hung(JobStandings(groups, tuple(views)), frozenset(reached))


def _view(
    rank: int, program: list[Call], done: int, launched: int, has_begun: bool
) -> RankStandings:
    names = {call.group for call in program if call.peer is None}
    standings = []
    for name in sorted(names):
        calls = [
            (n, c) for n, c in enumerate(program[:launched]) if c.group == name and c.peer is None
        ]
        waiting = [
            operation(call, record, is_started=has_begun and record == done)
            for record, call in calls
            if record >= done
        ]
        completed = len(calls) - len(waiting)
        standings.append(
            GroupStanding(name, len(calls), completed, waiting[0] if waiting else None)
        )
    p2p = tuple(
        operation(call, record)
        for record, call in enumerate(program[:launched])
        if call.peer is not None and record >= done
    )
    return RankStandings(rank, tuple(standings), p2p)


def operation(call: Call, record: int, is_started: bool = False) -> Operation:
    return Operation(
        group=call.group,
        sequence=call.sequence,
        kind=call.kind,
        record=record,
        state=OperationState.STARTED if is_started else OperationState.ENQUEUED,
        shape=CollectiveShape(((4, 8),), ((4, 8),), ("BFloat16",)),
        peer=call.peer,
        enter_s=1000.0 + record,
    )


def circle(ranks: int, length: int) -> JobStandings:
    """Return a job in which the first ranks wait for each other in a circle, and all for them.

    Rank i waits for the next one in a group of the two, which that one has not launched yet.
    """
    groups = [Group(f"pair-{i}", tuple(sorted((i, (i + 1) % length)))) for i in range(length)]
    if length == 2:  # two groups over the same two ranks
        groups = [Group("pair-0", (0, 1)), Group("pair-1", (0, 1))]
    world = Group("world", tuple(range(ranks)), Parallelism.WORLD)
    views = []
    for rank in range(ranks):
        standings = [GroupStanding("world", 9, 9, None)]
        if rank < length:
            call = Call(("", 0), f"pair-{rank}", "all_reduce", 5, groups[rank].ranks)
            standings.append(GroupStanding(call.group, 5, 4, operation(call, 50)))
            standings.append(GroupStanding(f"pair-{(rank - 1) % length}", 4, 4, None))
        else:
            call = Call(("", 0), "world", "all_reduce", 10, world.ranks)
            standings[0] = GroupStanding("world", 10, 9, operation(call, 50))
        views.append(RankStandings(rank, tuple(standings), ()))
    return JobStandings((world, *groups), tuple(views))


LAYOUTS = (
    Sizes(tensor=2, data=2, pipeline=2),  # 8 ranks
    Sizes(data=16),
    Sizes(tensor=2, data=8, pipeline=2, expert=4),  # 32
    Sizes(tensor=8, data=16),  # 128
    Sizes(tensor=8, data=8, pipeline=8),  # 512
)


@dataclass(frozen=True)
class HangCase:
    name: str
    job: JobStandings
    culprits: tuple[int, ...]  # empty: nobody
    class_name: str


def hang_cases() -> Iterator[HangCase]:
    """Return hangs of all six classes, with one and two culprits, of 8 to 512 ranks."""
    for sizes in LAYOUTS:
        groups = layout_groups(sizes)
        steps = -(-24 // len(program_of(0, groups, 1, 2)))  # 24 operations a rank or more
        size = f"{sizes.ranks} ranks (tp {sizes.tensor}, dp {sizes.data}, pp {sizes.pipeline})"
        for seed in range(4):
            random = Random(1_000 * sizes.ranks + seed)
            first, second = random.sample(range(sizes.ranks), 2)
            at = random.randrange(8, 16)
            single = {
                "host-stuck": Fault("host", at),
                "device-stuck": Fault("device", at, unheard=random.randrange(2, 5)),
                "process-gone": Fault("gone", at),
                "network": Fault("link", at),
                "program": Fault("program", at),
            }
            for class_name, fault in single.items():
                is_timed = class_name == "network" or seed % 2 == 1
                hung = hang(sizes, {first: fault}, steps=steps, ahead=8, is_timed=is_timed)
                is_nobody = class_name in {"network", "program"}
                if not is_nobody and not hung.effective:
                    continue  # the job ended before the fault
                culprits = () if is_nobody else (first,)
                name = f"{class_name}, {size}, seed {seed}"
                yield HangCase(name, hung.job, culprits, class_name)
            for class_name in ("host-stuck", "device-stuck"):
                both = dict.fromkeys((first, second), single[class_name])
                hung = hang(sizes, both, steps=steps, ahead=8, is_timed=seed % 2 == 1)
                if hung.effective == {first, second}:
                    named = tuple(sorted(both))
                    yield HangCase(
                        f"two {class_name}, {size}, seed {seed}", hung.job, named, class_name
                    )
            length = random.randrange(2, 7)
            yield HangCase(
                f"deadlock of {length}, {sizes.ranks} ranks, seed {seed}",
                circle(sizes.ranks, length),
                (),
                "deadlock",
            )
