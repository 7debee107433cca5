"""Orbax: `<step>/` with one folder an item.

A save is made in `<step>.orbax-checkpoint-tmp*` and renamed; on storage without atomic renames,
and always since 0.12, a file `commit_success.txt` says that it is whole. `_CHECKPOINT_METADATA`
alone is no proof: its commit time is null until then. Arrays are Zarr arrays, in an OCDBT database
or, with `use_ocdbt=False`, in files. Source: orbax-checkpoint 0.12.8.
"""

from typing import Final

from detectors.wording import counted
from recovery.checkpoints.files.ocdbt import (
    MANIFEST,
    FileRange,
    UnknownOcdbtError,
    read_entries,
    require_places,
)
from recovery.checkpoints.files.reader import DefectError, FileReader
from recovery.checkpoints.formats.plain import LEROBOT_FOLDERS
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.formats.zarr import Arrays, check_chunk, gather_arrays
from recovery.messages.candidates import CheckpointFormat

_METADATA: Final = "_CHECKPOINT_METADATA"
_COMMIT: Final = "commit_success.txt"
_ITEM: Final = "_METADATA"
_OLD_ITEM: Final = "checkpoint"  # what it was before Orbax 0.5
_PARSED: Final = "arrays"  # what `check` keeps for `check_content`


class OrbaxFormat:
    format = CheckpointFormat.ORBAX

    def recognises(self, tree: Tree) -> bool:
        if {_METADATA, _COMMIT, MANIFEST} & tree.top_files:
            return True
        # An item's own metadata are one level below, which is not listed yet.
        has_items = bool(tree.top_folders) and not tree.top_files
        if tree.top_folders >= LEROBOT_FOLDERS:
            return False
        return has_items and tree.name.isdecimal()

    def step(self, tree: Tree) -> int | None:
        return int(tree.name) if tree.name.isdecimal() else None

    def check(self, tree: Tree) -> str:
        if _METADATA not in tree.files:
            raise DefectError(f"{_METADATA} is missing")
        if tree.json(_METADATA).get("commit_timestamp_nsecs") is None:
            raise DefectError(f"{_METADATA} holds no commit time: the save did not finish")
        folders = sorted(name.rpartition("/")[0] for name in tree.files if name.endswith(_COMMIT))
        # A `Checkpointer` saves one item without a folder of its own; a `CheckpointManager` doesn't.
        is_one = _ITEM in tree.files
        items = [] if is_one else sorted(tree.top_folders - {"metrics"})
        if folders:
            tree.require(_COMMIT)
            for item in items:
                if item not in folders:
                    raise DefectError(f"{item}/{_COMMIT} is missing")
        proof = f"{_METADATA} with its commit time, {counted(len(items) or 1, 'item')}"
        proofs = [f"{proof}, {_COMMIT} of each" if folders else proof]
        found = Arrays()
        for item in ("", *(f"{item}/" for item in items)):
            if f"{item}{_ITEM}" in tree.files:
                proofs += _check_item(tree, item, found)
            elif f"{item}{MANIFEST}" in tree.files and f"{item}{_OLD_ITEM}" not in tree.files:
                raise DefectError(f"{item}{_ITEM} is missing")
        tree.parsed[_PARSED] = found
        return ", ".join(proofs)

    def check_content(self, tree: Tree, name: str, reader: FileReader) -> bool:
        found: Arrays = tree.parsed[_PARSED]
        for chunk in sorted(found.chunks.get(name, ())):
            check_chunk(reader, chunk)
        return name in found.chunks or name in found.read or name == _METADATA


def _check_item(tree: Tree, item: str, found: Arrays) -> list[str]:
    """Return what was proved of the item's arrays; raise DefectError where they are damaged."""
    metadata = tree.json(f"{item}{_ITEM}")
    found.read.add(f"{item}{_ITEM}")
    # Without this, a chunk of nothing but zeros is not written.
    has_all_chunks = metadata.get("store_array_data_equal_to_fill_value") is True
    entries: dict[str, bytes | FileRange]
    if metadata.get("use_ocdbt"):
        tree.require(f"{item}{MANIFEST}")
        if not any(name.startswith(f"{item}d/") for name in tree.files):
            raise DefectError(f"{item}d/, which holds the arrays, is missing")
        try:
            entries, nodes = read_entries(tree, item)
        except UnknownOcdbtError as error:
            return [f"its arrays only known to be there ({error})"]
        found.read |= nodes
        kind = f"{MANIFEST} and its tree"
    else:
        entries = {
            name.removeprefix(item): FileRange(name, 0, signature[2])
            for name, signature in tree.files.items()
            if name.startswith(item) and signature is not None
        }
        kind = "files"
    require_places(tree, (value for value in entries.values() if isinstance(value, FileRange)))
    arrays = gather_arrays(tree, item, entries, found, has_all_chunks=has_all_chunks)
    return [f"{counted(arrays, 'array')} by {kind}"]
