"""Events that the driver reports about GPUs: XIDs, ECC errors and others."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any

from agent.nvml import fields
from agent.nvml.driver_call import NO_GPU
from agent.nvml.nvml_calls import NvmlCalls, NvmlGoneError
from agent.nvml.sampled_gpu import TEXT_CHARS_MAX, SampledGpu


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
            data = calls.in_call(name, NO_GPU, self._event_set, int(timeout_s * 1000))
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
