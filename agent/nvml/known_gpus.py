"""The collector child's reports about each GPU, summed since the agent started. Pure."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from agent.nvml.fields import EVENT_TYPES
from rankmend.errors import SourceError

# What the agent accepts from the collector child (`agent/nvml/fields.py`).


class NodeMessage(msgspec.Struct, frozen=True, tag_field="kind", tag="node"):
    """NVML has answered, with the GPUs that it lists."""

    driver: str
    cuda: str
    nvml: str
    count: int
    skipped: list[int]
    event_mask: int


class GpuMessage(msgspec.Struct, frozen=True, tag_field="kind", tag="gpu"):
    """One group of values of one GPU; replaces the group's previous values. Without values they are as before."""

    gpu: int
    uuid: str
    pci_bus_id: str
    group: str
    values: tuple[tuple[str, tuple[str, ...], float], ...] | None
    seconds: dict[str, float]  # by clocks-event reason, since the previous message
    errors: int  # since the previous message
    error: str
    is_lost: bool
    needs_reset: bool
    processes: list[tuple[int, int | None]] | None = None  # pid, memory in bytes


class EventMessage(msgspec.Struct, frozen=True, tag_field="kind", tag="event"):
    gpu: int
    event: str
    code: int  # the XID's number


class SweepMessage(msgspec.Struct, frozen=True, tag_field="kind", tag="sweep"):
    """Every GPU has been read. ``same``: GPUs by group of values that were read and are as they were sent."""

    duration_s: float
    same: dict[str, list[int]] = {}


class FailedMessage(msgspec.Struct, frozen=True, tag_field="kind", tag="failed"):
    """The child ends: NVML can't be used."""

    code: int  # NVML's error; 0 if it was another
    error: str


Message = NodeMessage | GpuMessage | EventMessage | SweepMessage | FailedMessage

_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Message)


def decode(data: bytes | memoryview) -> Message:
    """Return the message in one packet, or raise SourceError."""
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"the GPU collector sent an invalid message: {error}") from error
    return message


# The known state of the GPUs at one moment, as collectors read it. Pure: values only.

Values = tuple[tuple[str, tuple[str, ...], float], ...]
"""Metric without rankmend_gpu_, labels after those of the GPU, value."""


class MonitorState(Enum):
    STARTING = "starting"  # no answer yet
    RUNNING = "running"
    ABSENT = "absent"  # no driver on this node
    BROKEN = "broken"  # the child failed or is stuck; another will be started
    RELEASED = "released"  # by an operator, or because no collector asked for values


class GroupView(NamedTuple):  # dozens a second: four times cheaper to make than a dataclass
    """The newest values of one group."""

    age_s: float
    values: Values
    revision: int  # grows with each message: equal numbers mean equal values


@dataclass(frozen=True, slots=True)
class GpuView:
    index: int
    uuid: str
    pci_bus_id: str
    age_s: float  # age of the newest answer about this GPU; "lost" is an answer
    is_lost: bool
    is_skipped: bool  # left out, because a call about it hangs
    needs_reset: bool
    error: str  # the newest one
    errors: int
    groups: dict[str, GroupView]
    seconds: dict[str, float]  # by clocks-event reason, since the agent began
    events: dict[str, int]  # by type, since the agent began
    xids: dict[int, int]
    processes: tuple[tuple[int, int | None], ...] | None  # pid, memory in bytes
    last_xid: int = 0  # code of the newest XID since the agent began; 0: none
    # Grows with each message about this GPU: equal numbers mean equal values, only of another age. 0: not known.
    revision: int = 0


@dataclass(frozen=True, slots=True)
class StuckCall:
    name: str
    gpu: int
    age_s: float


@dataclass(frozen=True, slots=True)
class MonitorView:
    state: MonitorState
    problem: str
    gpus: tuple[GpuView, ...]
    count: int | None  # GPUs that the driver lists; None while not known
    stuck: tuple[StuckCall, ...]
    restarts: int
    released_s: float | None
    sweep_s: float | None
    pid: int | None
    is_mismatched: bool = (
        False  # the host's own NVML says that it and the kernel module are of two versions
    )


GPUS_MAX: Final = 64
XID_CODES_MAX: Final = 256  # per GPU; about 175 exist


class GpuChange(Enum):
    NONE = "none"
    LOST = "lost"
    BACK = "back"


class _Group(NamedTuple):
    at_s: float
    values: Values
    revision: int


@dataclass(slots=True)
class _Gpu:
    uuid: str = ""
    pci_bus_id: str = ""
    reported_at_s: float = 0.0
    revision: int = 0  # when anything but an age last changed
    is_lost: bool = False
    needs_reset: bool = False
    error: str = ""
    errors: int = 0
    groups: dict[str, _Group] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    xids: dict[int, int] = field(default_factory=dict)
    last_xid: int = 0
    processes: tuple[tuple[int, int | None], ...] | None = None


class KnownGpus:
    """The GPUs of one node, by the index that the driver gives them now.

    A card is its UUID: an index is a place that another card takes once one is lost, reset or handed to a virtual machine.
    Source: NVML's reference, nvmlDeviceGetHandleByIndex (the order may change between boots and driver loads).
    """

    def __init__(self) -> None:
        self._gpus: dict[int, _Gpu] = {}
        self._away: dict[str, _Gpu] = {}  # by UUID: cards that the driver lists no more
        self._revision = 0  # number of the newest change
        self._event_types: tuple[str, ...] = ()

    def set_event_types(self, mask: int) -> None:
        """Note the types of events that the driver reports."""
        for gpu in self._gpus.values():
            gpu.revision = self._next_revision()
        self._event_types = tuple(name for bit, name in EVENT_TYPES.items() if mask & bit)

    def open(self, count: int) -> None:
        """Note that the driver was opened anew and lists so many GPUs: none has an index beyond."""
        for index in [index for index in self._gpus if index >= count]:
            self._put_away(index)

    def add_values(self, message: GpuMessage, now_s: float) -> GpuChange:
        """Take one group of values; return whether the GPU was lost or came back."""
        gpu = self._gpu(message.gpu, now_s)
        if message.uuid and message.uuid != gpu.uuid:
            gpu = self._place(message.gpu, message.uuid)
        gpu.uuid = message.uuid or gpu.uuid
        gpu.pci_bus_id = message.pci_bus_id or gpu.pci_bus_id
        gpu.reported_at_s = now_s
        gpu.revision = self._next_revision()
        change = GpuChange.NONE
        if message.is_lost != gpu.is_lost:
            change = GpuChange.LOST if message.is_lost else GpuChange.BACK
        gpu.is_lost, gpu.needs_reset = message.is_lost, message.needs_reset
        gpu.error = message.error
        gpu.errors += message.errors
        for reason, seconds in message.seconds.items():
            gpu.seconds[reason] = gpu.seconds.get(reason, 0.0) + seconds
        if message.is_lost:
            gpu.groups.clear()
            gpu.processes = None
            return change
        values, before = message.values, gpu.groups.get(message.group)
        if values is not None and before is not None and before.values == values:
            gpu.groups[message.group] = before._replace(at_s=now_s)  # sent anew, and as it was
        elif values is not None:
            gpu.groups[message.group] = _Group(now_s, values, gpu.revision)
        elif before is not None:  # else they were forgotten: the child soon sends all of them again
            gpu.groups[message.group] = before._replace(at_s=now_s)
        if message.group == "processes":
            gpu.processes = None if message.processes is None else tuple(message.processes)
        return change

    def note_same(self, same: Mapping[str, Sequence[int]], now_s: float) -> None:
        """Note that these GPUs were read, by group, and are as they were."""
        for group, indexes in same.items():
            for index in indexes:
                gpu = self._gpu(index, now_s)
                gpu.reported_at_s = now_s
                if (before := gpu.groups.get(group)) is not None:
                    gpu.groups[group] = before._replace(at_s=now_s)

    def add_event(self, message: EventMessage, now_s: float) -> bool:
        """Count an event; return whether it is an XID, which is also counted by its code."""
        gpu = self._gpu(message.gpu, now_s)
        gpu.revision = self._next_revision()
        gpu.events[message.event] = gpu.events.get(message.event, 0) + 1
        has_code = message.event == "xid" and (
            message.code in gpu.xids or len(gpu.xids) < XID_CODES_MAX
        )
        if message.event == "xid":
            gpu.last_xid = message.code
        if has_code:
            gpu.xids[message.code] = gpu.xids.get(message.code, 0) + 1
        return has_code

    def names_of(self, index: int) -> dict[str, object]:
        """Return the names of this GPU in a log."""
        gpu = self._gpus[index]
        return {"gpu": index, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id}

    def forget_values(self) -> None:
        """Drop measured values, and keep counts."""
        for gpu in self._gpus.values():
            gpu.groups.clear()
            gpu.processes, gpu.revision = None, self._next_revision()

    def views(self, now_s: float, skipped: Container[int]) -> tuple[GpuView, ...]:
        return tuple(
            self._view(index, self._gpus[index], now_s, index in skipped)
            for index in sorted(self._gpus)
        )

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision

    def _gpu(self, index: int, now_s: float) -> _Gpu:
        if not 0 <= index < GPUS_MAX:
            raise SourceError(f"there is no GPU {index}")
        return self._gpus.setdefault(index, _Gpu(reported_at_s=now_s))

    def _place(self, index: int, uuid: str) -> _Gpu:
        """Return the card of this UUID, which has this index now, with what is known of it; one that was unnamed gets its name."""
        before = next((at for at, gpu in self._gpus.items() if gpu.uuid == uuid), None)
        known = self._away.pop(uuid, None) if before is None else self._gpus.pop(before)
        if self._gpus[index].uuid:  # another card was in its place
            self._put_away(index)
            self._gpus[index] = _Gpu()
        if known is not None:
            self._gpus[index] = known
        return self._gpus[index]

    def _put_away(self, index: int) -> None:
        """Keep the counts of a card that has no index now: they go on once it is back."""
        gone = self._gpus.pop(index)
        if gone.uuid:
            self._away[gone.uuid] = gone
        while len(self._away) > GPUS_MAX:
            del self._away[next(iter(self._away))]

    def _view(self, index: int, gpu: _Gpu, now_s: float, is_skipped: bool) -> GpuView:
        return GpuView(
            index=index,
            uuid=gpu.uuid,
            pci_bus_id=gpu.pci_bus_id,
            age_s=max(0.0, now_s - gpu.reported_at_s),
            is_lost=gpu.is_lost,
            is_skipped=is_skipped,
            needs_reset=gpu.needs_reset,
            error=gpu.error,
            errors=gpu.errors,
            groups={
                name: GroupView(now_s - at_s if at_s < now_s else 0.0, values, revision)
                for name, (at_s, values, revision) in gpu.groups.items()
            },
            seconds=dict(gpu.seconds),
            events=dict.fromkeys(self._event_types, 0) | gpu.events,
            xids=dict(gpu.xids),
            processes=gpu.processes,
            last_xid=gpu.last_xid,
            revision=gpu.revision,
        )
