"""Detects losses and gradient norms that spike, or that differ between ranks whose values should be equal. Pure."""

import math
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from detectors.replicas.divergence import Divergence, differences

PAST_MIN: Final = 20
PAST_MAX: Final = 256
FACTOR: Final = 5.0
HELD: Final = 3
SIGMAS: Final = 10.0
# Of logarithms, whose distribution is closer to the normal one. With so few values that the deviation comes out half as
# large as it is, a value of 3 sigmas counts: three in a row are 1 in 400 million.
LOG_SIGMAS: Final = 6.0
_SIGMA_OF_MAD: Final = 1.4826  # of a normal distribution

EQUAL_MIN: Final = 20
"""Our choice: steps with equal numbers, other ones each time. As long as the past that a spike needs."""

_Groups = frozenset[frozenset[int]]


class ToldNumber(Enum):
    """A number that a script reports for each step."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"

    @property
    def in_words(self) -> str:
        return "loss" if self is ToldNumber.LOSS else "gradient norm"


class Trouble(Enum):
    """How it went wrong."""

    NOT_FINITE = "not_finite"  # NaN or infinite
    SPIKE = "spike"  # far above the job's own past
    APART = "apart"  # equal on all ranks of a group before, and no more


@dataclass(frozen=True, slots=True)
class Spike:
    """Values far above a job's own past, from a step on."""

    step: int  # the first of them
    value: float  # at that step
    usual: float  # the median of the past
    limit: float  # beyond which a value counts


class SpikeWatch:
    """Whether one number of one job has left the range of its own past. Pass it one finite value a step, in the order of steps.

    A spike is a value beyond `FACTOR` times the median of the past and beyond what the noise of the
    past explains, at `HELD` steps in a row: noisy losses show one high value, or a few apart. The
    noise is the median absolute deviation, which high values don't widen. It is measured of the
    values and, where all are positive, of their logarithms too: gradient norms, and losses of
    reinforcement learning, are skewed.
    """

    def __init__(self) -> None:
        self._past: deque[float] = deque()
        self._ordered: list[float] = []  # the same values
        self._high: list[tuple[int, float]] = []  # beyond the limit, one after the other
        self._limit = math.inf
        self._usual = 0.0
        self._is_reported = False  # the values have stood beyond the limit since the newest spike

    def take(self, step: int, value: float) -> Spike | None:
        """Return the spike that has held for long enough with this value."""
        if not self._high:
            self._look(value)
        if value <= self._limit:
            self._is_reported = False
            self._keep_all(value)
            return None
        self._high.append((step, value))
        if len(self._high) < HELD:
            return None
        first_step, first = self._high[0]
        self._keep_all()
        was_reported, self._is_reported = self._is_reported, True
        return None if was_reported else Spike(first_step, first, self._usual, self._limit)

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
        log_deviation = _SIGMA_OF_MAD * median(abs(log - middle) for log in logs)
        exponent = middle + LOG_SIGMAS * log_deviation
        limit = max(limit, math.exp(exponent) if exponent < 700.0 else math.inf)
    return usual, limit


"""Our choice: steps in a row. What has come apart stays so; a number that one rank has rounded otherwise does not."""


class ApartWatch:
    """Whether values of one number that were equal on all ranks of a group now differ. Pass it the steps in order.

    Nobody declares which ranks should have equal numbers: the watch learns it, as for snapshots
    (`detectors.replicas`). All ranks of a data-parallel group share the gradients behind a gradient
    norm, so it is the same number to the last bit. A number of the rank's own, such as the loss of
    its own batch, differs from the first step on and is never accused.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._groups: _Groups = frozenset()
        self._ranks: frozenset[int] = frozenset()
        # at the newest step, to see whether they change
        self._values: frozenset[float] = frozenset()
        self._equal = 0  # steps with new values at which the groups were these
        self._first: tuple[Divergence, ...] = ()  # when they came apart
        self._held = 0

    def take(self, step: int, values: Mapping[int, float]) -> tuple[Divergence, ...]:
        """Return what differs for long enough at this step, for which all ranks reported a finite value."""
        by_value: dict[float, set[int]] = defaultdict(set)
        for rank, value in values.items():
            by_value[value].add(rank)
        groups = {value: frozenset(ranks) for value, ranks in by_value.items()}
        ranks = frozenset(values)
        has_changed = self._values != groups.keys()
        self._values = frozenset(groups)
        found: list[Divergence] = []
        if ranks == self._ranks and self._groups != frozenset(groups.values()):
            found = differences(step, self._name, self._groups, groups)
        if not found and ranks == self._ranks:
            # The same groups; or ranks whose numbers are their own had one in common.
            self._first, self._held = (), 0
            self._equal += has_changed
            return ()
        if self._equal < EQUAL_MIN or ranks != self._ranks:
            self._learn(groups, ranks)
            return ()
        self._first = self._first or tuple(found)
        self._held += 1
        if self._held < HELD:
            return ()
        reported = self._first
        self._learn(groups, ranks)
        return reported

    def _learn(self, groups: Mapping[float, frozenset[int]], ranks: frozenset[int]) -> None:
        self._groups, self._ranks = frozenset(groups.values()), ranks
        self._equal, self._first, self._held = 1, (), 0
