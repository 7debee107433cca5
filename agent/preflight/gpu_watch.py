"""Watches clocks and temperatures of this node's GPUs while they are under load. Runs in a child process: NVML may hang.

Source: NVML, nvmlDeviceGetUtilizationRates, nvmlDeviceGetClockInfo, nvmlDeviceGetTemperature,
        nvmlDeviceGetCurrentClocksEventReasons. Cost: four calls a GPU, four times a second.
"""

import os
import select
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from detectors.preflight.gpu_samples import GpuSample, GpuSamples, tell_gpu

LOOK_S: Final = 0.25
SAMPLES_MAX: Final = (
    40_000  # of one GPU: 2.8 h; of a longer check every second one is dropped, and so on
)
_MHZ: Final = 1e6
_CHUNK_BYTES: Final = 64


def name_gpus(environment: Mapping[str, str], count: int) -> list[int | str]:
    """Return the number or UUID of what the loads call cuda:0, cuda:1 and so on.

    The loads count by bus id, as NVML does: `agent.preflight.flight.environment_for_loads`.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(range(count))
    names = [word.strip() for word in visible.split(",")]
    return [int(name) if name.isdecimal() else name for name in names if name not in ("", "-1")]


def watch_gpus(
    nvml: Any,
    gpus: Sequence[int | str],
    level: str,
    now_s: Callable[[], float],
    until_end: int,
    look_s: float = LOOK_S,
) -> dict[str, Any]:
    """Return what loads print, once the descriptor ends: figures of each GPU, and what held its clocks down."""
    try:
        nvml.nvmlInit()
        handles = [_handle(nvml, item) for item in gpus]
    except nvml.NVMLError as error:
        return {"lines": [{"skip": "gpu_clocks", "part": "node", "text": f"NVML: {error}"}]}
    watched = [GpuSamples() for _handle in handles]
    before_s = now_s()
    while not _wait(until_end, look_s):
        at_s = now_s()
        passed_s, before_s = at_s - before_s, at_s
        for handle, samples in zip(handles, watched, strict=True):
            item = _sample(nvml, handle, passed_s)
            if item is not None:
                samples.add(item, SAMPLES_MAX)
    lines: list[dict[str, Any]] = []
    for number, (handle, samples) in enumerate(zip(handles, watched, strict=True)):
        # A GPU gets hotter the longer it works: figures of one level are compared.
        model = f"{_name(nvml, handle)}, {level}"
        lines += tell_gpu(f"cuda:{number}", model, samples)
    return {"lines": lines}


def _handle(nvml: Any, gpu: int | str) -> Any:
    if isinstance(gpu, int):
        return nvml.nvmlDeviceGetHandleByIndex(gpu)
    return nvml.nvmlDeviceGetHandleByUUID(gpu)


def _sample(nvml: Any, handle: Any, passed_s: float) -> GpuSample | None:
    """Return what the GPU shows now; None where it doesn't even tell whether it is busy."""
    busy = _read(nvml.NVMLError, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    if busy is None:
        return None
    mhz = _read(nvml.NVMLError, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    celsius = _read(
        nvml.NVMLError,
        lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    )
    reasons = _read(
        (nvml.NVMLError, AttributeError),
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    )
    return GpuSample(
        busy / 100, None if mhz is None else mhz * _MHZ, celsius, int(reasons or 0), passed_s
    )


def _read(
    missing: type[Exception] | tuple[type[Exception], ...], call: Callable[[], float]
) -> float | None:
    try:
        return call()
    except missing:
        return None


def _name(nvml: Any, handle: Any) -> str:
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError:
        return "unknown GPU"
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _wait(descriptor: int, timeout_s: float) -> bool:
    """Return whether the descriptor has ended."""
    ready = select.select([descriptor], [], [], timeout_s)[0]
    return bool(ready) and not os.read(descriptor, _CHUNK_BYTES)
