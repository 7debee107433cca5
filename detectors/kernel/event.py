"""Kernel log events: their kinds, their fields and the form of the rules that find them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

CODE_MAX: Final = 99_999  # SXIDs have five digits, XIDs three
NAME_CHARS_MAX: Final = 64

PCI: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_PCI_PARTS: Final = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{2})(?:\.([0-7]))?"
)

# A prefix of some messages on some kernels; rules give only the part after it.
_PREFIX: Final = (
    r"(?:\{\d{1,9}\}|(?:mce|rcu|thermal|watchdog|NMI watchdog|blk_update_request|print_req_error"
    r"|end_request|WARNING|sd [\d:]{1,32}): )?"
)


class EventKind(Enum):
    """What happened. The values are the codes of table `log` in data/kernel_log.csv."""

    XID = "xid"
    SXID = "sxid"
    GPU_LOST = "gpu_lost"
    GSP = "gsp"
    GSP_HEARTBEAT = "gsp_heartbeat"
    NVLINK_DISCOVERY = "nvlink_discovery"
    FABRIC_DOWN = "fabric_down"
    FABRIC_MULTICAST = "fabric_multicast"
    GPU_INIT = "gpu_init"
    GPU_UNCLAIMED = "gpu_unclaimed"
    GPU_FIRMWARE = "gpu_firmware"
    DRIVER_MISMATCH = "driver_mismatch"
    GPU_HUNG = "gpu_hung"
    GPU_PAGE_FAULT = "gpu_page_fault"
    GPU_RESET = "gpu_reset"
    GPU_RESET_FAILED = "gpu_reset_failed"
    GPU_NEEDS_RESET = "gpu_needs_reset"
    UVM_FAILED = "uvm_failed"
    GPU_MEMORY_CORRECTED = "gpu_memory_corrected"
    GPU_MEMORY_DEFERRED = "gpu_memory_deferred"
    GPU_MEMORY_UNCORRECTED = "gpu_memory_uncorrected"
    GPU_WORN_OUT = "gpu_worn_out"
    GPU_OVERHEATED = "gpu_overheated"
    PEERMEM = "peermem"
    MODULE_REFUSED = "module_refused"
    PCIE_CORRECTED = "pcie_corrected"
    PCIE_UNCORRECTED = "pcie_uncorrected"
    PCIE_FATAL = "pcie_fatal"
    PCIE_LINK_DOWN = "pcie_link_down"
    SLOT_LINK_DOWN = "slot_link_down"
    SLOT_LINK_UP = "slot_link_up"
    PCIE_LIMITED = "pcie_limited"
    DEVICE_RECOVERED = "device_recovered"
    IOMMU_FAULT = "iommu_fault"
    MEMORY_CORRECTED = "memory_corrected"
    MEMORY_UNCORRECTED = "memory_uncorrected"
    MACHINE_CHECK = "machine_check"
    MACHINE_CHECK_CORRECTED = "machine_check_corrected"
    MACHINE_CHECK_OLD = "machine_check_old"
    BAD_PAGE = "bad_page"
    CLOCK_UNSTABLE = "clock_unstable"
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    NIC_HUNG = "nic_hung"
    NIC_RESET = "nic_reset"
    NIC_INIT = "nic_init"
    NIC_FAULT = "nic_fault"
    NIC_WARNING = "nic_warning"
    NIC_COMMAND = "nic_command"
    TRANSCEIVER = "transceiver"
    TRANSCEIVER_HOT = "transceiver_hot"
    OOM_KILL = "oom_kill"
    SOFT_LOCKUP = "soft_lockup"
    HARD_LOCKUP = "hard_lockup"
    HUNG_TASK = "hung_task"
    RCU_STALL = "rcu_stall"
    FS_ERROR = "fs_error"
    FS_READ_ONLY = "fs_read_only"
    FS_REMOTE = "fs_remote"
    FS_MONITOR = "fs_monitor"
    FS_VOLUME = "fs_volume"
    FS_UNCHECKED = "fs_unchecked"
    PATH_LOST = "path_lost"
    NO_PATH = "no_path"
    NVME_TIMEOUT = "nvme_timeout"
    NVME_RESET = "nvme_reset"
    NVME_DOWN = "nvme_down"
    IO_ERROR = "io_error"
    MEDIUM_ERROR = "medium_error"
    RAID_DEGRADED = "raid_degraded"
    STORAGE_FAULT = "storage_fault"
    DESCRIPTORS_LOW = "descriptors_low"
    LIMIT_REACHED = "limit_reached"
    SEGFAULT = "segfault"
    OOPS = "oops"
    PANIC = "panic"
    THROTTLED = "throttled"
    OVERHEATED = "overheated"


class ManyEvents(Enum):
    """What many events of a kind mean and one doesn't; the values are codes of table `log`, too."""

    PCIE_CORRECTED = "pcie_corrected_many"
    MEMORY_CORRECTED = "memory_corrected_many"
    MACHINE_CHECK_CORRECTED = "machine_check_corrected_many"
    NIC_FAILING = "nic_failing"
    SOFT_LOCKUP = "soft_lockup_lasting"
    FS_MONITOR = "fs_monitor_many"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One fault or change that the kernel reported."""

    kind: EventKind
    text: str
    code: int | None = None  # XID or SXID; for EDAC, the number of errors in the message
    sub_code: str = ""  # what sets events of one code apart; see docs/reference/kernel-log.md
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
        """Return the time as the log shows it; empty if the log has none."""
        return self.stamp or ("" if self.at_s is None else f"{self.at_s:.6f}")


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
    """One form of message. The pattern's groups are the event's fields, by name."""

    literal: str
    pattern: str
    kind: EventKind
    source: str
    sub_code: str = ""
    is_announcement: bool = False  # counts only if no detail of the same kind follows
    refine: Callable[[KernelEvent, re.Match[str]], KernelEvent | None] | None = None
    needles: tuple[str, ...] = ()  # each text has one of them; where the literal is in most logs

    @property
    def sought(self) -> tuple[str, ...]:
        """Return what a text must contain for the rule to mean it."""
        return self.needles or (self.literal,)

    def match(self, text: str, *, is_whole: bool) -> re.Match[str] | None:
        """Return where the text has this form.

        ``is_whole``: the text is the message from its first letter on. Then the form must begin there:
        programs choose names of files, control groups and processes, and the kernel prints them.
        """
        pattern = _compile(self.pattern)
        return pattern.match(text) if is_whole else pattern.search(text)


@lru_cache(maxsize=512)  # there are some 180 rules
def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when a text first needs it: all of them would take 150 ms at the start."""
    return re.compile(pattern)


def rule(
    literal: str,
    pattern: str,
    kind: EventKind,
    source: str,
    *,
    sub_code: str = "",
    is_announcement: bool = False,
    refine: Callable[[KernelEvent, re.Match[str]], KernelEvent | None] | None = None,
    needles: tuple[str, ...] = (),
) -> Rule:
    whole = f"{_PREFIX}(?:{pattern})"
    return Rule(literal, whole, kind, source, sub_code, is_announcement, refine, needles)
