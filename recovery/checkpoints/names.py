"""What a name says: a step number, a temporary file, a pointer to the newest checkpoint."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rankmend.errors import ConfigError

# By preference: "epoch=3-step=100.ckpt" is step 100. Counts of steps before counts of epochs, and what only says
# that this is a checkpoint between them: "checkpoint_3_2000.pt" of fairseq is update 2000 of epoch 3, "ep1-ba900" of
# composer batch 900.
_STEP_PATTERNS: Final = tuple(
    re.compile(text, re.IGNORECASE)
    for text in (
        r"(?<![a-z])steps?[-_=.]?([0-9]+k?)(?![0-9])",
        r"(?<![a-z0-9.])([0-9]+k?)[-_]?steps?(?![a-z0-9])",
        r"(?<![a-z])iter(?:ation)?s?[-_=.]?([0-9]+k?)(?![0-9])",
        r"(?<![a-z0-9.])([0-9]+k?)[-_]?iter(?:ation)?s?(?![a-z0-9])",
        r"(?<![a-z])(?:num[-_])?updates?[-_=.]?([0-9]+k?)(?![0-9])",
        r"(?<![a-z])ep[0-9]+[-_]ba([0-9]+)(?![0-9])",
        r"(?<![a-z])e[0-9]+[-_]s([0-9]+)(?![0-9])",
        r"(?<![a-z])(?:checkpoint|ckpt)_(?!(?:19|20)[0-9]{2}_)[0-9]+_([0-9]+)(?![0-9_])",
        r"(?<![a-z])(?:checkpoint|ckpt)[-_=.]?(?!(?:19|20)[0-9]{2}[-_][0-9]{2}[-_])([0-9]+k?)(?![0-9])",
        r"(?:(?<![a-z])epochs?|(?<![a-z0-9])eps?)[-_=.]?([0-9]+)",
        r"(?<![a-z0-9.])([0-9]+)[-_]?epochs?(?![a-z0-9])",
        r"(?<![a-z0-9.])([0-9]+k)(?![a-z0-9])",
    )
)
# What tells the files of one save apart, and counts nothing: a rank, or a part of several.
_RANK_WORD: Final = r"mp[-_]?rank|rank|worker|proc|process|gpu|node|dp|tp|pp|r"
_PART_WORD: Final = r"shard|part|chunk|piece"
_RANK: Final = re.compile(
    rf"(?<![a-z])(?:{_RANK_WORD})[-_=.]?([0-9]+)(?:[-_]?of[-_]?([0-9]+))?(?![0-9a-z])",
    re.IGNORECASE,
)
_PART: Final = re.compile(
    rf"(?<![a-z0-9])(?:(?:{_PART_WORD})[-_=.]?)?([0-9]+)[-_]?of[-_]?([0-9]+)(?![0-9a-z])"
    rf"|(?<![a-z])(?:{_PART_WORD})[-_=.]?([0-9]+)(?![0-9a-z])",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(f"{_RANK.pattern}|{_PART.pattern}", re.IGNORECASE)
_GROUP: Final = re.compile(r"mp|tp|pp|dp|node", re.IGNORECASE)
_WORLD: Final = re.compile(r"(?<![a-z])world[-_]?size[-_=.]?([0-9]+)(?![0-9a-z])", re.IGNORECASE)
_PLAIN_RANK: Final = re.compile(r"(.*[0-9][-_.])([0-9]{1,6})((?:\.[A-Za-z]\w*)+)")  # step20.3.pt
_COUNTS_STEPS: Final = re.compile(r"(?<![a-z])(?:step|iter|epoch)", re.IGNORECASE)
_NUMBERS: Final = re.compile(r"[0-9]+")
_NUMBER_ONLY: Final = re.compile(r"([0-9]+)(?:\.[A-Za-z]+)?")  # Orbax: the step is the name
_DIGITS_MAX: Final = 18  # below 2**63, as the progress file has it

CHECKPOINT_SUFFIXES: Final = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".safetensors", ".distcp")

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{1,15}):/")
_MOUNTS: Final = {  # programs that show an object store as a folder
    "s3": "mount-s3 or s3fs",
    "gs": "gcsfuse",
    "gcs": "gcsfuse",
    "az": "blobfuse2",
    "abfs": "blobfuse2",
    "abfss": "blobfuse2",
    "hf": "hf-mount or `hf download`",
}

UNFINISHED: Final = "-unfinished"  # NeMo's marker beside a folder that it is still writing
# Transformers' `tmp-checkpoint-500`, what scripts rename when it is whole, and what a person set aside.
_UNUSABLE: Final = re.compile(
    r"(?<![a-z0-9])(?:tmp|temp(?![-_=.]?[0-9])|broken|corrupt(?:ed)?|bad|failed|diverged)(?![a-z0-9])"
    r"|[._-](?:partial|incomplete|part|writing|saving|unfinished)$",
    re.IGNORECASE,
)
_UNDER_WAY: Final = re.compile(
    r"\.?(.+\.(?:pt|pth|ckpt|bin|npz|safetensors))[._-](?:tmp|temp|partial|incomplete|writing|saving)(?:[._-]?[A-Za-z0-9]+)?"
)
_NO_CHECKPOINTS: Final = frozenset({"training_args.bin", "args.bin", "config.bin"})
_DATA_WORDS: Final = frozenset(
    {"data", "dataset", "datasets", "vocab", "tokenizer", "tokens", "pretrained"}
)
# In the name of a folder without a number that a script overwrites: `last/`, `ckpt_a/`, `slot1/`. Not
# best and final: these are often a model alone.
_SAVE_WORDS: Final = frozenset(
    {"checkpoint", "ckpt", "last", "latest", "slot", "snapshot", "resume"}
)
_STATE_WORDS: Final = frozenset({"state", "training", "trainer", "model", "step", "iter", "epoch"})
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

# Of a copy that is kept to be used or looked at, not to go on from. `last` and `latest` are none of these.
_COPY_WORDS: Final = frozenset(
    {
        *("best", "final", "ema", "swa", "avg", "averaged", "average", "teacher", "target"),
        *("export", "exported", "deploy", "inference", "eval", "quantized", "int8", "fp16"),
        *("merged", "release", "published", "slim", "stripped", "init", "initial", "backup", "bak"),
        *(
            "converted",
            "soup",
            "swag",
            "polyak",
            "pruned",
            "ref",
            "reference",
            "frozen",
            "base",
            "old",
        ),
        "universal",  # DeepSpeed's ds_to_universal
    }
)
# Of weights in another form than the one that training goes on from.
_CONVERTED_WORDS: Final = frozenset(
    {
        *("merged", "fused", "export", "exported", "converted", "consolidated", "huggingface"),
        *("hf", "inference", "deploy", "quantized", "int4", "int8", "awq", "gptq", "gguf", "onnx"),
        *("4bit", "8bit", "16bit", "32bit", "fp8", "fp16", "bf16", "fp32", "nf4", "vllm", "mlx"),
    }
)
# Of what lies beside a model and its optimizer in a save.
_BESIDE_WORDS: Final = frozenset(
    {
        *("dataloader", "loader", "sampler", "rng", "random", "scheduler", "sched", "lr"),
        *("scaler", "timer", "counter", "progress", "extra"),
    }
)
# Names of the small files by which save functions say that a save is whole, or is not yet.
_WHOLE_MARK: Final = re.compile(
    r"[._]*(?:(?:is|save|checkpoint|ckpt)[-_. ]?)?"
    r"(?:completed?|done|success|stable|commit(?:ted)?|commit_success|finished|ready)(?:\.(?:txt|json|flag|marker))?",
    re.IGNORECASE,
)
_UNDER_WAY_MARK: Final = re.compile(
    r"[._]*(?:(?:is|save|checkpoint|ckpt)[-_. ]?)?"
    r"(?:incomplete|unfinished|in[-_]?progress|uncommitted|writing|saving)(?:\.(?:txt|json|flag|marker))?",
    re.IGNORECASE,
)


# `val_loss=0.25`: the value of a metric
_METRIC: Final = re.compile(r"(?<![a-z])[a-z]+[-_=]?[0-9]+\.[0-9]+")
_VALUE: Final = re.compile(
    r"((?<![A-Za-z])[A-Za-z]+[-_=:]?)?(?<![0-9.])([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)(?![0-9])",
    re.IGNORECASE,
)
_EXPONENT: Final = re.compile(r"e[-+][0-9]{1,2}$", re.IGNORECASE)  # `{:e}` writes a sign
_METRIC_WORDS: Final = frozenset(
    {
        *("acc", "accuracy", "loss", "auc", "map", "miou", "iou", "dice", "psnr", "ssim", "fid"),
        *(
            "wer",
            "cer",
            "bleu",
            "ppl",
            "perplexity",
            "reward",
            "rew",
            "score",
            "mse",
            "rmse",
            "mae",
        ),
    }
)
# Of what a run writes beside its states.
_SIDE_WORDS: Final = frozenset(
    {
        *("metric", "metrics", "history", "curve", "curves", "loss", "losses", "log", "logs"),
        *("pred", "preds", "prediction", "predictions", "output", "outputs", "logits", "results"),
        *("sample", "samples", "embedding", "embeddings", "features", "activations", "attention"),
        *("stat", "stats", "statistics", "normalizer", "confusion", "matrix", "scores", "eval"),
        *("evaluation", "evaluations", "submission", "fitness"),
        *("arg", "args", "config", "cfg", "hparams", "grad", "grads", "gradients", "buffer"),
        *("replay", "memory", "trajectories", "rollout", "rollouts", "images", "viz", "tsne"),
        *("probe", "probes", "feats", "latents", "labels", "targets", "cache", "cached", "finder"),
    }
)


@dataclass(frozen=True, slots=True)
class Piece:
    """What a name says of the file's place among those of one save."""

    shared: str  # what is left of the name
    number: int | None = None  # of the rank or of the part; None: the name has none
    count: int | None = None  # of the ranks or parts
    is_rank: bool = False
    more: str = ""  # further ranks or parts in the name, as in `tp0_pp1` and `part0-shard1`


def piece_of(name: str) -> Piece:
    """Return the rank or the part in a name: `step_3_rank_2.pt`, `ckpt-3of8.pt`."""
    world = _WORLD.search(name)
    count = None if world is None else _number(world[1])
    shared = name if world is None else name[: world.start()] + name[world.end() :]
    for pattern in (_RANK, _PART):
        found = pattern.search(shared)
        if found is None:
            continue
        numbers = [group for group in found.groups() if group is not None]
        number = _number(numbers[0])
        of = _number(numbers[1]) if len(numbers) > 1 else count
        after = shared[found.end() :]
        further = _PLACE if pattern is _RANK else _PART
        more = " ".join(match[0].lower() for match in further.finditer(after))
        after = further.sub("#", after)
        rest = f"{shared[: found.start()]}#{after}"
        return Piece(rest, number, of, pattern is _RANK, more)
    return Piece(shared, None, count)


def plain_rank_of(name: str) -> Piece | None:
    """Return the last number of a name as a rank, where another number stands before it; a word may say what it is."""
    found = _PLAIN_RANK.fullmatch(name)
    if found is None or piece_of(name).number is not None:
        return None
    number = _number(found[2])
    return Piece(f"{found[1]}#{found[3]}", number, None, is_rank=True)


@lru_cache(maxsize=4096)  # names of one folder are requested again in each look
def name_weight(name: str) -> int:
    """Return 2 where a word says that this is a save, 0 where one says that it is something else, or 1."""
    words = set(re.split(r"[^a-z0-9]+", _METRIC.sub("", name.lower())))
    if words & _SIDE_WORDS:
        return 0
    if words & (_SAVE_WORDS | _STATE_WORDS):
        return 2
    return 0 if words & _COPY_WORDS else 1


@lru_cache(maxsize=4096)
def is_copy_name(name: str) -> bool:
    """Return whether a word in the name says that this is a copy to be used, as in `best_model.pt`, or no state."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return not _COPY_WORDS.isdisjoint(words) or name_weight(name) == 0


@lru_cache(maxsize=4096)
def is_set_aside(name: str) -> bool:
    """Return whether a word in the name says that this is of before, and kept."""
    return not {"old", "backup", "bak"}.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


@lru_cache(maxsize=4096)
def is_picked_name(name: str) -> bool:
    """Return whether the name is that of a copy only by `best` or `final`, which say nothing of another kind of model."""
    words = set(re.split(r"[^a-z0-9]+", _METRIC.sub("", name.lower())))
    return words & (_COPY_WORDS | _SIDE_WORDS) <= {"best", "final"}


def with_rank(name: str, rank: int) -> str | None:
    """Return the name of another rank's file of the same save; None where the name has no rank of all ranks.

    `mp_rank_01`, `tp1` and `pp0` are places in a group: which ranks have them isn't known here.
    """
    found = _RANK.search(name)
    if found is None or _GROUP.match(found[0]) or _RANK.search(name[found.end() :]):
        return None
    begin, end = found.span(1)
    return f"{name[:begin]}{rank:0{end - begin}}{name[end:]}"


def step_of(name: str) -> int | None:
    """Return the step number in a file or folder name, or None."""
    name = without_values(piece_of(name).shared)
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
    if digits[-1] in "kK":
        digits = f"{digits[:-1]}000"
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS_MAX else None


@lru_cache(maxsize=4096)
def without_values(name: str) -> str:
    """Return the name without the values of metrics, as in `epoch_3-loss0.31.pt`: these count nothing. `steps=1.00e+04` is 10000.

    A number with a decimal point is one, unless a word says that it counts; so is any number after the name of a metric.
    """
    return _VALUE.sub(_mark_value, name)


def _mark_value(found: re.Match[str]) -> str:
    word, value = found[1] or "", found[2]
    is_count = _COUNTS_STEPS.match(word) is not None
    is_value = "." in value or word.lower().rstrip("-_=:") in _METRIC_WORDS
    if is_count and _EXPONENT.search(value) and float(value).is_integer():
        return f"{word}{int(float(value))}"
    return f"{word}~" if is_value and not is_count else found[0]


def is_temporary(name: str) -> bool:
    """Return whether a writer gave this name to what is not finished."""
    return name.startswith(".tmp") or ".tmp" in name or "orbax-checkpoint-tmp" in name


def is_ignored(name: str) -> bool:
    """Return whether the name says that this is no checkpoint: hidden, unfinished, settings, data."""
    is_marker = name.endswith(UNFINISHED) or _UNUSABLE.search(name) is not None
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


def unfinished_mark(name: str, beside: Collection[str]) -> str | None:
    """Return the marker beside a file or folder that says that its save did not finish.

    Source: NeMo, utils/callbacks/nemo_model_checkpoint.py `format_checkpoint_unfinished_marker_path`.
    """
    marker = f"{name.removesuffix('.ckpt').removesuffix('-EMA')}{UNFINISHED}"
    return next((found for found in (marker, f"{name}{UNFINISHED}") if found in beside), None)


def is_unfinished_mark(name: str) -> bool:
    """Return whether scripts leave a file of this name in a folder until its save is whole: `INCOMPLETE`, `.in_progress`."""
    return _UNDER_WAY_MARK.fullmatch(name) is not None


def is_commit_mark(name: str) -> bool:
    """Return whether a file of this name is what a save function writes last: `.complete`, `done`, `_SUCCESS`."""
    return _WHOLE_MARK.fullmatch(name) is not None


def is_converted(name: str, names: Collection[str]) -> bool:
    """Return whether a folder of this name and with these files is a model to be used, such as `step_200_merged`."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return is_export(names) and not words.isdisjoint(_CONVERTED_WORDS)


def has_optimizer(names: Collection[str]) -> bool:
    """Return whether one of these files holds an optimizer's state, by its name."""
    return any("optim" in name.lower() and has_checkpoint_suffix(name) for name in names)


def is_weights_name(name: str) -> bool:
    """Return whether `save_pretrained` and its like give this name to a model's weights."""
    return _WEIGHTS.fullmatch(name) is not None


def may_be_weights(name: str) -> bool:
    """Return whether scripts may put a part of a model to be used under this name, as LLaVA's `non_lora_trainables.bin`."""
    return name.endswith(".bin") and step_of(name) is None


def is_beside_model(name: str) -> bool:
    """Return whether a file of this name is neither a model's nor an optimizer's: `rng_state_0.pth`, `train_dataloader_dprank000.pt`."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    return not words.isdisjoint(_BESIDE_WORDS)


def is_counters_name(name: str) -> bool:
    """Return whether the name is that of a trainer's counters beside a state, as Megatron-Bridge's `latest_train_state.pt`."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    is_named = bool(words & {"train", "trainer", "training"} and words & {"state", "progress"})
    return is_named and step_of(name) is None


def finished_name(name: str) -> str | None:
    """Return the name that a temporary file of a save gets when it is whole; None where it tells none."""
    found = _UNDER_WAY.fullmatch(name)
    return None if found is None else found[1]


def refuse_url(folder: str) -> None:
    """Raise ConfigError where the folder is a URL. `Path` leaves one slash of its two."""
    found = _URL.match(folder)
    if found is None:
        return
    scheme = found[1].lower()
    mount = _MOUNTS.get(scheme)
    with_what = f", with {mount}," if mount else ""
    raise ConfigError(
        f"{folder} is a URL, and rankmend reads checkpoints from a mounted folder: mount the storage{with_what} and name that folder, or "
        "let the script save into a local or shared folder and copy from there (the newest checkpoints have to stay)"
    )


def has_checkpoint_suffix(name: str) -> bool:
    return name.lower().endswith(CHECKPOINT_SUFFIXES)


def shown(text: str, length_max: int = 80) -> str:
    """Return a foreign text for a message: printable and no longer than this."""
    printable = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return printable if len(printable) <= length_max else printable[: length_max - 3] + "..."
