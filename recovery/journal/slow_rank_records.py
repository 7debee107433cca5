"""Records of slow ranks: what was measured, why, and until when."""

from dataclasses import dataclass

from detectors.finding import Evidence, Finding


@dataclass(frozen=True, slots=True)
class SlowFound:
    """A rank is slower than its peers. It is reported; training continues."""

    attempt: int
    rank: int
    section: str  # what grew: compute, communication, io
    factor: float  # own work divided by the peers'
    onset_step: int
    finding: Finding
    step_factor: float = 1.0  # by this factor every step of the job is longer
    is_always: bool = False  # since the attempt's start


@dataclass(frozen=True, slots=True)
class SlowExplained:
    """Why a rank is slow, as its hardware shows."""

    attempt: int
    rank: int
    cause: str  # from detectors.slow.cause_table; empty: hardware shows nothing or was not measured
    reason: str  # one sentence
    confidence: float
    evidence: tuple[Evidence, ...]
    part: str = ""  # that explains it together with other slow ranks, in words; empty: none


@dataclass(frozen=True, slots=True)
class SlowEnded:
    attempt: int
    rank: int
    reason: str
