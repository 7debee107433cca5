"""Who a hung job waits for, from the lines that PyTorch's watchdogs print.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, 1.13 to 2.10. Its lines carry what a flight recorder's
dump does, for the first operation that isn't done: its number, kind and sizes, and the last operation of the group
that was enqueued and completed. They become the same standings, so `detectors.hang` judges both.

    [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9, ...
    [PG 1 Rank 0] Timeout at NCCL work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.
    [PG ID 0 PG GUID 0(default_pg) Rank 0] failure detected by watchdog at work sequence id: 716 PG status: last
    enqueued work: 747, last completed work: 715

"Rank" there is the rank in the group; torch's ``[rank3]:`` before it is the rank in the job. A group's number without
GUID is the rank's own: two ranks of the job with one rank in it show that it stands for several groups, which are
then not judged. A rank that reports no timeout is accused only where nearly all others do: a launcher that stops
everybody at the first timeout silences the rest.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import msgspec

from detectors.diagnosis import Diagnosis
from detectors.hang.flight_dump import (
    CollectiveShape,
    FlightDump,
    GroupStatus,
    Operation,
    OperationState,
)
from detectors.hang.from_dumps import diagnose_hang
from detectors.hang.standings import view_job
from detectors.hang.wait_verdict import HangClass
from detectors.job_log.facts import LogFacts, parse_ranks
from detectors.job_log.kinds import LogKind
from detectors.job_log.lines import LogLine, SourceLines
from detectors.parallel_groups import Group, Parallelism, parallelism_of
from detectors.wording import ranks_in_words

SILENT_RATIO_MAX: Final = 0.25  # more silent ranks than that share a cause: they were stopped
_GROUP: Final = r"\[PG (?:ID )?(?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(\]]+))? ?(?:\((?P<words>[^)]*)\))? ?Rank (?P<rank>\d+)\]"
_GROUPED: Final = re.compile(_GROUP)
_Work = tuple[int, str, int | None, int | None]
"""An operation: its number, its kind (empty: not told), and the elements that it reads and writes."""
_CAUGHT_AT: Final = "Watchdog caught"
_CAUGHT: Final = re.compile(
    r"Watchdog caught collective operation timeout: Work\w+\(SeqNum=(?P<seq>\d+), OpType=(?P<kind>\w+)"
    r"(?:, NumelIn=(?P<read>\d+), NumelOut=(?P<written>\d+))?"
)
_PLAIN_RANK: Final = re.compile(r"\[Rank (\d+)\]\s*$")  # before it
# A pattern that begins with letters is found at once; one that begins with a choice is tried at each place.
_STATUS: Final = re.compile(
    r"ast enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)"
)
_AT: Final = re.compile(r"at (?:NCCL )?work(?: sequence id)?: (\d+)")
_BARRIER: Final = re.compile(r"Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
_LAGGING: Final = re.compile(
    r"ranks? \[([\d, ]+)\] (?:are|is) the lagging|^\W*\[(\d+)\] (?:finished collective #\d+, but didn't join|joined but didn't finish|never joined)"
)
# Horovod, stall_inspector.cc: a rank and what it didn't submit; until 0.15, operations.cc: an operation and who didn't.
_MISSING: Final = re.compile(r"(\d+): \[")
_MISSED_BY: Final = re.compile(r"\[missing ranks: ([\d, ]{1,4000})\]")
_FINGERPRINT: Final = re.compile(
    r"Rank (\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\((?:SequenceNumber=(\d+),? ?)?OpType=(\w+)(?:, TensorShape=(\[[\d, ]*\]))?"
)
ODD_RATIO_MAX: Final = (
    1 / 3
)  # fewer of one operation than that, and the others agree: they are the odd ones
_KINDS: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "BROADCAST": "broadcast",
    "_BROADCAST_OOP": "_broadcast_oop",
    "REDUCE": "reduce",
    "_REDUCE_OOP": "_reduce_oop",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL_BASE": "all_to_all",
    "ALLTOALL": "all_to_all",
    "SEND": "send",
    "RECV": "recv",
}
_OF_CLASS: Final = {
    HangClass.HOST_STUCK.value: LogKind.HANG_HOST,
    HangClass.DEVICE_STUCK.value: LogKind.HANG_DEVICE,
    HangClass.PROCESS_GONE.value: LogKind.HANG_GONE,
    HangClass.NETWORK.value: LogKind.HANG_NETWORK,
    HangClass.PROGRAM.value: LogKind.HANG_MISMATCH,
    HangClass.DEADLOCK.value: LogKind.HANG_DEADLOCK,
}
_WORLD_WORDS: Final = frozenset({"default_pg", "0"})


@dataclass(frozen=True, slots=True)
class LogHang:
    """What watchdogs' lines say about a hang."""

    kind: LogKind
    ranks: tuple[int, ...]
    reason: str
    confidence: float
    lines: tuple[LogLine, ...]  # that show it, the first ones first
    reporters: frozenset[int]


@dataclass(slots=True)
class _Standing:
    """One rank in one group, as its lines tell."""

    group_rank: int
    line: LogLine
    pending: list[_Work] = field(default_factory=list)
    enqueued: int | None = None
    completed: int | None = None


class _Caught(msgspec.Struct, frozen=True, gc=False):
    """A timeout whose group another line tells."""

    sequence: int
    kind: str
    sizes: tuple[int | None, int | None]
    line: LogLine
    group_rank: int | None


def judge_watchdogs(
    sources: Sequence[SourceLines], job: LogFacts, begin: int = 0
) -> LogHang | None:
    """Return whom the job waits for, by the lines of its watchdogs; None where there are none.

    ``begin``: the line number from which the last attempt is, for a log of one source.
    """
    standings, named = _read(sources, begin)
    if named is not None:
        return named
    if not standings:
        return _of_words(sources, job, begin)
    groups = _groups(standings, job)
    reporters = {rank for members in standings.values() for rank in members}
    lines = [item.line for members in standings.values() for item in members.values()]
    lines.sort(key=lambda line: (line.source, line.number))
    if not groups:
        reason = "several groups share one name in these lines, so ranks can't be compared"
        return LogHang(LogKind.HANG, (), reason, 0.4, tuple(lines[:4]), frozenset(reporters))
    world = _world(job, reporters)
    silent = sorted(set(range(world)) - reporters)
    telling = set(silent) if _is_telling(silent, world, job) else _gaps(groups, reporters)
    reported = telling & job.ranks  # they live, and have nothing outstanding
    unread = frozenset(set(silent) - telling)
    left_out = _alike(standings, world)
    diagnosis = _judge(standings, groups, reported, unread, left_out)
    if left_out and not _holds_without(diagnosis, left_out, next(iter(standings.values()))):
        diagnosis = _judge(standings, groups, reported, unread, frozenset())
    return _of_diagnosis(diagnosis, standings, lines, frozenset(reporters))


def _of_words(sources: Sequence[SourceLines], job: LogFacts, begin: int) -> LogHang | None:
    """Return whom errors name that wait for others: a store's barrier, gloo's time-outs, NCCL's first exchange.

    A rank that none of them reports, while all others do, is the one they wait for. One that lost a peer waited, too.
    """
    waiting: dict[int, LogLine] = {}
    world = joined = 0
    givers: dict[int, LogLine] = {}
    for source in sources:
        for line in source.lines:
            text = line.text
            if line.number < begin or not _WAITS.search(text):
                continue
            if match := _STORE_BARRIER.search(text):
                world, joined = max(world, int(match[2])), max(joined, int(match[3]))
                waiting.setdefault(int(match[1]) if line.rank is None else line.rank, line)
            elif match := _UNIQUE_ID.search(text):
                givers.setdefault(int(match[2]), line)
            elif line.rank is not None:
                waiting.setdefault(line.rank, line)
    if len(givers) == 1 and not waiting:
        (giver, line), *_rest = givers.items()
        reason = f"the others wait for rank {giver}, which gives no id for NCCL"
        return LogHang(LogKind.HANG_HOST, (giver,), reason, 0.6, (line,), frozenset())
    if not waiting or (world and joined >= world):
        return None
    lost = {rank for fact in job.facts if fact.kind is LogKind.PEER_LOST for rank in fact.ranks}
    size = world or _world(job, set(waiting))
    silent = sorted(set(range(size)) - waiting.keys() - lost)
    if (
        not silent
        or not _is_telling(silent, size, job)
        or (world and len(silent) != world - joined)
    ):
        return None
    lines = sorted(waiting.values(), key=lambda line: (line.source, line.number))
    reason = f"all others wait, and {ranks_in_words(silent)} said nothing of it"
    return LogHang(
        LogKind.HANG_GONE, tuple(silent), reason, 0.65, tuple(lines[:4]), frozenset(waiting)
    )


# Source: torch/csrc/distributed/c10d: distributed_c10d.py, ProcessGroupNCCL.cpp; gloo/transport/tcp/unbound_buffer.cc.
_STORE_BARRIER: Final = re.compile(
    r"store based barrier on rank:? (\d+), for key.{0,80}\(world_size=(\d+), (?:worker_count|num_workers_joined)=(\d+)"
)
_UNIQUE_ID: Final = re.compile(
    r"\[(\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from \[(\d+)\]"
)
_WAITS: Final = re.compile(
    r"Timed out waiting \d+ ?ms for (?:recv|send) operation|store based barrier on rank|retrieving ncclUniqueId from"
)


ALIKE_RATIO_MIN: Final = (
    16  # ranks of one standing that are judged, to each other rank: no share that counts changes
)
ALIKE_KEPT_MIN: Final = 512


def _standing_of(item: _Standing) -> tuple[object, ...]:
    return item.enqueued, item.completed, *item.pending


def _alike(standings: dict[str, dict[int, _Standing]], world: int) -> frozenset[int]:
    """Return ranks that needn't be judged: far more than all others stand where each of them does.

    The judge looks at shares of ranks, and each of those that are kept stands for those that aren't.
    """
    if len(standings) != 1:
        return frozenset()
    (members,) = standings.values()
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, item in members.items():
        alike[_standing_of(item)].append(rank)
    most = max(alike.values(), key=len)
    retained = max(ALIKE_KEPT_MIN, ALIKE_RATIO_MIN * (world - len(most)))
    return frozenset(sorted(most)[retained:]) if len(most) > 2 * retained else frozenset()


def _holds_without(
    diagnosis: Diagnosis, left_out: frozenset[int], members: dict[int, _Standing]
) -> bool:
    """Return whether a diagnosis without some ranks is that of all: it names none that stands there, and counts none."""
    if diagnosis.ranks_counted:
        return False
    place = _standing_of(members[min(left_out)])
    for culprit in diagnosis.culprits:
        item = members.get(culprit.rank) if culprit.rank is not None else None
        if item is not None and _standing_of(item) == place:
            return False
    return True


def _judge(
    standings: dict[str, dict[int, _Standing]],
    groups: dict[str, Group],
    reported: set[int],
    unread: frozenset[int],
    left_out: frozenset[int],
) -> Diagnosis:
    """Return what the judge of flight recorders says of these standings; ``told``: ranks with nothing outstanding."""
    own: dict[int, list[Group]] = defaultdict(list)
    for group in groups.values():
        retained = tuple(rank for rank in group.ranks if rank not in left_out)
        judged = replace(group, ranks=retained) if left_out else group
        for rank in retained:
            own[rank].append(judged)
    reporters = {rank for members in standings.values() for rank in members} - left_out
    dumps = {rank: _dump(rank, standings, tuple(own[rank])) for rank in sorted(reporters)}
    for rank in reported:
        dumps[rank] = _dump(rank, {}, tuple(own[rank]))
    return diagnose_hang(view_job(dumps, unread))


def _of_diagnosis(
    diagnosis: Diagnosis,
    standings: dict[str, dict[int, _Standing]],
    lines: list[LogLine],
    reporters: frozenset[int],
) -> LogHang:
    ranks = tuple(
        sorted(culprit.rank for culprit in diagnosis.culprits if culprit.rank is not None)
    )
    kind = _OF_CLASS.get(diagnosis.cause, LogKind.HANG)
    reason = diagnosis.reason.replace("the dumps don't show", "the log doesn't show")
    reason = (
        reason.partition(" (TORCH_NCCL_ENABLE_TIMING")[0]
        .replace("wrote a dump", "wrote a line")
        .replace("wrote no dump", "wrote no line")
    )
    own = [
        item.line
        for members in standings.values()
        for rank, item in members.items()
        if rank in ranks
    ]
    shown = sorted({*own[:4], *lines[:4]}, key=lambda line: (line.source, line.number))
    if kind is LogKind.HANG_MISMATCH and not ranks:
        ranks = _odd_ranks(_firsts(standings))
    confidence = 0.5 if kind is LogKind.HANG else min(0.9, diagnosis.confidence)
    return LogHang(kind, ranks, reason, confidence, tuple(shown[:6]), reporters)


def _firsts(standings: dict[str, dict[int, _Standing]]) -> dict[int, tuple[str, ...]]:
    """Return the first operation that isn't done of each rank, where one group tells them at one number."""
    if len(standings) != 1:
        return {}
    (members,) = standings.values()
    firsts = {
        rank: next((row for row in sorted(item.pending) if row[1]), None)
        for rank, item in members.items()
    }
    if len({row[0] for row in firsts.values() if row is not None}) != 1:
        return {}
    return {rank: tuple(map(str, row)) for rank, row in firsts.items() if row is not None}


def _is_telling(silent: Sequence[int], world: int, job: LogFacts) -> bool:
    """Return whether the silence of these ranks says that they are waited for."""
    if not silent:
        return True
    if len(silent) <= SILENT_RATIO_MAX * world:
        return True
    return len(silent) == 1 and silent[0] in job.ranks


def _gaps(groups: dict[str, Group], reporters: set[int]) -> set[int]:
    """Return the one member of a group, but for the job's own, that reports nothing while all others do."""
    missing = (
        set(group.ranks) - reporters
        for group in groups.values()
        if group.parallelism is not Parallelism.WORLD and len(group.ranks) > 2
    )
    return {rank for ranks in missing if len(ranks) == 1 for rank in ranks}


def _world(job: LogFacts, reporters: set[int]) -> int:
    highest = 1 + max([*job.ranks, *reporters], default=0)
    return max(highest, job.world or 0) if (job.world or 0) <= 1_000_000 else highest


def _read(
    sources: Sequence[SourceLines], begin: int
) -> tuple[dict[str, dict[int, _Standing]], LogHang | None]:
    """Return the standings by group and rank, or a hang whose ranks a line names."""
    standings: dict[str, dict[int, _Standing]] = defaultdict(dict)
    caught: dict[int, list[_Caught]] = defaultdict(list)
    named: list[tuple[tuple[int, ...], LogLine]] = []
    is_missing = False
    prints: dict[int, tuple[str, ...]] = {}
    reported: list[LogLine] = []
    for source in sources:
        for line in source.lines:
            text = line.text
            if line.number < begin:
                continue
            if is_missing and (match := _MISSING.match(text)):
                named.append((parse_ranks(match[1]), line))
                continue
            is_missing = text.startswith(("Missing ranks:", "Stalled ranks:"))
            if "missing ranks: " in text and (match := _MISSED_BY.search(text)):
                named.append((parse_ranks(match[1]), line))
            elif "CollectiveFingerPrint" in text and "ismatch" in text:
                prints |= {int(rank): tuple(rest) for rank, *rest in _FINGERPRINT.findall(text)}
                reported.append(line)
            elif "monitoredBarrier" in text and (match := _BARRIER.search(text)):
                named.append((parse_ranks(match[1]), line))
            elif ("lagging" in text or "collective #" in text) and (match := _LAGGING.search(text)):
                named.append((parse_ranks(match[1] or match[2]), line))
            elif "OpType" in text and (at := text.find(_CAUGHT_AT)) >= 0:
                _add_caught(at, line, standings, caught)
            elif "nqueued" in text:
                _add_status(line, standings)
    if named:
        ranks = tuple(sorted({rank for found, _line in named for rank in found}))
        reason = f"the log names {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:16]))}"
        lines = tuple(line for _ranks, line in named[:4])
        hang = LogHang(
            LogKind.HANG_HOST, ranks, f"{reason} as lagging behind", 0.85, lines, frozenset()
        )
        return {}, hang
    if reported:
        odd = _odd_ranks(prints)
        reason = (
            f"collectives differ between ranks: {ranks_in_words(odd)} from the others"
            if odd
            else "collectives differ between ranks"
        )
        return {}, LogHang(
            LogKind.HANG_MISMATCH, odd, reason, 0.85, tuple(reported[:4]), frozenset(prints)
        )
    _join(standings, caught)
    return standings, None


def _odd_ranks(prints: Mapping[int, tuple[str, ...]]) -> tuple[int, ...]:
    """Return the few ranks whose operation differs from that of all others."""
    sides: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, print_ in prints.items():
        sides[print_].append(rank)
    if len(sides) != 2:
        return ()
    few, _many = sorted(sides.values(), key=len)
    return tuple(sorted(few)) if len(few) <= ODD_RATIO_MAX * len(prints) else ()


# Nearly all ranks of a job say the same behind their number.
@lru_cache(maxsize=4096)
def _work_of(said: str) -> _Work | None:
    """Return the number, the kind and the sizes of a work that a watchdog caught."""
    match = _CAUGHT.match(said)
    if match is None:
        return None
    number, kind, read, written = match.groups()
    return int(number), kind, int(read) if read else None, int(written) if written else None


@lru_cache(maxsize=4096)
def _status_of(said: str) -> tuple[int, int, int | None] | None:
    """Return the last work that was enqueued, the last completed, and the one that a watchdog looked at."""
    match = _STATUS.search(said)
    if match is None:
        return None
    at = _AT.search(said)
    return max(int(match[1]), 0), max(int(match[2]), 0), int(at[1]) if at else None


def _add_caught(
    at: int,
    line: LogLine,
    standings: dict[str, dict[int, _Standing]],
    caught: dict[int, list[_Caught]],
) -> None:
    text = line.text
    work = _work_of(text[at : text.find(", Timeout", at)])
    if work is None:
        return
    grouped = _GROUPED.search(text) if "[PG " in text else None
    rank, plain = line.rank, None
    if grouped is None or rank is None:
        before = _PLAIN_RANK.search(text, max(0, at - 40), at)
        said = before[1] if before else (grouped["rank"] if grouped else None)
        plain = None if said is None else int(said)
        rank = plain if rank is None else rank
    if rank is None:
        return
    if grouped:
        item = _standing_in(standings, grouped, rank, line)
        if work not in item.pending:  # PyTorch says each again as it ends the process
            item.pending.append(work)
    elif len(caught[rank]) < 64:
        number, kind, *sizes = work
        caught[rank].append(_Caught(number, kind, (sizes[0], sizes[1]), line, plain))


def _standing_in(
    standings: dict[str, dict[int, _Standing]], grouped: re.Match[str], rank: int, line: LogLine
) -> _Standing:
    members = standings[_key(grouped)]
    item = members.get(rank)
    if item is None:
        item = members[rank] = _Standing(int(grouped["rank"]), line)
    return item


def _add_status(line: LogLine, standings: dict[str, dict[int, _Standing]]) -> None:
    grouped = _GROUPED.search(line.text)
    status = _status_of(line.text[grouped.end() :]) if grouped else None
    if grouped is None or status is None:
        return
    rank = line.rank if line.rank is not None else int(grouped["rank"])
    item = _standing_in(standings, grouped, rank, line)
    if item.enqueued is None:  # the first word counts: an abort completes what hangs
        item.enqueued, item.completed, at = status
        if at is not None:
            item.pending.append((at, "", None, None))


def _key(grouped: re.Match[str]) -> str:
    words = grouped["words"] or ""
    if words == "default_pg":
        return "0"
    return grouped["guid"] or f"{grouped['pg']}{'/' + words if words else ''}"


def _join(standings: dict[str, dict[int, _Standing]], caught: dict[int, list[_Caught]]) -> None:
    """Give each timeout to its group: the one in which its rank is at the same number."""
    has_groups = bool(standings)
    numbers = {
        name: {number for item in members.values() for number, *_rest in item.pending}
        for name, members in standings.items()
    }
    own: dict[tuple[str, int], set[int]] = defaultdict(set)
    for name, members in standings.items():
        for rank, item in members.items():
            own[name, rank] = {number for number, *_rest in item.pending}
    for rank, items in caught.items():
        for found in items:
            at = [
                members[rank]
                for name, members in standings.items()
                if rank in members and found.sequence in own[name, rank]
            ]
            if len(at) == 1:
                at[0].pending.insert(0, (found.sequence, found.kind, *found.sizes))
            elif (
                not at
                and len(near := [name for name in numbers if found.sequence in numbers[name]]) == 1
                and near[0] in _WORLD_WORDS
            ):
                # Its second line is lost, or this PyTorch prints none: others tell the group.
                item = standings[near[0]].setdefault(rank, _Standing(rank, found.line))
                item.pending.append((found.sequence, found.kind, *found.sizes))
                own[near[0], rank].add(found.sequence)
            elif not has_groups:
                item = standings["?"].setdefault(
                    rank,
                    _Standing(rank if found.group_rank is None else found.group_rank, found.line),
                )
                item.pending.append((found.sequence, found.kind, *found.sizes))
                own["?", rank].add(found.sequence)


def _groups(standings: dict[str, dict[int, _Standing]], job: LogFacts) -> dict[str, Group]:
    """Return the groups that can be judged, with their members."""
    groups = {}
    for name, members in standings.items():
        places = [item.group_rank for item in members.values()]
        is_world = name in _WORLD_WORDS or (name == "?" and _is_plain(members))
        if len(set(places)) != len(places):
            continue  # one number stands for several groups
        if name == "?" and not is_world:
            continue
        ranks = set(members)
        if is_world:
            ranks |= set(range(_world(job, set(members))))
        else:
            ranks |= _between(members)
        words = name.partition("/")[2]
        parallelism = Parallelism.WORLD if is_world else parallelism_of(words)
        if parallelism is Parallelism.PIPELINE:
            parallelism = Parallelism.OTHER
        groups[name] = Group(
            name, tuple(sorted(ranks)), parallelism, words or ("default_pg" if is_world else "")
        )
    return groups


def _is_plain(members: dict[int, _Standing]) -> bool:
    return all(rank == item.group_rank for rank, item in members.items())


def _between(members: dict[int, _Standing]) -> set[int]:
    """Return the members between those seen, where ranks of the job rise evenly with those of the group."""
    known = sorted((item.group_rank, rank) for rank, item in members.items())
    if len(known) < 2 or known[-1][0] == known[0][0]:
        return set()
    step = (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])
    if step != int(step) or step < 1:
        return set()
    first_place, first = known[0]
    if any(rank != first + (place - first_place) * step for place, rank in known):
        return set()
    start = first - first_place * int(step)
    return {start + place * int(step) for place in range(known[-1][0] + 1) if start >= 0}


def _dump(
    rank: int, standings: dict[str, dict[int, _Standing]], own: tuple[Group, ...]
) -> FlightDump:
    """Return what one rank's lines say, in the form of a flight recorder's dump."""
    statuses: list[GroupStatus] = []
    operations: list[Operation] = []
    judged = {group.name for group in own}
    for name, members in standings.items():
        item = members.get(rank)
        if item is None or name not in judged:
            continue
        numbers = [number for number, *_rest in item.pending]
        first = min(numbers, default=None)
        completed = item.completed
        if completed is None and first is not None:
            completed = first - 1
        enqueued = max([item.enqueued or 0, *numbers, completed or 0])
        statuses.append(GroupStatus(name, enqueued, completed))
        reported = next((row for row in item.pending if row[0] == first and row[1]), None)
        if first is not None and reported is not None and first == (completed or 0) + 1:
            operations.append(_operation(name, first, reported, item.line.number))
    return FlightDump("2.0", "", own, tuple(statuses), tuple(operations), None, ())


def _operation(
    group: str, number: int, reported: tuple[int, str, int | None, int | None], record: int
) -> Operation:
    _number, kind, read, written = reported
    sizes = CollectiveShape()
    if read is not None and written is not None:
        sizes = CollectiveShape(((read,),), ((written,),))
    return Operation(
        group, number, _KINDS.get(kind, kind.lower()), record, OperationState.ENQUEUED, sizes
    )
