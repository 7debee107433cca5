"""Readings as C4D's matrix: senders are rows, receivers columns, a cell the time a byte takes against the usual time.

Usual is what most tests of the same kind reach: below one leaf switch, or across. A network that is built with slower
uplinks is no fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.fabric.network import Network, Reading
from detectors.parts.shared_blame import SHARE_MIN
from detectors.slow.placement import RATIO
from detectors.slow.work_table import Matrix

# A leaf of four whose uplink is slow takes part in half of all tests that cross; most of the rest is sound.
USUAL_QUANTILE: Final = 0.75
DELAY_MAX: Final = 1e6  # a cell over which nothing arrived
# Switches for training drop nothing in good health. A shaped link drops from everybody: then loss is what is far above the median.
LOSS_MIN: Final = 0.005
LOSS_OVER_MEDIAN: Final = 4.0
LOSS_USUAL_MAX: Final = (
    0.02  # a network that loses more from everybody: loss tells nodes apart no more
)
CLASS_MIN: Final = 4  # readings from which a kind of test has a usual rate of its own


@dataclass(frozen=True, slots=True, eq=False)
class Tests:
    """All readings in columns, a row each, with their delay against the usual."""

    network: Network
    readings: tuple[Reading, ...]
    sender: NDArray[np.intp]
    receiver: NDArray[np.intp]
    rail: NDArray[np.intp]
    crosses: NDArray[np.bool_]  # leaf switches that differ or are unknown
    plain_delay: NDArray[np.float64]
    rate_delay: NDArray[np.float64]  # on a slow rail against that rail's own usual
    delay: NDArray[np.float64]  # the same, and as slow as its loss makes it
    loss_limit: float  # share of segments sent again from which a test counts as slow
    slow_rails: tuple[int, ...]
    usual_bytes_per_s: float

    @property
    def is_slow(self) -> NDArray[np.bool_]:
        return self.delay >= RATIO


def tabulate(network: Network, readings: Sequence[Reading]) -> Tests:
    sender = np.array([reading.sender for reading in readings], dtype=np.intp)
    receiver = np.array([reading.receiver for reading in readings], dtype=np.intp)
    rail = np.array([reading.rail for reading in readings], dtype=np.intp)
    rates = np.array([reading.bytes_per_s for reading in readings], dtype=np.float64)
    numbers = {name: at for at, name in enumerate(dict.fromkeys(network.leaf_of.values()))}
    names = [network.leaf(node) for node in range(len(network.nodes))]
    leaves = np.array([-1 if name is None else numbers[name] for name in names], dtype=np.intp)
    crosses = (leaves[sender] != leaves[receiver]) | (leaves[sender] < 0)
    plain = _delays(rates, crosses)
    delay = plain.copy()
    slow_rails = _slow_rails(network, plain, rail)
    for item in slow_rails:
        delay[rail == item] = _delays(rates[rail == item], crosses[rail == item])
    lost = np.array([reading.resent_ratio or 0.0 for reading in readings], dtype=np.float64)
    limit = _loss_limit(lost)
    limits = np.full(len(lost), limit)
    for item in slow_rails:
        limits[rail == item] = _loss_limit(lost[rail == item])
    judged = np.maximum(delay, np.where(lost >= limits, RATIO * lost / limits, 1.0))
    usual = float(np.quantile(rates, USUAL_QUANTILE)) if len(rates) else 0.0
    return Tests(
        network, tuple(readings), sender, receiver, rail, crosses, plain, delay, judged, limit,
        slow_rails, usual,
    )  # fmt: skip


def _loss_limit(lost: NDArray[np.float64]) -> float:
    usual = float(np.median(lost)) if len(lost) else 0.0
    return max(LOSS_MIN, LOSS_OVER_MEDIAN * usual) if usual <= LOSS_USUAL_MAX else float("inf")


def delay_matrix(tests: Tests, rail: int) -> Matrix:
    """Return senders x receivers of one rail; a cell is the shortest of its delays, NaN without one.

    The shortest, because nothing makes a test faster than the path, and much makes it slower once.
    """
    count = len(tests.network.nodes)
    matrix = np.full((count, count), np.nan)
    rows = tests.rail == rail
    np.fmin.at(matrix, (tests.sender[rows], tests.receiver[rows]), tests.delay[rows])
    return matrix


def _delays(rates: NDArray[np.float64], crosses: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return how many times the usual time a byte took; 1 where there is no usual rate."""
    delay = np.ones(len(rates))
    for kind in (False, True):
        rows = crosses == kind
        if not rows.any():
            continue
        usual = float(
            np.quantile(rates[rows] if rows.sum() >= CLASS_MIN else rates, USUAL_QUANTILE)
        )
        if usual > 0:
            delay[rows] = usual / np.maximum(rates[rows], usual / DELAY_MAX)
    return delay


def _slow_rails(
    network: Network, delay: NDArray[np.float64], rail: NDArray[np.intp]
) -> tuple[int, ...]:
    middles = {
        number: float(np.median(delay[rail == number]))
        for number in range(len(network.rails))
        if (rail == number).any()
    }
    if len(middles) < 2 or len(network.nodes) < 3:
        return ()
    limit = RATIO * min(middles.values())
    return tuple(
        number
        for number, middle in middles.items()
        if middle >= limit and (delay[rail == number] >= limit).mean() >= SHARE_MIN
    )
