"""What one rank knows of its collectives: the operations and groups of one flight-recorder dump."""

from dataclasses import dataclass
from enum import Enum

from detectors.parallel_groups import Group


class OperationState(Enum):
    """The known progress of a rank's operation."""

    ENQUEUED = "enqueued"  # the host has launched it
    STARTED = "started"  # the device has begun it
    DONE = "done"


@dataclass(frozen=True, slots=True)
class CollectiveShape:
    """The properties in which all ranks of one collective must agree."""

    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One communication operation as one rank saw it.

    Times are seconds by the clock of the rank's host, and never compared with another host's.
    """

    group: str  # name of its group
    sequence: int  # number within the group; point-to-point operations count by themselves
    kind: str  # "all_reduce", "send" ...
    record: int  # the rank's own order of launching, over all groups
    state: OperationState
    shape: CollectiveShape = CollectiveShape()
    peer: int | None = None  # the other rank of a point-to-point operation
    enter_s: float | None = None
    exit_s: float | None = None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far a rank has come in one group, by the group's own count; None where not told."""

    group: str
    enqueued: int | None
    completed: int | None


@dataclass(frozen=True, slots=True)
class FlightDump:
    """The content of one dump. Operations are in the order in which the rank launched them."""

    version: str
    library: str  # version of NCCL; empty where not told
    groups: tuple[Group, ...]
    statuses: tuple[GroupStatus, ...]
    operations: tuple[Operation, ...]
    timeout_s: float | None  # the longest that an operation of the dump may take
    warnings: tuple[str, ...]  # what makes the dump less trustworthy

    @property
    def newest_s(self) -> float | None:
        """Return when the newest operation was launched, unix seconds of the host."""
        return max((op.enter_s for op in self.operations if op.enter_s is not None), default=None)
