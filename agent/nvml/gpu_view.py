"""The known state of the GPUs at one moment, as collectors read it. Pure: values only."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

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
