"""All that one `rankmend simulate` was asked for."""

from dataclasses import dataclass

from recovery.simulation.assumptions import Assumptions, Setup
from recovery.simulation.outcome import RunOutcome
from recovery.simulation.planning import BestInterval, Worth


@dataclass(frozen=True, slots=True)
class Study:
    setup: Setup
    assumptions: Assumptions
    source: str  # of the faults, in words
    seeds: tuple[int, ...]
    outcomes: tuple[RunOutcome, ...]
    intervals: tuple[BestInterval, ...] = ()
    worth: tuple[Worth, ...] = ()
    availability_ratio: float | None = None  # for which the spares were found
