"""Dumps of many kinds of hangs, as PyTorch writes them, and what each proves. A table that grows.

A row is the dumps of a job and its verdict: nobody's fault but the program's, ranks with their class, the network,
or "unknown" where the dumps prove nothing. Shapes follow ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp and the entries
that PyTorch's own analyser reads (torch/distributed/flight_recorder), versions 2.0 to 2.10.
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import FlightDump
from detectors.hang.from_dumps import diagnose_hang
from detectors.hang.standings import trim_dump, view_job

Entry = dict[str, Any]
Dump = dict[str, Any]
T0: Final = 1_700_000_000_000_000_000
STARTED: Final = "started"
SCHEDULED: Final = "scheduled"
DONE: Final = "completed"
WORLD: Final = ("0", "default_pg")


def op(
    kind: str,
    number: int,
    state: str = DONE,
    sizes_in: Sequence[Sequence[int]] = ((8,),),
    sizes_out: Sequence[Sequence[int]] | None = None,
    *,
    types: tuple[str, str] = ("Float", "Float"),
    group: tuple[str, str] = WORLD,
    is_p2p: bool = False,
    library: str = "nccl",
) -> Entry:
    """Return one entry; ``record_id`` and times are set by `dump`."""
    sizes_out = sizes_in if sizes_out is None else sizes_out
    return {
        "pg_id": int(group[0]), "process_group": group, "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0, "op_id": number, "profiling_name": f"{library}:{kind}",
        "input_sizes": [list(size) for size in sizes_in], "input_dtypes": [types[0]] * len(sizes_in),
        "output_sizes": [list(size) for size in sizes_out], "output_dtypes": [types[1]] * len(sizes_out),
        "state": state, "retired": state == DONE, "is_p2p": is_p2p, "timeout_ms": 600_000, "frames": [],
        "time_discovered_started_ns": T0 if state == STARTED else None,
        "time_discovered_completed_ns": T0 if state == DONE else None,
    }  # fmt: skip


def dump(
    entries: Sequence[Entry],
    ranks: int = 4,
    groups: Mapping[str, tuple[str, Sequence[int]]] | None = None,
    *,
    version: str = "2.10",
    first_record: int = 0,
    status: Mapping[str, tuple[int, int]] | None = None,
) -> Dump:
    """Return the dump of one rank. ``status``: of each group, what it has launched and finished."""
    known = {"0": ("default_pg", list(range(ranks))), **(groups or {})}
    return {
        "version": version,
        "nccl_version": "2.28.9",
        "pg_config": {
            name: {"name": name, "desc": text, "ranks": str(list(members))}
            for name, (text, members) in known.items()
        },
        "pg_status": {
            name: {"last_enqueued_collective": launched, "last_started_collective": -1, "last_completed_collective": done}
            for name, (launched, done) in (status or {}).items()
        },
        "entries": [
            {**entry, "record_id": first_record + place, "time_created_ns": T0 + place * 1_000_000}
            for place, entry in enumerate(entries)
        ],
    }  # fmt: skip


def steps(kind: str, first: int, last: int, **more: Any) -> list[Entry]:
    return [op(kind, number, **more) for number in range(first, last + 1)]


@dataclass(frozen=True)
class Row:
    name: str
    dumps: Mapping[int, Dump]
    verdict: str  # "culprits", "nobody", "unknown"
    cause: str = ""
    ranks: tuple[int, ...] = ()


def row(name: str, dumps: Sequence[Dump | None], verdict: str, cause: str = "", *ranks: int) -> Row:
    found = {rank: dump for rank, dump in enumerate(dumps) if dump is not None}
    return Row(name, found, verdict, cause, ranks)


# What each rank of gather and scatter records: the root's side is empty on the others, in two forms.
NONE: Final = {"sizes_out": ()}
UNDEFINED: Final = {"sizes_out": ((0,),), "types": ("Float", "Undefined")}
LISTS: Final = ((4, 4),) * 4
PAST: Final = steps("all_reduce", 1, 8)


def gather(number: int, is_root: bool, state: str, empty: Mapping[str, Any], **more: Any) -> Entry:
    sides = {"sizes_out": LISTS} if is_root else dict(empty)
    return op("gather", number, state, ((4, 4),), **sides, **more)


def scatter(number: int, is_root: bool, state: str, **more: Any) -> Entry:
    return op("scatter", number, state, LISTS if is_root else (), ((4, 4),), **more)


def of_gather(states: Sequence[str | None], empty: Mapping[str, Any] = NONE) -> list[Dump]:
    """Return dumps of ranks in a gather to rank 0; None: not launched."""
    return [
        dump([*PAST, *([gather(9, rank == 0, state, empty)] if state else [])])
        for rank, state in enumerate(states)
    ]


def of_scatter(states: Sequence[str | None]) -> list[Dump]:
    return [
        dump([*PAST, *([scatter(9, rank == 0, state)] if state else [])])
        for rank, state in enumerate(states)
    ]


def of(kind: str, states: Sequence[str | None], **more: Any) -> list[Dump]:
    return [dump([*PAST, *([op(kind, 9, state, **more)] if state else [])]) for state in states]


def ended(*entries: Entry, **more: Any) -> Dump:
    return dump([*PAST, *entries], **more)


W: Final = STARTED
S: Final = SCHEDULED
GROUPS: Final = {
    "1": ("TENSOR", (0, 1)),
    "2": ("TENSOR", (2, 3)),
    "3": ("DATA", (0, 2)),
    "4": ("DATA", (1, 3)),
}


def grouped(*jobs: Sequence[Entry]) -> list[Dump]:
    """Return the dumps of ranks 0 to 3, each with its own groups."""
    return [
        dump([*PAST, *entries], groups={n: one for n, one in GROUPS.items() if rank in one[1]})
        for rank, entries in enumerate(jobs)
    ]


def in_group(name: str, kind: str, number: int, state: str = DONE, **more: Any) -> Entry:
    return op(kind, number, state, group=(name, GROUPS[name][0]), **more)


EXTRA: Final = [  # rank 0 makes one all_reduce more at 3: pytorch/tutorials, flight_recorder crash.py
    dump([*steps("all_reduce", 1, 2), op("all_reduce", 3, sizes_in=((4, 5),)), op("all_reduce", 4), op("all_reduce", 5, W)], 2),
    dump(steps("all_reduce", 1, 4), 2),
]  # fmt: skip


def shifted(ranks: int, ahead: Sequence[int], number: int = 3, length: int = 20) -> list[Dump]:
    """Return dumps in which some ranks made one operation more at a place, and wait at the end."""
    sizes = [((8,),), ((16,),), ((24,),)]
    usual = [sizes[place % 3] for place in range(length)]
    dumps = []
    for rank in range(ranks):
        made = [*usual[:number], ((99,),), *usual[number:]] if rank in ahead else usual
        state = [DONE] * length + [W]
        dumps.append(
            dump([op("all_reduce", place + 1, state[place], size) for place, size in enumerate(made)], ranks)
        )  # fmt: skip
    return dumps


def transfers(rank: int, *pairs: tuple[str, int, str]) -> list[Entry]:
    arrows = {"send": "->", "recv": "<-"}
    return [
        op(f"{kind} {rank}{arrows[kind]}{peer}", place + 1, state, is_p2p=True)
        for place, (kind, peer, state) in enumerate(pairs)
    ]


def without(dump: Dump, *keys: str) -> Dump:
    """Return a dump as an older version wrote it, without these keys of entries."""
    entries = [{k: v for k, v in entry.items() if k not in keys} for entry in dump["entries"]]
    return {**dump, "entries": entries}


def older(dump: Dump, version: str) -> Dump:
    """Return a dump of flight recorder 2.0 to 2.2: one count for all, and no flag for pairs."""
    entries = [
        {**entry, "seq_id": entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]}
        for entry in dump["entries"]
    ]
    keys = ("collective_seq_id", "p2p_seq_id", "is_p2p", "timeout_ms", "op_id")
    return {**without({**dump, "entries": entries}, *keys), "version": version}


def coalesced(number: int, state: str, parts: int = 3, *, is_whole: bool = True) -> list[Entry]:
    """Return a batch of all_gathers, whose parts keep their state when it ends."""
    inner = [op("_all_gather_base", number, S, ((4,),), ((16,),)) for _part in range(parts)]
    return [*inner, *([op("coalesced", number, state, (), ())] if is_whole else [])]


# fmt: off
ROWS: Final = (
    # gather and scatter: the root's side is not compared.
    row("gather: a host has not launched it, outputs only on the root", of_gather((W, W, DONE, None)), "culprits", "host-stuck", 3),
    row("gather: the same with undefined tensors", of_gather((W, W, DONE, None), UNDEFINED), "culprits", "host-stuck", 3),
    row("gather: the root's host has not launched it", of_gather((None, W, W, W)), "culprits", "host-stuck", 0),
    row("gather: the root's device has not begun it", of_gather((S, W, W, W)), "culprits", "device-stuck", 0),
    row("gather: another device has not begun it", of_gather((W, W, S, W), UNDEFINED), "culprits", "device-stuck", 2),
    row("gather: all have begun it", of_gather((W, W, W, W)), "nobody", "network"),
    row("gather: all have begun it, undefined tensors", of_gather((W, W, W, W), UNDEFINED), "nobody", "network"),
    row("gather: all have launched it, nothing says who has begun", of_gather((S, S, S, S)), "unknown"),
    row("gather: non-roots have gone on to a barrier, rank 2 sleeps", [
        ended(gather(9, True, W, NONE)), ended(gather(9, False, DONE, NONE), op("all_reduce_barrier", 10, W)), ended(),
        ended(gather(9, False, DONE, NONE), op("all_reduce_barrier", 10, W))], "culprits", "host-stuck", 2),
    row("gather: an undefined tensor that has a type and no size", [
        *(ended({**gather(9, rank == 0, W, NONE), **({} if rank == 0 else {"output_dtypes": ["Undefined"]})}) for rank in range(3)), ended()], "culprits", "host-stuck", 3),
    row("gather: a rank wrote no dump", [*of_gather((W, W, W)), None], "culprits", "process-gone", 3),
    row("gather: a rank gathers another size", [*of_gather((W, W, W)), ended(op("gather", 9, W, ((5, 4),), ()))], "nobody", "program"),
    row("gather: a rank gathers another type", [*of_gather((W, W, W)), ended(gather(9, False, W, NONE, types=("Half", "Float")))], "nobody", "program"),
    row("gather: a rank reduces instead", [*of_gather((W, W, W)), ended(op("reduce", 9, W, ((4, 4),)))], "nobody", "program"),
    row("gather by gloo, a host sleeps", [dump([*steps("all_reduce", 1, 8, library="gloo"), *([gather(9, rank == 0, S, NONE, library="gloo")] if rank != 3 else [])]) for rank in range(4)], "culprits", "host-stuck", 3),
    row("scatter: a host has not launched it", of_scatter((W, W, None, W)), "culprits", "host-stuck", 2),
    row("scatter: the root's host has not launched it", of_scatter((None, W, W, W)), "culprits", "host-stuck", 0),
    row("scatter: the root's device has not begun it", of_scatter((S, W, W, W)), "culprits", "device-stuck", 0),
    row("scatter: all have begun it", of_scatter((W, W, W, W)), "nobody", "network"),
    row("scatter: a rank expects another size", [*of_scatter((W, W, W)), ended(op("scatter", 9, W, (), ((5, 4),)))], "nobody", "program"),
    row("scatter: undefined inputs of non-roots", [ended(scatter(9, True, W)), *(ended(op("scatter", 9, W, ((0,),), ((4, 4),), types=("Undefined", "Float"))) for _rank in (1, 2)), ended()], "culprits", "host-stuck", 3),
    # Rooted operations with equal sides.
    row("reduce: a host has not launched it", of("reduce", (W, W, W, None)), "culprits", "host-stuck", 3),
    row("reduce: a rank has another size", [*of("reduce", (W, W, W)), ended(op("reduce", 9, W, ((9,),)))], "nobody", "program"),
    row("broadcast: the source's host has not launched it", of("broadcast", (None, W, W, W)), "culprits", "host-stuck", 0),
    row("broadcast: the source is done, a host has not launched it", of("broadcast", (DONE, W, W, None)), "culprits", "host-stuck", 3),
    row("broadcast: a device has not begun it", of("broadcast", (W, W, W, S)), "culprits", "device-stuck", 3),
    row("broadcast: another size", [*of("broadcast", (W, W, W)), ended(op("broadcast", 9, W, ((16,),)))], "nobody", "program"),
    row("broadcast: the same elements in another shape", [*of("broadcast", (W, W)), ended(op("broadcast", 9, W, ((2, 4),))), ended()], "culprits", "host-stuck", 3),
    row("_broadcast_oop of an uneven all_gather, all begun", of("_broadcast_oop", (W, W, W, W)), "nobody", "network"),
    # Uneven sizes are legal.
    row("all_to_all: uneven, a host has not launched it", [*(ended(op("all_to_all", 9, W, ((4 + rank,),), ((5,),))) for rank in range(3)), ended()], "culprits", "host-stuck", 3),
    row("all_to_all: uneven and right, all begun", [ended(op("all_to_all", 9, W, ((size_in,),), ((size_out,),))) for size_in, size_out in ((8, 4), (4, 8), (6, 6), (2, 2))], "nobody", "network"),
    row("all_to_all: more is sent than received", [ended(op("all_to_all", 9, W, ((size_in,),), ((size_out,),))) for size_in, size_out in ((8, 4), (4, 8), (6, 6), (2, 1))], "nobody", "program"),
    row("all_to_all: a rank sends nothing", [ended(op("all_to_all", 9, W, ((size_in,),), ((6,),))) for size_in in (0, 12, 6, 6)], "nobody", "network"),
    row("all_to_all: lists of other lengths, one dump of four is missing", [*(ended(op("all_to_all", 9, W, ((rank + 1,),) * 4, ((2,),) * 4)) for rank in range(3)), None], "culprits", "process-gone", 3),
    row("all_to_all: another type", [*(ended(op("all_to_all", 9, W)) for _rank in range(3)), ended(op("all_to_all", 9, W, types=("BFloat16", "BFloat16")))], "nobody", "program"),
    row("all_gather of a list: own parts of other sizes", [*(ended(op("all_gather", 9, W, ((3 + rank,),), ((3,), (4,), (5,), (6,)))) for rank in range(3)), ended()], "culprits", "host-stuck", 3),
    row("reduce_scatter of a list: own parts of other sizes", [*(ended(op("reduce_scatter", 9, W, ((3,), (4,), (5,), (6,)), ((3 + rank,),))) for rank in range(3)), ended()], "culprits", "host-stuck", 3),
    row("_all_gather_base: another size", [*of("_all_gather_base", (W, W, W), sizes_out=((32,),)), ended(op("_all_gather_base", 9, W, ((9,),), ((36,),)))], "nobody", "program"),
    row("_all_gather_base: the same elements in another shape, one host behind", [ended(op("_all_gather_base", 9, W, ((8,),), ((32,),))), ended(op("_all_gather_base", 9, W, ((2, 4),), ((4, 8),))), ended(op("_all_gather_base", 9, W, ((8,),), ((32,),))), ended()], "culprits", "host-stuck", 3),
    row("_reduce_scatter_base: a device has not begun it", of("_reduce_scatter_base", (W, S, W, W), sizes_in=((32,),), sizes_out=((8,),)), "culprits", "device-stuck", 1),
    # Barriers and plain hangs.
    row("barrier: a host never comes", of("all_reduce_barrier", (W, W, W, None)), "culprits", "host-stuck", 3),
    row("barrier of gloo: no sizes at all", [dump([*steps("all_reduce", 1, 8, library="gloo"), *([op("barrier", 9, S, (), (), library="gloo")] if rank != 1 else [])]) for rank in range(4)], "culprits", "host-stuck", 1),
    row("barrier on one rank only, the others wait in an all_reduce", [ended(op("all_reduce_barrier", 9, W, ((1,),))), *(ended(op("all_reduce", 9, W)) for _rank in range(3))], "nobody", "program"),
    row("all_reduce: all begun", of("all_reduce", (W, W, W, W)), "nobody", "network"),
    row("all_reduce: a rank with no elements", [*of("all_reduce", (W, W, W)), ended(op("all_reduce", 9, W, ((0,),)))], "nobody", "program"),
    row("all_reduce: nothing is outstanding", [ended() for _rank in range(4)], "nobody"),
    row("all_reduce: three of four never come", of("all_reduce", (W, None, None, None)), "unknown"),
    row("one dump alone", [ended(op("all_reduce", 9, W))], "unknown"),
    # The past of a group.
    row("one rank made one more, and the last waits for it", EXTRA, "nobody", "program"),
    row("the same on 8 ranks, 7 of them ahead", shifted(8, range(7)), "nobody", "program"),
    row("the same on 8 ranks, 1 of them ahead", shifted(8, [0]), "nobody", "program"),
    row("apart since long, all wait at a size that fits by chance", [
        dump([*steps("all_reduce", 1, 4), op("all_reduce", 5, sizes_in=((9,),)), *steps("all_reduce", 6, 8), op("all_reduce", 9, W)]),
        *(dump([*PAST, op("all_reduce", 9, W)]) for _rank in range(3))], "nobody", "program"),
    row("a rank is overtaken in an operation that the others had in another size", [
        ended(op("all_reduce", 9, W, ((20,),))), *(ended(op("all_reduce", 9), op("all_reduce", 10, W)) for _rank in range(3))], "nobody", "program"),
    row("a past broadcast where another rank reduced", [
        dump([*steps("all_reduce", 1, 4), op("broadcast", 5), *steps("all_reduce", 6, 8), op("all_reduce", 9, W)]), *(ended(op("all_reduce", 9, W)) for _rank in range(2)), ended()], "nobody", "program"),
    row("past gathers with the root's side", [*(dump([*steps("all_reduce", 1, 7), gather(8, rank == 0, DONE, NONE), op("all_reduce", 9, W)]) for rank in range(3)), dump([*steps("all_reduce", 1, 7), gather(8, False, DONE, NONE)])], "culprits", "host-stuck", 3),
    row("past scatters with the root's side", [*(dump([*steps("all_reduce", 1, 7), scatter(8, rank == 0, DONE), op("all_reduce", 9, W)]) for rank in range(3)), dump([*steps("all_reduce", 1, 7), scatter(8, False, DONE)])], "culprits", "host-stuck", 3),
    row("past uneven all_to_alls", [*(dump([*steps("all_reduce", 1, 7), op("all_to_all", 8, DONE, ((rank,),), ((6 - rank,),)), op("all_reduce", 9, W)]) for rank in range(3)), dump([*steps("all_reduce", 1, 7), op("all_to_all", 8, DONE, ((3,),), ((3,),))])], "culprits", "host-stuck", 3),
    row("rings of different lengths that agree where both hold the past", [
        dump([*steps("all_reduce", 5, 8), op("all_reduce", 9, W)], first_record=4), ended(op("all_reduce", 9, W)), dump([op("all_reduce", 9, W)], first_record=8), ended()], "culprits", "host-stuck", 3),
    row("rings that no longer hold the place where ranks came apart", [
        dump([op("all_reduce", 9, W)], 2, first_record=8), dump(steps("all_reduce", 5, 8), 2, first_record=4)], "culprits", "host-stuck", 1),
    row("a difference in a group that has nothing to do with the host that stopped", grouped(
        [in_group("1", "broadcast", 1), op("all_reduce", 9, W)], [in_group("1", "broadcast", 1, sizes_in=((9,),)), op("all_reduce", 9, W)],
        [op("all_reduce", 9, W)], []), "culprits", "host-stuck", 3),
    row("a group that was made again counts from 1 again", [
        *(dump([*steps("broadcast", 1, 3), *steps("all_reduce", 1, 2), op("all_reduce", 3, W)]) for _rank in range(3)), dump([*steps("broadcast", 1, 3), *steps("all_reduce", 1, 2)])], "culprits", "host-stuck", 3),
    # Sub-groups.
    row("a host stops before its tensor group's collective", grouped(
        [in_group("1", "all_reduce", 5, W)], [], [in_group("2", "all_reduce", 5), in_group("3", "all_reduce", 3, W)],
        [in_group("2", "all_reduce", 5), in_group("4", "all_reduce", 3, W)]), "culprits", "host-stuck", 1),
    row("groups in another order", grouped(
        [in_group("1", "all_reduce", 5, W)], [in_group("4", "all_reduce", 3, W)], [in_group("3", "all_reduce", 3, W)], [in_group("2", "all_reduce", 5, W)]),
        "nobody", "deadlock"),
    row("another operation inside a sub-group", grouped([in_group("1", "all_reduce", 5, W)], [in_group("1", "broadcast", 5, W)], [], []), "nobody", "program"),
    row("gather inside a sub-group, its other host sleeps", grouped(
        [in_group("1", "gather", 5, W, sizes_out=((8,), (8,)))], [], [op("all_reduce", 9, W)], [op("all_reduce", 9, W)]), "culprits", "host-stuck", 1),
    # Coalesced operations.
    row("coalesced: a host has not launched the batch", [*(ended(*coalesced(9, W)) for _rank in range(3)), ended()], "culprits", "host-stuck", 3),
    row("coalesced: done batches whose parts stay scheduled", [*(ended(*coalesced(9, DONE), op("all_reduce", 10, W)) for _rank in range(3)), ended(*coalesced(9, DONE))], "culprits", "host-stuck", 3),
    row("coalesced: a host stands in the middle of its batch, and no operation differs", [*(ended(*coalesced(9, W)) for _rank in range(3)), ended(*coalesced(9, W, 1, is_whole=False))], "culprits", "device-stuck", 3),
    row("all_gather_into_tensor_coalesced: all begun", of("all_gather_into_tensor_coalesced", (W, W, W, W), sizes_in=((2,), (3,)), sizes_out=((8,), (12,))), "nobody", "network"),
    row("allreduce_coalesced: a rank with other tensors", [*of("allreduce_coalesced", (W, W, W), sizes_in=((2,), (3,))), ended(op("allreduce_coalesced", 9, W, ((2,), (4,))))], "nobody", "program"),
    # Sends and receives.
    row("all wait to receive from a rank that does nothing", [dump([*PAST, *transfers(rank, ("recv", 3, W))]) if rank != 3 else ended() for rank in range(4)], "culprits", "host-stuck", 3),
    row("one pair in a ring of sends that both sides launched", [dump([*PAST, *transfers(0, ("send", 1, W))], 2), dump([*PAST, *transfers(1, ("recv", 0, W))], 2)], "unknown"),
    row("finished batches of sends and receives that stay scheduled", [
        *(dump([*transfers(rank, ("send", (rank + 1) % 4, S)), op("coalesced", 1, DONE, (), (), is_p2p=True), *PAST, op("all_reduce", 9, W)]) for rank in range(3)), dump([*transfers(3, ("send", 0, S)), op("coalesced", 1, DONE, (), (), is_p2p=True), *PAST])], "culprits", "host-stuck", 3),
    row("a batch of pairs counts a collective on some ranks only", [
        *(dump([op("coalesced", 1, DONE, (), (), is_p2p=True), *steps("all_reduce", 2, 3, sizes_in=((4,),)), op("all_reduce", 4, W)]) for _rank in range(3)), dump([op("all_reduce", 2, sizes_in=((16,),)), op("all_reduce", 3, sizes_in=((4,),))])], "culprits", "host-stuck", 3),
    # Versions and forms of the dump.
    *(row(f"version {version}: a host has not launched a gather", [older(told, version) for told in of_gather((W, W, W, None))], "culprits", "host-stuck", 3) for version in ("2.0", "2.1", "2.2")),
    *(row(f"version {version}: one more in the past", [{**told, "version": version} for told in EXTRA], "nobody", "program") for version in ("2.3", "2.4", "2.5", "2.9", "2.11")),
    row("entries without types", [without(told, "input_dtypes", "output_dtypes") for told in of_gather((W, W, W, None))], "culprits", "host-stuck", 3),
    row("entries without sizes", [without(told, "input_sizes", "output_sizes", "input_dtypes", "output_dtypes") for told in of("all_reduce", (W, W, W, None))], "culprits", "host-stuck", 3),
    row("counters of the group: the ring has lost the entry", [
        *(dump([op("all_reduce", 9, W)], first_record=8, status={"0": (9, 8)}) for _rank in range(3)), dump([], status={"0": (8, 8)})], "culprits", "host-stuck", 3),
)
# fmt: on


def diagnosed(dumps: Mapping[int, FlightDump]) -> tuple[str, str, tuple[int | None, ...]]:
    found = diagnose_hang(view_job(dumps))
    return found.verdict.value, found.cause, tuple(sorted(one.rank for one in found.culprits))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_dumps_prove_what_they_prove_and_no_more(row: Row) -> None:
    dumps = {rank: parse_dump(pickle.dumps(told, protocol=2)) for rank, told in row.dumps.items()}

    assert diagnosed(dumps) == (row.verdict, row.cause, row.ranks)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_trimmed_dumps_and_json_say_the_same(row: Row) -> None:
    dumps = {
        rank: trim_dump(parse_dump(json.dumps(told).encode())) for rank, told in row.dumps.items()
    }

    assert diagnosed(dumps) == (row.verdict, row.cause, row.ranks)


def test_table_has_at_least_fifty_jobs_of_distinct_names() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 50
