"""Events of the kernel's log: their kinds, their fields, and the form of a rule that finds them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

CODE_MAX: Final = 99_999  # SXIDs have five digits, XIDs three
NAME_CHARS_MAX: Final = 64


class EventKind(Enum):
    """What happened. The values are the codes of table `log` in data/kernel_log.csv."""

    XID = "xid"
    SXID = "sxid"
    GPU_LOST = "gpu_lost"
    GSP = "gsp"
    GPU_INIT = "gpu_init"
    DRIVER_MISMATCH = "driver_mismatch"
    PEERMEM = "peermem"
    PCIE_CORRECTED = "pcie_corrected"
    PCIE_UNCORRECTED = "pcie_uncorrected"
    PCIE_FATAL = "pcie_fatal"
    PCIE_LINK_DOWN = "pcie_link_down"
    PCIE_LIMITED = "pcie_limited"
    MEMORY_CORRECTED = "memory_corrected"
    MEMORY_UNCORRECTED = "memory_uncorrected"
    MACHINE_CHECK = "machine_check"
    MACHINE_CHECK_CORRECTED = "machine_check_corrected"
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    NIC_FAULT = "nic_fault"
    NIC_WARNING = "nic_warning"
    NIC_COMMAND = "nic_command"
    TRANSCEIVER = "transceiver"
    OOM_KILL = "oom_kill"
    SOFT_LOCKUP = "soft_lockup"
    HARD_LOCKUP = "hard_lockup"
    HUNG_TASK = "hung_task"
    RCU_STALL = "rcu_stall"
    FS_ERROR = "fs_error"
    FS_READ_ONLY = "fs_read_only"
    FS_REMOTE = "fs_remote"
    NVME_TIMEOUT = "nvme_timeout"
    NVME_RESET = "nvme_reset"
    NVME_DOWN = "nvme_down"
    IO_ERROR = "io_error"
    LIMIT_REACHED = "limit_reached"
    SEGFAULT = "segfault"
    OOPS = "oops"
    PANIC = "panic"
    THROTTLED = "throttled"
    OVERHEATED = "overheated"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One fault or change that the kernel told of."""

    kind: EventKind
    text: str
    code: int | None = None  # XID or SXID; the errors one message counts (EDAC)
    sub_code: str = ""  # what tells two events of a code apart; see docs/kernel-log.md
    device: str = ""  # PCI address 0000:3b:00.0, network device, disk
    pid: int | None = None
    process: str = ""
    cgroup: str = ""
    registers: tuple[int, ...] = ()
    at_s: float | None = None  # on the log's own axis
    stamp: str = ""
    level: int | None = None
    facility: int | None = None
    seq: int | None = None

    @property
    def when(self) -> str:
        """The time as a person reads it in the log; empty where the log has none."""
        return self.stamp or ("" if self.at_s is None else f"{self.at_s:.6f}")


PCI: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_PCI_PARTS: Final = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{2})(?:\.([0-7]))?"
)


def pci_bus_id(text: str) -> str:
    """Return a PCI address as sysfs writes it: ``0000:3b:00.0``.

    NVRM leaves out the function, NVML writes the domain with 8 digits, old drivers left it out.
    """
    match = _PCI_PARTS.fullmatch(text.strip())
    if match is None:
        return text.strip()[:NAME_CHARS_MAX].lower()
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{device.lower()}.{function or '0'}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One form of message. Groups of the pattern are fields of the event, by their names."""

    literal: str
    pattern: re.Pattern[str]
    kind: EventKind
    source: str
    sub_code: str = ""
    is_announcement: bool = False  # counts only where no detail of the same kind follows
    refine: Callable[[KernelEvent, re.Match[str]], KernelEvent | None] | None = None


def rule(
    literal: str,
    pattern: str,
    kind: EventKind,
    source: str,
    *,
    sub_code: str = "",
    is_announcement: bool = False,
    refine: Callable[[KernelEvent, re.Match[str]], KernelEvent | None] | None = None,
) -> Rule:
    return Rule(literal, re.compile(pattern), kind, source, sub_code, is_announcement, refine)
