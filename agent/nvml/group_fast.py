"""The group "fast": temperature, power, clocks, load and memory of a GPU at this moment."""

from collections.abc import Iterator
from typing import Final

from agent.nvml import fields
from agent.nvml.nvml_calls import NvmlCalls, one
from agent.nvml.sampled_gpu import SampledGpu, Value

CLOCK_KINDS: Final = ("graphics", "sm", "memory", "video")  # NVML_CLOCK_*
_KILO: Final = 1000.0
_MHZ: Final = 1e6


def read_fast(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Return the values of the group."""
    _add_reasons(calls, gpu)
    temperature = calls.read(gpu, "nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
    yield from one("temperature_celsius", temperature)
    yield from _margins(calls, gpu, temperature)
    yield from calls.read_fields(gpu, "fast", [(field, 0) for field in fields.FAST])
    if calls.is_unsupported(gpu, (186, 0)):  # the momentary power; else an average
        milliwatts = calls.read(gpu, "nvmlDeviceGetPowerUsage")
        yield from one("power_watts", milliwatts, 1 / _KILO)
    for number, kind in enumerate(CLOCK_KINDS):
        mhz = calls.read(gpu, "nvmlDeviceGetClockInfo", number)
        yield from one("clock_hertz", mhz, _MHZ, kind)
    used = calls.read(gpu, "nvmlDeviceGetUtilizationRates")
    if used is not None:
        yield "utilization_ratio", (), used.gpu / 100
        yield "memory_utilization_ratio", (), used.memory / 100
    memory = calls.read(gpu, "nvmlDeviceGetMemoryInfo", calls.nvml.nvmlMemory_v2)
    if memory is not None:
        yield "memory_reserved_bytes", (), memory.reserved
    else:
        memory = calls.read(gpu, "nvmlDeviceGetMemoryInfo")
    if memory is not None:
        yield "memory_size_bytes", (), memory.total
        yield "memory_used_bytes", (), memory.used
    yield from one("performance_state_id", calls.read(gpu, "nvmlDeviceGetPerformanceState"))
    yield from one("fan_ratio", calls.read(gpu, "nvmlDeviceGetFanSpeed"), 0.01)


def _margins(calls: NvmlCalls, gpu: SampledGpu, temperature: int | None) -> Iterator[Value]:
    """Return the distance to the slowdown, by the driver's margin or else by the threshold."""
    margin = calls.read(gpu, "nvmlDeviceGetMarginTemperature")
    if margin is not None:
        yield "temperature_margin_celsius", (), margin
        now_s = calls.now_s()
        if now_s >= gpu.tlimit_due_at_s:  # it changes only with the VBIOS
            gpu.tlimit_due_at_s = now_s + fields.PERIOD_S_BY_GROUP["slow"]
            gpu.tlimit = calls.read_field(gpu, fields.SLOWDOWN_TLIMIT)
        limit = gpu.tlimit
        yield from one("slowdown_margin_celsius", None if limit is None else margin - limit)
    elif temperature is not None:
        limit = calls.read(gpu, "nvmlDeviceGetTemperatureThreshold", 1)
        if limit is not None:
            yield "slowdown_margin_celsius", (), limit - temperature


def _add_reasons(calls: NvmlCalls, gpu: SampledGpu) -> None:
    """Add the time since the last sample to each active reason."""
    reasons = calls.read(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # its name before R535
        reasons = calls.read(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
    if reasons is None:
        gpu.reasons_at_s = None
        return
    now_s = calls.now_s()
    since_s = 0.0 if gpu.reasons_at_s is None else now_s - gpu.reasons_at_s
    gpu.reasons_at_s = now_s
    for bit, reason in enumerate(fields.CLOCKS_EVENT_REASONS):
        held_s = since_s if reasons >> bit & 1 else 0.0
        gpu.seconds[reason] = gpu.seconds.get(reason, 0.0) + held_s
