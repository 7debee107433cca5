"""PyTorch Distributed Checkpoint, and torchtitan's `step-N`, which is one.

`.metadata` is written last and names every item with its shard, offset and length, so the least
size of each shard is known without torch. With `use_collectives=False` each rank writes its own
`__<rank>.metadata`. Source: torch 2.13, torch/distributed/checkpoint/filesystem.py.
"""

import re
from collections import defaultdict
from typing import Any, Final

from detectors.wording import counted
from recovery.checkpoints.files.archive import read_archives, read_small
from recovery.checkpoints.files.pickle_stream import (
    PICKLE_BYTES_MAX,
    STEPS_END,
    Opaque,
    is_pickle,
    read_plain,
    step_in,
)
from recovery.checkpoints.files.reader import DefectError, FileReader
from recovery.checkpoints.formats.format import lacks_parts
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import shown
from recovery.messages.candidates import CheckpointFormat, HeldPart

MARKER: Final = ".metadata"
SHARD: Final = re.compile(r"__([0-9]+)_[0-9]+\.distcp")
_RANK_MARKER: Final = re.compile(r"__([0-9]+)\.metadata")
_STEP_ITEMS: Final = ("global_step", "step", "iteration", "current_step")
# Objects of training loops that hold the step; an optimizer's own "step" counts per parameter.
_STEP_HOLDERS: Final = (
    "train_state",
    "trainer_state",
    "trainer",
    "progress",
    "state",
    "app",
    "meta",
)
_STEP_BYTES_MAX: Final = 65_536
_SKEW_S: Final = 10.0  # nodes of one job that stamp their files by their own clocks


class DcpFormat:
    format = CheckpointFormat.DCP

    def recognises(self, tree: Tree) -> bool:
        return MARKER in tree.top_files or bool(tree.matching(SHARD) or tree.matching(_RANK_MARKER))

    def step(self, tree: Tree) -> int | None:
        return dcp_step(tree)

    def check(self, tree: Tree) -> str:
        return check_dcp(tree)

    def parts(self, tree: Tree) -> tuple[HeldPart, ...]:
        """Return the parts of ranks that have a marker of their own; they may lie on their nodes' disks."""
        if MARKER in tree.files:
            return ()
        ranks = sorted(int(match[1]) for match in tree.matching(_RANK_MARKER))
        return tuple(HeldPart(0, rank, rank) for rank in ranks)


def check_dcp(tree: Tree, skew_s: float = _SKEW_S) -> str:
    """Return what was proved of the shards by the marker; raise DefectError otherwise."""
    markers = [MARKER]
    missing = None
    if MARKER not in tree.files:
        ranks = {int(match[1]) for match in tree.matching(_RANK_MARKER)}
        if not ranks:
            raise DefectError(f"marker file {MARKER} is missing")
        there = ranks | {int(item[1]) for item in tree.matching(SHARD)}
        missing = next((rank for rank in range(max(there)) if rank not in there), None)
        markers = [f"__{rank}{MARKER}" for rank in sorted(ranks)]
        for match in tree.matching(SHARD):
            if int(match[1]) not in ranks:
                raise DefectError(f"marker file __{match[1]}{MARKER} is missing")
    shards: set[str] = set()
    for marker in markers:
        shards |= _check_marker(tree, marker, skew_s)
    if missing is not None:
        reason = f"__{missing}_0.distcp is missing"
        here = [match[0] for match in tree.matching(SHARD)]
        raise lacks_parts(tree, reason, here, DcpFormat().parts(tree))
    named = counted(len(shards), "shard")
    return f"marker {markers[0]} and the {named} that it names"


def _check_marker(tree: Tree, marker: str, skew_s: float) -> set[str]:
    signature = tree.files[marker]
    if signature is not None:
        if signature[2] == 0:
            raise DefectError(f"marker file {marker} is empty")
        latest_ns = signature[3] + int(skew_s * 1e9)
        for name, shard in sorted(tree.files.items()):
            if shard is not None and shard[3] > latest_ns and name.endswith(".distcp"):
                raise DefectError(f"{shown(name)} was written after the marker {marker}")
    with tree.open(marker) as reader:
        content = _metadata(reader, tree)
        ends: dict[str, int] = defaultdict(int)
        for _index, place in _stored(content):
            ends[place[0]] = max(ends[place[0]], place[1] + place[2])
        for name in ends or dict.fromkeys(_named_shards(content)):
            if name not in tree.files:
                raise DefectError(f"shard {shown(name)}, which it names, is missing")
    for name, end in ends.items():
        shard = tree.files[name]
        if shard is not None and shard[2] < end:
            raise DefectError(
                f"{shown(name)}: truncated: {shard[2]} bytes, but {marker} says {end}"
            )
    return set(ends)


def dcp_step(tree: Tree) -> int | None:
    """Return the step that was saved beside the tensors, or None where there is none."""
    if MARKER not in tree.files:
        return None
    with tree.open(MARKER) as reader:
        content = _metadata(reader, tree)
    places = {fqn: place for fqn, place in _stored(content) if fqn is not None}
    if any(fqn.rpartition(".")[2] == "epoch" for fqn in places):
        return None  # its step may count from the beginning of the epoch
    names = [
        *_STEP_ITEMS,
        *(f"{holder}.{item}" for holder in _STEP_HOLDERS for item in _STEP_ITEMS),
    ]
    for name in (*names, *_STEP_HOLDERS):
        place = places.get(name)
        if place is None or place[2] > _STEP_BYTES_MAX or place[0] not in tree.files:
            continue
        try:
            with tree.open(place[0]) as reader:
                step = _step_at(reader, place[1], tree)
        except DefectError:
            continue  # the check of the shard reports it
        if step is not None:
            return step
    return None


def item_names(tree: Tree) -> frozenset[str] | None:
    """Return the names of the items that the marker tells; None where it is missing, or too long to be read."""
    if MARKER not in tree.files:
        return None
    with tree.open(MARKER) as reader:
        content = _metadata(reader, tree)
    if content is None:
        return None
    return frozenset(fqn for fqn, _place in _stored(content) if fqn is not None)


def _step_at(reader: FileReader, offset: int, tree: Tree) -> int | None:
    """Return the number in the item at this offset: a plain one, or one in a tensor."""
    for archive in read_archives(reader):
        if archive.begins_at != offset:
            continue
        members = {member.name.partition("/")[2]: member.name for member in archive.members}
        data = read_small(reader, archive, members.get("data.pkl", ""), _STEP_BYTES_MAX)
        value = None if data is None else read_plain(data, tree.deadline)
        if isinstance(value, dict):
            return step_in(value, *_STEP_ITEMS)
        if isinstance(value, int) and not isinstance(value, bool):
            return value if 0 <= value < STEPS_END else None
        is_integer = isinstance(value, Opaque) and any(
            kind in str(_storage_type(value)) for kind in ("LongStorage", "IntStorage")
        )
        raw = read_small(reader, archive, members.get("data/0", ""), 8) if is_integer else None
        if raw is not None and len(raw) in {4, 8}:
            return int.from_bytes(raw, "little") if raw[-1] < 0x80 else None
    return None


def _storage_type(tensor: Opaque) -> Any:
    """Return which storage a tensor has, from the arguments of its `_rebuild_tensor_v2`."""
    args = tensor.args if isinstance(tensor.args, tuple) else ()
    persistent = args[0].args if args and isinstance(args[0], Opaque) else None
    return persistent[1] if isinstance(persistent, tuple) and len(persistent) > 1 else None


def _metadata(reader: FileReader, tree: Tree) -> Any:
    if reader.size_bytes > PICKLE_BYTES_MAX or not is_pickle(reader.read(0, 2)):
        return None
    return read_plain(reader.read(0, reader.size_bytes), tree.deadline)


def _stored(content: Any) -> list[tuple[str | None, tuple[str, int, int]]]:
    """Return name and place (shard, offset, length) of each item in the metadata."""
    state = content.state if isinstance(content, Opaque) else None
    stored = state.get("storage_data") if isinstance(state, dict) else None
    found = []
    for index, info in stored.items() if isinstance(stored, dict) else ():
        index_state, place = getattr(index, "state", None), getattr(info, "state", None)
        if not isinstance(place, dict):
            continue
        name, offset, length = (place.get(key) for key in ("relative_path", "offset", "length"))
        fqn = index_state.get("fqn") if isinstance(index_state, dict) else None
        if isinstance(name, str) and isinstance(offset, int) and isinstance(length, int):
            found.append((fqn if isinstance(fqn, str) else None, (name, offset, length)))
    return found


def _named_shards(content: Any) -> list[str]:
    """Return the texts in a metadata of another layout that are names of shards."""
    found: list[str] = []
    pending, seen = [content], set()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if value.endswith(".distcp"):
                found.append(value)
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, Opaque):
            pending += [value.args, value.state, value.items]
    return found
