"""What a name says: a step number, a temporary file, a pointer to the newest checkpoint."""

import re
from collections.abc import Collection
from typing import Final

# by preference: "epoch=3-step=100.ckpt" is step 100
_STEP_WORDS: Final = ("step", "iter(?:ation)?", "(?:checkpoint|ckpt)", "epoch")
_STEP_PATTERNS: Final = tuple(
    re.compile(rf"(?<![a-z]){word}[-_=.]?([0-9]+)", re.IGNORECASE) for word in _STEP_WORDS
)
_COUNTS_STEPS: Final = re.compile(r"(?<![a-z])(?:step|iter|epoch)", re.IGNORECASE)
_NUMBERS: Final = re.compile(r"[0-9]+")
_NUMBER_ONLY: Final = re.compile(r"([0-9]+)(?:\.[A-Za-z]+)?")  # Orbax: the step is the name
_RUNS: Final = re.compile(r"[0-9]+|[^0-9]+")
_DIGITS_MAX: Final = 18  # below 2**63, as the progress file has it

CHECKPOINT_SUFFIXES: Final = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".safetensors", ".distcp")

UNFINISHED: Final = "-unfinished"  # NeMo's marker beside a folder that it is still writing
_NO_CHECKPOINTS: Final = frozenset({"training_args.bin", "args.bin", "config.bin"})
_DATA_WORDS: Final = frozenset(
    {"data", "dataset", "datasets", "vocab", "tokenizer", "tokens", "pretrained"}
)
# In the name of a folder without a number that a script overwrites: `last/`, `ckpt_a/`, `slot1/`. Not
# best and final: these are often a model alone.
_SAVE_WORDS: Final = frozenset(
    {"checkpoint", "ckpt", "last", "latest", "slot", "snapshot", "resume"}
)
_WEIGHTS: Final = re.compile(
    r"(?:model|pytorch_model|adapter_model|diffusion_pytorch_model)"
    r"(?:-[0-9]{5}-of-[0-9]{5})?\.(?:safetensors|bin)"
    r"|consolidated(?:\.[0-9]+)?\.(?:safetensors|pth|pt)"
)
# Any of these beside weights says that they are a model to be loaded, and no state of a run.
EXPORT_NAMES: Final = frozenset(
    {"config.json", "adapter_config.json", "model_index.json", "params.json", "training_args.bin"}
)

# Megatron-LM, DeepSpeed, dlrover, and what scripts use
POINTER_NAMES: Final = frozenset(
    {
        "latest",
        "latest.txt",
        "latest_checkpoint",
        "latest_checkpoint.txt",
        "latest_checkpointed_iteration.txt",
        "latest_universal",
        "dlrover_latest.txt",
        "last",
        "last.txt",
        "last_checkpoint",
    }
)


def step_of(name: str) -> int | None:
    """Return the step number in a file or folder name, or None."""
    for pattern in _STEP_PATTERNS:
        found = pattern.findall(name)
        if found:
            return _number(found[-1])
    whole = _NUMBER_ONLY.fullmatch(name)
    return _number(whole[1]) if whole else None


def slot_of(name: str) -> int | None:
    """Return the only number in a name where no word says that it counts steps, as in `ckpt_0.pt`."""
    numbers = _NUMBERS.findall(name)
    if len(numbers) != 1 or _NUMBER_ONLY.fullmatch(name) or _COUNTS_STEPS.search(name):
        return None
    return _number(numbers[0])


def _number(digits: str) -> int | None:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS_MAX else None


def is_temporary(name: str) -> bool:
    """Return whether a writer gave this name to what is not finished."""
    return name.startswith(".tmp") or ".tmp" in name or "orbax-checkpoint-tmp" in name


def is_ignored(name: str) -> bool:
    """Return whether the name says that this is no checkpoint: hidden, unfinished, settings, data."""
    is_marker = name.endswith(UNFINISHED)
    if name.startswith(".") or is_marker or is_temporary(name) or name in _NO_CHECKPOINTS:
        return True
    words = re.split(r"[^a-z]+", name.lower())
    return step_of(name) is None and not _DATA_WORDS.isdisjoint(words)


def is_save_name(name: str) -> bool:
    """Return whether a word in the name says that this is a save, as in `last` and `ckpt_a`."""
    return not _SAVE_WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def is_export(names: Collection[str]) -> bool:
    """Return whether weights in a folder with these names are a model to be loaded.

    Beside an optimizer they are the state of a run.
    """
    return not EXPORT_NAMES.isdisjoint(names) and not has_optimizer(names)


def has_optimizer(names: Collection[str]) -> bool:
    """Return whether one of these files holds an optimizer's state, by its name."""
    return any("optim" in name.lower() and has_checkpoint_suffix(name) for name in names)


def is_weights_name(name: str) -> bool:
    """Return whether `save_pretrained` and its like give this name to a model's weights."""
    return _WEIGHTS.fullmatch(name) is not None


def natural_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a key that sorts `__2_0` before `__10_0`."""
    parts = (
        (0, len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (1, 0, part)
        for part in _RUNS.findall(name)
    )
    return tuple(parts), name


def has_checkpoint_suffix(name: str) -> bool:
    return name.lower().endswith(CHECKPOINT_SUFFIXES)


def shown(text: str, length_max: int = 80) -> str:
    """Return a foreign text for a message: printable and no longer than this."""
    printable = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return printable if len(printable) <= length_max else printable[: length_max - 3] + "..."
