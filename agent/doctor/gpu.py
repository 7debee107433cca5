"""Reads what `detectors/doctor/gpu.py` judges. Calls NVML, which may hang: run it in a child.

Sources: agent/collectors/versions.py, agent/sources/pcie_acs.py, agent/collectors/services.py, agent/doctor/pci.py; NVML API reference.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from agent.collectors.services import SystemdUnit, parse_units
from agent.collectors.versions import parse_nvidia_version
from agent.doctor.pci import count_gpus, count_switches
from agent.doctor.places import Places
from agent.sources.pci_topology import list_known
from agent.sources.pcie_acs import list_bridges, read_acs
from detectors.doctor.gpu import GpuFacts, NvmlAnswer, SwitchPort, UnitState
from detectors.formats.pcie_acs import OFF, redirects_in_words
from rankmend.errors import RankmendError, SourceError

FABRIC_MANAGER: Final = "nvidia-fabricmanager.service"
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


class UnitSource(Protocol):
    def show(self, units: list[str]) -> str: ...


def load_nvml() -> Any:
    return importlib.import_module("pynvml")


def read_gpu(
    places: Places,
    expected: int | None = None,
    systemctl: UnitSource | None = None,
    load: Callable[[], Any] = load_nvml,
    ask_acs: Callable[[], Mapping[str, str]] | None = None,
) -> GpuFacts:
    """``systemctl`` None: systemd is not queried. ``load`` returns the module pynvml. ``ask_acs`` asks the agent, None: nobody."""
    version = _read(places, "driver/nvidia/version")
    driver = parse_nvidia_version(version) if version else None
    release = _RELEASE.match(_read(places, "sys/kernel/osrelease"))
    ports, is_by_agent = read_switch_ports(places, ask_acs)
    answer, error, count, persistence_off = None, "", None, 0
    if places.is_live and driver is not None:
        answer, error, count, persistence_off = ask_nvml(load)
    return GpuFacts(
        cards=count_gpus(places.sysfs),
        switches=count_switches(places.sysfs),
        driver=driver,
        is_driver_open="Open Kernel Module" in version,
        has_control_file=places.at("dev/nvidiactl").exists() if places.is_live else None,
        nvml=answer,
        nvml_error=error,
        count=count,
        expected=expected,
        persistence_off=persistence_off,
        fabric_manager=_unit_state(systemctl),
        has_rdma=bool(list_known(places.sysfs / "class" / "infiniband", [])),
        has_peermem=(places.sysfs / "module" / "nvidia_peermem").is_dir(),
        kernel=(int(release[1]), int(release[2])) if release else None,
        switch_ports=ports,
        is_acs_by_agent=is_by_agent,
    )


def read_switch_ports(
    places: Places, ask: Callable[[], Mapping[str, str]] | None = None
) -> tuple[tuple[SwitchPort, ...], bool]:
    """Return the ports of PCIe switches above GPUs and network cards, and whether the agent told of some.

    Root ports are left out: they pass nothing on by themselves. ``ask`` asks the agent of what only root may read.
    """
    try:
        bridges = [
            item for item, is_of_switch in list_bridges(places.sysfs).items() if is_of_switch
        ]
    except SourceError:
        return (), False
    read = list(read_acs(places.sysfs, bridges))
    reported = ask() if ask is not None and any(bridge.is_root_only for bridge in read) else {}
    ports = []
    for bridge in read:
        words = None if bridge.error else redirects_in_words(bridge.control)
        if bridge.is_root_only:
            words = reported.get(bridge.bridge)
        has_redirect = None if words is None else words != OFF
        ports.append(SwitchPort(bridge.bridge, has_redirect, bridge.is_root_only and words is None))
    return tuple(ports), any(bridge.is_root_only and bridge.bridge in reported for bridge in read)


def ask_nvml(load: Callable[[], Any]) -> tuple[NvmlAnswer, str, int | None, int]:
    """Return NVML's answer, its error, the number of GPUs, and how many have no persistence mode."""
    try:
        nvml = load()
    except ImportError as error:
        return NvmlAnswer.NO_BINDINGS, str(error), None, 0
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        known = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: NvmlAnswer.NO_LIBRARY,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED: NvmlAnswer.NO_DRIVER,
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: NvmlAnswer.MISMATCH,
            nvml.NVML_ERROR_NO_PERMISSION: NvmlAnswer.NO_PERMISSION,
        }
        return known.get(error.value, NvmlAnswer.ERROR), str(error), None, 0
    try:
        count = int(nvml.nvmlDeviceGetCount())
        off = sum(_lacks_persistence(nvml, index) for index in range(count))
    except nvml.NVMLError as error:
        return NvmlAnswer.ERROR, str(error), None, 0
    return NvmlAnswer.ANSWERS, "", count, off


def _lacks_persistence(nvml: Any, index: int) -> bool:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return bool(nvml.nvmlDeviceGetPersistenceMode(handle) == nvml.NVML_FEATURE_DISABLED)
    except nvml.NVMLError:  # not supported, or a GPU that is lost: other checks tell that
        return False


def _unit_state(systemctl: UnitSource | None) -> UnitState:
    if systemctl is None:
        return UnitState.UNTOLD
    try:
        units = parse_units(systemctl.show([FABRIC_MANAGER]))
    except RankmendError:
        return UnitState.UNTOLD
    unit: SystemdUnit | None = next((item for item in units if item.name == FABRIC_MANAGER), None)
    if unit is None or unit.load == "not-found":
        return UnitState.NOT_INSTALLED
    return UnitState.ACTIVE if unit.is_active else UnitState.INACTIVE


def _read(places: Places, name: str) -> str:
    try:
        return (places.procfs / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
