"""Whether a job's loss or gradient norm has left the range of its own past. Pure.

A spike is a value beyond `FACTOR` times the median of the past and beyond what the noise of the past explains, at `HELD`
steps that follow each other: one high value, or a few apart, are how noisy losses look. The
noise is the median absolute deviation, which high values don't widen. It is measured of the values and, where all are
positive, of their logarithms too: gradient norms and losses of reinforcement learning are skewed.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

PAST_MIN: Final = 20
PAST_MAX: Final = 256
FACTOR: Final = 5.0
HELD: Final = 3
SIGMAS: Final = 10.0
# Of logarithms, whose distribution is closer to the normal one. With so few values that the deviation comes out half as
# large as it is, a value of 3 sigmas counts: three in a row are 1 in 400 million.
LOG_SIGMAS: Final = 6.0
_SIGMA_OF_MAD: Final = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True)
class Spike:
    """Values far above a job's own past, from a step on."""

    step: int  # the first of them
    value: float  # at that step
    usual: float  # the median of the past
    limit: float  # beyond which a value counts


class SpikeWatch:
    """The past of one number of one job. Take one finite value a step, in the order of steps."""

    def __init__(self) -> None:
        self._past: deque[float] = deque()
        self._ordered: list[float] = []  # the same values
        self._high: list[tuple[int, float]] = []  # beyond the limit, one after the other
        self._limit = math.inf
        self._usual = 0.0
        self._is_told = False  # the values have stood beyond the limit since the newest spike

    def take(self, step: int, value: float) -> Spike | None:
        """Return the spike that has held for long enough with this value."""
        if not self._high:
            self._look(value)
        if value <= self._limit:
            self._is_told = False
            self._keep_all(value)
            return None
        self._high.append((step, value))
        if len(self._high) < HELD:
            return None
        first_step, first = self._high[0]
        self._keep_all()
        was_told, self._is_told = self._is_told, True
        return None if was_told else Spike(first_step, first, self._usual, self._limit)

    def _look(self, value: float) -> None:
        """Set the limit for the next values."""
        if len(self._past) < PAST_MIN:
            self._limit = math.inf
            return
        usual = self._ordered[len(self._ordered) // 2]
        if value <= usual + (FACTOR - 1.0) * abs(usual):
            self._limit = math.inf  # whatever it is, it lies higher: most steps need no closer look
            return
        self._usual, self._limit = _limit_of(self._ordered)

    def _keep_all(self, *values: float) -> None:
        for _step, high in self._high:
            self._keep(high)
        self._high.clear()
        for value in values:
            self._keep(value)

    def _keep(self, value: float) -> None:
        if len(self._past) == PAST_MAX:
            oldest = self._past.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._past.append(value)
        insort(self._ordered, value)


def _limit_of(ordered: list[float]) -> tuple[float, float]:
    """Return the median of the past, and the value beyond which the next one is out of the ordinary."""
    usual = median(ordered)
    deviation = _SIGMA_OF_MAD * median(abs(value - usual) for value in ordered)
    if usual == 0.0 == deviation:
        return usual, math.inf  # nothing to be a multiple of
    limit = max(usual + (FACTOR - 1.0) * abs(usual), usual + SIGMAS * deviation)
    if ordered[0] > 0.0:
        logs = [math.log(value) for value in ordered]
        middle = median(logs)
        log_deviation = _SIGMA_OF_MAD * median(abs(one - middle) for one in logs)
        exponent = middle + LOG_SIGMAS * log_deviation
        limit = max(limit, math.exp(exponent) if exponent < 700.0 else math.inf)
    return usual, limit
