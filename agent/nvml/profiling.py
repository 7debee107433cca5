"""How busy the units of a GPU are, by NVML's GPM: SMs, tensor cores, DRAM. Hopper and newer.

`utilization_ratio` says whether any kernel ran, which a job that waits for its data keeps at 1.
These say how much of the GPU worked. Each value is the mean between two samples.

Source: nvml.h of nvidia-ml-py 13.615, section GPM: metrics are percentages; two samples of one GPU
(or of one GPU instance, with MIG) make one set of values.
"""

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, Final

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
