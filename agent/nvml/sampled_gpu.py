"""The collector child's state of one GPU. Standard library only."""

import ctypes
from collections.abc import Callable, Iterator
from math import isfinite
from struct import Struct
from typing import Any, Final, NamedTuple

from agent.nvml import fields

# Field values of one GPU, read with one call (nvmlDeviceGetFieldValues).


class Batch:
    """Some fields of one GPU, read with one call and unpacked at once.

    A kept array and one unpack cost 5 us for 111 fields; reading `value.ullVal` of each 104 us.
    """

    def __init__(self, nvml: Any, wanted: list[tuple[fields.Field, int]]) -> None:
        self.wanted = wanted
        self._array = (nvml.c_nvmlFieldValue_t * len(wanted))()
        for place, (field, scope) in enumerate(wanted):
            self._array[place].fieldId = field.id
            self._array[place].scopeId = scope
        self._layout = Struct("<" + fields.VALUE.format[1:] * len(wanted))
        self._size = ctypes.c_int(len(wanted))
        self._answers: tuple[tuple[Any, ...], ...] = ((), (), ())
        # name, labels and value of the newest answers; None: not to be used again
        self.made: list[tuple[str, tuple[str, ...], float]] | None = None
        assert ctypes.sizeof(self._array) == self._layout.size, "nvmlFieldValue_t has changed"

    def read(self, get_field_values: Callable[..., int], handle: Any) -> int:
        """Fill the array; return NVML's code."""
        return int(get_field_values(handle, self._size, ctypes.byref(self._array)))

    def is_as_before(self) -> bool:
        """Return whether each field has answered as in the read before this one; when it was measured does not count."""
        flat = self._layout.unpack(bytes(self._array))
        answers = (flat[4::7], flat[5::7], flat[6::7])  # types, codes and bytes
        is_same = answers == self._answers
        self._answers = answers
        return is_same

    def values(self) -> Iterator[tuple[fields.Field, int, int, int, bytes]]:
        """Return field, scope, code, type and bytes of each, as `is_as_before` has found them."""
        for (field, scope), value_type, code, raw in zip(self.wanted, *self._answers, strict=True):
            yield field, scope, code, value_type, raw


# How busy the units of a GPU are, by NVML's GPM: SMs, tensor cores, DRAM. Hopper and newer.
#
# `utilization_ratio` says whether any kernel ran, which a job that waits for its data keeps at 1.
# These say how much of the GPU worked. Each value is the mean between two samples.
#
# Source: nvml.h of nvidia-ml-py 13.615, section GPM: metrics are percentages; two samples of one GPU
# (or of one GPU instance, with MIG) make one set of values.

# NVML_GPM_METRIC_*: metric without rankmend_gpu_, label
METRICS: Final[dict[int, tuple[str, tuple[str, ...]]]] = {
    1: ("graphics_active_ratio", ()),
    2: ("sm_active_ratio", ()),
    3: ("sm_occupancy_ratio", ()),
    4: ("pipe_active_ratio", ("integer",)),
    5: ("pipe_active_ratio", ("tensor",)),
    10: ("dram_active_ratio", ()),
    11: ("pipe_active_ratio", ("fp64",)),
    12: ("pipe_active_ratio", ("fp32",)),
    13: ("pipe_active_ratio", ("fp16",)),
}
_PERCENT_MAX: Final = 100.5  # rounding passes 100 by a little; what lies above makes no sense

Call = Callable[..., Any]  # name of a function of pynvml, then its arguments


class Profile:
    """The samples of one GPU or GPU instance: the newest one, and room for the next."""

    def __init__(self, nvml: Any, call: Call) -> None:
        self._nvml = nvml
        self._call = call
        self._before: Any = None
        self._room: Any = None
        self._metrics: Any = None

    def read(self, take: Callable[[Any], None]) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Take a sample, and yield what has been between it and the one before.

        ``take`` fills a sample. Raises NVMLError.
        """
        if self._room is None:
            self._room = self._call("nvmlGpmSampleAlloc")
        take(self._room)
        before, self._before, self._room = self._before, self._room, None
        if before is None:
            return
        self._room = before
        yield from self._between(before, self._before)

    def close(self) -> None:
        """Free the samples. Raises NVMLError."""
        for sample in (self._before, self._room):
            if sample is not None:
                self._call("nvmlGpmSampleFree", sample)
        self._before = self._room = None

    def _between(self, before: Any, after: Any) -> Iterator[tuple[str, tuple[str, ...], float]]:
        wanted = self._metrics
        if wanted is None:
            wanted = self._metrics = self._nvml.c_nvmlGpmMetricsGet_t()
            wanted.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
            wanted.numMetrics = len(METRICS)
            for place, number in enumerate(METRICS):
                wanted.metrics[place].metricId = number
        wanted.sample1, wanted.sample2 = before, after
        self._call("nvmlGpmMetricsGet", wanted)
        for place, (name, labels) in enumerate(METRICS.values()):
            found = wanted.metrics[place]
            percent = float(found.value)
            if found.nvmlReturn != self._nvml.NVML_SUCCESS or not isfinite(percent):
                continue
            if 0 <= percent <= _PERCENT_MAX:
                yield name, labels, min(percent, 100.0) / 100


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
        self.checked_answers: object = None  # of the driver, from which the values were made
        self.checked_values: list[Value] = []
        self.tlimit: float | None = None  # the margin at which it slows down
        self.tlimit_due_at_s = float("-inf")
        self.reasons_at_s: float | None = None
        self.seconds: dict[str, float] = {}  # since the last report
        self.profiles: dict[int | None, Profile] = {}  # by GPU instance; None: the whole GPU
