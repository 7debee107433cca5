"""A scenario: a job, a schedule of faults, and what must hold. Pure."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rankmend.errors import ConfigError

RANKS_MAX: Final = 64
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class DrillPhase(Enum):
    """What the job does when a fault is made."""

    START = "start"  # the ranks of an attempt run, and none has made a step of it
    STEADY = "steady"  # every rank has made `at_step`
    CHECKPOINT = "checkpoint"  # the same, and a rank is in its section "checkpoint"
    RECOVERY = "recovery"  # an incident is open, and the ranks of the next attempt run
    TOGETHER = "together"  # at the same time as the fault before


class DrillLauncher(Enum):
    """What starts the ranks of the job, and starts them again."""

    RANKMEND = "rankmend"  # rankmend run
    TORCHRUN = "torchrun"  # rankmend only watches the job


@dataclass(frozen=True, slots=True)
class DrillJob:
    """The job that is broken: rankmend's own, or a script."""

    launcher: DrillLauncher = DrillLauncher.RANKMEND
    ranks: int = 2
    steps: int = 120
    checkpoint_every: int = 10
    step_s: float = 0.02
    start_s: float = 0.0  # from the start of an attempt to its first step
    save_s: float = 0.0  # that a checkpoint takes longer
    deadline_s: float = 300.0  # for all of the drill
    flags: tuple[str, ...] = ()  # more options of rankmend run
    script: str = ""  # empty: rankmend's own job, whose result is known
    arguments: tuple[str, ...] = ()  # of the script

    def __post_init__(self) -> None:
        bounds = (
            ("ranks", self.ranks, 1, RANKS_MAX),
            ("steps", self.steps, 2, 1_000_000),
            ("checkpoint_every", self.checkpoint_every, 1, 1_000_000),
            ("step_s", self.step_s, 0.0, 60.0),
            ("start_s", self.start_s, 0.0, 600.0),
            ("save_s", self.save_s, 0.0, 600.0),
            ("deadline_s", self.deadline_s, 1.0, 86_400.0),
        )
        for name, value, least, most in bounds:
            if not least <= value <= most:
                raise ConfigError(f"{name} {value:g}: want {least:g} to {most:g}")
        if self.launcher is not DrillLauncher.RANKMEND:
            for name, given in (
                ("flags", self.flags),
                ("script", self.script),
                ("arguments", self.arguments),
            ):
                if given:
                    raise ConfigError(
                        f'{name} {given!r:.80}: only for launcher = "rankmend"; torchrun starts rankmend\'s own job'
                    )


@dataclass(frozen=True, slots=True)
class DrillFault:
    """One fault, and when it is made."""

    fault: str
    on: str  # rank:N, checkpoint:newest, launcher, or a target of rankmend inject
    at_step: int = 1
    during: DrillPhase = DrillPhase.STEADY
    for_s: float = 60.0
    options: dict[str, str | int | float | bool] = field(default_factory=dict)  # of rankmend inject

    def __post_init__(self) -> None:
        if not self.fault or self.fault.startswith("-"):
            raise ConfigError(
                f"fault {self.fault!r:.80} is not a fault (see rankmend inject --list)"
            )
        for name in self.options:
            if _NAME.fullmatch(name) is None:
                raise ConfigError(f"option {name!r:.80} is not an option of rankmend inject")


@dataclass(frozen=True, slots=True)
class DrillHolds:
    """What must hold when the job has ended. None: it is not looked at."""

    exit_code: int = 0
    incidents: int | None = None
    all_recovered: bool = True  # every incident, however many there are
    blamed: tuple[tuple[int, ...], ...] | None = None  # the ranks of each incident, in order
    blamed_only: tuple[int, ...] | None = None  # no incident blames another rank
    same_result: bool = True  # as without any fault; only of rankmend's own job
    restored_steps: tuple[int, ...] | None = (
        None  # where each incident's recovery went on, in order
    )
    steps_recomputed_max: int | None = None  # of any incident
    mttr_s_max: float | None = None  # of any incident


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    job: DrillJob
    faults: tuple[DrillFault, ...]
    holds: DrillHolds
