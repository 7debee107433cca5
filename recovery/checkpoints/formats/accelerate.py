"""Accelerate's `save_state`: `checkpoints/checkpoint_<n>/` or a folder that the script names.

Nothing marks the end of a save; the random states come after model and optimizer, and objects that
the script registered come last. The number in an automatic name counts saves, not steps.
Source: accelerate 1.15, accelerator.py `save_state`, checkpointing.py `save_accelerator_state`.
"""

import re
from typing import Final

from detectors.wording import counted
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.dcp import check_dcp
from recovery.checkpoints.formats.deepspeed import check_deepspeed, is_deepspeed
from recovery.checkpoints.formats.tree import Tree, require_whole_range
from recovery.checkpoints.formats.weights import check_weights
from recovery.checkpoints.names import shown
from recovery.messages.candidates import CheckpointFormat

_RANDOM: Final = re.compile(r"random_states_([0-9]+)\.pkl")
_OWN: Final = re.compile(r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_[0-9]+)?\.bin")

_SCALER: Final = "scaler.pt"  # Accelerate's own, with mixed precision
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth")
_TRAINERS: Final = frozenset({"trainer_state.json", "training_args.bin"})  # which uses Accelerate


class AccelerateFormat:
    format = CheckpointFormat.ACCELERATE

    def recognises(self, tree: Tree) -> bool:
        if tree.matching(_RANDOM):
            return True
        is_trainers = bool(_TRAINERS & tree.top_files)
        return bool(tree.matching(_OWN)) and not is_trainers

    def step(self, tree: Tree) -> int | None:  # noqa: ARG002
        return None

    def check(self, tree: Tree) -> str:
        found = []
        for folder in sorted(tree.top_folders):
            inner = tree.under(folder)
            if any(name.endswith(".distcp") for name in inner.top_files):
                found.append(f"{folder} with {check_dcp(inner)}")
            elif is_deepspeed(inner):
                found.append(f"{folder} with {check_deepspeed(inner)}")
        weights = check_weights(tree) or _weights_of_hook(tree)
        if weights is None and not found and not tree.top_folders:
            raise DefectError("the model's weights (model.safetensors) are missing")
        found += [weights] if weights else []
        ranks = {int(match[1]) for match in tree.matching(_RANDOM)}
        if not ranks:
            raise DefectError("random_states_0.pkl, which is written after the model, is missing")
        require_whole_range(ranks, "random_states_{}.pkl")
        tree.require(*(name for name in tree.top_files if name.endswith(".pkl")))
        missing = [
            name
            for name in tree.missing_since_earlier()
            if name.endswith((".bin", ".pkl", ".safetensors")) and not _RANDOM.fullmatch(name)
        ]
        if missing:
            raise DefectError(f"{shown(missing[0])}, which the save before has, is missing")
        text = (
            f"{', '.join(found) or 'model folders'}, random states of {counted(len(ranks), 'rank')}"
        )
        # Nothing in the save says how many ranks there were, and a run may go on with fewer.
        earlier = sum(_RANDOM.fullmatch(name) is not None for name in tree.earlier)
        return f"{text} (the save before: of {earlier})" if earlier > len(ranks) else text


def _weights_of_hook(tree: Tree) -> str | None:
    """Return the file in which a hook of the script saves in place of the whole model, such as LoRA weights of diffusers.

    Source: diffusers, examples/dreambooth/train_dreambooth_lora.py `save_model_hook`.
    """
    names = (name for name in sorted(tree.top_files) if name.endswith(_WEIGHTS))
    return next((name for name in names if name != _SCALER and not _OWN.fullmatch(name)), None)
