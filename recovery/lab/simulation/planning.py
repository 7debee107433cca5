"""What an operator plans: spares, the interval of saves, and what an improvement is worth.

All that one `rankmend simulate` was asked for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from rankmend.errors import ConfigError
from recovery.journal.checkpoint_cost import Costs, best_interval_s
from recovery.lab.simulation.assumptions import Assumptions, Setup
from recovery.lab.simulation.campaign import Campaign, Progress, Spread, spread
from recovery.lab.simulation.outcome import RunOutcome

_AROUND: Final = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0)  # of Daly's interval
_SHORT: Final = {"interval": "interval_s", "snapshots": "snapshot_interval_s", "detect": "detect_max_s"}  # fmt: skip

Rebuild = Callable[[Assumptions], Campaign]
"""Returns the campaign with other assumptions; the faults of a seed stay the same."""

_MTTR: Final = "mttr"
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def spares_for(outcomes: Sequence[RunOutcome], wanted_ratio: float) -> int:
    """Return the fewest spares with which enough nodes are usable for this share of the time.

    ``outcomes`` are of runs with more spares than are ever out.
    """
    if not 0 < wanted_ratio < 1:
        raise ConfigError(f"an availability of {wanted_ratio:g}: it is between 0 and 1")
    total_s = sum(sum(outcome.out_s.values()) for outcome in outcomes)
    enough_s = 0.0
    for count in range(max(max(outcome.out_s, default=0) for outcome in outcomes) + 1):
        enough_s += sum(outcome.out_s.get(count, 0.0) for outcome in outcomes)
        if enough_s >= wanted_ratio * total_s:
            return count
    return max(max(outcome.out_s, default=0) for outcome in outcomes)


@dataclass(frozen=True, slots=True)
class Interval:
    interval_s: float
    ettr: Spread


@dataclass(frozen=True, slots=True)
class BestInterval:
    """The interval at which saves of one tier cost least. ``young_s`` and ``daly_s`` are formulas."""

    tier: str
    stall_s: float
    failure_interval_s: float
    young_s: float
    daly_s: float
    measured: tuple[Interval, ...]  # by simulation, the shortest first

    @property
    def best_s(self) -> float:
        return max(self.measured, key=lambda interval: interval.ettr.p50).interval_s


def find_interval(
    tier: str,
    assumptions: Assumptions,
    base: Sequence[RunOutcome],
    rebuild: Rebuild,
    seeds: Sequence[int],
    progress: Progress | None = None,
) -> BestInterval:
    """Return the best interval of the tier, "storage" or "memory", by formula and by simulation."""
    is_memory = tier == "memory"
    incidents = sum(outcome.incidents for outcome in base)
    wall_s = sum(outcome.wall_s for outcome in base)
    stall_s = assumptions.snapshot_stall_s if is_memory else assumptions.save_stall_s
    save_s = stall_s if is_memory else max(stall_s, assumptions.save_s)
    mean_s = wall_s / max(1, incidents)
    if stall_s <= 0:
        raise ConfigError(f"the {tier} tier's stall is 0 s: saving all the time costs nothing")
    daly_s = best_interval_s(Costs(stall_s, save_s, mean_s))
    least_s = max(1.5 * stall_s, assumptions.step_s if is_memory else save_s)
    tried = sorted({max(least_s, factor * daly_s) for factor in _AROUND})
    name = "snapshot_interval_s" if is_memory else "interval_s"
    measured = []
    for number, interval_s in enumerate(tried):
        outcomes = rebuild(replace(assumptions, **{name: interval_s})).run(seeds)
        measured.append(Interval(interval_s, spread(outcome.ettr_ratio for outcome in outcomes)))
        if progress is not None:
            progress(number + 1, len(tried))
    young_s = math.sqrt(2.0 * stall_s * mean_s)
    return BestInterval(tier, stall_s, mean_s, young_s, daly_s, tuple(measured))


@dataclass(frozen=True, slots=True)
class Worth:
    """What an improvement is worth: GPU-hours that the same faults cost less."""

    what: str
    ettr: Spread
    gpu_hours: Spread


def change(assumptions: Assumptions, text: str, base: Sequence[RunOutcome]) -> Assumptions:
    """Return the assumptions with NAME=VALUE in force: mttr, detect, interval, snapshots, or a field's name.

    ``mttr`` is the mean time to recovery that is wanted; all its phases change by one factor.
    """
    key, number = _parse(text)
    if key != _MTTR:
        return replace(assumptions, **{key: number})
    means = [outcome.mttr_s for outcome in base if outcome.mttr_s]
    if not means:
        raise ConfigError(f"{text!r}: no run had an incident, so there is no MTTR to change")
    return replace(assumptions, mttr_factor=number / (sum(means) / len(means)))


def check_change(assumptions: Assumptions, text: str) -> None:
    """Raise ConfigError for what `change` would refuse whatever the runs come to."""
    if _parse(text)[0] != _MTTR:
        change(assumptions, text, ())


def _parse(text: str) -> tuple[str, float]:
    """Return the name of a field, or ``mttr``, and the value."""
    name, equals, value = text.partition("=")
    key = _SHORT.get(name, name)
    known = [field.name for field in fields(Assumptions)]
    if not equals or key not in (*known, _MTTR):
        some = ", ".join((_MTTR, *_SHORT, *known))
        raise ConfigError(f"{text!r} is not NAME=VALUE with a name that is known: {some}")
    return key, _number(text, value)


def _number(text: str, value: str) -> float:
    unit = _UNITS.get(value[-1:], 0.0)
    try:
        number = float(value[:-1]) * unit if unit else float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"{text!r}: {value!r} is not a number or duration such as 90, 90s or 5m")
    return number


def worth_of(what: str, base: Sequence[RunOutcome], better: Sequence[RunOutcome]) -> Worth:
    """Return the worth by comparing runs of the same seeds."""
    saved = [
        before.lost_gpu_hours_total - after.lost_gpu_hours_total
        for before, after in zip(base, better, strict=True)
    ]
    return Worth(what, spread(outcome.ettr_ratio for outcome in better), spread(saved))


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
