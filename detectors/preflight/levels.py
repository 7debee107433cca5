"""Levels of a pre-flight check, and the steps of each with their deadlines. Pure.

The deadlines of all steps of a round, one after the other, end before the level's bound: whatever hangs costs its own step
no more than its deadline, and the whole no more than the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations
from typing import Any, Final

from rankmend.errors import ConfigError

HOUR_S: Final = 3600.0
MARGIN_S: Final = (
    6.0  # of a bound: Python's start, the last look at the health, the end of what hangs
)
HEALTH_S: Final = 4.0  # of a bound: the newest answers of the collectors, after the load
PREPARE_S: Final = 4.0  # of a bound: facts, baselines, a slot
PATIENCE_S_MAX: Final = 60.0  # beyond what a step needs on a node that is not busy
REAP_S: Final = 3.0  # for a process that was killed to be gone; one in state D stays
GPUS_MAX: Final = 64
PAIRED_GPUS_MAX: Final = 16  # 120 pairs
PAIRS_S_MAX: Final = 20.0  # for all pairs of a round


class FlightLevel(Enum):
    """How thorough a check is; the value is its name in commands."""

    QUICK = "quick"
    JOB = "job"
    BURN_IN = "burn-in"

    @property
    def bound_s(self) -> float:
        """Return the time within which a check of this level ends, whatever hangs."""
        return {FlightLevel.QUICK: 60.0, FlightLevel.JOB: 300.0, FlightLevel.BURN_IN: 4 * HOUR_S}[
            self
        ]


@dataclass(frozen=True, slots=True)
class TestedStorage:
    """A folder to write to, and with what."""

    folder: str
    part: str  # its name in figures: "disk" or "checkpoints"
    file_bytes: int
    rate_bytes_per_s: float = 0.0  # at most, each way; 0: no limit
    model: str = ""  # that of the storage where it is known beforehand


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node has that a plan depends on."""

    gpus: int = 0
    storages: tuple[TestedStorage, ...] = ()
    has_torch: bool = False
    gpu_power_watts: tuple[float, ...] = ()  # limits in force, of those that say so


@dataclass(frozen=True, slots=True)
class FlightStep:
    """One process: its loads, and when it is killed.

    A ``program`` without a ``tool`` prints what loads print (rankmend/loads/start.py): so other probes join a check.
    """

    name: str
    loads: tuple[dict[str, Any], ...]
    deadline_s: float
    waits_s: float = 0.0  # before it begins to load: the ramp of the power
    program: tuple[str, ...] = ()  # a vendor's tool in place of loads
    tool: str | None = None  # value of detectors.preflight.tools.NvidiaTool
    needs_others: bool = (
        False  # other nodes take part at the same time: done once, in the first round
    )


@dataclass(frozen=True, slots=True)
class FlightRound:
    """Steps of one stage run side by side, stages one after another."""

    stages: tuple[tuple[FlightStep, ...], ...]

    @property
    def bound_s(self) -> float:
        return sum(stage_s(stage) for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Intensity:
    """What a level spends on each part, in seconds and shares."""

    host_s: float
    disk_s: float
    gpu_s: float
    pair_s: float
    memory_share: float  # of what is free
    starts_s: float  # for an interpreter to import PyTorch
    kinds: tuple[str, ...] = field(default=())


# Quick: 60 s with a margin; what is left of a stage's deadline over its loads is for slow starts.
INTENSITY: Final = {
    FlightLevel.QUICK: Intensity(1.5, 2.0, 4.0, 0.0, 0.05, 6.0, ("bfloat16", "float32", "float64")),
    FlightLevel.JOB: Intensity(6.0, 10.0, 30.0, 1.0, 0.3, 20.0),
    FlightLevel.BURN_IN: Intensity(30.0, 60.0, 240.0, 3.0, 0.7, 60.0),
}


def stage_s(stage: Sequence[FlightStep]) -> float:
    return max((step.waits_s + step.deadline_s + REAP_S for step in stage), default=0.0)


def plan_round(
    level: FlightLevel,
    parts: NodeParts,
    ramp_watts_per_s: float = 0.0,
    tools: Sequence[FlightStep] = (),
    intensity: Intensity | None = None,
    first: Sequence[FlightStep] = (),
) -> FlightRound:
    """Return the steps of one round, ``first`` before all loads and vendors' tools last.

    Raises ConfigError where they don't fit the level's bound.
    """
    if parts.gpus > GPUS_MAX:
        raise ConfigError(f"{parts.gpus} GPUs: at most {GPUS_MAX} are checked")
    much = intensity or INTENSITY[level]
    stages: list[tuple[FlightStep, ...]] = [(step,) for step in first]
    stages.append((_host_step(much),))
    stages += [(_disk_step(storage, much),) for storage in parts.storages]
    if parts.gpus:
        stages.append(tuple(_gpu_steps(parts, much, ramp_watts_per_s)))
        if much.pair_s and parts.gpus > 1:
            stages.append((_pairs_step(parts.gpus, much),))
    stages += [(step,) for step in tools]
    made = FlightRound(tuple(stages))
    limit_s = level.bound_s - MARGIN_S - HEALTH_S - PREPARE_S
    if made.bound_s > limit_s:
        raise ConfigError(
            f"a round of level {level.value} could take {made.bound_s:.0f} s, and {limit_s:.0f} s are allowed: "
            "name fewer folders or a faster ramp"
        )
    return _with_patience(made, limit_s - made.bound_s)


def _with_patience(made: FlightRound, spare_s: float) -> FlightRound:
    """Return the round with later deadlines: half of the spare time, since the other is to measure again what was bad."""
    each_s = min(PATIENCE_S_MAX, spare_s / 2 / len(made.stages))
    return FlightRound(
        tuple(
            tuple(replace(step, deadline_s=step.deadline_s + each_s) for step in stage)
            for stage in made.stages
        )
    )


def _host_step(much: Intensity) -> FlightStep:
    each = {"device": "cpu", "seconds": much.host_s}
    loads: tuple[dict[str, Any], ...] = (
        {"load": "processor", "seconds": much.host_s},
        {"load": "memory", **each, "part": "memory", "share": much.memory_share},
        {"load": "gemm", **each, "part": "cpu"},
    )
    return FlightStep("host", loads, 3 * much.host_s + _slack_s(much.host_s))


def _slack_s(load_s: float) -> float:
    """Return what a load may take beyond its time: its preparation on a slow or a throttled node."""
    return 3.0 + load_s


def _disk_step(storage: TestedStorage, much: Intensity) -> FlightStep:
    load = {
        "load": "disk",
        "seconds": much.disk_s,
        "folder": storage.folder,
        "part": storage.part,
        "bytes": storage.file_bytes,
        "rate": storage.rate_bytes_per_s,
    }
    return FlightStep(storage.part, (load,), 2 * much.disk_s + 2.0)


def _gpu_steps(parts: NodeParts, much: Intensity, ramp_watts_per_s: float) -> list[FlightStep]:
    steps, waits_s = [], 0.0
    for number in range(parts.gpus):
        device = {"device": f"cuda:{number}", "part": f"cuda:{number}"}
        gemm: dict[str, Any] = {"load": "gemm", **device, "seconds": much.gpu_s}
        if much.kinds:
            gemm["kinds"] = list(much.kinds)
        memory_s = much.gpu_s * 0.4
        loads = (
            gemm,
            {"load": "memory", **device, "seconds": memory_s, "share": max(0.1, much.memory_share)},
            {"load": "transfers", **device, "seconds": much.gpu_s * 0.2},
        )
        spent_s = much.gpu_s * 1.6
        steps.append(FlightStep(f"cuda:{number}", loads, spent_s + much.starts_s, waits_s))
        if ramp_watts_per_s and number < len(parts.gpu_power_watts):
            waits_s += parts.gpu_power_watts[number] / ramp_watts_per_s
    return steps


def _pairs_step(gpus: int, much: Intensity) -> FlightStep:
    pairs = list(combinations(range(min(gpus, PAIRED_GPUS_MAX)), 2))
    each_s = min(much.pair_s, PAIRS_S_MAX / len(pairs))
    loads = tuple(
        {
            "load": "transfers",
            "device": f"cuda:{item}",
            "peer": f"cuda:{other}",
            "part": f"cuda:{item}-cuda:{other}",
            "seconds": each_s,
            "bytes": 64 << 20,
        }
        for item, other in pairs
    )
    return FlightStep("pairs", loads, len(loads) * (each_s + 0.2) + much.starts_s)
