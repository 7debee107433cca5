"""What the journal holds of slow ranks: what was measured, why, and until when."""

from dataclasses import dataclass

from detectors.finding import Evidence, Finding


@dataclass(frozen=True, slots=True)
class SlowFound:
    """A rank is slower than its peers. It is named; training goes on."""

    attempt: int
    rank: int
    section: str  # what grew: compute, communication, io
    factor: float  # own work, against the peers'
    onset_step: int
    finding: Finding
    step_factor: float = 1.0  # every step of the job takes so many times as long
    is_always: bool = False  # since the attempt's start


@dataclass(frozen=True, slots=True)
class SlowExplained:
    """What hardware shows of why a rank is slow."""

    attempt: int
    rank: int
    cause: str  # of detectors.slow.cause_table; empty: hardware shows nothing, or was not measured
    reason: str  # one sentence
    confidence: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class SlowEnded:
    attempt: int
    rank: int
    reason: str
