"""Counts what this host has, for [expect] of a new configuration, as the agent counts it later."""

from pathlib import Path
from typing import Final

from agent.collectors.edac import EdacCollector
from agent.collectors.host import HostCollector
from agent.doctor.gpu import ask_nvml, load_nvml
from agent.sources.device_scan import is_guest, scan_disks, scan_nics
from detectors.node.inventory import each_card_once
from rankmend.child_call import call_in_child
from rankmend.errors import RankmendError, SourceError

NVML_S_MAX: Final = 20.0  # 8 GPUs without persistence mode take 5 to 8 s
_GIB: Final = 1 << 30
# MemTotal differs by what kernel and firmware reserve: under 1 % between versions.
_MEMORY_SHARE: Final = 0.98


def is_virtual(procfs: Path = Path("/proc"), sysfs: Path = Path("/sys")) -> bool:
    return is_guest(procfs, sysfs)


def count_devices(
    procfs: Path = Path("/proc"), sysfs: Path = Path("/sys"), *, asks_nvml: bool = True
) -> dict[str, int | float]:
    """Return the keys of [expect] with what there is; a key of which nothing is known is missing."""
    counts: dict[str, int | float] = {}
    if asks_nvml and (gpus := _count_gpus()):
        counts["gpus"] = gpus
    try:
        if cards := each_card_once(scan_nics(sysfs, ())[1]):
            counts["nics"] = len(cards)
        if disks := scan_disks(sysfs):
            counts["disks"] = len(disks)
    except SourceError:
        pass  # a folder that can't be listed: nothing is known
    if modules := len(_values(EdacCollector(sysfs), "rankmend_edac_module_info")):
        counts["dimms"] = modules
    if sizes := _values(HostCollector(procfs), "rankmend_host_memory_size_bytes"):
        counts["memory_gib"] = float(int(sizes[0] * _MEMORY_SHARE / _GIB))
    return {name: count for name, count in counts.items() if count}


def _count_gpus() -> int | None:
    """Ask NVML in a child: a driver may hang."""
    try:
        found = call_in_child(lambda: ask_nvml(load_nvml)[2], NVML_S_MAX)
    except SourceError:
        return None
    return found if isinstance(found, int) else None


def _values(collector: EdacCollector | HostCollector, name: str) -> list[float]:
    try:
        return [metric.value for metric in collector.collect() if metric.name == name]
    except RankmendError:
        return []
