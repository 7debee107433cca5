"""Dumps of PyTorch's flight recorder: what one rank knows of its collectives.

Source: torch/csrc/distributed/c10d/FlightRecorder*.hpp (dump, dump_json), versions 2.0 to 2.10,
        of NCCL and gloo, as pickle or as JSON (where numbers may be text and 0 stands for None).
Keys:   version, entries, pg_config, pg_status, comm_lib_version or nccl_version, nccl_comm_state.
        pg_config and an entry's process_group name a group as the whole job does; pg_id and the
        keys of pg_status are the rank's own numbers, in the order in which it made its groups.

A dump doesn't say which rank wrote it: its file name does. gloo writes no members of groups.
A collective is done when `retired` is true, or its state is completed, or its group's last
completed collective is as high. gloo leaves the state at scheduled for ever.
"""

import json
import re
from dataclasses import replace
from typing import Any, Final

from detectors.formats.plain_pickle import BYTES_MAX, load_plain
from detectors.hang.flight_dump import (
    CollectiveShape,
    FlightDump,
    GroupStatus,
    Operation,
    OperationState,
)
from detectors.parallel_groups import RANKS_MAX, Group, Parallelism, parallelism_of
from rankmend.errors import SourceError

ENTRIES_MAX: Final = 200_000  # the default buffer has 2,000
GROUPS_MAX: Final = 20_000  # per rank
DIMENSIONS_MAX: Final = 64
TENSORS_MAX: Final = 4096  # in one coalesced operation
MAJOR_KNOWN: Final = "2"
_P2P_PEERS: Final = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")
_STATES: Final = {
    "scheduled": OperationState.ENQUEUED,
    "started": OperationState.STARTED,
    "completed": OperationState.DONE,
}


def parse_dump(data: bytes) -> FlightDump:
    """Return what a dump says, or raise SourceError. Unknown keys are left alone."""
    dump = _load(data)
    if not isinstance(dump, dict):
        raise SourceError(f"dump is {type(dump).__name__}, not a table of keys")
    version = _text(dump.get("version"), "version")
    warnings = []
    if version.partition(".")[0] != MAJOR_KNOWN:
        raise SourceError(f"dump of flight recorder version {version!r}, and 2.x is known")
    entries = dump.get("entries", [])
    if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
        raise SourceError(f"entries of a dump are not a list of at most {ENTRIES_MAX}")
    groups = {group.name: group for group in _groups(dump.get("pg_config") or {})}
    described: dict[str, str] = {}
    own_ids: dict[int, str] = {}
    operations = []
    timeout_ms = 0
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise SourceError(f"entry {number} of a dump is {type(entry).__name__}, not a table")
        name, description = _group_of(entry, number)
        described.setdefault(name, description)
        own_ids[_whole(entry.get("pg_id", -1), "pg_id")] = name
        timeout_ms = max(timeout_ms, _whole(entry.get("timeout_ms") or 0, "timeout_ms"))
        operations.append(_operation(entry, number, name, groups.get(name)))
    _name_the_unnamed(groups, described)
    if not groups:
        warnings.append("the dump doesn't tell the members of its groups")
    known = groups or {
        name: Group(name, (), parallelism_of(text), text, is_inferred=True)
        for name, text in described.items()
    }
    statuses, is_certain = _statuses(dump.get("pg_status") or {}, known, own_ids)
    if not is_certain:
        warnings.append("the dump's group counters don't match its group table")
    return FlightDump(
        version=version,
        library=str(dump.get("comm_lib_version") or dump.get("nccl_version") or "")[:64],
        groups=tuple(known.values()),
        statuses=statuses,
        operations=tuple(_of_newest_groups(_complete_batches(operations))),
        timeout_s=timeout_ms / 1000 if timeout_ms else None,
        warnings=tuple(warnings),
    )


def _of_newest_groups(operations: list[Operation]) -> list[Operation]:
    """Return the operations without those of a group that was destroyed and made again by the same name.

    Names count from 0 again once the default group is destroyed, and so do a group's collectives.
    """
    begins: dict[str, int] = {}  # group: the place where its newest life begins
    newest: dict[str, int] = {}
    for place, operation in enumerate(operations):
        if operation.is_p2p:
            continue
        if operation.sequence <= 1 < newest.get(operation.group, 0):
            begins[operation.group] = place
        newest[operation.group] = operation.sequence
    if not begins:
        return operations
    return [
        operation
        for place, operation in enumerate(operations)
        if place >= begins.get(operation.group, 0)
    ]


def _complete_batches(operations: list[Operation]) -> list[Operation]:
    """Return the operations in the order of launching, the parts of a batch in the state of the batch.

    The parts have its number, and PyTorch updates the state of its last entry alone (pytorch/pytorch#137969).
    """
    states = {
        (operation.group, operation.is_p2p, operation.sequence): operation.state
        for operation in operations
        if operation.kind.endswith("coalesced")
    }
    completed = []
    for item in sorted(operations, key=lambda operation: operation.record):
        state = states.get((item.group, item.is_p2p, item.sequence), item.state)
        is_done = item.state is OperationState.DONE
        completed.append(item if is_done or state is item.state else replace(item, state=state))
    return completed


def _load(data: bytes) -> Any:
    if not data:
        raise SourceError("dump is empty")
    if len(data) > BYTES_MAX:
        raise SourceError(f"dump of {len(data)} bytes, and at most {BYTES_MAX} are read")
    if data[:1] != b"\x80" and data.lstrip()[:1] == b"{":
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"dump is not JSON: {error}") from error
    if data[:1] != b"\x80":
        raise SourceError(f"dump begins with {data[:8]!r}: neither a pickle nor JSON")
    return load_plain(data)


def _groups(table: Any) -> list[Group]:
    if not isinstance(table, dict) or len(table) > GROUPS_MAX:
        raise SourceError(f"pg_config is not a table of at most {GROUPS_MAX} groups")
    groups = []
    for name, config in table.items():
        if not isinstance(config, dict):
            raise SourceError(f"pg_config of group {name!r} is {type(config).__name__}")
        ranks = _ranks(config.get("ranks"), name)
        if ranks:  # gloo writes one group without name and members
            description = _text(config.get("desc", ""), "desc")
            groups.append(
                Group(_text(name, "group"), ranks, parallelism_of(description), description)
            )
    return groups


def _name_the_unnamed(groups: dict[str, Group], described: dict[str, str]) -> None:
    """Give the group of the whole job its name: gloo of 2.13 writes its members without one."""
    unnamed = groups.pop("", None)
    worlds = [name for name in described if parallelism_of(described[name]) is Parallelism.WORLD]
    if unnamed is not None and len(worlds) == 1 and worlds[0] not in groups:
        text = described[worlds[0]]
        groups[worlds[0]] = Group(worlds[0], unnamed.ranks, Parallelism.WORLD, text)


def _ranks(value: Any, name: object) -> tuple[int, ...]:
    if isinstance(value, str):
        words = value.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) <= 9 for word in words):
            raise SourceError(f"ranks of group {name!r} are not numbers: {value[:80]!r}")
        value = [int(word) for word in words]
    if not isinstance(value, list):
        raise SourceError(f"ranks of group {name!r} are {type(value).__name__}, not a list")
    ranks = tuple(_whole(rank, "rank") for rank in value)
    if any(not 0 <= rank < RANKS_MAX for rank in ranks) or len(set(ranks)) != len(ranks):
        raise SourceError(f"ranks of group {name!r} repeat or lie outside 0 to {RANKS_MAX - 1}")
    return ranks


def _group_of(entry: dict[Any, Any], number: int) -> tuple[str, str]:
    value = entry.get("process_group")
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise SourceError(
            f"entry {number} has process_group {value!r:.80}, not name and description"
        )
    return _text(value[0], "process_group"), _text(value[1], "process_group")


def _operation(
    entry: dict[Any, Any], number: int, group_name: str, group: Group | None
) -> Operation:
    profiling_name = _text(entry.get("profiling_name"), "profiling_name")
    kind = profiling_name.rpartition(":")[2]
    peer = None
    is_transfer = False
    is_p2p = entry.get("is_p2p")  # older dumps lack it: the name tells
    if is_p2p is True or (is_p2p is None and _P2P_PEERS.search(kind)):
        is_transfer = True
        if match := _P2P_PEERS.search(kind):
            peer = int(match[4])
            # The number is the peer's in its group.
            peer = group.ranks[peer] if group and peer < len(group.ranks) else None
            kind = match[1]
        else:
            kind = kind.partition(" ")[0]
        sequence = _whole(entry.get("p2p_seq_id", entry.get("seq_id", 0)), "p2p_seq_id")
    else:
        sequence = _whole(entry.get("collective_seq_id", entry.get("seq_id")), "collective_seq_id")
    state_name = entry.get("state", "scheduled")
    state = _STATES.get(state_name) if isinstance(state_name, str) else None
    if state is None:
        raise SourceError(f"entry {number} is in state {state_name!r:.40}, which is not known")
    if entry.get("retired") is True:
        state = OperationState.DONE
    elif state is OperationState.ENQUEUED and entry.get("time_discovered_started_ns"):
        state = OperationState.STARTED
    return Operation(
        group=group_name,
        sequence=sequence,
        kind=kind,
        record=_whole(entry.get("record_id", number), "record_id"),
        state=state,
        shape=CollectiveShape(
            _sizes(entry.get("input_sizes")),
            _sizes(entry.get("output_sizes")),
            _texts(entry.get("input_dtypes")) + _texts(entry.get("output_dtypes")),
        ),
        peer=peer,
        is_transfer=is_transfer,
        enter_s=_seconds(entry.get("time_created_ns")),
        exit_s=_seconds(entry.get("time_discovered_completed_ns")),
    )


def _statuses(
    table: Any, groups: dict[str, Group], own_ids: dict[int, str]
) -> tuple[tuple[GroupStatus, ...], bool]:
    """Return the group counters, and whether it is certain whose they are.

    Its keys are the rank's own numbers. Where there are as many as named groups they are in the
    same order; entries, which have both, must agree.
    """
    if not isinstance(table, dict) or len(table) > GROUPS_MAX:
        raise SourceError(f"pg_status is not a table of at most {GROUPS_MAX} groups")
    numbers = {_whole(key, "pg_status"): value for key, value in table.items()}
    names = dict(own_ids)
    members_known = [name for name, group in groups.items() if group.ranks]
    if len(numbers) == len(members_known) and all(name.isdigit() for name in members_known):
        paired = dict(zip(sorted(numbers), sorted(members_known, key=int), strict=True))
        is_certain = all(paired.get(number, name) == name for number, name in own_ids.items())
        names = paired if is_certain else names
    else:
        is_certain = not members_known or set(numbers) <= set(own_ids)
    statuses = []
    for number, value in sorted(numbers.items()):
        if not isinstance(value, dict):
            raise SourceError(f"pg_status {number} is {type(value).__name__}, not a table")
        if number in names:
            statuses.append(
                GroupStatus(
                    names[number],
                    _count(value.get("last_enqueued_collective")),
                    _count(value.get("last_completed_collective")),
                )
            )
    return tuple(statuses), is_certain


def _count(value: Any) -> int | None:
    if value is None:
        return None
    number = _whole(value, "pg_status")
    return number if number >= 0 else None


def _whole(value: Any, name: str) -> int:
    """Return a whole number; JSON dumps write some as text."""
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    if type(value) is not int or abs(value) >= 1 << 64:
        raise SourceError(f"{name} of a dump is {value!r:.40}, not a whole number")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > 512:
        raise SourceError(f"{name} of a dump is {value!r:.40}, not a short text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(_text(item, "dtype") for item in value[:TENSORS_MAX])


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    sizes = []
    for tensor in value[:TENSORS_MAX]:
        if not isinstance(tensor, (list, tuple)) or len(tensor) > DIMENSIONS_MAX:
            raise SourceError(f"size of a tensor in a dump is {type(tensor).__name__}")
        sizes.append(tuple(_whole(extent, "size") for extent in tensor))
    return tuple(sizes)


def _seconds(value: Any) -> float | None:
    """Return unix nanoseconds as seconds; 0 and None are absent."""
    return _whole(value, "time") / 1e9 if value else None
