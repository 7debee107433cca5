"""Reads GPUs through NVML, group by group. Runs in the collector child: any call may block forever."""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from agent.nvml import fields
from agent.nvml.fields import NO_GPU
from agent.nvml.groups import (
    checked_values,
    close_profile,
    read_activity,
    read_medium,
    read_shown,
    read_slow,
)
from agent.nvml.nvml_calls import CallPage, NvmlCalls, NvmlGoneError
from agent.nvml.sampled_gpu import TEXT_CHARS_MAX, GpuIdentity, SampledGpu, Value, pci_bus_id

# Events that the driver reports about GPUs: XIDs, ECC errors and others.


class GpuEvents:
    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls
        self._event_set: Any = None
        self.mask = 0  # union of the types that the GPUs report

    def open(self, gpus: Sequence[SampledGpu]) -> None:
        """Ask for all events that these GPUs can report."""
        calls = self._calls
        self._event_set = calls.quiet("nvmlEventSetCreate")
        if self._event_set is None:
            return
        known = sum(fields.EVENT_TYPES)
        for gpu in gpus:
            if gpu.is_lost:
                continue
            mask = (calls.read(gpu, "nvmlDeviceGetSupportedEventTypes") or 0) & known
            name = "nvmlDeviceRegisterEvents"
            try:
                if mask:
                    calls.in_call(name, gpu.index, gpu.handle, mask, self._event_set)
                    self.mask |= mask
            except calls.nvml.NVMLError as error:
                gpu.last_error = f"no events: {error}"[:TEXT_CHARS_MAX]
        if not self.mask:
            self.close()

    def close(self) -> None:
        if self._event_set is not None:
            self._calls.quiet("nvmlEventSetFree", self._event_set)
            self._event_set = None

    def wait(self, gpus: Sequence[SampledGpu], timeout_s: float) -> tuple[int, str, int] | None:
        """Wait for an event; return GPU index, type and code, or None when there was none.

        Sleeps where no GPU can report events.
        """
        if self._event_set is None:
            time.sleep(timeout_s)
            return None
        calls, name = self._calls, "nvmlEventSetWait_v2"
        try:
            # rounded up: else waits of 0 ms follow, a busy millisecond before each sweep
            data = calls.in_call(name, NO_GPU, self._event_set, int(timeout_s * 1000) + 1)
        except calls.nvml.NVMLError as error:
            if error.value in calls.gone_codes:
                raise NvmlGoneError(f"{name}: {error}") from error
            if error.value != calls.nvml.NVML_ERROR_TIMEOUT:
                time.sleep(timeout_s)  # a lost GPU, for example: do not spin
            return None
        address = ctypes.cast(data.device, ctypes.c_void_p).value
        for gpu in gpus:
            if ctypes.cast(gpu.handle, ctypes.c_void_p).value == address:
                kind = fields.EVENT_TYPES.get(data.eventType)
                if kind is None:
                    return None
                return gpu.index, kind, int(data.eventData) if data.eventType == fields.XID else 0
        return None


PROCESSES_MAX: Final = 256  # per GPU; more are not listed


class GpuProcess(NamedTuple):
    pid: int
    memory_bytes: int | None


class GpuSampler:
    """Reads all GPUs of the node, group by group."""

    def __init__(
        self,
        nvml: Any,
        page: CallPage,
        now_s: Callable[[], float] = time.monotonic,
        *,
        cuda: str = "",
        has_profiling: bool = True,
    ) -> None:
        """``nvml`` is the module pynvml, or a test's substitute; ``cuda`` what `ask_cuda_version` said.

        ``has_profiling``: read GPM, whose counters a profiler may want for itself.
        """
        self._has_profiling = has_profiling
        self._calls = NvmlCalls(nvml, page, now_s)
        self._events = GpuEvents(self._calls)
        self.driver = ""
        self.cuda = cuda
        self.nvml_version = ""
        self.count = 0  # GPUs that the driver lists, including left-out ones
        self.gpus: list[SampledGpu] = []

    @property
    def event_mask(self) -> int:
        """The types of events that the GPUs report, of all GPUs together."""
        return self._events.mask

    def open(self, skipped: frozenset[int]) -> None:
        """Open NVML and all GPUs except ``skipped``. Raises pynvml's NVMLError."""
        self._calls.plain("nvmlInitWithFlags", 0)
        self.driver = str(self._calls.plain("nvmlSystemGetDriverVersion"))
        self.nvml_version = str(self._calls.quiet("nvmlSystemGetNVMLVersion") or "")
        major = self.driver.partition(".")[0]
        self._calls.driver_major = int(major) if major.isdigit() else 0
        self.count = int(self._calls.plain("nvmlDeviceGetCount"))
        self.gpus = [self._open_gpu(i) for i in range(self.count) if i not in skipped]
        self._events.open(self.gpus)

    def close(self) -> None:
        """Release the GPUs, as far as NVML lets us."""
        self._events.close()
        for gpu in self.gpus:
            for instance in list(gpu.profiles):
                close_profile(self._calls, gpu, instance)
        self._calls.quiet("nvmlShutdown")

    def _open_gpu(self, index: int) -> SampledGpu:
        gpu = SampledGpu(index)
        self.reopen(gpu)
        return gpu

    def reopen(self, gpu: SampledGpu) -> None:
        """Open a GPU again. If that fails the GPU is lost, and keeps its identity."""
        try:
            gpu.handle = self._calls.in_call("nvmlDeviceGetHandleByIndex", gpu.index, gpu.index)
            pci = self._calls.in_call("nvmlDeviceGetPciInfo_v3", gpu.index, gpu.handle)
            uuid = self._calls.in_call("nvmlDeviceGetUUID", gpu.index, gpu.handle)
        except self._calls.nvml.NVMLError as error:
            gpu.is_lost = True
            gpu.last_error = f"cannot be opened: {error}"[:TEXT_CHARS_MAX]
            return
        gpu.is_lost, gpu.identity = False, GpuIdentity(str(uuid), pci_bus_id(pci))

    def wait_event(self, timeout_s: float) -> tuple[int, str, int] | None:
        """Wait for an event; return GPU index, type and code, or None when there was none."""
        return self._events.wait(self.gpus, timeout_s)

    def sample(self, gpu: SampledGpu, group: str) -> list[Value]:
        """Return the values of one group, or raise GpuLostError."""
        if group == fields.CHECKED:
            return checked_values(self._calls, gpu)
        found: dict[tuple[str, tuple[str, ...]], float] = {}
        for name, labels, value in self._read_group(gpu, group):
            found.setdefault((name, labels), value)  # the first of two sources wins
        return [(name, labels, value) for (name, labels), value in found.items()]

    def _read_group(self, gpu: SampledGpu, group: str) -> Iterator[Value]:
        match group:
            case "fast":
                return chain(checked_values(self._calls, gpu), read_shown(self._calls, gpu))
            case fields.SHOWN:
                return read_shown(self._calls, gpu)
            case "activity":
                return read_activity(self._calls, gpu, has_profiling=self._has_profiling)
            case "medium":
                return read_medium(self._calls, gpu)
            case "slow":
                return read_slow(self._calls, gpu, self.driver, self.cuda)
            case _:  # "processes", which are not values of a GPU
                return iter(())

    def processes(self, gpu: SampledGpu) -> list[GpuProcess] | None:
        """Return the processes with a compute context on the GPU, or None if unknown."""
        listed = self._calls.read(gpu, "nvmlDeviceGetComputeRunningProcesses")
        if listed is None:
            return None
        memory_by_pid: dict[int, int | None] = {}
        for process in listed:  # one entry for each MIG instance
            before = memory_by_pid.get(process.pid)
            used = process.usedGpuMemory
            if before is not None or used is not None:
                used = (before or 0) + (used or 0)
            memory_by_pid[process.pid] = used
        return [GpuProcess(pid, used) for pid, used in memory_by_pid.items()][:PROCESSES_MAX]
