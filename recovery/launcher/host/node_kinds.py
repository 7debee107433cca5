"""What kinds of hardware this node has, so that failures can be counted by them. Read once, at the launcher's start.

Source: /proc/driver/nvidia/gpus/*/information (NVIDIA's driver: "Model: ..."), /sys/class/drm/card*/device/product_name (amdgpu,
        Linux Documentation/gpu/amdgpu/driver-misc.rst), /sys/class/infiniband/*/hca_type (Documentation/ABI/stable/sysfs-class-infiniband),
        /sys/class/dmi/id/{sys_vendor,product_name} (Documentation/ABI/testing/sysfs-firmware-dmi-tables). All are readable by everybody.
Cost:   a small file for each GPU and NIC, below 1 ms.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rankmend.printable import printable
from recovery.messages.exchange import KIND_MAX, NodeKinds

_BYTES_MAX: Final = 4096
_FILES_MAX: Final = 64
_MIXED: Final = "several"


def read_node_kinds(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> NodeKinds:
    """Return the kinds; empty where there is none, or it can't be read."""
    nvidia = (_model(_read(path)) for path in _find(proc / "driver/nvidia/gpus", "*/information"))
    amd = (_read(path) for path in _find(sys / "class/drm", "card*/device/product_name"))
    nics = (_read(path) for path in _find(sys / "class/infiniband", "*/hca_type"))
    dmi = sys / "class/dmi/id"
    return NodeKinds(
        gpu=_one([*nvidia, *amd]),
        nic=_one(nics),
        node=_one([f"{_read(dmi / 'sys_vendor')} {_read(dmi / 'product_name')}"]),
    )


def _find(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))[:_FILES_MAX]
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _model(text: str) -> str:
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _colon, value in lines if name.strip() == "Model"), "")


def _one(names: Iterable[str]) -> str:
    known = {printable(name).strip()[:KIND_MAX] for name in names} - {""}
    return known.pop() if len(known) == 1 else _MIXED if known else ""
