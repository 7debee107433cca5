"""What this node is, as far as a pre-flight check needs it: its model, its GPUs and their power limits.

Source: <sysfs>/class/dmi/id/product_name (Documentation/ABI/testing/sysfs-class-dmi is the kernel's), <procfs>/cpuinfo;
        one folder a GPU in <procfs>/driver/nvidia/gpus (NVIDIA driver README, "proc interface").
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from detectors.preflight.tools import NvidiaTool

NAME_MAX: Final = 120
_PLACES: Final = "/usr/bin:/usr/local/bin:/usr/local/cuda/bin:/opt/nccl-tests/build"
_CPUINFO_BYTES_MAX: Final = 4096  # the first processor's part


def read_facts(procfs: Path, sysfs: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "host_model": host_model(procfs, sysfs),
        "gpus": count_gpus(procfs, environment),
        "gpu_model": gpu_model(procfs),
        "tools": {
            tool.value: place
            for tool in NvidiaTool
            if (place := shutil.which(tool.value, path=_path(environment))) is not None
        },
        "gpu_power_watts": gpu_power_limits_watts() if count_gpus(procfs, environment) else [],
    }


def _path(environment: Mapping[str, str]) -> str:
    return f"{environment.get('PATH', '')}:{_PLACES}"


def gpu_model(procfs: Path) -> str:
    """Return the model of the first GPU, as the driver names it."""
    for folder in sorted((procfs / "driver" / "nvidia" / "gpus").glob("*"))[:1]:
        for line in _read(folder / "information").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model":
                return value.strip()[:NAME_MAX]
    return "unknown GPU"


def host_model(procfs: Path, sysfs: Path) -> str:
    """Return the product and the processor, which figures of hosts are bound to."""
    product = _read(sysfs / "class" / "dmi" / "id" / "product_name")
    lines = _read(procfs / "cpuinfo").splitlines()
    fields = [line.partition(":") for line in lines]
    names = [value.strip() for name, _, value in fields if name.strip() in ("model name", "Model")]
    return ", ".join(filter(None, (product, names[0] if names else "")))[:NAME_MAX] or "unknown"


def count_gpus(procfs: Path, environment: Mapping[str, str]) -> int:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() not in ("", "-1")])
    folder = procfs / "driver" / "nvidia" / "gpus"
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def gpu_power_limits_watts() -> list[float]:
    """Return the limit of each GPU whose driver says it (nvmlDeviceGetEnforcedPowerLimit, milliwatts)."""
    try:
        import pynvml  # noqa: PLC0415 - only where there is a GPU

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        return [pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000 for handle in handles]
    except Exception:  # noqa: BLE001 - the limits are for people and for the ramp: unknown is an answer
        return []


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_CPUINFO_BYTES_MAX).strip()
    except OSError:
        return ""
