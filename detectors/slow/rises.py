"""How much a worker's time rose over an episode, and whether the rise holds.

When a series changed: the one episode in which it lay highest above the rest of itself.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.slow.peers import Rows, row_medians
from detectors.slow.work_table import Matrix, SlowLimits

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
    retained = count - size >= length
    first, end, size = first[retained], end[retained], size[retained]
    return first, end, np.sqrt(count / (size * (count - size)))


def robust_noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of a point, untouched by slow drift and by single jumps."""
    if len(values) < 3:
        return 0.0
    return 1.4826 * _median(np.abs(np.diff(values))) / float(np.sqrt(2.0))


def _median(values: NDArray[np.float64]) -> float:
    """Return the upper median; several times as fast as numpy.median on a short series."""
    return float(np.sort(values)[len(values) // 2])


SAMPLE_MAX: Final = 1_024  # workers outside of a group that are asked how much they vary
PEERS_ASKED_MAX: Final = 32  # peers that are asked what they did over the same steps


def held_share(
    shifts: NDArray[np.float64],
    inside: NDArray[np.bool_],
    rise: float,
    workers: int,
    limits: SlowLimits,
) -> float | None:
    """Return the share of an episode's steps that are slow, or None where it does not hold."""
    above = shifts - float(np.nanmedian(shifts[~inside]))
    enough = min(float(np.log(limits.ratio)), 0.5 * rise)
    held = share_above(above[inside], enough)
    if held < limits.held or (above[inside] >= enough).sum() < limits.steps_min:
        return None
    is_known = np.isfinite(above)
    rest = is_known & ~inside
    usual = (int((above[rest] >= enough).sum()) + 0.5) / (int(rest.sum()) + 1)
    if _by_chance(held, usual, int((is_known & inside).sum()), len(above) * workers) > limits.clump:
        return None  # it jitters, and here its slow steps happen to lie together
    return held


def _by_chance(share: float, usual: float, steps: int, places: int) -> float:
    """Return at most how likely so many slow steps lie together somewhere, at the usual rate.

    Chernoff's bound of the binomial tail, exp(-steps x divergence), times the places: the steps at
    which it could begin, on each of the workers.
    """
    if share <= usual:
        return 1.0
    divergence = share * np.log(share / usual)
    if share < 1.0:
        divergence += (1.0 - share) * np.log((1.0 - share) / (1.0 - usual))
    return float(min(1.0, places * np.exp(-steps * divergence)))


def own_rise(seconds: Matrix, row: int, inside: NDArray[np.bool_], peers: Rows) -> float:
    """Return how much a worker's own time rose, less what its peers or all others did.

    Where half of the peers became slower the median that a worker is compared with moves, too.
    """
    others = peers[peers != row]
    common = [0.0]
    with np.errstate(divide="ignore", invalid="ignore"):
        own = log_rises(np.log(seconds[[row]]), inside)[0]
        # samples of rows say what everybody did
        peers_asked = others[:: max(1, len(others) // PEERS_ASKED_MAX)]
        for sample in (peers_asked, outside(peers, len(seconds))):
            common_rises = (
                log_rises(np.log(seconds[sample]), inside) if len(sample) else np.array([])
            )
            common_rises = common_rises[np.isfinite(common_rises)]
            if len(common_rises):
                common.append(float(np.median(common_rises)))
    return float(own - max(common))


def outside(rows: Rows, count: int) -> Rows:
    """Return a sample of the rows that are not among these."""
    is_outside = np.ones(count, dtype=bool)
    is_outside[rows] = False
    others = np.flatnonzero(is_outside)
    return others[:: max(1, len(others) // SAMPLE_MAX)]


def log_rises(logs: Matrix, inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return each row's median inside an episode less its median outside."""
    return np.asarray(row_medians(logs[:, inside]) - row_medians(logs[:, ~inside]))


def share_above(values: NDArray[np.float64], least: float) -> float:
    """Return the share of the known values that reach ``least``, 0 where none is known."""
    known = values[np.isfinite(values)]
    return float((known >= least).mean()) if len(known) else 0.0
