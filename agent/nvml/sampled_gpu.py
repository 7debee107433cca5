"""The collector child's state of one GPU. Standard library only."""

from typing import Any, Final, NamedTuple

from agent.nvml.field_batch import Batch
from agent.nvml.profiling import Profile

TEXT_CHARS_MAX: Final = 96

Key = tuple[Any, ...]  # a call with its arguments, or a field with its scope
Value = tuple[str, tuple[str, ...], float]  # metric without rankmend_gpu_, labels, value


class GpuIdentity(NamedTuple):
    uuid: str
    pci_bus_id: str  # as sysfs writes it: 0000:1b:00.0


def pci_bus_id(pci: Any) -> str:
    """Return the bus id in an nvmlPciInfo_t."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


class SampledGpu:
    """The sampler's memory of one GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle: Any = None
        self.identity = GpuIdentity("", "")
        self.is_lost = False
        self.needs_reset = False
        self.error_count = 0  # since the last report
        self.last_error = ""
        self.unsupported_since_s: dict[Key, float] = {}
        self.batches: dict[str, Batch | None] = {}
        self.tlimit: float | None = None  # the margin at which it slows down
        self.tlimit_due_at_s = float("-inf")
        self.reasons_at_s: float | None = None
        self.seconds: dict[str, float] = {}  # since the last report
        self.profiles: dict[int | None, Profile] = {}  # by GPU instance; None: the whole GPU
