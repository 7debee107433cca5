"""Megatron-LM: `iter_<N>/`, legacy with `mp_rank_*` folders or distributed (`torch_dist`).

`latest_checkpointed_iteration.txt` beside it is opened in place and may be empty, so it proves
nothing. Source: Megatron-LM 0032978, training/checkpointing.py, core/dist_checkpointing/.
"""

import re
from typing import Any, Final

from recovery.checkpoints.files.pickle_stream import Opaque, step_in
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.dcp import MARKER, SHARD, check_dcp, item_names
from recovery.checkpoints.formats.tree import Tree, require_whole_range
from recovery.messages.candidates import CheckpointFormat

_RANK: Final = re.compile(r"mp_rank_([0-9]+)(?:_([0-9]+))?(?:_([0-9]+))?")
_NAME: Final = re.compile(r"iter_[0-9]+")
_MODEL_FILES: Final = ("model_optim_rng.pt", "model_rng.pt")
_OPTIMIZER: Final = "distrib_optim.pt"
COMMON: Final = "common.pt"
CONFIG: Final = "metadata.json"
_COMMON_ITEM: Final = "common_state"


class MegatronFormat:
    """Legacy: one file for each tensor and pipeline rank."""

    format = CheckpointFormat.MEGATRON

    def recognises(self, tree: Tree) -> bool:
        return any(_RANK.fullmatch(name) for name in tree.top_folders)

    def step(self, tree: Tree) -> int | None:
        return step_in(_first_state(tree), "iteration")

    def check(self, tree: Tree) -> str:
        ranks = sorted(name for name in tree.top_folders if _RANK.fullmatch(name))
        optimizers = 0
        for rank in ranks:
            if not any(f"{rank}/{name}" in tree.files for name in _MODEL_FILES):
                raise DefectError(f"{rank}/{_MODEL_FILES[0]} is missing")
            optimizers += f"{rank}/{_OPTIMIZER}" in tree.files
        if optimizers and optimizers < len(ranks):
            without = next(rank for rank in ranks if f"{rank}/{_OPTIMIZER}" not in tree.files)
            raise DefectError(f"{without}/{_OPTIMIZER} is missing")
        matches = [match for rank in ranks if (match := _RANK.fullmatch(rank)) is not None]
        places = [tuple(int(part or 0) for part in match.groups()) for match in matches]
        args = _arguments(_first_state(tree))
        tensor_ranks = step_in(args, "tensor_model_parallel_size")
        pipeline_ranks = step_in(args, "pipeline_model_parallel_size")
        require_whole_range({place[0] for place in places}, "mp_rank_{:02}", tensor_ranks)
        require_whole_range({place[1] for place in places}, "mp_rank_00_{:03}", pipeline_ranks)
        expected = 1
        for axis in range(3):
            expected *= len({place[axis] for place in places})
        if len(places) < expected:
            raise DefectError(f"{expected - len(places)} of {expected} mp_rank folders are missing")
        return f"{len(ranks)} mp_rank folders" + (" with optimizers" if optimizers else "")


class MegatronDistFormat:
    """Distributed: PyTorch DCP shards, `common.pt` beside or in them, and `metadata.json` last."""

    format = CheckpointFormat.MEGATRON_DIST

    def recognises(self, tree: Tree) -> bool:
        if COMMON in tree.top_files:
            return True
        is_sharded = MARKER in tree.top_files or bool(tree.matching(SHARD))
        is_named = _NAME.fullmatch(tree.name) is not None
        return is_named and (is_sharded or CONFIG in tree.top_files)

    def step(self, tree: Tree) -> int | None:
        return common_step(tree)

    def check(self, tree: Tree) -> str:
        return check_distributed(tree)


def common_step(tree: Tree) -> int | None:
    """Return the iteration or step that `common.pt` holds."""
    if COMMON not in tree.files:
        return None
    return step_in(tree.torch_content(COMMON), "iteration", "global_step")


def check_distributed(tree: Tree) -> str:
    """Return what was proved of a distributed checkpoint of Megatron core."""
    items = item_names(tree)
    holds_common = items is not None and any(name.startswith(_COMMON_ITEM) for name in items)
    has_any = COMMON in tree.files or CONFIG in tree.files
    if not has_any and not holds_common and CONFIG not in tree.earlier:  # --ckpt-format torch_dcp
        return check_dcp(tree)
    tree.require(CONFIG)
    # Since Megatron-LM's pull request 5160 the shards hold it. A marker that is too long isn't read.
    if items is not None and not holds_common:
        tree.require(COMMON)
    backend = tree.json(CONFIG).get("sharded_backend")
    if not isinstance(backend, str):
        raise DefectError(f"{CONFIG}: it names no sharded_backend")
    names = f"{CONFIG}, {COMMON}" if COMMON in tree.files else CONFIG
    return f"{names}, {check_dcp(tree)}"


def _first_state(tree: Tree) -> Any:
    names = sorted(name for name in tree.files if name.rpartition("/")[2] in _MODEL_FILES)
    return tree.torch_content(names[0]) if names else None


def _arguments(state: Any) -> Any:
    """Return the values of the argparse.Namespace that Megatron saves as `args`."""
    args = state.get("args") if isinstance(state, dict) else None
    return args.state if isinstance(args, Opaque) else None
