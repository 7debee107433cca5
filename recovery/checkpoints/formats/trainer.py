"""Hugging Face Trainer: `checkpoint-<step>/`.

`trainer_state.json` is the last file of the rank that saves; nothing marks the end of the save on
the other ranks. How many these were is in the pickled arguments. Source: transformers 5.23, trainer.py,
`_save_checkpoint`, `_save_rng_state` and `_rotate_checkpoints`.
"""

import re
from typing import Final

from detectors.wording import counted
from recovery.checkpoints.files.pickle_stream import Opaque, step_in
from recovery.checkpoints.files.reader import DefectError
from recovery.checkpoints.formats.dcp import check_dcp
from recovery.checkpoints.formats.deepspeed import check_deepspeed, is_deepspeed
from recovery.checkpoints.formats.tree import Tree, require_whole_range
from recovery.checkpoints.formats.weights import check_weights
from recovery.messages.candidates import CheckpointFormat

STATE: Final = "trainer_state.json"
_NAME: Final = re.compile(r"checkpoint-([0-9]+)")
_RNG: Final = re.compile(r"rng_state_([0-9]+)\.pth")
# PaddleNLP: each rank's last file. Its random states of all ranks are in one file, `rng_state_8.pth` of eight.
_SIGNAL: Final = re.compile(r"saved_signal_([0-9]+)")
_ARGUMENTS: Final = "training_args.bin"
_OWN: Final = frozenset({_ARGUMENTS, "optimizer.pt", "scheduler.pt", "rng_state.pth"})
_FSDP: Final = re.compile(r"(?:pytorch_model_fsdp|optimizer)_[0-9]+")
_TAG: Final = re.compile(r"global_step[0-9]+")
# In shards of safetensors: PaddleNLP's unified checkpoint.
_OPTIMIZER: Final = re.compile(r"optimizer(?:-[0-9]{5}-of-[0-9]{5})?\.(?:pt|bin|safetensors|pdopt)")


class TrainerFormat:
    format = CheckpointFormat.TRAINER

    def recognises(self, tree: Tree) -> bool:
        if _NAME.fullmatch(tree.name) is None:  # `save_state` leaves one beside a finished model
            return STATE in tree.top_files and _has_optimizer(tree)
        if STATE in tree.top_files:
            return True
        return bool(_OWN & tree.top_files or tree.matching(_RNG)) or (
            "config.json" in tree.top_files
        )

    def step(self, tree: Tree) -> int | None:
        return step_in(tree.json(STATE), "global_step") if STATE in tree.files else None

    def check(self, tree: Tree) -> str:
        tree.require(STATE)
        step = self.step(tree)
        if step is None:
            raise DefectError(f"{STATE}: it holds no global_step")
        named = _NAME.fullmatch(tree.name)
        if named is not None and int(named[1]) != step:
            raise DefectError(f"{STATE} is of step {step}, the folder of step {int(named[1])}")
        found = [STATE, _check_model(tree)]
        if _has_optimizer(tree):
            found.append("optimizer")
        elif _saves_optimizer(tree):
            raise DefectError("the optimizer's state (optimizer.pt) is missing")
        if tree.matching(_RNG):
            found.append(_check_random_states(tree))
        text = ", ".join(found)
        return text if "optimizer" in found else f"{text}; no optimizer (save_only_model)"


def _check_random_states(tree: Tree) -> str:
    """Return of how many ranks they are; raise DefectError where one is missing.

    Without them `Trainer` resumes all the same; but a rank that has not written its own was killed.
    """
    ranks = {int(match[1]) for match in tree.matching(_RNG)}
    signals = {int(match[1]) for match in tree.matching(_SIGNAL)}
    if signals:
        count = max(ranks) if len(ranks) == 1 and 0 not in ranks else None
        require_whole_range(signals, "saved_signal_{}", count)
        return f"signals of {counted(len(signals), 'rank')}"
    require_whole_range(ranks, "rng_state_{}.pth")
    text = f"rng states of {counted(len(ranks), 'rank')}"
    processes = _processes(tree)
    if processes is not None and len(ranks) < processes:
        raise DefectError(
            f"rng_state_{len(ranks)}.pth is missing: {_ARGUMENTS} says {processes} processes"
        )
    earlier = sum(_RNG.fullmatch(name) is not None for name in tree.earlier)
    # Weaker than a count: the run may go on with fewer ranks.
    is_remarkable = processes is None and earlier > len(ranks)
    return f"{text} (the save before: of {earlier})" if is_remarkable else text


def _processes(tree: Tree) -> int | None:
    """Return how many processes saved into this folder, None where that is not known."""
    if _ARGUMENTS not in tree.files:
        return None
    arguments = tree.torch_content(_ARGUMENTS)
    options = arguments.state if isinstance(arguments, Opaque) else None
    if not isinstance(options, dict) or options.get("save_on_each_node"):
        return None  # each node's folder has the ranks of this node
    distributed = options.get("distributed_state")
    return step_in(getattr(distributed, "state", None), "num_processes")


def _check_model(tree: Tree) -> str:
    weights = check_weights(tree)
    for folder in sorted(tree.top_folders):
        if _FSDP.fullmatch(folder):
            weights = f"{folder} with {check_dcp(tree.under(folder))}"
        elif _TAG.fullmatch(folder) and is_deepspeed(tree.under(folder)):
            weights = f"{folder} with {check_deepspeed(tree.under(folder))}"
    if weights is None and "pytorch_model_fsdp.bin" not in tree.files:
        raise DefectError("the model's weights (model.safetensors) are missing")
    return weights or "pytorch_model_fsdp.bin"


def _has_optimizer(tree: Tree) -> bool:
    folders = any(
        name.startswith("optimizer_") or _TAG.fullmatch(name) for name in tree.top_folders
    )
    return folders or bool(tree.matching(_OPTIMIZER))


def _saves_optimizer(tree: Tree) -> bool:
    """Return whether this run saves more than the model, by what lies here and in the save before."""
    names = tree.top_files | tree.earlier
    return any(name.startswith(("optimizer", "scheduler.pt", "rng_state")) for name in names)
