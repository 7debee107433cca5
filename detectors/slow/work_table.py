"""What a slow-rank verdict is made of: the work table that goes in, the diagnosis that comes out.

A work table holds, for each worker and step, the seconds of the worker's *own* work. Time spent
waiting for others says nothing of the one who waits, so every format leaves it out.

What a slow-rank verdict says, and the limits that it rests on.
"""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from detectors.diagnosis import Culprit, Diagnosis, Onset, Verdict
from detectors.finding import Evidence

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TracedWorker:
    """One row of a work table: who it is, and what it stands on where that is known."""

    rank: int | None = None
    stage: int | None = None
    dp_rank: int | None = None
    worker: int | None = None
    host: str | None = None
    device: str | None = None
    nic: str | None = None
    peers: tuple[int | str, ...] = ()  # equal for workers that do the same work

    def name(self) -> str:
        if self.stage is not None and self.dp_rank is not None:
            rank = f" (rank {self.rank})" if self.rank is not None else ""
            return f"stage {self.stage} of replica {self.dp_rank}{rank}"
        return f"rank {self.rank}" if self.rank is not None else f"worker {self.worker}"


@dataclass(frozen=True, slots=True, eq=False)
class WorkTable:
    """Seconds of own work by kind, worker and step; NaN where there is no record."""

    workers: tuple[TracedWorker, ...]
    steps: tuple[int, ...]  # ascending, may have gaps
    kinds: tuple[str, ...]
    seconds: NDArray[np.float64]  # kinds x workers x steps
    does_same_work: bool = True  # peers are known to do the same work
    microbatches: Matrix | None = None  # kinds x workers x steps x micro-batches
    tokens: Matrix | None = None  # workers x steps
    pauses: Matrix | None = None  # workers x steps: seconds in garbage collection
    starts_s: NDArray[np.float64] | None = None  # unix seconds by step, by some host's clock
    notes: tuple[str, ...] = ()  # what was wrong with the input; each lowers the confidence


def total_work(table: WorkTable) -> Matrix:
    """Return all own work; a step in which a kind is missing that the worker has is not known."""
    has = np.isfinite(table.seconds).any(axis=2, keepdims=True)
    return np.where(has, table.seconds, 0.0).sum(axis=0)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class SlowLimits:
    """Defaults and the reason of each: docs/reference/thresholds.md."""

    ratio: float = 1.1  # the smallest slowdown, against peers and own past
    steps_min: int = 5  # steps of one episode
    held: float = 0.8  # share of an episode's steps that are slow
    sigmas: float = 4.0  # beyond the peers' own variation
    chance_sigmas: float = 7.0  # the best episode of all workers is high by chance
    clump: float = 0.01  # largest likelihood that slow steps are adjacent by chance
    drift: float = 2.0  # multiple of the peers' best episodes
    always_sigmas: float = 6.0  # with no past to compare with
    kind_share: float = 0.1  # kinds of work below this share are not judged alone
    imbalance: float = 1.05  # a stage, replica or pause that costs less is no reason
    correlation: float = (
        0.9  # between forward and backward times of micro-batches, which shows lengths
    )
    suspects_max: int = 256


class Reason(Enum):
    """Why a machine is named, or why none is."""

    SLOWER_THAN_BEFORE = "slower_than_before"  # against the peers and its own past
    SLOWER_TOGETHER = "slower_together"  # several of a peer group, at the same step
    ALWAYS_SLOWER = "always_slower"  # against the peers, since before the record
    STAGE_BALANCE = "stage_balance"
    SEQUENCE_LENGTHS = "sequence_lengths"
    GARBAGE_COLLECTION = "garbage_collection"
    SHIFTED_TOGETHER = "everyone_shifted_together"
    STABLE_DIFFERENCES = "stable_differences"  # workers that do unequal work
    BALANCED = "balanced"
    TOO_LITTLE_DATA = "too_little_data"


@dataclass(frozen=True, slots=True)
class Suspect:
    """One worker that stands out."""

    row: int
    ratio: float  # against its peers (and its own past, if it has one)
    first: int  # column at which it began
    end: int  # column after the last one; the number of steps if it continues
    reason: Reason
    kind: str  # the kind of work that became slow
    held: float  # share of those steps in which it was slow
    confidence: float


@dataclass(frozen=True, slots=True)
class Span:
    """Workers that were slow over the same steps."""

    suspects: tuple[Suspect, ...]  # the slowest first
    first: int  # column
    end: int  # column after the last one; the number of steps if it continues
    reason: Reason
    peers: int | None = None  # size of the peer group, if SLOWER_TOGETHER

    @property
    def ratio(self) -> float:
        return self.suspects[0].ratio


@dataclass(frozen=True, slots=True)
class SlowDiagnosis:
    """The verdict, with everything a person needs to check it."""

    verdict: Verdict
    reason: Reason
    explanation: str
    class_name: str | None = None  # slow_compute, slow_io, ...
    culprits: tuple[TracedWorker, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    spans: tuple[Span, ...] = ()  # the same suspects by when they were slow, the slowest first
    onset: int | None = None  # step number at which the first span begins
    end: int | None = None  # number of the last slow step; None while it continues
    parts: tuple[str, ...] = ()  # "host gpu7", "rail mlx5_3", "switch leaf2", "rank 5"
    confidence: float = 0.0  # 0 to 1
    evidence: tuple[str, ...] = field(default=())

    def diagnosis(self) -> Diagnosis:
        """Return the answer in the form that all job-wide detectors share."""
        return Diagnosis(
            verdict=self.verdict,
            culprits=tuple(
                Culprit(
                    rank=worker.rank,
                    host=worker.host,
                    device=worker.device,
                    stage=worker.stage,
                    dp_rank=worker.dp_rank,
                    worker=worker.worker,
                )
                for worker in self.culprits
            ),
            cause=self.class_name or self.reason.value,
            reason=self.explanation,
            onset=None if self.onset is None else Onset(step=self.onset),
            confidence=self.confidence,
            evidence=tuple(Evidence("step records", line) for line in self.evidence),
        )
