"""Temperature, power, clocks, load and memory of a GPU at this moment: what checks read, and what is only shown."""

from collections.abc import Iterator
from typing import Final

from agent.nvml import fields
from agent.nvml.nvml_calls import NvmlCalls, is_all_ones, one
from agent.nvml.sampled_gpu import SampledGpu, Value

CLOCK_KINDS: Final = ("graphics", "sm", "memory", "video")  # NVML_CLOCK_*
TEMPERATURE_NONE_CELSIUS: Final = 255  # a byte of ones; a GPU switches itself off far below
_KILO: Final = 1000.0
_MHZ: Final = 1e6


def read_checked(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Return what a check of the shipped table reads (detectors/data/node_policy.toml)."""
    _add_reasons(calls, gpu)
    temperature = calls.read(gpu, "nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
    if temperature is not None and temperature >= TEMPERATURE_NONE_CELSIUS:
        temperature = None
    yield from one("temperature_celsius", temperature)
    yield from _margins(calls, gpu, temperature)
    yield from calls.read_fields(gpu, "checked", [(field, 0) for field in fields.FAST_CHECKED])
    used = calls.read(gpu, "nvmlDeviceGetUtilizationRates")
    if used is not None:
        yield from _share("utilization_ratio", used.gpu)
        yield from _share("memory_utilization_ratio", used.memory)


def read_shown(calls: NvmlCalls, gpu: SampledGpu) -> Iterator[Value]:
    """Return the rest."""
    yield from calls.read_fields(gpu, "shown", [(field, 0) for field in fields.FAST_SHOWN])
    if calls.is_unsupported(gpu, (186, 0)):  # the momentary power; else an average
        milliwatts = calls.read(gpu, "nvmlDeviceGetPowerUsage")
        yield from one("power_watts", milliwatts, 1 / _KILO)
    for number, kind in enumerate(CLOCK_KINDS):
        mhz = calls.read(gpu, "nvmlDeviceGetClockInfo", number)
        yield from one("clock_hertz", mhz, _MHZ, kind)
    memory = calls.read(gpu, "nvmlDeviceGetMemoryInfo", calls.nvml.nvmlMemory_v2)
    if memory is not None:
        yield from _bytes("memory_reserved_bytes", memory.reserved)
    else:
        memory = calls.read(gpu, "nvmlDeviceGetMemoryInfo")
    if memory is not None:
        yield from _bytes("memory_size_bytes", memory.total)
        yield from _bytes("memory_used_bytes", memory.used)
    yield from one("performance_state_id", calls.read(gpu, "nvmlDeviceGetPerformanceState"))
    yield from one("fan_ratio", calls.read(gpu, "nvmlDeviceGetFanSpeed"), 0.01)


def _share(name: str, percent: int) -> Iterator[Value]:
    yield from one(name, None if is_all_ones(percent) else percent, 0.01)


def _bytes(name: str, size: int) -> Iterator[Value]:
    yield from one(name, None if is_all_ones(size) else size)


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
    if gpu.reasons_at_s is None:  # each reason is there from the start
        gpu.seconds = dict.fromkeys(fields.CLOCKS_EVENT_REASONS, 0.0) | gpu.seconds
    elif reasons:
        since_s = now_s - gpu.reasons_at_s
        for bit, reason in enumerate(fields.CLOCKS_EVENT_REASONS):
            if reasons >> bit & 1:
                gpu.seconds[reason] = gpu.seconds.get(reason, 0.0) + since_s
    gpu.reasons_at_s = now_s
