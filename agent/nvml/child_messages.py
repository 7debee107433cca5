"""What the agent accepts from the collector child (`agent/nvml/child_protocol.py`)."""

from typing import Any

import msgspec

from rankmend.errors import SourceError


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
