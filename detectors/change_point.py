"""When a series changed: the one episode in which it lay highest above the rest of itself."""

from dataclasses import dataclass
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
    noise: float  # robust standard deviation of one point, from neighbouring differences


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
    noise = robust_noise(values)
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
    return Episode(
        first=int(known[first]),
        end=len(series) if end == len(values) else int(last),
        rise=float(np.median(inside) - np.median(outside)),
        noise=noise,
    )


def _scan(points: NDArray[np.float64], length: int, clip: float) -> tuple[int, int]:
    count = len(points)
    middle = float(np.median(points))
    # Cut around the middle of the range, too: with an onset at half the median is either level.
    low, high = np.percentile(points, (10, 90))
    cut = np.clip(points, min(middle, low) - clip, max(middle, high) + clip)
    sums = np.concatenate([[0.0], np.cumsum(cut - cut.mean())])
    first, end = np.triu_indices(count + 1, k=length)
    size = end - first
    kept = count - size >= length
    first, end, size = first[kept], end[kept], size[kept]
    inside = sums[end] - sums[first]  # the sum over all is 0: the mean outside is its negative
    score = inside * np.sqrt(count / (size * (count - size)))
    best = int(np.argmax(score))
    return int(first[best]), int(end[best])


def robust_noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of a point, untouched by slow drift and by single jumps."""
    if len(values) < 3:
        return 0.0
    return float(1.4826 * np.median(np.abs(np.diff(values))) / np.sqrt(2.0))
