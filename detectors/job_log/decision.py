"""Whether to start a job again after what its log says: the rules for `STOP`, and the reason of each answer. Pure.

`STOP` needs more than a class: the same start must fail in the same way on any machine. So it is decided only for errors
in the program's text, its command line, its settings or its input, before any training step, and not where some ranks
got further than others. A doubt means `RESTART`: the number of tries is the policy's.
"""

import re
from collections.abc import Sequence
from typing import Final

from detectors.failed.error_text import ErrorText, all_frames, error_line
from detectors.failed.lasting_errors import comes_again
from detectors.job_log.facts import LogFact, LogFacts
from detectors.job_log.kinds import KINDS, FactTier, LogDecision, LogKind, StopRule

_CAPACITY: Final = re.compile(
    r"total capacity of ([\d.]+) (MiB|GiB)|\bGPU \d+; ([\d.]+) (MiB|GiB) total capacity"
)
_TRIED: Final = re.compile(r"Tried to allocate ([\d.]+) (MiB|GiB)")
_OWN_MEMORY: Final = re.compile(
    r"Of the allocated memory ([\d.]+) (MiB|GiB) is allocated by PyTorch|([\d.]+) (MiB|GiB) already allocated|this process has ([\d.]+) (MiB|GiB) memory in use"
)
# XLA places a whole program before it runs: what doesn't fit then never does. Source: XLA for TPU, E1000 CompileTimeHbmOom.
_PLACED: Final = re.compile(
    r"CompileTimeHbmOom|Ran out of memory in memory space hbm\. Used ([\d.]+)G of ([\d.]+)G hbm"
)
_OWN_SHARE_MIN: Final = 0.8  # of the device's memory: then no other process took it
# Errors of text and settings that every rank has, whoever prints one first.
_OF_TEXT: Final = frozenset(
    {
        LogKind.SYNTAX_ERROR,
        LogKind.NAME_ERROR,
        LogKind.USAGE,
        LogKind.TYPE_ERROR,
        LogKind.CONFIGURATION,
        LogKind.CHECKPOINT_MISMATCH,
        LogKind.NO_KERNEL_IMAGE,
        LogKind.SHAPE_MISMATCH,
        LogKind.GRAPH,
    }
)
_AGAIN_KINDS: Final = frozenset(
    {
        LogKind.TYPE_ERROR,
        LogKind.SHAPE_MISMATCH,
        LogKind.VALUE_ERROR,
        LogKind.CONFIGURATION,
        LogKind.DATA_FORMAT,
        LogKind.PROGRAM_ERROR,
        LogKind.EXCEPTION,
        LogKind.DEVICE_MEMORY,
        LogKind.DEVICE_ASSERT,
        LogKind.CHECKPOINT_MISMATCH,
        LogKind.IMPORT_ERROR,
        LogKind.NAME_ERROR,
        LogKind.SYNTAX_ERROR,
        LogKind.USAGE,
        LogKind.KERNEL_BUILD,
        LogKind.TORCH_USAGE,
    }
)


def decide(  # noqa: PLR0911, PLR0912 - one return for each reason
    cause: LogFact,
    alike: Sequence[LogFact],
    ranks: Sequence[int],
    job: LogFacts,
    *,
    is_every: bool,
) -> tuple[LogDecision, str]:
    """Return the decision and why."""
    rule = KINDS[cause.kind].stop
    stop, restart = LogDecision.STOP, LogDecision.RESTART
    if cause.kind is LogKind.DO_NOT_RETRY:
        return stop, "the program asked not to be restarted (exit code 93)"
    if rule is StopRule.NEVER:
        return restart, _WHY_RESTART.get(
            cause.kind, "another start, or another machine, may not meet this"
        )
    if cause.tier in (FactTier.VICTIM, FactTier.WEAK) and not _is_repeated(cause, alike):
        return restart, "the log shows no cause"
    if cause.kind in _AGAIN_KINDS and _came_before(cause, job):
        return stop, "two attempts in the log ended with the same error"
    if rule is StopRule.AGAIN:
        error = cause.error
        is_start = not job.has_progress and not _is_partial(ranks, job, is_every=is_every)
        if error is not None and is_start and comes_again(error, has_state=job.has_resumed):
            return (
                stop,
                "every start fails so: the error is in the program or its settings, before any step",
            )
        return restart, "the error may depend on data, time or machine"
    is_partial = _is_partial(ranks, job, is_every=is_every)
    if rule is StopRule.ALWAYS:
        if cause.kind is LogKind.IMPORT_ERROR and is_partial and tuple(ranks) != (0,):
            return restart, "only some ranks lack the module: other nodes may have it"
        if cause.kind is LogKind.IMPORT_ERROR and _is_of_shared_tree(cause):
            return (
                restart,
                "the module belongs to a tree on a shared file system, which may not show it yet",
            )
        return (
            stop,
            "the error is in the program's text, its modules or its command line: every start fails so",
        )
    if job.has_progress or _is_after_steps(cause):
        if cause.kind in (LogKind.TYPE_ERROR, LogKind.SHAPE_MISMATCH) and is_every:
            return stop, "all ranks failed alike in the program's code"
        return restart, "steps were made before: data or time may have brought it about"
    if cause.kind is LogKind.DEVICE_MEMORY:
        if is_partial:
            return restart, "other ranks had enough memory: the rank's sample may be at fault"
        if _fills_the_device(cause) or (is_every and not _OTHER_PROCESS.search(cause.text)):
            return stop, "the program alone fills the device's memory before the first step"
        return restart, "another process may have held the device's memory"
    if is_partial and cause.kind not in _OF_TEXT:
        return restart, "other ranks got further: this rank's machine or input may be at fault"
    if cause.kind is LogKind.LIBRARY_MISSING and not _is_of_image(cause, is_every=is_every):
        return restart, "a node may lack the library, or have another one"
    if cause.kind in _OF_PATHS and (why := _why_path_may_come(cause, alike, ranks, job)):
        return restart, why
    may_be_late = cause.kind in _MAYBE_LATE and not _OF_TOKENIZER.search(cause.text)
    if may_be_late and cause.error is not None and _is_of_input(cause.error):
        return restart, "the error may depend on the sample that was read"
    # A log without a line of a step doesn't prove that none was made: a value may have come with the data. What all
    # ranks have, each with data of its own, and what the program's set-up has doesn't.
    is_of_value = cause.kind is LogKind.TYPE_ERROR and _OF_VALUE.search(cause.text)
    if is_of_value and not (is_every or _is_of_setup(cause) or _is_shared(cause, alike, ranks)):
        return restart, "the value may come with the sample that was read"
    if cause.kind is LogKind.SHAPE_MISMATCH and not is_every and _is_of_loader(cause):
        return restart, "the error may depend on the sample that was read"
    if cause.kind is LogKind.SHAPE_MISMATCH and "must match the size of tensor" in cause.text:
        return restart, "the last batch of an epoch may have another size"
    if _is_mute(cause) and not _is_of_setup(cause):
        return restart, "an assertion without words may depend on data or a state"
    if (
        cause.kind in (LogKind.VALUE_ERROR, LogKind.PROGRAM_ERROR)
        and cause.error is not None
        and not comes_again(cause.error, has_state=job.has_resumed)
    ):
        return restart, "the error may depend on a file, a device or a state"
    return (
        stop,
        "every start fails so before the first step: the program, its settings or its input is at fault",
    )


_WHY_RESTART: Final = {
    LogKind.GPU_HARDWARE: "the device is at fault: another node doesn't have it",
    LogKind.NODE_FAILED: "the node is at fault: another one doesn't have it",
    LogKind.PREEMPTED: "the scheduler took the resources; nothing failed",
    LogKind.TIME_LIMIT: "the time limit ended it; nothing failed",
    LogKind.PEER_LOST: "a rank lost a peer, and the log doesn't show why the peer went",
    LogKind.SERVICE_AWAY: "something outside the job was away for a while",
    LogKind.LINK_ERROR: "a link broke: another path may not",
    LogKind.KILLED: "something sent SIGKILL, and the log doesn't show what",
    LogKind.CANCELLED: "somebody cancelled it; nothing failed",
}


# Called once steps were made: what these save, or end, has been trained.
_AFTER_STEPS: Final = re.compile(
    r"^_?(?:on_save_\w+|save_checkpoint|on_(?:train|training|validation|test)_(?:epoch_)?end|(?:training|validation)_epoch_end|on_epoch_end|after_train_(?:iter|epoch))$"
)


def _is_after_steps(cause: LogFact) -> bool:
    """Return whether the error was raised in what a loop calls behind its steps."""
    functions = [frame.function for frame in all_frames(cause.error)]
    is_trial = any("sanity" in function for function in functions)  # before the first step
    return not is_trial and any(map(_AFTER_STEPS.search, functions))


_OTHER_PROCESS: Final = re.compile(r"\bProcess \d+ has ")
# A module of the program's own tree, which lies on a file system of several nodes.
_SHARED_TREE: Final = re.compile(
    r"/(?:lustre|gpfs|nfs|beegfs|fsx|weka|ceph\w*|mnt/(?:nfs|lustre|fs\w*))/[^\s\"']*"
)
_MODULE: Final = re.compile(
    r"No module named '(\w{1,80})\.[\w.]{1,200}'|cannot import name '\w{1,80}' from '(\w{1,80})[\w.]{0,200}' \(/"
)


def _is_of_shared_tree(cause: LogFact) -> bool:
    """Return whether the module that isn't there belongs to the tree that asks for it, on a shared file system."""
    if cause.error is None or (match := _MODULE.search(error_line(cause.error))) is None:
        return False
    package = f"/{match[1] or match[2]}/"
    return any(
        _SHARED_TREE.match(frame.path) and package in frame.path
        for frame in all_frames(cause.error)
    )


# The driver's own libraries are the node's; what a package was built against is the image's.
_OF_DRIVER: Final = re.compile(r"libcuda\.so|libnvidia|libnvcuvid|libmlx|libibverbs|librdmacm")


def _is_of_image(cause: LogFact, *, is_every: bool) -> bool:
    text = cause.error.traceback if cause.error is not None else cause.text
    if _OF_DRIVER.search(text):
        return False
    return is_every or ("undefined symbol" in text and "-packages/" in text)


_OF_PATHS: Final = frozenset({LogKind.FILE_MISSING, LogKind.PERMISSION})
# What a process makes and another removes, on a node of its own or not; and a rename.
_SHORT_LIVED: Final = re.compile(
    r"(?i)cache|\btmp|temp\b|\.lock\b|\.incomplete|\.partial|indices|index_?map|' -> '|/dev/|/proc/|/sys/|/run/|/mnt/(?:ephemeral|local)|/local_?scratch|/scratch/local"
)
_OF_NODE: Final = re.compile(
    r"/dev/|/proc/|/sys/|/run/|/tmp\b|/var/|/mnt/(?:ephemeral|local)|/local_?scratch|/scratch/local"
)


def _why_path_may_come(
    cause: LogFact, alike: Sequence[LogFact], ranks: Sequence[int], job: LogFacts
) -> str:
    """Return why a path may be there, or open, at the next start; empty: a setting names it wrongly, or nobody made it."""
    own = {rank for fact in alike for rank in fact.ranks}
    if (own and job.ranks - own) or (ranks and 0 not in ranks):
        return "only some ranks lack the path: a mount may be missing on their node"
    pattern = _OF_NODE if cause.kind is LogKind.PERMISSION else _SHORT_LIVED
    if pattern.search(cause.text):
        return "another process, or this node, may have removed the path"
    if job.has_resumed and not re.search(r"(?i)ckpt|checkpoint|iter_\d", cause.text):
        return "the run before this one found the path"
    if cause.kind is LogKind.FILE_MISSING and cause.error and _removes(cause.error):
        return "another process removed the path first"
    is_hidden = cause.kind is LogKind.PERMISSION and _HIDDEN.search(cause.text) is not None
    if cause.error is None or (_is_of_input(cause.error) and not is_hidden):
        return "the path may come with the sample that was read"
    return ""


# What takes a path away has seen it before.
_TAKES_AWAY: Final = re.compile(
    r"\b(?:remove|unlink|rmdir|removedirs|rmtree|rm|rename|replace|move|_rebuild)\("
)
_TAKER: Final = re.compile(r"^_?(?:rm|rmtree|rmdir|remove|unlink|rename|move)(?:_|$)")


def _removes(error: ErrorText) -> bool:
    """Return whether the call that failed takes a path away."""
    innermost = all_frames(error)[:2]
    return any(
        _TAKES_AWAY.search(frame.code) or _TAKER.search(frame.function) for frame in innermost
    )


# A folder of caches or settings, which no sample names.
_HIDDEN: Final = re.compile(r"'/(?:[\w.-]{1,80}/){0,12}\.[a-z]")

_MAYBE_LATE: Final = frozenset(
    {LogKind.VALUE_ERROR, LogKind.DATA_FORMAT, LogKind.PROGRAM_ERROR, LogKind.CONFIGURATION}
)
# What a tokenizer or model has not, whichever sample asks for it.
# Source: transformers, tokenization_utils_base.py, data_collator.py, modeling_*.py; trl, trainer/utils.py.
_OF_TOKENIZER: Final = re.compile(
    r"tokenizer does not have a padding token|the tokenizer you are using \(\w{1,80}\) does not have one"
    r"|tokenizer is not configured with a padding token|no padding token is defined|tokenizer\.chat_template is not set"
)
# In the loop over data: which sample comes there depends on shuffling and on the step.
_LOOP: Final = re.compile(
    r"(?:^|_)(?:getitem|next|iter|worker_loop|fetch|collate\w*|get_batch|train\w*_step|train_(?:one_)?(?:epoch|iter|batch)\w*|run_epoch|train_epoch|inner_training_loop"
    r"|forward\w*|backward|evaluate|evaluation_loop|validat\w*|validation_\w+|compute_loss|call_impl|process_sample|load_sample|decode\w*|read_sample|load_image)(?:_|$)"
)
_EMPTY_INPUT: Final = re.compile(
    r"char 0\)|corrupt|magic bytes|truncat|cannot identify image|\bempty\b|Expecting value: line 1 column 1|DatasetGenerationError|position 0\b"
)


# A TypeError or AttributeError that speaks of a value. The others speak of the code: a name that a module or class
# doesn't have, an argument that a function doesn't know. Source: CPython, Objects/abstract.c, Python/getargs.c.
_OF_VALUE: Final = re.compile(
    r"NoneType|operand type|not supported between instances|can only concatenate|can't multiply sequence|is not (?:subscriptable|iterable|JSON serializable|an integer)"
    r"|has no len\(\)|does not support (?:item|indexing)|unpack non-iterable|argument must be|must be (?:real number|str|an? )|cannot be interpreted as"
    r"|indices must be|expected \w+ as element|only integer tensors|batch must contain|can't convert|cannot convert"
    r"|'(?:str|int|float|list|dict|tuple|bytes|bool|set|Tensor|Image)' object "
)
# Functions that run once, before the loop over data.
_ONCE: Final = re.compile(
    r"^<module>$|^__(?:init|post_init|new|set_name)__$|config|setup|set_up|parse|argument|initialize|^(?:build|create|make|get|load|prepare|configure|register)_\w*(?:model|optim|sched|args|loader|dataset|tokenizer|config|strategy|engine)"
)


def _is_of_setup(cause: LogFact) -> bool:
    """Return whether an error was raised in a function that runs once, and none of the loop stands above it."""
    if cause.error is None or _is_of_input(cause.error):
        return False
    frames = all_frames(cause.error)
    return bool(frames) and _ONCE.search(frames[0].function) is not None  # the innermost


def _is_mute(cause: LogFact) -> bool:
    """Return whether an assertion has no words, and its code compares no settings."""
    error = cause.error
    if error is None or error.type_name != "AssertionError" or error.message:
        return False
    frames = all_frames(error)
    return not (frames and _OF_SETTINGS.search(frames[0].code))


_OF_SETTINGS: Final = re.compile(r"\bassert\b.*(?:\bworld_size\b|\bargs\.|\bcfg\b|\bconfig\b)")


def _is_shared(cause: LogFact, alike: Sequence[LogFact], ranks: Sequence[int]) -> bool:
    """Return whether several ranks without prefixes printed one error that comes from no loop over data."""
    prints = sum(fact.print_ == cause.print_ for fact in alike)
    return not ranks and prints > 1 and cause.error is not None and not _is_of_input(cause.error)


def _is_of_loader(cause: LogFact) -> bool:
    """Return whether an error was raised while samples were read or joined into a batch."""
    if cause.error is None:
        return False
    frames = all_frames(cause.error)
    return any(
        _OF_BATCHES.search(frame.function) or "/dataloader.py" in frame.path for frame in frames
    )


_OF_BATCHES: Final = re.compile(r"collate|__getitem__|_worker_loop|^fetch$")


# The line that failed takes something from what was read.
_OF_SAMPLE: Final = re.compile(r"\b(?:batch|sample|record|example|row|img|image)\b(?! ?_size)")


# The check of a setting, whatever its function is named after.
_SETUP: Final = re.compile(r"config|setup|validate_arg|parse_arg|initialize")


def _is_of_input(error: ErrorText) -> bool:
    """Return whether an error comes from one sample, or from a file that may be whole at the next start."""
    if _EMPTY_INPUT.search(error_line(error)):
        return True
    frames = all_frames(error)
    if frames and _SETUP.search(frames[0].function):
        return False
    if frames and _OF_SAMPLE.search(frames[0].code):
        return True
    for (
        frame
    ) in frames:  # the innermost first: what a loop prepares before it begins reads no sample
        if _PREPARES.search(frame.function):
            return False
        if frame.path.endswith(("/os.py", "<frozen os>")):  # `os.environ[...]`
            continue
        if _LOOP.search(frame.function.strip("_")) or "/dataloader.py" in frame.path:
            return True
    return False


# Source: accelerate/accelerator.py; torch/distributed/fsdp; deepspeed/__init__.py.
_PREPARES: Final = re.compile(
    r"^(?:prepare|_prepare_\w+|prepare_model|fully_shard|_auto_wrap|_recursive_wrap|_validate_tensors_to_flatten)$"
)


def _is_partial(ranks: Sequence[int], job: LogFacts, *, is_every: bool) -> bool:
    """Return whether other ranks got further than those with the error: they lost it as a peer or waited for it."""
    if is_every or not ranks:
        return False
    further = {
        rank
        for fact in job.facts
        if fact.kind
        in (LogKind.PEER_LOST, LogKind.HANG, LogKind.LINK_ERROR, LogKind.WATCHDOG_STUCK)
        for rank in fact.ranks
    }
    return bool(further - set(ranks))


def _is_repeated(cause: LogFact, alike: Sequence[LogFact]) -> bool:
    """Return whether several ranks printed one error of the program's text into each other's lines."""
    return cause.error is not None and cause.kind in _OF_TEXT and len(alike) > 1


def _came_before(cause: LogFact, job: LogFacts) -> bool:
    """Return whether an attempt before the last one ended with the same error."""
    return bool(cause.print_) and any(
        fact.print_ == cause.print_ and fact.tier is FactTier.OWN for fact in job.earlier
    )


def _fills_the_device(cause: LogFact) -> bool:
    text = cause.error.traceback if cause.error is not None else cause.text
    text = f"{cause.text}\n{text}"
    if match := _PLACED.search(text):
        return match[1] is None or float(match[1]) > float(match[2])
    capacity, tried, own = (
        _mebibytes(pattern.search(text)) for pattern in (_CAPACITY, _TRIED, _OWN_MEMORY)
    )
    if not capacity:
        return False
    return tried > capacity or (own >= _OWN_SHARE_MIN * capacity)


def _mebibytes(match: re.Match[str] | None) -> float:
    if match is None:
        return 0.0
    value, unit = (part for part in match.groups() if part is not None)
    return float(value) * (1024 if unit == "GiB" else 1)
