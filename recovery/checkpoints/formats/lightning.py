"""Lightning and Fabric: one `.ckpt` file, or a folder of that name for sharded strategies.

The file is written in one transaction. A sharded folder holds PyTorch DCP shards and `meta.pt`,
which rank 0 writes last, or `checkpoint/` of DeepSpeed. Source: lightning 2.6.6,
fabric/strategies/{fsdp,model_parallel}.py, pytorch/strategies/deepspeed.py.
"""

from typing import Final

from recovery.checkpoints.files.pickle_stream import step_in
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.dcp import SHARD, check_dcp
from recovery.checkpoints.formats.deepspeed import DeepSpeedFormat, check_deepspeed, is_deepspeed
from recovery.checkpoints.formats.megatron import check_distributed, common_step
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import UNFINISHED, shown
from recovery.messages.candidates import CheckpointFormat

_META: Final = "meta.pt"
_DEEPSPEED: Final = "checkpoint"


class LightningFormat:
    format = CheckpointFormat.LIGHTNING

    def recognises(self, tree: Tree) -> bool:
        if _META in tree.top_files:
            return True
        is_sharded = bool(tree.matching(SHARD)) or _DEEPSPEED in tree.top_folders
        return tree.name.endswith(".ckpt") and is_sharded

    def step(self, tree: Tree) -> int | None:
        if _META in tree.files:
            return step_in(tree.torch_content(_META), "global_step", "step", "iteration")
        inner = tree.under(_DEEPSPEED)
        return DeepSpeedFormat().step(inner) if is_deepspeed(inner) else None

    def check(self, tree: Tree) -> str:
        if _DEEPSPEED in tree.top_folders:
            return f"{_DEEPSPEED} with {check_deepspeed(tree.under(_DEEPSPEED))}"
        if _META not in tree.files:
            raise DefectError(f"{_META}, which is written last, is missing")
        tree.require(_META)
        return f"{_META}, {check_dcp(tree)}"


# NeMo 2: `<name>--...-step=N[-last]/` with `weights/` and `context/`.
# While a save is under way, a file `<name>-unfinished` lies beside the folder. `weights/` is a distributed checkpoint of Megatron core.
# Source: NVIDIA NeMo's documentation of its checkpoints.


_WEIGHTS: Final = "weights"
_CONTEXT: Final = "context"


class NemoFormat:
    format = CheckpointFormat.NEMO

    def recognises(self, tree: Tree) -> bool:
        has_marker = f"{tree.name}{UNFINISHED}" in tree.beside
        return {_WEIGHTS, _CONTEXT} <= tree.top_folders or (
            has_marker or (_WEIGHTS in tree.top_folders and "step=" in tree.name)
        )

    def step(self, tree: Tree) -> int | None:
        return common_step(tree.under(_WEIGHTS))

    def check(self, tree: Tree) -> str:
        marker = f"{tree.name}{UNFINISHED}"
        if marker in tree.beside:
            raise DefectError(f"the save did not finish: {shown(marker)} lies beside it")
        if _WEIGHTS not in tree.top_folders:
            raise DefectError(f"{_WEIGHTS}/ is missing")
        try:
            proof = check_distributed(tree.under(_WEIGHTS))
        except DefectError as error:
            raise DefectError(f"{_WEIGHTS}/{error}") from error
        return f"{_WEIGHTS} with {proof}"
