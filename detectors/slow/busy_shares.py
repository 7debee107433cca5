"""Slow rank of a job that tells its steps alone: who works while the others wait, seen from outside. Pure.

In a synchronous job all ranks step in lockstep, and each step lasts as long as the slowest rank works. The others wait, and a
rank that waits asleep (gloo, blocking synchronisation) uses no processor. So the share of the time in which a rank's main
thread runs, or is ready to, is its own work against the step. A rank that hardly waits while its peers do is the one they wait for.

Rules (docs/reference/thresholds.md gives the figures' reasons):
1. Windows in which steps took longer than usual are left out: evaluation, checkpoints, compiling.
2. A rank is slow if its share is high, and far above the middle of its peers.
3. If more than half of the ranks are, none is named.
Ranks that wait by spinning (NCCL, MPI, UCX) all have a share of 1: nobody is named. One that sleeps for another reason than
its peers, such as slow storage, is not seen either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class ShareLimits:
    ratio: float = 1.4  # of a rank's share to its peers' middle
    share_min: float = 0.6  # of the rank itself: below, it waits for others often enough
    window_s: float = 10.0  # between two samples that are compared
    steps_min: int = 3  # in a window
    long_step: float = 1.5  # a window's mean step against the usual one

    def __post_init__(self) -> None:
        if not (self.ratio > 1 and 0 < self.share_min < 1 and self.long_step > 1):
            raise ValueError(
                f"ratio {self.ratio} and long_step {self.long_step} must be above 1, share_min {self.share_min} a ratio"
            )
        if not (0 < self.window_s < 3600 and self.steps_min >= 1):
            raise ValueError(f"windows of {self.window_s} s and {self.steps_min} steps")


@dataclass(frozen=True, slots=True)
class BusyWindow:
    """What the main thread of one rank did between two samples."""

    rank: int
    window_s: float
    steps: int
    running_s: float
    ready_s: float  # waiting for a processor
    usual_step_s: float | None

    @property
    def share(self) -> float:
        return min(1.0, (self.running_s + self.ready_s) / self.window_s)


@dataclass(frozen=True, slots=True)
class BusyRank:
    """One rank that works while its peers wait."""

    rank: int
    share: float
    peers_share: float
    ready_share: float
    step_s: float

    @property
    def factor(self) -> float:
        return self.share / max(self.peers_share, 0.01)


@dataclass(frozen=True, slots=True)
class BusyLook:
    ranks: int  # judged
    slow: tuple[BusyRank, ...]
    abstention: str = ""


def judge_shares(windows: Sequence[BusyWindow], limits: ShareLimits) -> BusyLook | None:
    """Return which ranks the others wait for, or None where too few ranks can be compared."""
    judged = [window for window in windows if _is_ordinary(window, limits)]
    if len(judged) < 2 or 2 * len(judged) <= len(windows):
        return None
    shares = sorted(window.share for window in judged)
    slow = []
    for window in judged:
        peers = list(shares)
        peers.remove(window.share)
        middle = peers[(len(peers) - 1) // 2]
        if window.share >= limits.share_min and window.share >= limits.ratio * middle:
            slow.append(
                BusyRank(
                    window.rank,
                    window.share,
                    middle,
                    min(1.0, window.ready_s / window.window_s),
                    window.window_s / window.steps,
                )
            )
    if 2 * len(slow) > len(judged):
        return BusyLook(len(judged), (), f"{len(slow)} of {len(judged)} ranks hardly wait")
    return BusyLook(len(judged), tuple(sorted(slow, key=lambda rank: -rank.factor)))


def _is_ordinary(window: BusyWindow, limits: ShareLimits) -> bool:
    if window.window_s <= 0 or window.steps < limits.steps_min:
        return False
    if not (isfinite(window.running_s) and window.running_s >= 0 and window.ready_s >= 0):
        return False
    usual_s = window.usual_step_s
    return usual_s is None or window.window_s / window.steps <= limits.long_step * usual_s
