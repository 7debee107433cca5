"""What a kernel message tells of: one table of forms, each with where it comes from.

A rule names a literal that its lines contain, which is looked for first: a line that holds none
of them costs 2 us. Some faults are printed as several lines; each is told once: an announcement
("AER: Corrected error received: 0000:3b:00.0") counts only where no detail follows it, and of an
XID, SXID or OOM kill one line counts. Bounded: what is remembered between lines has a size.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from detectors.kernel_log import Record

CODE_MAX: Final = 99_999  # SXIDs have five digits, XIDs three
PAIR_S_MAX: Final = 2.0  # between an announcement and its detail: one interrupt, and printing it
_PENDING_MAX: Final = 64  # announcements that wait for their detail
_FOUND_MAX: Final = 256  # texts whose meaning is remembered
_NAME_CHARS_MAX: Final = 64


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


_PCI: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_PCI_PARTS: Final = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{2})(?:\.([0-7]))?"
)


def pci_bus_id(text: str) -> str:
    """Return a PCI address as sysfs writes it: ``0000:3b:00.0``.

    NVRM leaves out the function, NVML writes the domain with 8 digits, old drivers left it out.
    """
    match = _PCI_PARTS.fullmatch(text.strip())
    if match is None:
        return text.strip()[:_NAME_CHARS_MAX].lower()
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


def _rule(
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


_NVLINK5: Final = range(144, 151)
_NVLINK5_DETAIL: Final = re.compile(
    r"([A-Z][A-Z0-9_]{1,40}) +(Nonfatal|Fatal) +XC\d+ +i\d+ +Link +(-?\d{1,4}) "
    r"*\(((?:0x[0-9a-fA-F]{1,8}[ ,]*){1,12})\)"
)
_NVLINK_DETAIL: Final = re.compile(
    r"link (\d{1,3}) ?\(((?:0x[0-9a-fA-F]{1,8}[ ,]*){1,12})\)", re.IGNORECASE
)
# NVIDIA XID catalog, WORKFLOW_NVLINK_ERR: bits 0, 23 and 30 of the first register
_NVLINK_IGNORABLE: Final = 1 << 0 | 1 << 23 | 1 << 30
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,8}")
_SM: Final = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})")
_CAUSED_BY: Final = re.compile(r"caused by previous Xid (\d{1,5})")
_PID: Final = re.compile(r"pid='?(\d{1,10}|<unknown>)'?, ?(?:name=([^,]{1,64}), ?)?")
_VERDICT: Final = re.compile(
    r"GPU recovery action changed from (0x[0-9a-fA-F]{1,8}) \([^)]{0,64}\) "
    r"to (0x[0-9a-fA-F]{1,8}) \(([^)]{0,64})\)",
    re.IGNORECASE,
)


def _refine_xid(event: KernelEvent, match: re.Match[str]) -> KernelEvent:
    """Return an XID's event with what its details say: process, link, sub-code, verdict."""
    detail = match["detail"] or ""
    if found := _PID.match(detail):
        pid = int(found[1]) if found[1].isdigit() else None
        process = "" if (found[2] or "").startswith("<") else (found[2] or "")
        event = replace(event, pid=pid, process=process)
        detail = detail[found.end() :]
    if event.code in _NVLINK5 and (found := _NVLINK5_DETAIL.match(detail)):
        registers = tuple(int(word, 16) for word in _HEX.findall(found[4]))
        # NVIDIA XID catalog: bits 20 to 25 of the first word (intrinfo) are the sub-code
        number = (registers[0] >> 20) & 0x3F
        sub_code = f"{number} {found[1]} {found[2]} link {found[3]}"
        return replace(event, sub_code=sub_code, registers=registers)
    if event.code == 74 and (found := _NVLINK_DETAIL.search(detail)):
        registers = tuple(int(word, 16) for word in _HEX.findall(found[2]))
        harmless = " ignorable" if _is_ignorable(registers) else ""
        return replace(event, sub_code=f"link {found[1]}{harmless}", registers=registers)
    if event.code == 13 and (found := _SM.search(detail)):
        return replace(event, sub_code=f"GPC {found[1]} TPC {found[2]}")
    if event.code == 45 and (found := _CAUSED_BY.search(detail)):
        return replace(event, sub_code=f"caused by {found[1]}")
    if event.code == 154 and (found := _VERDICT.search(detail)):
        return replace(event, sub_code=f"{int(found[2], 16)} {found[3]}")
    return event


def _is_ignorable(registers: tuple[int, ...]) -> bool:
    """Whether an XID 74 has no bits but those that NVIDIA says can be ignored."""
    return bool(registers[0]) and not registers[0] & ~_NVLINK_IGNORABLE and not any(registers[1:])


_SXID_MORE: Final = re.compile(r"(?:Severity \d|Engine instance|Data \{)")
_SXID_DETAIL: Final = re.compile(
    r"(Non-fatal|Nonfatal|Fatal)?,? ?(?:Link (\d{1,3}))?", re.IGNORECASE
)


def _refine_sxid(event: KernelEvent, match: re.Match[str]) -> KernelEvent | None:
    """Return an SXID's event, or None for the lines that follow it with the same code."""
    detail = match["detail"] or ""
    if _SXID_MORE.match(detail):
        return None
    found = _SXID_DETAIL.match(detail)
    if found is None:
        return event
    how = "" if found[1] is None else ("fatal" if found[1].lower() == "fatal" else "nonfatal")
    link = f"link {found[2]}" if found[2] else ""
    return replace(event, sub_code=f"{how} {link}".strip())


_BY_SEVERITY: Final = {
    "corrected": EventKind.MACHINE_CHECK_CORRECTED,
    "info": None,  # not an error
    "recoverable": EventKind.MACHINE_CHECK,
    "fatal": EventKind.MACHINE_CHECK,
}


def _refine_apei(event: KernelEvent, match: re.Match[str]) -> KernelEvent | None:
    severity = match["sub_code"]
    kind = _BY_SEVERITY.get(severity, EventKind.MACHINE_CHECK)
    return replace(event, kind=kind) if kind else None


_MCE_UNCORRECTED: Final = 1 << 61  # MCI_STATUS_UC, arch/x86/include/asm/mce.h


def _refine_mce(event: KernelEvent, match: re.Match[str]) -> KernelEvent:
    """Return a machine check's event: what a poll has found corrected is printed alike."""
    status = match["status"]
    if status is None or int(status, 16) & _MCE_UNCORRECTED:
        return event
    return replace(event, kind=EventKind.MACHINE_CHECK_CORRECTED)


_K = EventKind
_LINK: Final = (  # driver and PCI address, the device's name, or both
    r"(?:[\w-]{2,32} (?P<pci>" + _PCI + r")(?:: | ))?"
    r"(?:(?P<netdev>(?!NIC\b)[A-Za-z][\w.@-]{0,31}):? )?(?:NIC )?Link (?:is )?"
)

# The first rule whose pattern matches decides. Only lines of which the kernel's or driver's source
# has the form: "link becomes ready" is printed for every container's veth and tells of no NIC.
RULES: Final = (
    # --- NVIDIA driver
    _rule(
        "NVRM: Xid",
        r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{4,20})[^)]{0,40}\): (?P<code>\d{1,9})"
        r"(?:[,:] ?(?P<detail>.*))?",
        _K.XID,
        "NVIDIA XID errors; without 'PCI:' and pid before R450; 'GPU-I:' on a MIG instance",
        refine=_refine_xid,
    ),
    _rule(
        "SXid",
        r"nvidia-nvswitch\d{1,3}: SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{4,20})\): "
        r"(?P<code>\d{1,9})(?:, ?(?P<detail>.*))?",
        _K.SXID,
        "NVIDIA Fabric Manager user guide, NVSwitch errors",
        refine=_refine_sxid,
    ),
    _rule(
        "fallen off the bus",
        r"NVRM: .{0,40}?GPU (?:at )?(?:PCI:)?(?P<pci>"
        + _PCI
        + r")[\s\S]{0,160}?fallen off the bus",
        _K.GPU_LOST,
        "open-gpu-kernel-modules: os-pci.c, osinit.c; nv.c prints it as four lines of one message",
    ),
    _rule("fallen off the bus", r"NVRM: .{0,200}fallen off the bus", _K.GPU_LOST, "the same"),
    _rule(
        "RmInitAdapter",
        r"NVRM: (?:GPU (?P<pci>" + _PCI + r"): )?RmInitAdapter failed",
        _K.GPU_INIT,
        "open-gpu-kernel-modules: nv.c",
    ),
    _rule(
        "GSP",
        r"NVRM: .{0,120}?(?:Rate limiting GSP RPC error prints|Cannot initialize GSP"
        r"|GSP.{0,40}(?:heartbeat timed? ?out|lockdown.{0,20}timed? ?out))"
        r"(?:.{0,40}?PCI:(?P<pci>" + _PCI + r"))?",
        _K.GSP,
        "open-gpu-kernel-modules: kernel_gsp.c; the dmesg sample of an XID 119",
    ),
    _rule(
        "rpcRecvPoll timedout",
        r"NVRM: .{0,80}rpcRecvPoll timedout for fn",
        _K.GSP,
        "open-gpu-kernel-modules: rpc.c",
    ),
    _rule(
        "NVRM: API mismatch",
        r"NVRM: API mismatch",
        _K.DRIVER_MISMATCH,
        "open-gpu-kernel-modules: nv-reg.h; module and libraries of two versions",
    ),
    _rule(
        "nvidia-peermem",
        r"nvidia-peermem .{0,80}?(?P<sub_code>ERROR detected invalid context)",
        _K.PEERMEM,
        "open-gpu-kernel-modules: nvidia-peermem.c; a program ended with memory still registered",
    ),
    # --- PCIe
    _rule(
        "PCIe Bus Error",
        r"[\w-]{1,32} (?P<pci>" + _PCI + r"): (?:AER: )?PCIe Bus Error: "
        r"severity=Correct(?:ed|able), type=(?P<sub_code>[\w ]{1,32})",
        _K.PCIE_CORRECTED,
        "drivers/pci/pcie/aer.c, aer_print_error",
    ),
    _rule(
        "PCIe Bus Error",
        r"[\w-]{1,32} (?P<pci>" + _PCI + r"): (?:AER: )?PCIe Bus Error: "
        r"severity=Uncorrect(?:ed|able) \(Non-Fatal\), type=(?P<sub_code>[\w ]{1,32})",
        _K.PCIE_UNCORRECTED,
        "the same",
    ),
    _rule(
        "PCIe Bus Error",
        r"[\w-]{1,32} (?P<pci>" + _PCI + r"): (?:AER: )?PCIe Bus Error: "
        r"severity=Uncorrect(?:ed|able) \(Fatal\), type=(?P<sub_code>[\w ]{1,32})",
        _K.PCIE_FATAL,
        "the same",
    ),
    *(
        _rule(
            "AER: ",
            r"[\w-]{1,32} (?P<port>" + _PCI + r"): AER: (?:Multiple )?" + severity + " error "
            r"(?:message )?received(?::| from) (?P<pci>" + _PCI + "|id=[0-9a-fA-F]{4})",
            kind,
            "drivers/pci/pcie/aer.c, aer_print_port_info",
            is_announcement=True,
        )
        for severity, kind in (
            (r"Correct(?:ed|able)", _K.PCIE_CORRECTED),
            (r"Uncorrect(?:ed|able) \(Non-Fatal\)", _K.PCIE_UNCORRECTED),
            (r"Uncorrect(?:ed|able) \(Fatal\)", _K.PCIE_FATAL),
        )
    ),
    _rule(
        "DPC: containment event",
        r"pcieport (?P<pci>" + _PCI + r"): DPC: containment event",
        _K.PCIE_FATAL,
        "drivers/pci/pcie/dpc.c: the port has cut its device off",
        sub_code="containment",
    ),
    _rule(
        "pciehp",
        r"(?:pcieport|pciehp) (?P<pci>" + _PCI + r")(?::pcie\w{1,8})?: (?:pciehp: )?"
        r"Slot\([^)]{1,32}\): (?:Link Down|Card not present)",
        _K.PCIE_LINK_DOWN,
        "drivers/pci/hotplug/pciehp_ctrl.c; before 4.19 as device 0000:00:1c.0:pcie004",
    ),
    _rule(
        "available PCIe bandwidth, limited by",
        r"[\w-]{1,32} (?P<pci>" + _PCI + r"): [\d.]+ Gb/s available PCIe bandwidth, limited by "
        r"(?P<sub_code>[\d.]+ GT/s PCIe x\d+ link)",
        _K.PCIE_LIMITED,
        "drivers/pci/pci.c, __pcie_print_link_status",
    ),
    # --- memory and CPU hardware
    _rule(
        "EDAC",
        r"EDAC (?P<device>MC\d{1,4}): (?P<code>\d{1,9}) CE .{0,200}?on (?P<sub_code>[^\s(]{1,64})",
        _K.MEMORY_CORRECTED,
        "drivers/edac/edac_mc.c, edac_ce_error",
    ),
    _rule(
        "EDAC",
        r"EDAC (?P<device>MC\d{1,4}): (?P<code>\d{1,9}) UE .{0,200}?on (?P<sub_code>[^\s(]{1,64})",
        _K.MEMORY_UNCORRECTED,
        "drivers/edac/edac_mc.c, edac_ue_error",
    ),
    _rule(
        "Memory failure: 0x",
        r"Memory failure: 0x[0-9a-f]{1,16}: .{0,80}?"
        r"(?:(?:Sending SIGBUS to|Killing) (?P<process>.{1,64}?):(?P<pid>\d{1,10})|recovery action)",
        _K.MEMORY_UNCORRECTED,
        "mm/memory-failure.c",
    ),
    _rule(
        "due to hardware memory corruption",
        r"MCE:? (?:0x[0-9a-f]{1,16}: )?Killing (?P<process>.{1,64}?):(?P<pid>\d{1,10}) due to hardware",
        _K.MEMORY_UNCORRECTED,
        "arch/x86/mm/fault.c, do_sigbus; mm/memory-failure.c before 4.9",
    ),
    _rule(
        "[Hardware Error]: event severity",
        r"\[Hardware Error\]: event severity: (?P<sub_code>\w{1,20})",
        _K.MACHINE_CHECK,
        "drivers/firmware/efi/cper.c (APEI); without '{1}' of the boot before (apei/bert.c)",
        refine=_refine_apei,
    ),
    _rule(
        "Machine Check",
        r"\[Hardware Error\]: CPU (?P<cpu>\d{1,5}): Machine Check(?: Exception)?: "
        r"[0-9a-f]{1,16} Bank (?P<sub_code>\d{1,3})(?:: (?P<status>[0-9a-f]{1,16})\b)?",
        _K.MACHINE_CHECK,
        "arch/x86/kernel/cpu/mce/core.c, print_mce",
        refine=_refine_mce,
    ),
    _rule(
        "Machine check events logged",
        r"mce: \[Hardware Error\]: Machine check events logged",
        _K.MACHINE_CHECK_CORRECTED,
        "arch/x86/kernel/cpu/mce/core.c: a polled one, whose details went to a daemon",
        sub_code="logged",
    ),
    _rule(
        "[Hardware Error]: Corrected error",
        r"\[Hardware Error\]: Corrected error, no action required",
        _K.MACHINE_CHECK_CORRECTED,
        "drivers/edac/mce_amd.c",
    ),
    _rule(
        "[Hardware Error]: ",
        r"\[Hardware Error\]: (?P<sub_code>Uncorrected, software (?:restartable|containable) error"
        r"|Deferred error|System Fatal error)",
        _K.MACHINE_CHECK,
        "drivers/edac/mce_amd.c",
    ),
    _rule(
        "above threshold, cpu clock",
        r"CPU\d{1,5}: (?P<sub_code>Core|Package) temperature (?:is )?above threshold",
        _K.THROTTLED,
        "drivers/thermal/intel/therm_throt.c; 'is' since 5.5, with 'mce: ' before",
    ),
    _rule(
        "critical temperature reached",
        r"(?P<device>thermal_zone\d{1,4}|[\w.-]{1,32}): .{0,40}critical temperature reached",
        _K.OVERHEATED,
        "drivers/thermal/thermal_core.c",
    ),
    # --- network
    _rule(
        "Port module event",
        r"mlx5_core (?P<pci>"
        + _PCI
        + r"): .{0,40}?Port module event(?:\[error\])?: module \d{1,3}, "
        r"(?P<sub_code>Cable unplugged|Cable error[^\n]{0,64}|[Hh]igh [Tt]emperature[^\n]{0,32})",
        _K.TRANSCEIVER,
        "drivers/net/ethernet/mellanox/mlx5/core/events.c",
    ),
    _rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + _PCI + r"): .{0,80}?(?P<sub_code>[Dd]etected insufficient power"
        r"|[Hh]igh temperature)",
        _K.NIC_WARNING,
        "drivers/net/ethernet/mellanox/mlx5/core/events.c: mlx5_pcie_event, temp_warn",
    ),
    _rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + _PCI + r"): .{0,80}?(?P<sub_code>Fatal error \d{1,3} detected"
        r"|device's health compromised|firmware fatal error|health recovery (?:flow aborted|failed)"
        r"|Health issue observed, [\w ,-]{1,48}(?=, severity\([0-3]\))"
        r"|synd 0x[1-9a-f]\w{0,2}: [\w ]{1,40})",
        _K.NIC_FAULT,
        "drivers/net/ethernet/mellanox/mlx5/core/health.c; severity 4 and above is no error",
    ),
    _rule(
        "mlx5_core",
        r"mlx5_core (?P<pci>" + _PCI + r"): (?:mlx5_cmd_out_err|mlx5_cmd_check|wait_func):\d+:"
        r"\(pid (?P<pid>\d{1,10})\): (?:cmd\[\d+\]: )?(?P<sub_code>[A-Z0-9_]{1,40})",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/mellanox/mlx5/core/cmd.c; a flood of ACCESS_REG: reading a limited PF",
    ),
    _rule(
        "mlx4_core",
        r"mlx4_core (?P<pci>" + _PCI + r"): (?P<sub_code>Internal error detected"
        r"|device is going to be reset)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/mellanox/mlx4/catas.c",
    ),
    _rule(
        "mlx4_core",
        r"mlx4_core (?P<pci>"
        + _PCI
        + r"): command (?P<sub_code>0x[0-9a-f]{1,4}) (?:timed out|failed)",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/mellanox/mlx4/cmd.c",
    ),
    _rule(
        "bnxt_en",
        r"bnxt_en (?P<pci>" + _PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r"(?P<sub_code>TX timeout detected|(?:Fatal|Non-fatal) firmware reset event"
        r"|Detected firmware fatal condition|Firmware reset aborted)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/broadcom/bnxt/bnxt.c",
    ),
    _rule(
        "bnxt_en",
        r"bnxt_en (?P<pci>" + _PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r"(?:Error|Resp cmpl intr err|hwrm) .{0,40}?(?:msg:? \{?|req_type )"
        r"(?P<sub_code>0x[0-9a-f]{1,4})",
        _K.NIC_COMMAND,
        "drivers/net/ethernet/broadcom/bnxt/bnxt_hwrm.c",
    ),
    _rule(
        "lost tx completions",
        r"ena (?P<pci>" + _PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r".{0,20}?(?P<sub_code>lost tx completions)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c: the card is reset",
    ),
    _rule(
        "eep alive watchdog timeout",
        r"ena (?P<pci>" + _PCI + r")(?: (?P<netdev>[A-Za-z][\w.@-]{0,31}))?: "
        r"(?P<sub_code>[Kk]eep alive watchdog timeout)",
        _K.NIC_FAULT,
        "drivers/net/ethernet/amazon/ena/ena_netdev.c: the card is reset",
    ),
    _rule(
        "logical state changed to PORT_",
        r"hfi1 (?P<pci>"
        + _PCI
        + r"): (?P<netdev>hfi1_\d{1,3}): logical state changed to PORT_DOWN",
        _K.LINK_DOWN,
        "drivers/infiniband/hw/hfi1/chip.c",
    ),
    _rule(
        "logical state changed to PORT_",
        r"hfi1 (?P<pci>"
        + _PCI
        + r"): (?P<netdev>hfi1_\d{1,3}): logical state changed to PORT_ACTIVE",
        _K.LINK_UP,
        "the same",
    ),
    *(
        _rule(
            f"link {way}",
            r"[\w-]{2,32} " + _PCI + r":? (?P<netdev>[A-Za-z][\w.@-]{0,31}): link " + way + r"\b",
            kind,
            "drivers of cxgb4, sfc, 8139too, e100: netdev_info in small letters",
        )
        for way, kind in (("down", _K.LINK_DOWN), ("up", _K.LINK_UP))
    ),
    _rule(
        "]Link is ",
        r"qed\w? [^\n]{0,40}\[\w{1,40}:\d{1,6}\((?P<netdev>[\w.@-]{1,32})\)\]Link is down",
        _K.LINK_DOWN,
        "drivers/net/ethernet/qlogic/qede/qede_main.c",
    ),
    _rule(
        "]Link is ",
        r"qed\w? [^\n]{0,40}\[\w{1,40}:\d{1,6}\((?P<netdev>[\w.@-]{1,32})\)\]Link is up",
        _K.LINK_UP,
        "the same",
    ),
    _rule(
        "ink",
        _LINK + r"(?:DOWN|[Dd]own)\b",
        _K.LINK_DOWN,
        "drivers of mlx5, bnxt, ixgbe, i40e, ice, igb, e1000e, tg3; drivers/net/phy",
    ),
    _rule(
        "ink",
        _LINK + r"(?:UP|[Uu]p)\b",
        _K.LINK_UP,
        "the same",
    ),
    _rule(
        "link status definitely",
        r"bond\S{0,24}: (?:\(slave (?P<netdev>[\w.-]{1,32})\): )?link status definitely down"
        r"(?: for interface (?P<device>[\w.-]{1,32}))?",
        _K.LINK_DOWN,
        "drivers/net/bonding/bond_main.c",
        sub_code="bond",
    ),
    _rule(
        "NETDEV WATCHDOG",
        r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<netdev>[\w.-]{1,32}) ?\([^)]{1,32}\): "
        r"transmit queue \d+ timed out",
        _K.NIC_FAULT,
        "net/sched/sch_generic.c",
        sub_code="transmit timed out",
    ),
    # --- memory used up
    _rule(
        "Killed process",
        r"(?:Memory cgroup o|O)ut of memory(?: \([^)]{0,40}\))?: Killed process "
        r"(?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<process>.{1,64}?)\)",
        _K.OOM_KILL,
        "mm/oom_kill.c since 4.19",
    ),
    _rule(
        "Killed process",
        r"Killed process (?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<process>.{1,64}?)\)",
        _K.OOM_KILL,
        "mm/oom_kill.c before 4.19",
    ),
    # --- a CPU or a task that does not go on
    _rule(
        "soft lockup",
        r"BUG: soft lockup - CPU#\d{1,5} stuck for \d+s! \[(?P<process>.{1,64}?):(?P<pid>\d{1,10})\]",
        _K.SOFT_LOCKUP,
        "kernel/watchdog.c",
    ),
    _rule(
        "workqueue lockup",
        r"BUG: workqueue lockup - pool",
        _K.SOFT_LOCKUP,
        "kernel/workqueue.c",
        sub_code="workqueue",
    ),
    _rule(
        "hard LOCKUP",
        r"Watchdog detected hard LOCKUP on cpu ?\d{1,5}",
        _K.HARD_LOCKUP,
        "kernel/watchdog_perf.c, watchdog_buddy.c",
    ),
    _rule(
        "blocked for more than",
        r"INFO: task (?P<process>.{1,64}?):(?P<pid>\d{1,10}) (?:<[^>]{1,32}> )?blocked for more than \d+",
        _K.HUNG_TASK,
        "kernel/hung_task.c",
    ),
    _rule(
        "blocked in I/O wait",
        r"INFO: task (?P<process>.{1,64}?):(?P<pid>\d{1,10}) blocked in I/O wait for more than",
        _K.HUNG_TASK,
        "kernel/hung_task.c since 6.19",
    ),
    _rule(
        "INFO: rcu",
        r"INFO: (?P<sub_code>rcu\w{1,32}) (?:self-)?detected (?:expedited )?stalls? on CPU",
        _K.RCU_STALL,
        "kernel/rcu/tree_stall.h, tree_exp.h",
    ),
    # --- disks and file systems
    _rule(
        "emounting filesystem read-only",
        r"EXT\d-fs \((?P<disk>[\w.-]{1,64})\): Remounting filesystem read-only",
        _K.FS_READ_ONLY,
        "fs/ext4/super.c",
    ),
    _rule(
        "forced readonly",
        r"BTRFS info \(device (?P<disk>[\w.-]{1,64})[^)]{0,64}\): forced readonly",
        _K.FS_READ_ONLY,
        "fs/btrfs/messages.c",
    ),
    _rule(
        "EXT",
        r"EXT\d-fs error \(device (?P<disk>[\w.-]{1,64})\)(?:: | in )(?P<sub_code>\w{1,48}):",
        _K.FS_ERROR,
        "fs/ext4/super.c, __ext4_error, __ext4_std_error",
    ),
    _rule(
        "EXT",
        r"EXT\d-fs warning \(device (?P<disk>[\w.-]{1,64})\): ext4_end_bio:\d{1,6}: I/O error",
        _K.IO_ERROR,
        "fs/ext4/page-io.c",
        sub_code="ext4_end_bio",
    ),
    _rule(
        "XFS (",
        r"XFS \((?P<disk>[\w.-]{1,64})\): .{0,80}?(?P<sub_code>[Cc]orruption|CRC error"
        r"|metadata I/O error"
        r"|[Ss]hutting down|has been shut down|[Ii]nternal error|log I/O error)",
        _K.FS_ERROR,
        "fs/xfs/xfs_error.c, xfs_fsops.c, xfs_buf.c",
    ),
    _rule(
        "BTRFS",
        r"BTRFS:? (?:error|critical) \(device (?P<disk>[\w.-]{1,64})",
        _K.FS_ERROR,
        "fs/btrfs/messages.c",
    ),
    _rule(
        "EXT",
        r"EXT\d-fs \((?P<disk>[\w.-]{1,64})\): (?P<sub_code>I/O error while writing superblock)",
        _K.FS_ERROR,
        "fs/ext4/super.c, ext4_commit_super",
    ),
    _rule(
        "updating journal superblock",
        r"JBD2: (?P<sub_code>I/O error when updating journal superblock) for "
        r"(?P<disk>[\w.-]{1,64}?)(?:-\d+)?\.",
        _K.FS_ERROR,
        "fs/jbd2/journal.c",
    ),
    _rule(
        "has encountered an uncorrectable I/O failure",
        r"Pool '(?P<disk>[^']{1,64})' has encountered an uncorrectable I/O failure",
        _K.FS_ERROR,
        "OpenZFS, module/os/linux/zfs: zfs_ereport, spa_suspend",
        sub_code="pool suspended",
    ),
    _rule(
        "Aborting journal",
        r"Aborting journal on device (?P<disk>[\w.-]{1,64}?)(?:-\d+)?\.",
        _K.FS_ERROR,
        "fs/jbd2/journal.c",
        sub_code="journal aborted",
    ),
    _rule(
        "nfs: server",
        r"nfs: server (?P<device>[\w.:-]{1,64}) not responding",
        _K.FS_REMOTE,
        "net/sunrpc/clnt.c",
        sub_code="not responding",
    ),
    _rule(
        "ceph: ",
        r"libceph: (?P<device>(?:mon|osd|mds)\d{1,6}) .{0,80}?(?P<sub_code>session lost|down)\b",
        _K.FS_REMOTE,
        "net/ceph/mon_client.c, osdmap.c",
    ),
    _rule(
        "ceph: ",
        r"ceph: (?:\[[^\]]{1,64}\]: )?(?P<device>mds\d{1,6}) (?P<sub_code>hung|reconnect denied)",
        _K.FS_REMOTE,
        "fs/ceph/mds_client.c",
    ),
    _rule(
        "CIFS",
        r"CIFS: .{0,16}?(?P<device>\\\\[\w.-]{1,64}) (?P<sub_code>has not responded)",
        _K.FS_REMOTE,
        "fs/smb/client/connect.c",
    ),
    _rule(
        "Lustre",
        r"Lustre(?:Error)?: .{0,120}?(?P<sub_code>Connection to (?P<device>[\w.@-]{1,64}) .{0,80}was lost"
        r"|This client was evicted)",
        _K.FS_REMOTE,
        "lustre/ptlrpc/import.c",
    ),
    _rule(
        "LustreError: ",
        r"LustreError: 11-0: (?P<device>[\w.-]{1,64}?)(?:-ffff\w{0,12})?: "
        r"(?:Communicating with .{1,80}?, )?operation (?P<sub_code>\w{1,32}) .{0,90}?failed",
        _K.FS_REMOTE,
        "lustre/ptlrpc/client.c, ptlrpc_check_status",
    ),
    _rule(
        "LNetError: ",
        r"LNetError: .{0,160}?(?P<sub_code>Timed out (?:tx|RDMA))",
        _K.FS_REMOTE,
        "lnet/klnds/o2iblnd/o2iblnd_cb.c",
    ),
    _rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?:controller is down; will reset"
        r"|Removing after probe failure|Disabling device after reset failure|Device not ready"
        r"|Removing device)",
        _K.NVME_DOWN,
        "drivers/nvme/host/pci.c, core.c",
    ),
    _rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): I/O .{0,120}?timeout, (?P<sub_code>[\w ]{1,24})",
        _K.NVME_TIMEOUT,
        "drivers/nvme/host/pci.c, nvme_timeout",
    ),
    _rule(
        "nvme",
        r"nvme (?P<disk>nvme\d{1,4}): (?:resetting controller|restart after slot reset"
        r"|frozen state error detected, reset controller)",
        _K.NVME_RESET,
        "drivers/nvme/host/pci.c, core.c",
    ),
    _rule(
        "I/O error",
        r"(?:I/O error|Buffer I/O error on dev(?:ice)?),? (?:dev )?(?P<disk>[\w.-]{1,64}),"
        r" (?:logical block|sector)",
        _K.IO_ERROR,
        "block/blk-core.c, fs/buffer.c",
    ),
    _rule(
        "(sct 0x",
        r"(?P<disk>nvme\d{1,4}(?:c\d{1,4})?n\d{1,6}): .{1,80} @ LBA .{1,120}?"
        r"\((?P<sub_code>sct \w{1,6} / sc \w{1,6})\)",
        _K.IO_ERROR,
        "drivers/nvme/host/core.c, nvme_log_error",
    ),
    _rule(
        " error, dev ",
        r"critical (?P<sub_code>medium|target|space allocation|nexus) error, dev (?P<disk>[\w.-]{1,64}),",
        _K.IO_ERROR,
        "block/blk-core.c",
    ),
    _rule(
        "Sense Key : ",
        r"\[(?P<disk>[\w.-]{1,32})\] .{0,40}?Sense Key : (?P<sub_code>Medium Error|Hardware Error)",
        _K.IO_ERROR,
        "drivers/scsi/constants.c, scsi_print_sense",
        is_announcement=True,
    ),
    _rule(
        "Disk failure on",
        r"md/\w{1,16}:\w{1,32}: Disk failure on (?P<disk>[\w.-]{1,64})",
        _K.IO_ERROR,
        "drivers/md/raid1.c, raid5.c, raid10.c",
        sub_code="raid member failed",
    ),
    # --- limits of the node
    _rule(
        "table full, dropping packet",
        r"(?P<sub_code>nf_conntrack): .{0,40}?table full, dropping packet",
        _K.LIMIT_REACHED,
        "net/netfilter/nf_conntrack_core.c",
    ),
    _rule(
        "file-max limit",
        r"VFS: (?P<sub_code>file-max) limit \d+ reached",
        _K.LIMIT_REACHED,
        "fs/file_table.c",
    ),
    _rule(
        "fork rejected by pids controller",
        r"cgroup: fork rejected by (?P<sub_code>pids controller)",
        _K.LIMIT_REACHED,
        "kernel/cgroup/pids.c",
    ),
    # --- programs and the kernel itself
    _rule(
        "segfault at",
        r"(?P<process>.{1,64}?)\[(?P<pid>\d{1,10})\]: segfault at .{0,100}?error \w{1,8}"
        r"(?: in (?P<sub_code>[^\s\[]{1,64}))?",
        _K.SEGFAULT,
        "arch/x86/mm/fault.c",
    ),
    _rule(
        "traps: ",
        r"traps: (?P<process>.{1,64}?)\[(?P<pid>\d{1,10})\] (?:general protection fault"
        r"|trap [\w ]{1,32}) ip:.{0,80}?error:\w{1,8}(?: in (?P<sub_code>[^\s\[]{1,64}))?",
        _K.SEGFAULT,
        "arch/x86/kernel/traps.c",
    ),
    _rule(
        "unhandled exception",
        r"(?P<process>.{1,64}?)\[(?P<pid>\d{1,10})\]: unhandled exception: .{0,120}?"
        r"(?: in (?P<sub_code>[^\s\[]{1,64})\[|$)",
        _K.SEGFAULT,
        "arch/arm64/kernel/traps.c",
    ),
    _rule(
        "Kernel panic",
        r"Kernel panic - not syncing: (?P<sub_code>[^\n]{0,64})",
        _K.PANIC,
        "kernel/panic.c",
    ),
    _rule(
        "[#",
        r"(?P<sub_code>Oops|general protection fault|invalid opcode|Internal error|stack segment"
        r"|divide error|double fault|int3).{0,200}?\[#\d{1,6}\]",
        _K.OOPS,
        "arch/x86/kernel/dumpstack.c, arch/arm64/kernel/traps.c",
    ),
    _rule(
        "BUG: kernel NULL pointer dereference",
        r"BUG: kernel NULL pointer dereference",
        _K.OOPS,
        "arch/x86/mm/fault.c since 5.1",
        is_announcement=True,
    ),
    _rule(
        "nable to handle",
        r"(?:BUG: u|U)nable to handle (?:kernel |page |NULL )",
        _K.OOPS,
        "arch/x86/mm/fault.c, arch/arm64/mm/fault.c",
        is_announcement=True,
    ),
    _rule(
        "kernel BUG at",
        r"kernel BUG at [\w./-]{1,128}:\d+",
        _K.OOPS,
        "lib/bug.c",
        is_announcement=True,
    ),
)

_BY_LITERAL: Final = tuple(
    (literal, tuple(rule for rule in RULES if rule.literal == literal))
    for literal in dict.fromkeys(rule.literal for rule in RULES)
)
_OOM_CONTEXT: Final = re.compile(
    r"oom-kill:constraint=(\w{1,40}),.{0,1500}?task_memcg=([^,]{0,512}),"
    r"task=.{0,64}?,pid=(\d{1,10}),"
)
# before 4.19: "Task in C killed as a result of limit of D", then "... Kill process 7 (x) score 9"
_OOM_TASK: Final = re.compile(r"Task in (\S{1,512}) killed as a result of limit of \S")
_OOM_OLD: Final = re.compile(
    r"(Memory cgroup o|O)ut of memory(?: \([^)]{0,40}\))?: Kill process (\d{1,10}) "
)
_DICTIONARY_PCI: Final = re.compile(r"\+pci:(" + _PCI + ")")


def _search(record: Record) -> tuple[Rule, KernelEvent] | None:
    text = record.text
    for literal, rules in _BY_LITERAL:
        if literal not in text:
            continue
        for rule in rules:
            match = rule.pattern.search(text)
            if match is not None:
                event = _event_of(record, rule, match)
                return (rule, event) if event is not None else None
    return None


def _event_of(record: Record, rule: Rule, match: re.Match[str]) -> KernelEvent | None:
    groups = match.groupdict()
    code = int(groups["code"]) if groups.get("code") else None
    pid = groups.get("pid")
    event = KernelEvent(
        kind=rule.kind,
        text=record.text,
        code=None if code is None else min(code, CODE_MAX),
        sub_code=(groups.get("sub_code") or rule.sub_code).strip(),
        device=_device_of(record, groups),
        pid=int(pid) if pid else None,
        process=groups.get("process") or "",
        at_s=record.at_s,
        stamp=record.stamp,
        level=record.level,
        facility=record.facility,
        seq=record.seq,
    )
    return rule.refine(event, match) if rule.refine else event


def _device_of(record: Record, groups: dict[str, str | None]) -> str:
    """Return the name by which a person knows it: the network device before its PCI address."""
    if name := groups.get("netdev") or groups.get("device") or groups.get("disk"):
        return name
    if address := groups.get("pci"):
        return groups.get("port") or "" if address.startswith("id=") else pci_bus_id(address)
    for name, value in record.fields:
        if name == "DEVICE" and (match := _DICTIONARY_PCI.fullmatch(value)):
            return pci_bus_id(match[1])
    return ""


class Matcher:
    """Turns records into events. Keeps what one line says of the next."""

    def __init__(self) -> None:
        # kind and device of an announcement -> when, oldest first
        self._announced: dict[tuple[EventKind, str], float | None] = {}
        self._oom: tuple[int, str, str] | None = None  # pid, constraint, cgroup
        self._oom_task = ""  # cgroup of the task that the next line names, before 4.19
        self._found: dict[str, tuple[Rule, KernelEvent] | None] = {}  # by text: floods repeat it

    def match(self, record: Record) -> KernelEvent | None:
        """Return what the record tells of, or None. Never raises."""
        if "ill" in record.text and self._is_oom_context(record.text):
            return None
        result = self._search(record)
        if result is None:
            return None
        rule, event = result
        key = (event.kind, event.device)
        if rule.is_announcement:
            self._announced.pop(key, None)
            self._announced[key] = event.at_s
            while len(self._announced) > _PENDING_MAX:
                del self._announced[next(iter(self._announced))]
            return event
        if event.kind is EventKind.OOM_KILL:
            return self._with_cgroup(event)
        if key in self._announced:
            announced_at_s = self._announced.pop(key)
            if _are_together(announced_at_s, event.at_s):
                return None  # told already
        return event

    def _search(self, record: Record) -> tuple[Rule, KernelEvent] | None:
        if record.fields:
            return _search(record)
        if record.text not in self._found:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[record.text] = _search(record)
        result = self._found[record.text]
        if result is None:
            return None
        rule, event = result
        if event.seq == record.seq and event.at_s == record.at_s:
            return result
        return rule, _at(event, record)

    def _is_oom_context(self, text: str) -> bool:
        """Keep what the lines before an OOM kill say of it."""
        if found := _OOM_CONTEXT.search(text):
            self._oom = (int(found[3]), found[1], found[2])
            return True
        if found := _OOM_TASK.search(text):
            self._oom_task = found[1]
            return True
        if found := _OOM_OLD.search(text):
            constraint = "CONSTRAINT_MEMCG" if found[1][0] == "M" else "CONSTRAINT_NONE"
            self._oom = (int(found[2]), constraint, self._oom_task)
            self._oom_task = ""
            return True
        return False

    def _with_cgroup(self, event: KernelEvent) -> KernelEvent:
        where = "cgroup" if "emory cgroup out of memory" in event.text else "node"
        if self._oom is None or self._oom[0] != event.pid:
            return replace(event, sub_code=where)
        _pid, constraint, cgroup = self._oom
        self._oom = None
        where = "cgroup" if constraint == "CONSTRAINT_MEMCG" else "node"
        return replace(event, sub_code=where, cgroup=cgroup[:512])


def _at(event: KernelEvent, record: Record) -> KernelEvent:
    """Return the event as another record with the same text tells of it."""
    return KernelEvent(  # `replace` takes twice as long, and a flood comes through here
        event.kind,
        event.text,
        event.code,
        event.sub_code,
        event.device,
        event.pid,
        event.process,
        event.cgroup,
        event.registers,
        record.at_s,
        record.stamp,
        record.level,
        record.facility,
        record.seq,
    )


def _are_together(earlier_s: float | None, later_s: float | None) -> bool:
    if earlier_s is None or later_s is None:
        return True
    return abs(later_s - earlier_s) <= PAIR_S_MAX
