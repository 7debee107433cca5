"""What NVIDIA GPUs of a host need: driver, NVML, device files, services. Pure.

Sources: NVML API reference (nvmlReturn_t); NVIDIA driver README, "Using the NVIDIA Driver Persistence Daemon";
Fabric Manager user guide (systems with NVSwitch refuse CUDA until it runs); GPUDirect RDMA documentation
(nvidia-peermem, and DMA-BUF with the open kernel modules on Linux 5.12 and newer); NCCL user guide, "PCI Access Control
Services (ACS)".
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.doctor.check import (
    HostCheck,
    HostPart,
    HostVerdict,
    broken,
    hidden,
    lacking,
    not_applicable,
    ok,
    unknown,
)
from detectors.wording import counted

DMA_BUF_KERNEL: Final = (5, 12)


class NvmlAnswer(Enum):
    ANSWERS = "answers"
    NO_BINDINGS = "no_bindings"  # the Python package is missing
    NO_LIBRARY = "no_library"
    NO_DRIVER = "no_driver"
    MISMATCH = "mismatch"  # library and kernel module are of two releases
    NO_PERMISSION = "no_permission"
    ERROR = "error"


class UnitState(Enum):
    ACTIVE = "active"
    INACTIVE = "inactive"
    NOT_INSTALLED = "not_installed"
    UNTOLD = "untold"  # no systemd, or it does not answer


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """A port of a PCIe switch above a GPU or a network card."""

    bus_id: str
    has_redirect: bool | None  # ACS sends traffic between devices up to the root; None: unknown
    is_root_only: bool = False  # unknown because this process may not read it


@dataclass(frozen=True, slots=True)
class GpuFacts:
    cards: int  # NVIDIA GPUs on the PCI bus
    switches: int  # NVSwitches on the PCI bus
    driver: str | None = None  # release of the loaded kernel module
    is_driver_open: bool = False
    has_control_file: bool | None = None  # /dev/nvidiactl; None: not looked for
    nvml: NvmlAnswer | None = None  # None: not asked, beside a recorded tree
    nvml_error: str = ""
    count: int | None = None  # GPUs that NVML lists
    expected: int | None = None  # by the agent's configuration
    persistence_off: int = 0
    fabric_manager: UnitState = UnitState.UNTOLD
    has_rdma: bool = False
    has_peermem: bool = False
    kernel: tuple[int, int] | None = None
    switch_ports: tuple[SwitchPort, ...] = ()
    is_acs_by_agent: bool = False  # it told what this process may not read


def _driver(facts: GpuFacts) -> HostVerdict:
    if facts.driver is not None:
        return ok(f"driver {facts.driver}")
    if facts.cards == 0:
        if facts.expected:
            return broken(
                f"no NVIDIA GPU on the PCI bus, {facts.expected} configured",
                "reseat or replace the board, or correct [expect] gpus in agent.toml",
            )
        return not_applicable("no NVIDIA GPU on the PCI bus")
    return lacking(
        f"{counted(facts.cards, 'GPU')}, and the kernel module nvidia is not loaded",
        "modprobe nvidia  # or install the driver; dmesg says why it does not load",
    )


def _library(facts: GpuFacts) -> HostVerdict:
    if facts.driver is None or facts.nvml is None:
        return not_applicable("no driver to ask")
    if facts.nvml is NvmlAnswer.NO_BINDINGS:
        return lacking("the Python package nvidia-ml-py is missing", "pip install nvidia-ml-py")
    if facts.nvml is NvmlAnswer.NO_LIBRARY:
        return lacking(
            f"driver {facts.driver} without libnvidia-ml.so.1",
            "install the driver's libraries (libnvidia-compute, nvidia-utils); in a container start it with --gpus all",
        )
    return ok("libnvidia-ml.so.1 loads")


def _match(facts: GpuFacts) -> HostVerdict:
    if facts.driver is None or facts.nvml in (None, NvmlAnswer.NO_LIBRARY, NvmlAnswer.NO_BINDINGS):
        return not_applicable("no driver and library to compare")
    if facts.nvml is NvmlAnswer.MISMATCH:
        return broken(
            f"the loaded kernel module is {facts.driver}, the library is of another release",
            "reboot  # or end every GPU process, then: modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia",
        )
    if facts.nvml is NvmlAnswer.ERROR:
        return broken(f"NVML fails: {facts.nvml_error}", "nvidia-smi; dmesg | grep NVRM")
    if facts.nvml is NvmlAnswer.NO_DRIVER:
        return broken("NVML finds no driver, the kernel has one", "reload or reinstall the driver")
    return ok(f"kernel module and library {facts.driver}")


def _devices(facts: GpuFacts) -> HostVerdict:
    if facts.driver is None or facts.has_control_file is None:
        return not_applicable("no driver")
    if not facts.has_control_file:
        return lacking(
            "no /dev/nvidiactl here",
            "nvidia-modprobe -u -c 0  # a container: start it with --gpus all",
        )
    if facts.nvml is NvmlAnswer.NO_PERMISSION:
        return broken(
            "this user may not open the GPUs' device files",
            "ask for GPUs in the job (--gres=gpu:N), or check the mode of /dev/nvidia*",
            "root sees the GPUs that this user may not open",
        )
    return ok("/dev/nvidiactl is there")


def _count(facts: GpuFacts) -> HostVerdict:
    if facts.count is None:
        return not_applicable("NVML does not answer")
    wanted = max(facts.expected or 0, facts.cards)
    if facts.count < wanted:
        why = "configured" if facts.expected == wanted else "on the PCI bus"
        return broken(
            f"NVML lists {counted(facts.count, 'GPU')}, {wanted} {'is' if wanted == 1 else 'are'} {why}",
            "nvidia-smi -L; dmesg | grep -e Xid -e NVRM  # in a job or container fewer may be meant",
        )
    return ok(counted(facts.count, "GPU"))


def _persistence(facts: GpuFacts) -> HostVerdict:
    if facts.count is None or facts.count == 0:
        return not_applicable("no GPU answers")
    if facts.persistence_off:
        return lacking(
            f"persistence mode is off on {facts.persistence_off} of {counted(facts.count, 'GPU')}",
            "systemctl enable --now nvidia-persistenced  # or: nvidia-smi -pm 1",
        )
    return ok("on")


def _fabric_manager(facts: GpuFacts) -> HostVerdict:
    if facts.switches == 0:
        return not_applicable("no NVSwitch on the PCI bus")
    match facts.fabric_manager:
        case UnitState.ACTIVE:
            return ok("nvidia-fabricmanager runs")
        case UnitState.NOT_INSTALLED:
            release = facts.driver.partition(".")[0] if facts.driver else "RELEASE"
            return broken(
                f"{facts.switches} NVSwitches, and nvidia-fabricmanager is not installed",
                f"apt install nvidia-fabricmanager-{release} && systemctl enable --now nvidia-fabricmanager  # of the driver's own version",
            )
        case UnitState.INACTIVE:
            return broken(
                f"{facts.switches} NVSwitches, and nvidia-fabricmanager does not run",
                "systemctl enable --now nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
            )
        case UnitState.UNTOLD:
            return unknown("systemd does not say whether nvidia-fabricmanager runs")


def _peermem(facts: GpuFacts) -> HostVerdict:
    if facts.driver is None or not facts.has_rdma:
        return not_applicable("not both a GPU driver and RDMA devices")
    if facts.has_peermem:
        return ok("nvidia_peermem is loaded")
    if facts.is_driver_open and facts.kernel is not None and facts.kernel >= DMA_BUF_KERNEL:
        return ok("DMA-BUF: open kernel modules on Linux 5.12 or newer")
    return lacking("nvidia_peermem is not loaded", "modprobe nvidia_peermem")


def _acs(facts: GpuFacts) -> HostVerdict:
    ports = facts.switch_ports
    if not facts.cards or not ports:
        return not_applicable("no PCIe switch above a GPU or a network card")
    on = [port.bus_id for port in ports if port.has_redirect]
    if on:
        line = f"for port in {' '.join(on)}; do setpci -s $port ECAP_ACS+0x6.w=0000; done"
        why = "until the next boot; for good: in the BIOS. Leave it where virtual machines own GPUs"
        text = (
            f"ACS redirects traffic at {len(on)} of {counted(len(ports), 'port')} of PCIe switches"
        )
        return lacking(text, f"{line}  # {why}")
    silent = [port for port in ports if port.has_redirect is None]
    of = f"{counted(len(silent), 'port')} of PCIe switches"
    if silent and all(port.is_root_only for port in silent):
        return hidden(
            f"only root may read the ACS of {of}, and no agent here reports it",
            "sudo rankmend doctor gpu sees whether ACS redirects traffic there",
        )
    if silent:
        return unknown(f"the ACS of {of} can't be read")
    by = " (the agent's reading)" if facts.is_acs_by_agent else ""
    return ok(f"ACS redirects nothing at {counted(len(ports), 'port')} of PCIe switches{by}")


_P: Final = HostPart.GPU
GPU_CHECKS: Final[tuple[HostCheck[GpuFacts], ...]] = (
    HostCheck("gpu_driver", _P, "NVIDIA driver", "training on GPUs, and every GPU metric", _driver),
    HostCheck("gpu_library", _P, "NVML library", "every GPU metric and finding", _library),
    HostCheck(
        "gpu_match", _P, "driver and library match", "CUDA and NVML: new processes fail", _match
    ),
    HostCheck("gpu_devices", _P, "GPU device files", "GPUs in this container or job", _devices),
    HostCheck(
        "gpu_count", _P, "all GPUs answer", "a GPU: the job runs with fewer or fails", _count
    ),
    HostCheck(
        "gpu_persistence",
        _P,
        "persistence mode",
        "seconds at each start of a job and each reading, and counters that the driver forgets",
        _persistence,
    ),
    HostCheck(
        "gpu_fabric_manager",
        _P,
        "NVSwitch fabric",
        "CUDA on this host: cuInit fails with error 802 until the fabric is up",
        _fabric_manager,
    ),
    HostCheck(
        "gpu_direct_rdma", _P, "GPUDirect RDMA", "bandwidth: NCCL copies through the host", _peermem
    ),
    HostCheck(
        "gpu_acs",
        _P,
        "direct path through PCIe switches",
        "bandwidth of GPUDirect: traffic between devices below one switch goes up to the CPU and back",
        _acs,
    ),
)
