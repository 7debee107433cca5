"""What a reader of the GPU report must know of the machine, GPU, driver, software, commit; and which GPU is tried."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ASK_S_MAX = 20.0
PROBE_S_MAX = 120.0
_HERE = Path(__file__).resolve().parent
_UUID = "BENCH_GPU_UUID"  # of the GPU that is tried, for the areas
# In a process of its own: a driver that hangs must not hold the report.
_PROBE = """
import json, sys
try:
    import torch
except ImportError:
    sys.exit("PyTorch is not installed")
if not torch.cuda.is_available():
    sys.exit("this PyTorch sees no CUDA device")
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
try:
    found["count"] = torch.cuda.device_count()
    found["uuid"] = str(torch.cuda.get_device_properties(0).uuid)
except (AttributeError, RuntimeError):
    pass
print(json.dumps(found))
"""


class NoGpuError(Exception):
    """The report can't be made here; says why."""


def probe() -> dict[str, Any]:
    """Return what PyTorch says of itself and of its first GPU. Raises NoGpuError."""
    if shutil.which("nvidia-smi") is None:
        raise NoGpuError("no nvidia-smi on this machine: no NVIDIA driver")
    if not (listed := _ask("nvidia-smi", "-L")):
        raise NoGpuError("nvidia-smi lists no GPU")
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_S_MAX,
        )
    except subprocess.TimeoutExpired as error:
        why = f"PyTorch did not say within {PROBE_S_MAX:.0f} s whether it sees a GPU ({listed})"
        raise NoGpuError(why) from error
    lines = answer.stdout.splitlines()
    if answer.returncode or not lines:
        raise NoGpuError(f"{answer.stderr.strip()[-200:]} ({listed})")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def use_one(found: Mapping[str, Any]) -> None:
    """Have all areas look at the GPU that PyTorch takes first, and use no other."""
    uuid = f"GPU-{found.get('uuid', '')}"
    if not any(f"UUID: {uuid})" in line for line in _lines("nvidia-smi", "-L")):
        return  # an instance of a card with MIG, which has no other to choose from
    os.environ[_UUID] = uuid
    if found.get("count", 1) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid


def tried_uuid() -> str:
    """Return the UUID of the GPU that is tried, "" for the driver's first."""
    return os.environ.get(_UUID, "")


def smi_options() -> list[str]:
    """Return what has nvidia-smi speak of the GPU that is tried alone."""
    return ["-i", uuid] if (uuid := tried_uuid()) else []


def describe(found: Mapping[str, Any], commit: str | None = None) -> dict[str, str]:
    """Return names and values for the report's head; "" where a value can't be found."""
    query = "--query-gpu=name,driver_version,memory.total,vbios_version"
    answer = _ask("nvidia-smi", *smi_options(), query, "--format=csv,noheader")
    gpu, driver, memory, vbios = [*answer.split(", "), "", "", "", ""][:4]
    return {
        "gpu": gpu,
        "memory": memory,
        "vbios": vbios,
        "driver": driver,
        "torch": str(found.get("torch", "")),
        "cuda": str(found.get("cuda", "")),
        "nccl": str(found.get("nccl", "")),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": commit
        or _ask("git", "-C", str(_HERE), "describe", "--always", "--dirty", "--abbrev=12"),
    }


def _ask(*command: str) -> str:
    """Return the first line of what a program says, "" where it says nothing or fails."""
    return next(iter(_lines(*command)), "")


def _lines(*command: str) -> list[str]:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ASK_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []
