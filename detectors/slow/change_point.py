"""When a series changed: the one episode in which it lay highest above the rest of itself."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

POINTS_MAX: Final = 512  # longer series are looked at in blocks: the scan grows with the square


@dataclass(frozen=True, slots=True)
class Episode:
    """Columns ``first`` up to and without ``end``, and by how much they lie higher."""

    first: int
    end: int
    rise: float  # median inside less median outside
    noise: float  # robust standard deviation of one point around its level
    sure: float  # standard deviation of the rise, in units of the noise


def find_episode(
    series: NDArray[np.float64], length_min: int, *, clip: float = 0.3
) -> Episode | None:
    """Return the episode that stands out most, or None in a series that is too short.

    The scan maximises (mean inside - mean outside) x sqrt(inside x outside / all) over all
    episodes with ``length_min`` points inside and as many outside: the likelihood ratio of one
    shifted segment (Olshen, Venkatraman et al., circular binary segmentation). Values are cut to
    ``clip`` around the median, so that one long step is no episode. NaN is left out.
    """
    known = np.flatnonzero(np.isfinite(series))
    if len(known) < 2 * length_min:
        return None
    values = series[known]
    block = -(-len(values) // POINTS_MAX)
    points, length = values, length_min
    if block > 1:
        points = np.array(
            [np.median(values[start : start + block]) for start in range(0, len(values), block)]
        )
        length = max(2, length_min // block)
    first, end = _scan(points, length, clip)
    first, end = first * block, min(end * block, len(values))
    inside = values[first:end]
    outside = np.concatenate([values[:first], values[end:]])
    if not len(outside):
        return None
    last = known[end - 1] + 1
    residuals = np.concatenate([inside - _median(inside), outside - _median(outside)])
    noise = robust_noise(values)
    return Episode(
        first=int(known[first]),
        end=len(series) if end == len(values) else int(last),
        rise=_median(inside) - _median(outside),
        noise=max(noise, 1.4826 * _median(np.abs(residuals))),
        sure=float(np.sqrt(len(values) / (len(inside) * len(outside)))),
    )


def _scan(points: NDArray[np.float64], length: int, clip: float) -> tuple[int, int]:
    count = len(points)
    # Cut outside of the middle 80 %: an onset at half has two levels, and both are to stay.
    ordered = np.sort(points)
    cut = np.clip(points, ordered[count // 10] - clip, ordered[count - 1 - count // 10] + clip)
    sums = np.concatenate([[0.0], np.cumsum(cut - cut.mean())])
    first, end, weight = _segments(count, length)
    # The sum over all is 0, so the sum outside is the negative of the one inside.
    best = int(np.argmax((sums[end] - sums[first]) * weight))
    return int(first[best]), int(end[best])


@lru_cache(maxsize=4)
def _segments(
    count: int, length: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Return start, end and weight of every segment that is neither too short nor too long."""
    first, end = np.triu_indices(count + 1, k=length)
    size = end - first
    kept = count - size >= length
    first, end, size = first[kept], end[kept], size[kept]
    return first, end, np.sqrt(count / (size * (count - size)))


def robust_noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of a point, untouched by slow drift and by single jumps."""
    if len(values) < 3:
        return 0.0
    return 1.4826 * _median(np.abs(np.diff(values))) / float(np.sqrt(2.0))


def _median(values: NDArray[np.float64]) -> float:
    """Return the upper median; several times as fast as numpy.median on a short series."""
    return float(np.sort(values)[len(values) // 2])
