"""Orbax: `<step>/` with one folder an item.

A save is made in `<step>.orbax-checkpoint-tmp*` and renamed; on storage without atomic renames,
and always since 0.12, a file `commit_success.txt` says that it is whole. `_CHECKPOINT_METADATA`
alone is no proof: its commit time is null until then. Source: orbax-checkpoint 0.12.8.
"""

from typing import Final

from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.model import CheckpointFormat
from recovery.checkpoints.names import counted
from recovery.checkpoints.reader import DefectError

_METADATA: Final = "_CHECKPOINT_METADATA"
_COMMIT: Final = "commit_success.txt"
_ITEM: Final = "_METADATA"
_MANIFEST: Final = "manifest.ocdbt"


class OrbaxFormat:
    format = CheckpointFormat.ORBAX

    def recognises(self, tree: Tree) -> bool:
        if {_METADATA, _COMMIT, _MANIFEST} & tree.top_files:
            return True
        # An item's own metadata are one level below, which is not listed yet.
        has_items = bool(tree.top_folders) and not tree.top_files
        return has_items and tree.name.isdecimal()

    def step(self, tree: Tree) -> int | None:
        return int(tree.name) if tree.name.isdecimal() else None

    def check(self, tree: Tree) -> str:
        if _METADATA not in tree.files:
            raise DefectError(f"{_METADATA} is missing")
        if tree.json(_METADATA).get("commit_timestamp_nsecs") is None:
            raise DefectError(f"{_METADATA} holds no commit time: the save did not finish")
        folders = sorted(name.rpartition("/")[0] for name in tree.files if name.endswith(_COMMIT))
        items = [name for name in sorted(tree.top_folders) if name != "metrics"]
        if folders:
            tree.require(_COMMIT)
            for item in items:
                if item not in folders:
                    raise DefectError(f"{item}/{_COMMIT} is missing")
        arrays = [""] if f"{_ITEM}" in tree.files else []
        arrays += [f"{item}/" for item in items if f"{item}/{_ITEM}" in tree.files]
        for item in arrays:
            if tree.json(f"{item}{_ITEM}").get("use_ocdbt"):
                tree.require(f"{item}{_MANIFEST}")
                if not any(name.startswith(f"{item}d/") for name in tree.files):
                    raise DefectError(f"{item}d/, which holds the arrays, is missing")
        proof = f"{_METADATA} with its commit time, {counted(len(items), 'item')}"
        return f"{proof}, {_COMMIT} of each" if folders else proof
