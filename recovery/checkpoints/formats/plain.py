"""Folders that a script fills by itself: safetensors, files of torch.save, dlrover's rank files.

Without a marker, the save before tells which files belong to a save. `last/` and `ckpt_a/`, which scripts
overwrite, have no number; nor has a folder with an optimizer's state, whatever its name.
"""

import re
from collections import defaultdict
from typing import Final

from detectors.wording import counted
from recovery.checkpoints.files.content import identify
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.dcp import MARKER, check_dcp
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.formats.weights import check_weights
from recovery.checkpoints.names import (
    has_checkpoint_suffix,
    has_optimizer,
    is_beside_model,
    is_export,
    is_save_name,
    piece_of,
    shown,
    step_of,
)
from recovery.messages.candidates import CheckpointFormat, Holds

DLROVER_TRACKER: Final = "dlrover_latest.txt"
DLROVER_STAGE: Final = "._dlrover_ckpt_stage"
_TRACKER_BYTES_MAX: Final = 64
LEROBOT_FOLDERS: Final = frozenset({"pretrained_model", "training_state"})
"""Of one step. Source: LeRobot, utils/train_utils.py, `save_checkpoint`."""
_OPTIMIZER_FOLDER: Final = re.compile(
    r"(?:model_and_)?(?:optim|optimizers?)(?:_states?)?", re.IGNORECASE
)
_IDENTIFIED_MAX: Final = 4  # files whose content is looked at
_TRAINED: Final = frozenset({Holds.STATE, Holds.MODEL, Holds.OPTIMIZER})
_NUMBER: Final = re.compile(r"[0-9]+")


class SafetensorsFormat:
    """`save_pretrained` and its like, in a folder that is named as a save."""

    format = CheckpointFormat.SAFETENSORS

    def recognises(self, tree: Tree) -> bool:
        return _is_named_as_save(tree) and any(
            name.endswith((".safetensors", ".safetensors.index.json")) for name in tree.top_files
        )

    def step(self, tree: Tree) -> int | None:  # noqa: ARG002
        return None

    def check(self, tree: Tree) -> str:
        weights = check_weights(tree) or "safetensors"
        return f"{weights}, {_compare_with_earlier(tree)}"


class TorchFolderFormat:
    """Files of torch.save or np.savez, one for each object or rank."""

    format = CheckpointFormat.TORCH

    def recognises(self, tree: Tree) -> bool:
        if tree.top_folders >= LEROBOT_FOLDERS or _optimizer_folders(tree):
            return step_of(tree.name) is not None
        return _is_named_as_save(tree) and any(map(has_checkpoint_suffix, tree.top_files))

    def step(self, tree: Tree) -> int | None:  # noqa: ARG002
        return None

    def check(self, tree: Tree) -> str:
        if tree.top_folders >= LEROBOT_FOLDERS:  # the optimizer is written last but for a scheduler
            names = ("training_step.json", "optimizer_state.safetensors")
            tree.require(*(f"training_state/{name}" for name in names))
        _check_holds_model(tree)
        _check_folders(tree)
        if step_of(tree.name) is None:  # its files are overwritten one after the other
            _check_is_one_save(tree)
        return _compare_with_earlier(tree)


class DlroverFormat:
    """A folder of dlrover's flash checkpoint: its tracker is written when all shards are done.

    Source: dlrover's documentation of flash checkpoint. A save to memory alone leaves no tracker.
    """

    format = CheckpointFormat.DLROVER

    def recognises(self, tree: Tree) -> bool:
        is_dlrovers = DLROVER_TRACKER in tree.beside or DLROVER_STAGE in tree.beside
        is_numbered = step_of(tree.name) is not None
        return is_dlrovers and is_numbered and TorchFolderFormat().recognises(tree)

    def step(self, tree: Tree) -> int | None:  # noqa: ARG002
        return None

    def check(self, tree: Tree) -> str:
        if DLROVER_TRACKER not in tree.beside:
            raise DefectError(f"{DLROVER_TRACKER} is missing beside it: no save was committed")
        with tree.open(f"../{DLROVER_TRACKER}") as reader:
            text = reader.read(0, min(reader.size_bytes, _TRACKER_BYTES_MAX))
        committed = text.strip()
        step = step_of(tree.name)
        if not committed.isdigit() or step is None or step > int(committed):
            shown_text = shown(committed.decode("ascii", "replace")) or "empty"
            raise DefectError(f"not committed: {DLROVER_TRACKER} is at {shown_text}")
        return f"{DLROVER_TRACKER} at {int(committed)}, {_compare_with_earlier(tree)}"


def _optimizer_folders(tree: Tree) -> list[str]:
    """Return the folders of a save that hold its optimizer, where the model has another one: `model/` and `optim/`.

    Source: OLMo, olmo/checkpoint.py (`model/rank0.pt`, `optim/rank0.pt`); OLMo-core (`model_and_optim/`, `train/`);
    nanotron, serialize/main.py. Accelerate's `optimizer_0/` has files beside it that tell more.
    """
    if len(tree.top_folders) < 2:
        return []
    return [name for name in sorted(tree.top_folders) if _OPTIMIZER_FOLDER.fullmatch(name)]


def _check_holds_model(tree: Tree) -> None:
    """Raise where all that was saved are states of what lies beside a model, such as a data loader's or random numbers'.

    Megatron-Energon saves the loader's before the model.
    """
    names = sorted(filter(has_checkpoint_suffix, tree.files))
    if not (is_beside_model(tree.name) or all(map(is_beside_model, names))):
        return
    for name in names[:_IDENTIFIED_MAX]:
        with tree.open(name) as reader:
            if identify(reader, tree.deadline).shape.holds in _TRAINED:
                return
    raise DefectError("neither a model nor an optimizer is in it")


def _check_folders(tree: Tree) -> None:
    """Raise where a folder of an optimizer is empty, or where a folder of DCP shards is not whole."""
    for folder in _optimizer_folders(tree):
        inner = tree.under(folder)
        if not any(map(has_checkpoint_suffix, inner.files)):
            raise DefectError(f"{folder}/ holds no checkpoint file")
    for folder in sorted(tree.top_folders):
        inner = tree.under(folder)
        if MARKER in inner.files or any(name.endswith(".distcp") for name in inner.top_files):
            try:
                check_dcp(inner)
            except DefectError as error:
                raise DefectError(f"{folder}/: {error}") from error


def _is_named_as_save(tree: Tree) -> bool:
    """Return whether the name has a step; else whether it or an optimizer says that this is one save."""
    if step_of(tree.name) is not None:
        return True
    if has_optimizer(tree.top_files):
        is_save = not _has_several_saves(tree)
    else:
        is_save = is_save_name(tree.name) and not is_export(tree.top_files)
    files = filter(has_checkpoint_suffix, tree.top_files)
    return is_save and all(step_of(name) is None for name in files)  # else a folder of saves


def _has_several_saves(tree: Tree) -> bool:
    """Return whether the optimizer's files count saves, as `5000_optimizerG.pth` and `10000_optimizerG.pth` do.

    Numbers from 0 or 1 on may be those of several optimizers.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in filter(has_checkpoint_suffix, tree.top_files):
        found = _NUMBER.findall(piece_of(name).shared)
        if found and "optim" in name.lower():
            numbers[_NUMBER.sub("#", name)].add(int(found[-1][:18]))
    return any(len(found) > 1 and max(found) > len(found) for found in numbers.values())


def _check_is_one_save(tree: Tree) -> None:
    """Raise where the contents of two files tell different steps: a save over another was cut short."""
    known: tuple[str, int] | None = None
    for name in sorted(filter(has_checkpoint_suffix, tree.top_files)):
        with tree.open(name) as reader:
            step = identify(reader, tree.deadline).step
        if step is not None and known is not None and step != known[1]:
            raise DefectError(
                f"two saves are mixed: {shown(known[0])} is of step {known[1]}, {shown(name)} of step {step}"
            )
        if step is not None:
            known = (name, step)


def _compare_with_earlier(tree: Tree) -> str:
    """Return how the files compare with those of the save before; raise when one is missing."""
    missing = [name for name in tree.missing_since_earlier() if has_checkpoint_suffix(name)]
    if missing:
        raise DefectError(f"{shown(missing[0])} is missing: the save before has one")
    count = sum(has_checkpoint_suffix(name) for name in tree.files)
    known = "as in the save before" if tree.earlier else "no earlier save to compare with"
    return f"{counted(count, 'file')} ({known})"
