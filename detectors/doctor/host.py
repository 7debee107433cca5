"""What the agent and the launcher need of kernel and machine: sensors, kernel log, control groups, clock, limits. Pure.

Sources: each collector's own docstring; Linux Documentation/admin-guide/LSM/Yama.rst (ptrace_scope),
admin-guide/sysctl/kernel.rst (dmesg_restrict), timekeeping of x86 (the kernel leaves an unstable TSC for hpet).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.doctor.check import (
    HostCheck,
    HostPart,
    HostVerdict,
    SourceFact,
    SourceState,
    broken,
    lacking,
    not_applicable,
    ok,
    unknown,
)
from detectors.doctor.kubernetes import kernel_log_patch

IN_KUBERNETES: Final = "Kubernetes"  # kind of a container
PTRACE_ADMIN: Final = 2  # only with CAP_SYS_PTRACE
GOOD_CLOCKS: Final = frozenset(
    {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}
)


class CgroupMode(Enum):
    NONE = "none"
    V1 = "v1"
    HYBRID = "hybrid"
    V2 = "v2"


class KernelLogAccess(Enum):
    READABLE = "readable"
    ABSENT = "absent"
    FORBIDDEN = "forbidden"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class HostFacts:
    is_guest: bool  # a virtual machine: the hypervisor keeps most sensors to itself
    container: str  # its kind; empty: none
    has_own_pids: bool  # a PID namespace other than the host's
    hwmon: SourceFact
    edac: SourceFact
    pressure: SourceFact
    cgroups: CgroupMode
    ptrace_scope: int | None
    clock_source: str
    kernel_log: KernelLogAccess | None = None  # None, here and below: belongs to another host
    kernel_log_error: str = ""
    ipmi_device: bool | None = None
    has_helper: bool | None = None  # its socket
    programs_missing: Sequence[str] = ()  # that the root helper would run
    is_clock_kept: bool | None = None
    clock_error: str = ""
    gpus: int = 0
    gpu_container_tool: bool | None = None  # None: no container engine here, or not looked for
    engines: Sequence[str] = ()


def _kernel_log(facts: HostFacts) -> HostVerdict:
    match facts.kernel_log:
        case None:
            return not_applicable("not read beside a recorded tree")
        case KernelLogAccess.READABLE:
            return ok("/dev/kmsg is readable")
        case KernelLogAccess.ABSENT | KernelLogAccess.FORBIDDEN if facts.container == IN_KUBERNETES:
            found = (
                "no /dev/kmsg"
                if facts.kernel_log is KernelLogAccess.ABSENT
                else "/dev/kmsg is closed"
            )
            return lacking(f"{found} in this pod", kernel_log_patch())
        case KernelLogAccess.ABSENT:
            return lacking(
                "no /dev/kmsg here",
                "run the agent on the host, or start its container with --device=/dev/kmsg",
            )
        case KernelLogAccess.FORBIDDEN:
            return lacking(
                "this user may not read /dev/kmsg (kernel.dmesg_restrict)",
                "systemctl enable --now rankmend-agent  # the unit has CAP_SYSLOG; or: sysctl -w kernel.dmesg_restrict=0",
                "root reads it",
            )
        case KernelLogAccess.FAILS:
            return broken(facts.kernel_log_error, "run the agent on the host")


def _hwmon(facts: HostFacts) -> HostVerdict:
    match facts.hwmon.state:
        case SourceState.MEASURED:
            return ok("sensors answer")
        case SourceState.BROKEN:
            return broken(facts.hwmon.text, "sensors-detect; dmesg | grep hwmon")
        case SourceState.ABSENT:
            if facts.is_guest or facts.container:
                return not_applicable("a virtual machine or container has no sensors of its own")
            return lacking(
                facts.hwmon.text, "modprobe coretemp  # AMD: k10temp; others: sensors-detect"
            )


def _edac(facts: HostFacts) -> HostVerdict:
    match facts.edac.state:
        case SourceState.MEASURED:
            return ok("memory controllers report errors")
        case SourceState.BROKEN:
            return broken(facts.edac.text, "dmesg | grep EDAC")
        case SourceState.ABSENT:
            if facts.is_guest or facts.container:
                return not_applicable("the host sees the memory's errors")
            return lacking(
                facts.edac.text,
                "modprobe amd64_edac  # Intel: skx_edac, i10nm_edac or the EDAC driver of the memory controller",
            )


def _ipmi(facts: HostFacts) -> HostVerdict:
    if facts.ipmi_device is None or facts.is_guest or facts.container:
        return not_applicable("no BMC can be queried from here")
    if facts.ipmi_device:
        return ok("/dev/ipmi0 is there")
    return lacking(
        "no /dev/ipmi0", "modprobe -a ipmi_si ipmi_devintf  # or set [redfish] in agent.toml"
    )


def _helper(facts: HostFacts) -> HostVerdict:
    if facts.has_helper is None or facts.container:
        return not_applicable("the root helper runs on the host")
    if facts.has_helper:
        return ok("its socket is there")
    return lacking("no root helper", "systemctl enable --now rankmend-agent-helper.socket")


def _programs(facts: HostFacts) -> HostVerdict:
    if facts.has_helper is None or facts.container:
        return not_applicable("the root helper runs on the host")
    if not facts.programs_missing:
        return ok("all there")
    names = " ".join(facts.programs_missing)
    return lacking(f"not installed: {names}", f"apt install {names}  # or: dnf install {names}")


def _cgroups(facts: HostFacts) -> HostVerdict:
    match facts.cgroups:
        case CgroupMode.V2:
            return ok("version 2")
        case CgroupMode.V1:
            return lacking("version 1", "boot with systemd.unified_cgroup_hierarchy=1")
        case CgroupMode.HYBRID:
            return lacking(
                "versions 1 and 2 are mixed", "boot with systemd.unified_cgroup_hierarchy=1"
            )
        case CgroupMode.NONE:
            return lacking(
                "none is mounted at /sys/fs/cgroup",
                "mount -t cgroup2 none /sys/fs/cgroup  # a container: --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:ro",
            )


def _pressure(facts: HostFacts) -> HostVerdict:
    match facts.pressure.state:
        case SourceState.MEASURED:
            return ok("/proc/pressure is there")
        case SourceState.BROKEN:
            return broken(facts.pressure.text, "boot with psi=1")
        case SourceState.ABSENT:
            return lacking(facts.pressure.text, "boot with psi=1 (the kernel needs CONFIG_PSI)")


def _ptrace(facts: HostFacts) -> HostVerdict:
    if facts.ptrace_scope is None:
        return ok("Yama is not there: a user may trace his own processes")
    if facts.ptrace_scope >= PTRACE_ADMIN:
        return lacking(
            f"kernel.yama.ptrace_scope is {facts.ptrace_scope}",
            "sysctl -w kernel.yama.ptrace_scope=1"
            if facts.ptrace_scope == PTRACE_ADMIN
            else "kernel.yama.ptrace_scope=1 in /etc/sysctl.d, then reboot: 3 can't be taken back",
        )
    return ok(f"kernel.yama.ptrace_scope is {facts.ptrace_scope}")


def _clock(facts: HostFacts) -> HostVerdict:
    if facts.is_clock_kept is None:
        if facts.clock_error:
            return unknown(f"the kernel does not say: {facts.clock_error}", "timedatectl")
        return not_applicable("not asked beside a recorded tree")
    if facts.is_clock_kept:
        return ok("a time service keeps the clock")
    if facts.container:
        return lacking(
            "no time service keeps the clock", "systemctl enable --now chronyd  # on the host"
        )
    return lacking("no time service keeps the clock", "systemctl enable --now chronyd")


def _clock_source(facts: HostFacts) -> HostVerdict:
    if not facts.clock_source:
        return not_applicable("the kernel names none")
    if facts.clock_source in GOOD_CLOCKS:
        return ok(facts.clock_source)
    return lacking(
        f"the kernel reads {facts.clock_source}, no counter of the CPU",
        "dmesg | grep -i tsc  # why the kernel gave up the TSC; update the firmware, or boot with tsc=reliable",
    )


def _container(facts: HostFacts) -> HostVerdict:
    if not facts.container:
        return not_applicable("this is not a container")
    if facts.has_own_pids:
        return lacking(
            f"{facts.container}, with a PID namespace of its own",
            "run the agent on the host; give a launcher in a container --pid=host, or mount /run/rankmend and /dev/shm",
        )
    return ok(f"{facts.container}, with the host's processes")


def _gpu_containers(facts: HostFacts) -> HostVerdict:
    if facts.gpu_container_tool is None or facts.gpus == 0 or not facts.engines:
        return not_applicable("no GPU or no container engine here")
    if facts.gpu_container_tool:
        return ok(f"for {', '.join(facts.engines)}")
    return lacking(
        f"{', '.join(facts.engines)} without the NVIDIA Container Toolkit",
        "apt install nvidia-container-toolkit && nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    )


HOST_CHECKS: Final[tuple[HostCheck[HostFacts], ...]] = (
    HostCheck(
        "kernel_log",
        HostPart.KERNEL,
        "kernel log",
        "XIDs, machine checks, lost links and OOM kills: the evidence that blames hardware",
        _kernel_log,
    ),
    HostCheck(
        "kernel_cgroups",
        HostPart.KERNEL,
        "control groups",
        "limits and OOM kills of ranks; on versions 1 and mixed only MemoryHigh= and IPAddressDeny= of the units",
        _cgroups,
    ),
    HostCheck(
        "kernel_pressure",
        HostPart.KERNEL,
        "pressure (PSI)",
        "waits for CPU, memory and disk",
        _pressure,
    ),
    HostCheck(
        "kernel_ptrace",
        HostPart.KERNEL,
        "tracing of own processes",
        "py-spy and gdb on a hung rank by its own user; shared memory by process_vm_readv (UCX, Open MPI)",
        _ptrace,
    ),
    HostCheck(
        "sensors_hwmon", HostPart.SENSORS, "temperatures", "heat as a cause of slow ranks", _hwmon
    ),
    HostCheck(
        "sensors_memory", HostPart.SENSORS, "memory errors (EDAC)", "which DIMM fails", _edac
    ),
    HostCheck(
        "sensors_ipmi", HostPart.SENSORS, "IPMI", "fans, power supplies and the BMC's events", _ipmi
    ),
    HostCheck(
        "sensors_helper",
        HostPart.SENSORS,
        "root helper",
        "IPMI, SMART, transceivers, ACS of PCIe bridges",
        _helper,
    ),
    HostCheck(
        "sensors_programs", HostPart.SENSORS, "helper's programs", "what they would read", _programs
    ),
    HostCheck(
        "clock_kept",
        HostPart.CLOCK,
        "time service",
        "TLS (certificates are not valid yet, or no more) and times of logs that can be compared",
        _clock,
    ),
    HostCheck(
        "clock_source",
        HostPart.CLOCK,
        "clock source",
        "time: each reading takes about 1 us",
        _clock_source,
    ),
    HostCheck(
        "container_pids",
        HostPart.CONTAINER,
        "processes of the host",
        "an agent in here sees no ranks of other containers, one on the host no PID as it is here",
        _container,
    ),
    HostCheck(
        "container_gpus",
        HostPart.CONTAINER,
        "GPUs in containers",
        "GPUs in every container that these engines start",
        _gpu_containers,
    ),
)
