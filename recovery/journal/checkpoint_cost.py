"""What checkpoints cost a job in goodput, and the interval at which they cost least. Pure.

A save stops training for the stall C and can be restored S after it began (S is C where nothing is
written in the background). Saves begin every T seconds. Failures come at random, one per M seconds
of running; each costs R until the first step, and what was done since the newest restorable checkpoint.

- Young (CACM 17(9), 1974): T = sqrt(2 C M).
- Daly (Future Generation Computer Systems 22(3), 2006), higher order: with t = T - C and q = C / 2M,
  t = sqrt(2 C M) (1 + sqrt(q) / 3 + q / 9) - C for C < 2M, else t = M. `best_interval_s` uses it, and
  never less than S: two saves must not be under way at once.
- `cost_of` uses Daly's complete model, in which failures also hit restarts and saves: of the wall
  time, the share t / (M e^((R + S - C) / M) (e^(T / M) - 1)) makes progress.
"""

import math
from dataclasses import dataclass
from typing import Final

PRIOR_RANK_S: Final = 1.8 * 3600 * 16384
"""Running time of one rank per failure, before a job has failures of its own: 29,500 hours.

Measured on Meta's research clusters: one failure per 1.8 h at 16,384 GPUs (arXiv 2410.21680). Llama 3
had one per 3.1 h at that size (arXiv 2407.21783). A rank stands for a GPU.
"""
FORMULA: Final = "Young/Daly"
_FAR: Final = 500.0  # e to this fits a float; nothing is left of the goodput long before


@dataclass(frozen=True, slots=True)
class Costs:
    """What a save and a failure cost, in seconds."""

    stall_s: float  # C
    save_s: float  # S, at least C
    failure_interval_s: float  # M
    repair_s: float = 0.0  # R: from the fault to the first step of the slowest rank


@dataclass(frozen=True, slots=True)
class GoodputCost:
    """Shares of the wall time, 0 to 1, that make no progress."""

    stalls: float  # training stands still for saves
    recomputed: float  # steps made again after failures
    restarts: float  # from faults to first steps

    @property
    def total(self) -> float:
        return self.stalls + self.recomputed + self.restarts


def best_interval_s(costs: Costs) -> float:
    """Return how many seconds after a save the next should begin."""
    stall_s, mean_s = costs.stall_s, costs.failure_interval_s
    if stall_s < 2 * mean_s:
        ratio = stall_s / (2 * mean_s)
        young_s = math.sqrt(2 * stall_s * mean_s)
        training_s = young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s
    else:
        training_s = mean_s
    return max(training_s + stall_s, costs.save_s)


def cost_of(interval_s: float, costs: Costs) -> GoodputCost:
    """Return what saving every ``interval_s`` costs; the interval is longer than the stall."""
    mean_s, stall_s = costs.failure_interval_s, costs.stall_s
    repaired = math.exp(-costs.repair_s / mean_s)
    durable = math.exp(-max(0.0, costs.save_s - stall_s) / mean_s)
    periods = interval_s / mean_s
    finished = periods / math.expm1(periods) if periods < _FAR else 0.0
    retained = repaired * durable * finished
    return GoodputCost(
        stalls=retained * min(1.0, stall_s / interval_s),
        recomputed=repaired - retained,
        restarts=1.0 - repaired,
    )


def failure_interval_s(failures: float, ran_s: float, ranks: int) -> float:
    """Return the mean running time between failures, measured as far as there are failures.

    The published rate counts as one failure, on a logarithmic scale: published rates differ by a
    factor of six (8,000 to 51,000 GPU hours), which is what one failure leaves uncertain, too.
    """
    prior_s = PRIOR_RANK_S / max(1, ranks)
    if failures <= 0 or ran_s <= 0:
        return prior_s
    weight = failures / (failures + 1)
    return math.exp(weight * math.log(ran_s / failures) + (1 - weight) * math.log(prior_s))
