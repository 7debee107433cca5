"""The two settings of a GPU that faults change, by NVML. Never tried on a real GPU: written after nvml.h's documentation.

Source: NVML API reference, "Device Commands": nvmlDeviceSetGpuLockedClocks, nvmlDeviceResetGpuLockedClocks,
nvmlDeviceSetPowerManagementLimit. They need root.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from rankmend.errors import NoSourceError, SourceError

_T = TypeVar("_T")


def lock_clocks(gpu: str, mhz: int) -> None:
    _call(lambda nvml: nvml.nvmlDeviceSetGpuLockedClocks(_handle(nvml, gpu), mhz, mhz))


def reset_clocks(gpu: str) -> None:
    _call(lambda nvml: nvml.nvmlDeviceResetGpuLockedClocks(_handle(nvml, gpu)))


def check_gpu(gpu: str) -> None:
    """Raise NoSourceError or SourceError where there is no such GPU, or no NVML."""
    _call(lambda nvml: _handle(nvml, gpu))


def read_power_limit(gpu: str) -> int:
    """Return the limit in milliwatts."""
    return int(_call(lambda nvml: nvml.nvmlDeviceGetPowerManagementLimit(_handle(nvml, gpu))))


def set_power_limit(gpu: str, milliwatts: int) -> None:
    _call(lambda nvml: nvml.nvmlDeviceSetPowerManagementLimit(_handle(nvml, gpu), milliwatts))


def _handle(nvml: Any, gpu: str) -> Any:
    return nvml.nvmlDeviceGetHandleByUUID(gpu.encode("ascii"))


def _call(do: Callable[[Any], _T]) -> _T:
    try:
        import pynvml  # noqa: PLC0415 - of the extra ``agent``
    except ModuleNotFoundError as error:
        raise NoSourceError("NVML needs nvidia-ml-py: pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoSourceError(f"NVML does not start: {error}") from error
    try:
        return do(pynvml)
    except pynvml.NVMLError as error:
        raise SourceError(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()
