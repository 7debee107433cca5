"""Reads what `detectors/doctor/host.py` judges, by the agent's own collectors where there is one.

Sources: the collectors; `agent.doctor.places` for containers.
"""

import shutil
from collections.abc import Callable
from typing import Final

from agent.collectors.clock import KernelClock, make_adjtimex
from agent.collectors.edac import EdacCollector
from agent.collectors.pressure import PressureCollector
from agent.collectors.thermal import ThermalCollector
from agent.doctor.pci import count_gpus
from agent.doctor.places import Places, find_container, has_own_pids, try_source
from agent.root_helper.program_list import IPMI_DEVICES, Paths
from agent.root_helper.questions import SOCKET_PATH
from agent.sources.device_scan import is_guest
from agent.sources.kmsg import KmsgDevice
from agent.sources.pci_topology import read_text
from detectors.doctor.host import CgroupMode, HostFacts, KernelLogAccess
from rankmend.errors import NoSourceError, SourceError

_ENGINES: Final = ("docker", "podman", "containerd", "nerdctl")
_CLOCK_SOURCE: Final = "devices/system/clocksource/clocksource0/current_clocksource"


def read_host(
    places: Places,
    ask_clock: Callable[[], KernelClock] | None = None,
    find_program: Callable[[str], str | None] = shutil.which,
) -> HostFacts:
    """Beside a recorded tree this machine's devices, services and clock are not queried."""
    is_live = places.is_live
    kernel_log, kernel_log_error = _kernel_log(places) if is_live else (None, "")
    is_kept, clock_error = _clock(ask_clock or make_adjtimex()) if is_live else (None, "")
    engines = tuple(name for name in _ENGINES if find_program(name)) if is_live else ()
    return HostFacts(
        is_guest=is_guest(places.procfs, places.sysfs),
        container=find_container(places),
        has_own_pids=has_own_pids(places),
        hwmon=try_source(ThermalCollector(places.sysfs).collect),
        edac=try_source(EdacCollector(places.sysfs).collect),
        pressure=try_source(PressureCollector(places.procfs).collect),
        cgroups=_cgroups(places),
        ptrace_scope=_number(read_text(places.procfs / "sys/kernel/yama/ptrace_scope")),
        clock_source=read_text(places.sysfs / _CLOCK_SOURCE) or "",
        kernel_log=kernel_log,
        kernel_log_error=kernel_log_error,
        ipmi_device=any(places.at(f"dev/{name}").exists() for name in IPMI_DEVICES)
        if is_live
        else None,
        has_helper=places.at(str(SOCKET_PATH)).exists() if is_live else None,
        programs_missing=_programs_missing(places) if is_live else (),
        is_clock_kept=is_kept,
        clock_error=clock_error,
        gpus=count_gpus(places.sysfs),
        gpu_container_tool=bool(find_program("nvidia-ctk")) if engines else None,
        engines=engines,
    )


def _kernel_log(places: Places) -> tuple[KernelLogAccess, str]:
    try:
        KmsgDevice(places.at("dev/kmsg")).close()
    except NoSourceError as error:
        return KernelLogAccess.ABSENT, str(error)
    except SourceError as error:
        if isinstance(error.__cause__, PermissionError):
            return KernelLogAccess.FORBIDDEN, str(error)
        return KernelLogAccess.FAILS, f"{error}: {error.__cause__}"
    return KernelLogAccess.READABLE, ""


def _clock(ask: Callable[[], KernelClock]) -> tuple[bool | None, str]:
    try:
        return ask().is_synchronised, ""
    except OSError as error:
        return None, error.strerror or str(error)


def _cgroups(places: Places) -> CgroupMode:
    """Return which trees are mounted (cgroups(7)); names only, so a recorded tree will do."""
    root = places.sysfs / "fs" / "cgroup"
    if (root / "cgroup.controllers").exists():
        return CgroupMode.V2
    has_v1 = any((root / name).is_dir() for name in ("memory", "cpu", "cpu,cpuacct"))
    if (root / "unified" / "cgroup.controllers").exists():
        return CgroupMode.HYBRID if has_v1 else CgroupMode.V2
    return CgroupMode.V1 if has_v1 else CgroupMode.NONE


def _programs_missing(places: Places) -> tuple[str, ...]:
    paths = Paths()
    wanted = {"ipmitool": paths.ipmitool, "smartctl": paths.smartctl, "nvme": paths.nvme}
    packages = {"ipmitool": "ipmitool", "smartctl": "smartmontools", "nvme": "nvme-cli"}
    return tuple(
        packages[name]
        for name, found in wanted.items()
        if not any(places.at(path).exists() for path in found)
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
