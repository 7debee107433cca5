"""What a look at a running job says of slow ranks, and the limits it judges by. Pure.

Apart from `detectors.slow.live`, which judges: these values need no numpy.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

SECTIONS: Final = ("compute", "communication", "io")
STEPS_JUDGED: Final = 32  # the newest steps, in one look

# rank, number, step, duration, and the totals of communication, waited, io, checkpoint in seconds
StepRow: TypeAlias = tuple[int, int, int, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """Defaults and the reason of each: docs/reference/thresholds.md."""

    ratio: float = 1.1  # slower than this, against the peers and the own past
    always_ratio: float = 1.3  # with no past to compare with
    impact: float = 0.05  # share of the step that the excess makes up
    held: float = 0.8  # share of the steps of a look that are slow
    sigmas: float = 4.0
    look_s: float = 2.0  # between two looks, and
    steps_min: int = 5  # steps of one look
    startup_steps: int = 3
    long_step: float = 3.0  # multiple of the median step: evaluation, compiling

    def __post_init__(self) -> None:
        if not 1.0 < self.ratio <= self.always_ratio:
            raise ValueError(
                f"ratios {self.ratio} and {self.always_ratio}: must be above 1 and ascending"
            )
        if not (0 < self.look_s < 3600 and 2 <= self.steps_min <= STEPS_JUDGED):
            raise ValueError(f"looks of {self.look_s} s and {self.steps_min} steps")


@dataclass(frozen=True, slots=True)
class SlowRank:
    """One rank that was slow in the steps of one look."""

    rank: int
    section: str  # what grew
    factor: float  # own work, against its peers'
    step_factor: float  # the step, against what it would take without the excess
    onset_step: int
    is_always: bool  # since before the first look
    own_s: float
    peers_s: float
    excess_s: tuple[float, ...]  # by SECTIONS
    held: float
    sigmas: float


@dataclass(frozen=True, slots=True)
class SlowLook:
    """What the steps since the look before say."""

    first_step: int
    last_step: int
    steps: int  # judged
    ranks: int
    slow: tuple[SlowRank, ...]
    abstention: str = ""  # why no rank is named although ranks differ
