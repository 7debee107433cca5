"""NeMo 2: `<name>--...-step=N[-last]/` with `weights/` and `context/`.

While a save is under way, a file `<name>-unfinished` lies beside the folder. `weights/` is a
distributed checkpoint of Megatron core. Source: NVIDIA NeMo's documentation of its checkpoints.
"""

from typing import Final

from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.megatron import check_distributed, common_step
from recovery.checkpoints.formats.tree import Tree
from recovery.checkpoints.names import UNFINISHED, shown
from recovery.messages.candidates import CheckpointFormat

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
