"""Counts the PCI functions of a kind.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci; class codes of the PCI Code and ID Assignment Specification.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.sources.pci_topology import list_known, read_text

NVIDIA: Final = "0x10de"
_GPU_CLASSES: Final = ("0x0300", "0x0302")  # VGA and 3D controllers
_BRIDGE_CLASS: Final = "0x0680"  # NVSwitches
_INFINIBAND_CLASSES: Final = ("0x0207", "0x0c06")


def count_gpus(sysfs: Path) -> int:
    return sum(kind in _GPU_CLASSES and vendor == NVIDIA for kind, vendor in _functions(sysfs))


def count_switches(sysfs: Path) -> int:
    return sum(kind == _BRIDGE_CLASS and vendor == NVIDIA for kind, vendor in _functions(sysfs))


def count_infiniband(sysfs: Path) -> int:
    return sum(kind in _INFINIBAND_CLASSES for kind, _vendor in _functions(sysfs))


def _functions(sysfs: Path) -> Iterator[tuple[str, str]]:
    devices = sysfs / "bus" / "pci" / "devices"
    for name in list_known(devices, []):
        kind = (read_text(devices / name / "class") or "")[:6]
        yield kind, read_text(devices / name / "vendor") or ""
