"""What a slow-rank verdict is made of: the work table that goes in, the diagnosis that comes out.

A work table holds, for each worker and step, the seconds of the worker's *own* work. Time spent
waiting for others says nothing of the one who waits, so every format leaves it out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
