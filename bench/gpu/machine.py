"""What a reader of the GPU report must know of the machine: GPU, driver, software, commit."""

import platform
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

ASK_S_MAX = 20.0
PROBE_S_MAX = 120.0
_HERE = Path(__file__).resolve().parent
_TORCH = "import torch; print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())))"


def why_no_gpu() -> str:
    """Return why the report can't be made here, or "" where it can."""
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi on this machine: no NVIDIA driver"
    if not (listed := _ask("nvidia-smi", "-L")):
        return "nvidia-smi lists no GPU"
    probe = "import sys\ntry:\n import torch\nexcept ImportError:\n sys.exit('PyTorch is not installed')\n"
    probe += "sys.exit(None if torch.cuda.is_available() else 'this PyTorch sees no CUDA device')"
    try:
        answer = subprocess.run(
            [sys.executable, "-c", probe],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROBE_S_MAX,
        )
    except subprocess.TimeoutExpired:
        return f"PyTorch did not say within {PROBE_S_MAX:.0f} s whether it sees a GPU ({listed})"
    return f"{answer.stderr.strip()[-200:]} ({listed})" if answer.returncode else ""


def describe(commit: str | None = None) -> dict[str, str]:
    """Return names and values for the report's head; "" where a value can't be found."""
    query = "--query-gpu=name,driver_version,memory.total,vbios_version"
    gpu, driver, memory, vbios = (
        [*_ask("nvidia-smi", query, "--format=csv,noheader").split(", "), "", "", "", ""]
    )[:4]
    torch, cuda, nccl = [*_ask(sys.executable, "-c", _TORCH).split(), "", "", ""][:3]
    return {
        "gpu": gpu,
        "memory": memory,
        "vbios": vbios,
        "driver": driver,
        "torch": torch,
        "cuda": cuda,
        "nccl": nccl,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": commit
        or _ask("git", "-C", str(_HERE), "describe", "--always", "--dirty", "--abbrev=12"),
    }


def _ask(*command: str) -> str:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ASK_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = answer.stdout.strip().splitlines()
    return lines[0] if answer.returncode == 0 and lines else ""
