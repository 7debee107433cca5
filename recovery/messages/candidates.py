"""Candidates that a restore may start from, and the verdict on each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rankmend.errors import ConfigError

_RUNS: Final = re.compile(r"[0-9]+|[^0-9]+")

_LEAST = {
    "grace_s": 0.0,
    "validate_timeout_s": 0.001,
    "check_wait_s": 0.0,
    "background_timeout_s": 0.001,
    "check_rate_bytes_per_s": 0.0,
    "scan_interval_s": 0.001,
    "enough": 1,
    "validate_max": 1,
    "entries_max": 1,
    "depth_max": 0,
    "marker_skew_s": 0.0,
}


def natural_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a key that sorts `__2_0` before `__10_0`."""
    parts = (
        (0, len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (1, 0, part)
        for part in _RUNS.findall(name)
    )
    return tuple(parts), name


class CheckpointFormat(Enum):
    """What wrote a candidate, by its content and its files. The values travel in reports."""

    TORCH = "torch"  # a torch.save file: one zip, or several one after the other
    NPZ = "npz"
    SAFETENSORS = "safetensors"  # one file, or shards with their index
    PICKLE = "legacy"  # pickle or tar: torch.save before 1.6
    DCP = "dcp"
    TRAINER = "hf_trainer"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    MEGATRON = "megatron"
    MEGATRON_DIST = "megatron_dist"
    DEEPSPEED = "deepspeed"
    NEMO = "nemo"
    ORBAX = "orbax"
    NVRX_LOCAL = "nvrx_local"
    DLROVER = "dlrover"
    FOLDER = "folder"  # a folder with the configured marker and no known layout
    UNKNOWN = "unknown"

    @property
    def label(self) -> str:
        """Return the name for people."""
        return _LABELS[self]


_LABELS = {
    CheckpointFormat.TORCH: "torch.save file",
    CheckpointFormat.NPZ: "npz file",
    CheckpointFormat.SAFETENSORS: "safetensors",
    CheckpointFormat.PICKLE: "pickle or tar file",
    CheckpointFormat.DCP: "PyTorch DCP",
    CheckpointFormat.TRAINER: "Hugging Face Trainer",
    CheckpointFormat.ACCELERATE: "Accelerate",
    CheckpointFormat.LIGHTNING: "Lightning",
    CheckpointFormat.MEGATRON: "Megatron-LM (legacy)",
    CheckpointFormat.MEGATRON_DIST: "Megatron-LM (distributed)",
    CheckpointFormat.DEEPSPEED: "DeepSpeed",
    CheckpointFormat.NEMO: "NeMo",
    CheckpointFormat.ORBAX: "Orbax",
    CheckpointFormat.NVRX_LOCAL: "NVRx local checkpoint",
    CheckpointFormat.DLROVER: "dlrover flash checkpoint",
    CheckpointFormat.FOLDER: "folder with a marker",
    CheckpointFormat.UNKNOWN: "unknown format",
}


class Hindrance(Enum):
    """Why a candidate can't be restored now. Decisions rest on this, never on the reason's text."""

    DAMAGED = "damaged"  # looks like a checkpoint: torn, no marker, or not understood
    UNREADABLE = "unreadable"  # an error of the file system, or the time was over
    WRITING = "writing"  # a save is under way, by the look of it
    PENDING = "pending"  # a look is under way and has not come to it
    UNREAD = "unread"  # not looked at: enough newer ones are valid, or a bound was reached
    MISSING = "missing"  # only a pointer file names it
    ALIAS = "alias"  # another name of a candidate in the same list


class Holds(Enum):
    """What the content of a candidate is, without unpickling. The values travel in reports."""

    UNKNOWN = ""  # not read, too long to read, or of a format that doesn't tell
    STATE = "state"  # a model and an optimizer's state
    MODEL = "model"  # named tensors, and no optimizer's state
    OPTIMIZER = "optimizer"  # an optimizer's state, and no model
    VALUES = "values"  # neither: curves, predictions, arguments


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a candidate's content: enough to tell whether two are of one kind."""

    holds: Holds = Holds.UNKNOWN
    tensors: int = 0  # named ones outside the optimizer's state
    elements: int = 0  # in these tensors; of an npz file, bytes
    epoch: int | None = None  # that the content tells


NO_SHAPE: Final = Shape()

# Folders that a script fills by itself, whose files it may overwrite in place. A file of these formats has
# no oldest file.
OVERWRITTEN_FOLDERS: Final = frozenset({CheckpointFormat.SAFETENSORS, CheckpointFormat.TORCH})


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file or folder that may be a checkpoint."""

    path: str  # what the framework's own resume option takes
    step: int | None
    format: CheckpointFormat
    size_bytes: int  # of a folder: of all its files, 0 before they were looked at
    modified_unix_s: float  # by the clock of the storage; of a folder: its newest file
    is_step_exact: bool = False  # the content tells the step; else the name does
    parts: tuple[str, ...] = ()  # paths of other files of the same save
    oldest_unix_s: float = 0.0  # change of its oldest file, by the same clock; 0: not looked at
    shape: Shape = NO_SHAPE
    by_ranks: bool = False  # ranks of the job were seen writing one of its kind

    @property
    def written_unix_s(self) -> float:
        """Return when it was written, for the order of what has no number.

        Of a folder that a script overwrites in place, the oldest file counts: a save that was cut short
        has left one of the save before.
        """
        is_overwritten = self.step is None and self.format in OVERWRITTEN_FOLDERS
        return (self.oldest_unix_s if is_overwritten else 0.0) or self.modified_unix_s

    @property
    def directory(self) -> str:
        """Return the folder that a framework takes together with a tag or a step."""
        return self.path.rpartition("/")[0] or "/"

    @property
    def tag(self) -> str:
        """Return the name of this checkpoint in its directory, such as ``global_step10``."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a checkpoint's files whose content one process reads; the others read the rest."""

    number: int = 0
    count: int = 1  # 1: all of them

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise ValueError(f"there is no share {self.number} of {self.count}")

    @property
    def is_whole(self) -> bool:
        return self.count == 1

    def pick(self, names: Iterable[str]) -> frozenset[str]:
        """Return this share of the names: one contiguous piece in natural order.

        `__0_0, __1_0, ... __10_0`: a node tends to read what its own ranks wrote, which its page
        cache still holds. Equal names give equal pieces on every node.
        """
        if self.is_whole:
            return frozenset(names)
        ordered = sorted(names, key=natural_key)
        begin, end = (len(ordered) * at // self.count for at in (self.number, self.number + 1))
        return frozenset(ordered[begin:end])


WHOLE: Final = Share()


@dataclass(frozen=True, slots=True, order=True)
class HeldPart:
    """One rank's part of a save that lies on this node, and whose content is whole.

    Of formats whose parts may lie on the local disks of several nodes.
    """

    step: int  # of the save; 0: the candidate is one save
    rank: int  # that wrote it
    holder: int  # rank that finds it: where it is another, a replica


@dataclass(frozen=True, slots=True)
class PutBack:
    """A checkpoint that something deleted while ranks restored it, and that this launcher put back."""

    attempt: int  # that restores it
    path: str
    count: int = 1  # of times in this attempt
    is_given_up: bool = False  # it was deleted once more, and is left so


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """Whether a candidate can be restored, and in words why or why not."""

    candidate: Candidate
    is_valid: bool
    reason: str
    hindrance: Hindrance | None = None  # None: valid, or a peer one version older sent it
    share: Share = Share()  # whose content it speaks for; names and sizes are always checked whole
    parts: tuple[HeldPart, ...] = ()  # here, where others may lie on other nodes' disks
    # Of a valid one: whole in its structure, and so much of its content was not checked yet. 0: all was.
    unchecked_bytes: int = 0
    # Its bytes contradict their own checksums, and nobody changed the files meanwhile: no save under way, no rotation.
    has_wrong_sum: bool = False
    is_young: bool = (
        False  # whole as far as it goes, and changed so lately that it may still be written
    )

    @property
    def is_checked(self) -> bool:
        """Return whether it can be restored and all was checked that can be."""
        return self.is_valid and self.unchecked_bytes == 0

    @property
    def looks_like_checkpoint(self) -> bool:
        """Return whether somebody has saved something here, whole or not."""
        return self.hindrance is not Hindrance.ALIAS


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """What counts as a checkpoint, and how much work is spent on finding out."""

    marker: str | None = None  # file that the script writes last; None: what the format writes
    names: tuple[str, ...] = ()  # shell patterns of candidates' names; `!PATTERN` leaves out
    world_size: int = 0  # ranks that save; 0: not known
    grace_s: float = 10.0  # a writer that pauses longer between two writes looks finished
    validate_timeout_s: float = 30.0  # what a caller waits for: names, sizes and structure
    # How long of it a caller waits for the content, too; then the rest is checked beside the restore. About 15 GB at
    # 1 GB/s; a larger file takes the ranks as long again to load.
    check_wait_s: float = 15.0
    background_timeout_s: float = 3600.0  # one scan beside training: about 3.6 TB at 1 GB/s
    check_rate_bytes_per_s: float = 0.0  # beside training, this launcher's; 0: no limit
    scan_interval_s: float = 5.0
    enough: int = 2  # valid ones to look for: the newest, and one to fall back on
    validate_max: int = 20  # candidates read or walked in one look
    entries_max: int = 100_000  # of the folder, and of each checkpoint: 16,384 ranks, 6 files each
    depth_max: int = 6  # folders inside a checkpoint folder; Orbax uses 3, NeMo's context more
    marker_skew_s: float = 10.0  # nodes of one job that stamp their files by their own clocks

    def __post_init__(self) -> None:
        if self.marker is not None and (
            not self.marker or "/" in self.marker or self.marker in {".", ".."}
        ):
            raise ConfigError(f"checkpoint marker is not a file name: {self.marker!r}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                raise ConfigError(f"checkpoint setting {name} is {value!r}, less than {least}")
