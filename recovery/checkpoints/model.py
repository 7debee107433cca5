"""What a restore may start from, and what was found out about it."""

from dataclasses import dataclass
from enum import Enum

from rankmend.errors import ConfigError


class CheckpointKind(Enum):
    """What a candidate is, by its content and never by its name."""

    TORCH = "torch"  # a torch.save file: one zip, or several one after the other
    NPZ = "npz"
    SAFETENSORS = "safetensors"
    LEGACY = "legacy"  # pickle or tar: torch.save before 1.6
    FOLDER = "folder"  # a folder with a marker file
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file or folder that may be a checkpoint."""

    path: str
    step: int | None
    kind: CheckpointKind
    size_bytes: int  # of a folder: of all its files, 0 before they were looked at
    modified_unix_s: float  # by the clock of the storage; of a folder: its newest file


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """Whether a candidate can be restored, and in words why or why not."""

    candidate: Candidate
    is_valid: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """What counts as a checkpoint, and how much work is spent on finding out."""

    marker: str = ".metadata"  # PyTorch DCP writes it last
    name_pattern: str = "*"  # shell pattern that a candidate's name must match
    grace_s: float = 10.0  # a writer that pauses longer between two writes looks finished
    validate_timeout_s: float = 30.0  # what a caller waits for; about 30 GB at 1 GB/s
    background_timeout_s: float = 3600.0  # one scan beside training: about 3.6 TB at 1 GB/s
    scan_interval_s: float = 5.0
    enough: int = 2  # valid ones to look for: the newest, and one to fall back on
    validate_max: int = 20  # candidates read or walked in one look
    entries_max: int = 100_000  # of the folder, and of each checkpoint: 16,384 ranks, 6 files each
    depth_max: int = 3  # folders inside a checkpoint folder; Megatron and NeMo use 2
    marker_skew_s: float = 10.0  # nodes of one job that stamp their files by their own clocks

    def __post_init__(self) -> None:
        if not self.marker or "/" in self.marker or self.marker in {".", ".."}:
            raise ConfigError(f"checkpoint marker is not a file name: {self.marker!r}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                raise ConfigError(f"checkpoint setting {name} is {value!r}, less than {least}")


_LEAST = {
    "grace_s": 0.0,
    "validate_timeout_s": 0.001,
    "background_timeout_s": 0.001,
    "scan_interval_s": 0.001,
    "enough": 1,
    "validate_max": 1,
    "entries_max": 1,
    "depth_max": 0,
    "marker_skew_s": 0.0,
}
