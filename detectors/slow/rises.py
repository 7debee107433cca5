"""How much a worker's time rose over an episode, and whether the rise holds."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.slow.peers import Rows, row_medians
from detectors.slow.slow_verdict import SlowLimits
from detectors.slow.work_table import Matrix

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
