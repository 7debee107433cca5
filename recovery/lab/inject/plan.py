"""What making a fault comes to: how it is put back, and what is then done. Made by `recovery.lab.inject.acts`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recovery.lab.inject.permission import NodeMarks
from recovery.lab.inject.request import FaultRequest
from recovery.lab.inject.targets import FoundTarget
from recovery.lab.inject.undo import Undo


@dataclass(frozen=True, slots=True)
class FaultPlace:
    """Where and when a fault is made."""

    request: FaultRequest
    found: FoundTarget
    marks: NodeMarks
    injection_id: str
    until_boot_s: float  # CLOCK_BOOTTIME: over by then, however slow the start was
    folder: Path  # for what must be kept until it is put back


def nothing() -> None:
    """Do nothing: the helper is the fault."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Nothing has been changed yet when a plan is there. ``make`` runs once all of ``undo`` is on disk."""

    steps: tuple[str, ...]  # what will be done, for people
    undo: tuple[Undo, ...] = ()  # carried out from the last to the first
    make: Callable[[], None] = nothing
    prepare: Callable[[], tuple[Undo, ...]] | None = None
    """Copies and saves what will be put back, and returns how; not called by a dry run."""
    helper: tuple[
        str, ...
    ] = ()  # module and arguments of a process that is the fault, or carries it
    keep: Callable[[], None] | None = None  # done again and again while the fault stands
    ends_with_pid: int | None = None  # the fault is over when this process is gone
