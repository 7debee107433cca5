"""What one rank knows of its collectives: the operations and groups of one flight-recorder dump."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Final

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
    is_transfer: bool = False  # a send, a receive, or a batch of them
    enter_s: float | None = None
    exit_s: float | None = None

    @property
    def is_p2p(self) -> bool:
        """Return whether it concerns pairs of ranks and not its whole group."""
        return self.is_transfer or self.peer is not None or self.kind in {"send", "recv"}


@dataclass(frozen=True, slots=True)
class CollectiveForm:
    """What a rank launched as one collective."""

    kind: str
    shape: CollectiveShape


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """The collectives of one group that a ring still holds, done or not, without gaps."""

    group: str
    first: int  # sequence number of the first
    forms: tuple[int, ...]  # places in the table of forms; NO_FORM: several operations, or unknown


NO_FORM: Final = -1
TENSORS_MAX: Final = 8  # of a form that is kept as it is; a list of a large group has one a rank


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
    # Of a trimmed dump, whose operations are few: what the whole dump held. An older sender has none.
    forms: tuple[CollectiveForm, ...] = ()
    histories: tuple[GroupHistory, ...] = ()

    def without_history(self) -> "FlightDump":
        """Return the dump without its past, which takes most of a trimmed one."""
        return replace(self, forms=(), histories=())

    @property
    def newest_s(self) -> float | None:
        """Return when the newest operation was launched, unix seconds of the host."""
        return max((op.enter_s for op in self.operations if op.enter_s is not None), default=None)


def _summed(shape: CollectiveShape) -> CollectiveShape:
    """Return a shape of many tensors with the elements of each type together."""
    split = len(shape.input_sizes)
    if len(shape.dtypes) != split + len(shape.output_sizes) or len(shape.dtypes) <= TENSORS_MAX:
        return shape
    sides = []
    for sizes, dtypes in (
        (shape.input_sizes, shape.dtypes[:split]),
        (shape.output_sizes, shape.dtypes[split:]),
    ):
        elements: dict[str, int] = defaultdict(int)
        for size, dtype in zip(sizes, dtypes, strict=True):
            elements[dtype] += prod(size)
        sides.append(sorted(elements.items()))
    inputs, outputs = (tuple((count,) for _dtype, count in side) for side in sides)
    return CollectiveShape(
        inputs, outputs, tuple(dtype for side in sides for dtype, _count in side)
    )


def record_histories(
    operations: Sequence[Operation], collectives_max: int
) -> tuple[tuple[CollectiveForm, ...], tuple[GroupHistory, ...]]:
    """Return the newest collectives of each group by number, with the table of their forms.

    ``operations`` are in the order of launching. A number that several operations share is a batch
    (coalesced); one rank may stand in the middle of its batch, so its parts are not compared. Groups
    with batches of sends and receives are left out: a batch takes a number on some ranks only
    (pytorch/pytorch#134833).
    """
    batched = {operation.group for operation in operations if operation.kind == "coalesced"}
    batched &= {operation.group for operation in operations if operation.is_p2p}
    table: dict[CollectiveForm, int] = {}
    numbered: dict[str, dict[int, int]] = defaultdict(dict)
    collectives = [item for item in operations if not item.is_p2p and item.group not in batched]
    for operation in collectives[-collectives_max:]:
        group, sequence = operation.group, operation.sequence
        form = CollectiveForm(operation.kind, _summed(operation.shape))
        place = table.setdefault(form, len(table))
        numbered[group][sequence] = NO_FORM if sequence in numbered[group] else place
    histories = []
    for group, places in numbered.items():
        first, last = min(places), max(places)
        if last - first < 2 * collectives_max:
            forms = tuple(places.get(number, NO_FORM) for number in range(first, last + 1))
            histories.append(GroupHistory(group, first, forms))
    return tuple(table), tuple(histories)
