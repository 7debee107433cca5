"""The same job simulated with several seeds, and the percentiles of what comes of it."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from rankmend.errors import ConfigError
from recovery.lab.simulation.assumptions import Assumptions, Setup
from recovery.lab.simulation.faults import NodeFault, draw_faults
from recovery.lab.simulation.incident import run_job
from recovery.lab.simulation.job import Rules, SimulatedJob
from recovery.lab.simulation.outcome import RunOutcome
from recovery.lab.simulation.rate_table import RateTable

SEEDS_MAX: Final = 1_000

Faults = Callable[[int], list[NodeFault]]
"""Returns the faults of a seed."""
Progress = Callable[[int, int], None]
"""Is told how many runs are done, of how many."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The 10th, 50th and 90th percentile over seeds."""

    p10: float
    p50: float
    p90: float


def spread(values: Iterable[float]) -> Spread:
    """Return the percentiles; with linear interpolation between the values."""
    found = sorted(values)
    if not found:
        raise ConfigError("there are no values to take percentiles of")
    if len(found) == 1:
        return Spread(found[0], found[0], found[0])
    cuts = statistics.quantiles(found, n=10, method="inclusive")
    return Spread(cuts[0], statistics.median(found), cuts[8])


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is simulated, without the seeds."""

    setup: Setup
    assumptions: Assumptions
    rules: Rules
    faults: Faults

    def run(self, seeds: Sequence[int], progress: Progress | None = None) -> list[RunOutcome]:
        """Return an outcome for each seed. Equal seeds give equal outcomes, on every machine."""
        if not 1 <= len(seeds) <= SEEDS_MAX:
            raise ConfigError(f"{len(seeds)} seeds; 1 to {SEEDS_MAX} are allowed")
        outcomes = []
        for seed in seeds:
            faults = self.faults(seed)
            job = SimulatedJob(self.setup, self.assumptions, self.rules, faults, seed)
            outcomes.append(run_job(job))
            if progress is not None:
                progress(len(outcomes), len(seeds))
        return outcomes


def drawn(rates: RateTable, setup: Setup, assumptions: Assumptions) -> Faults:
    """Return faults drawn from a rate table: equal for a seed, whatever is done about them."""
    return lambda seed: draw_faults(rates, setup, assumptions, Random(seed))  # noqa: S311 - a simulation, no secret


def total_parts(outcomes: Sequence[RunOutcome]) -> dict[str, Spread]:
    """Return the share of the wall time that each part took."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.parts_s)
    return {
        name: spread(outcome.parts_s.get(name, 0.0) / outcome.wall_s for outcome in outcomes)
        for name in names
    }


def phase_means(outcomes: Sequence[RunOutcome], phases: Iterable[str]) -> dict[str, Spread]:
    """Return the seconds of each phase of an incident, by the mean of each run."""
    return {
        name: spread(
            outcome.parts_s.get(name, 0.0) / max(1, outcome.incidents) for outcome in outcomes
        )
        for name in phases
    }


def losses(outcomes: Sequence[RunOutcome]) -> dict[str, Spread]:
    """Return lost GPU-hours by cause, the largest median first."""
    causes = dict.fromkeys(cause for outcome in outcomes for cause in outcome.lost_gpu_hours)
    found = {
        cause: spread(outcome.lost_gpu_hours.get(cause, 0.0) for outcome in outcomes)
        for cause in causes
    }
    return dict(sorted(found.items(), key=lambda pair: -pair[1].p50))
