"""DeepSpeed: `global_step<N>/` beside a text file `latest`.

Rank 0 writes `latest` after its own files and before the final barrier, so it may point to a save
whose other shards are still missing. The number of ZeRO shards is in the model states.
Source: deepspeed 0.18.2, runtime/engine.py, `save_checkpoint` and `_get_zero_ckpt_name`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from detectors.wording import counted
from recovery.checkpoints.files.pickle_stream import Opaque, step_in
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.tree import Tree, require_whole_range
from recovery.messages.candidates import CheckpointFormat

_MODEL: Final = re.compile(r"mp_rank_([0-9]+)_model_states\.pt")
_ZERO: Final = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]+)_mp_rank_([0-9]+)_(model|optim)_states\.pt"
)
_UNIVERSAL: Final = (
    "zero"  # of ds_to_universal.py, a folder of each parameter in the place of shards
)
_LAYER: Final = re.compile(r"(layer_[0-9]+)-model_[0-9]+-model_states\.pt")


class DeepSpeedFormat:
    format = CheckpointFormat.DEEPSPEED

    def recognises(self, tree: Tree) -> bool:
        return is_deepspeed(tree)

    def step(self, tree: Tree) -> int | None:
        return step_in(_first_state(tree), "global_steps", "global_step", "iteration")

    def check(self, tree: Tree) -> str:
        return check_deepspeed(tree)


def is_deepspeed(tree: Tree) -> bool:
    return bool(tree.matching(_MODEL) or tree.matching(_ZERO) or tree.matching(_LAYER))


def check_deepspeed(tree: Tree) -> str:
    """Return how many shards there are; raise DefectError when one is missing."""
    models = {int(match[1]) for match in tree.matching(_MODEL)}
    shards: dict[tuple[str, int], set[int]] = defaultdict(set)
    for match in tree.matching(_ZERO):
        shards[match[3], int(match[2])].add(int(match[1]))
    if not models and not any(kind == "model" for kind, _rank in shards):
        raise DefectError("mp_rank_00_model_states.pt is missing")
    state = _first_state(tree)
    replicas = step_in(state, "dp_world_size")
    model_ranks = step_in(state, "mp_world_size")
    if models:
        require_whole_range(models, "mp_rank_{:02}_model_states.pt", model_ranks)
    kinds = {kind for kind, _rank in shards}
    has_optimizer = "optim" in kinds or _UNIVERSAL in tree.top_folders
    if not has_optimizer and (_zero_stage(state) or _had_shards(tree)):
        raise DefectError("zero_pp_rank_0_mp_rank_00_optim_states.pt is missing")
    lacking = min(_layers(tree.earlier) - _layers(tree.top_files), default=None)
    if lacking is not None:
        raise DefectError(f"the files of {lacking} are missing: the save before has them")
    for kind in sorted(kinds):
        ranks = {rank for of_kind, rank in shards if of_kind == kind}
        name = f"zero_pp_rank_*_mp_rank_{{:02}}_{kind}_states.pt"
        require_whole_range(ranks, name, model_ranks)
        count = replicas or max(len(shards[kind, rank]) for rank in ranks)
        for rank in sorted(ranks):
            what = f"zero_pp_rank_{{}}_mp_rank_{rank:02}_{kind}_states.pt"
            require_whole_range(shards[kind, rank], what, count)
    count = sum(len(members) for members in shards.values())
    ranks_told = counted(max(len(models), 1), "rank")
    return f"model states of {ranks_told} and {counted(count, 'ZeRO shard')}"


def _first_state(tree: Tree) -> Any:
    names = [match[0] for match in tree.matching(_MODEL)]
    names += [match[0] for match in tree.matching(_ZERO) if match[3] == "model"]
    return tree.torch_content(names[0]) if names else None


def _layers(names: Iterable[str]) -> set[str]:
    """Return the layers of a pipeline that have files among these."""
    return {match[1] for match in map(_LAYER.fullmatch, names) if match is not None}


def _had_shards(tree: Tree) -> bool:
    """Return whether the save before has shards of the optimizer."""
    matches = map(_ZERO.fullmatch, tree.earlier)
    return any(match is not None and match[3] == "optim" for match in matches)


def _zero_stage(state: Any) -> int:
    config = state.get("ds_config") if isinstance(state, dict) else None
    config = config.items if isinstance(config, Opaque) else config
    zero = config.get("zero_optimization") if isinstance(config, dict) else None
    return step_in(zero, "stage") or 0
