"""What a state machine of this package wants next. Values only."""

from dataclasses import dataclass
from typing import TypeAlias

from recovery.journal.slurm_records import SlurmAct, SlurmOutcome


@dataclass(frozen=True, slots=True)
class Do:
    """Journal the act, then run its command."""

    act: SlurmAct
    about: str  # the node or job
    nodes: tuple[str, ...] = ()  # of EXCLUDE


@dataclass(frozen=True, slots=True)
class MoveWait:
    """Look again later."""

    text: str


@dataclass(frozen=True, slots=True)
class See:
    """Journal the job as it is, before it is touched."""


@dataclass(frozen=True, slots=True)
class MoveEnd:
    outcome: SlurmOutcome
    text: str


Move: TypeAlias = Do | MoveWait | See | MoveEnd
