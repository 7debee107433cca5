"""Messages of PCIe, memory, CPUs, the kernel itself and the limits of a node."""

import re
from dataclasses import replace
from typing import Final

from detectors.kernel.event import PCI, EventKind, KernelEvent, Rule, pci_bus_id, rule

_K = EventKind


def _refine_iommu(event: KernelEvent, match: re.Match[str]) -> KernelEvent:
    """Return an IOMMU's event with the device whose access it stopped."""
    source = (match["source"] or "").replace("0x", "")
    return replace(event, device=pci_bus_id(source)) if source else event


# MCI_STATUS_UC, _EN and _PCC, arch/x86/include/asm/mce.h
_MCE_UNCORRECTED, _MCE_ENABLED, _MCE_CORRUPT = 1 << 61, 1 << 60, 1 << 57


def _refine_mce(event: KernelEvent, match: re.Match[str]) -> KernelEvent:
    """Return a machine check's event: what a poll has found is printed as an exception is.

    A kernel does not go on with a corrupt context. Without an exception, and not enabled, that error is from before the boot.
    """
    if match["status"] is None:
        return event
    status = int(match["status"], 16)
    if not status & _MCE_UNCORRECTED:
        return replace(event, kind=EventKind.MACHINE_CHECK_CORRECTED)
    if not match["exception"] and status & _MCE_CORRUPT and not status & _MCE_ENABLED:
        return replace(event, kind=EventKind.MACHINE_CHECK_OLD)
    return event


LASTING_S: Final = 60  # own choice: three times the 20 s after which the watchdog first reports
# GPUs, RDMA and the file systems of clusters: a node without one of these works, and its jobs may not
_MODULES: Final = (
    r"nvidia\w{0,16}|amdgpu|habanalabs\w{0,8}|gdrdrv|mlx[45]_\w{1,16}|ib_\w{1,16}|rdma_\w{1,16}|efa\w{0,16}|bnxt_re|irdma"
    r"|hfi1|lustre|lnet|ko2iblnd|mmfslinux|tracedev|beegfs"
)


def _refine_soft_lockup(event: KernelEvent, match: re.Match[str]) -> KernelEvent:
    """Return the event; a CPU that has stood still for long is a group of its own."""
    return replace(event, sub_code="lasting") if int(match["code"]) >= LASTING_S else event


HOST_RULES: Final[tuple[Rule, ...]] = (
    # --- PCIe
    rule(
        "PCIe Bus Error",
        r"[\w-]{1,32} (?P<pci>" + PCI + r"): (?:AER: )?PCIe Bus Error: "
        r"severity=Correct(?:ed|able), type=(?P<sub_code>[\w ]{1,32})",
        _K.PCIE_CORRECTED,
        "drivers/pci/pcie/aer.c, aer_print_error",
    ),
    rule(
        "PCIe Bus Error",
        r"[\w-]{1,32} (?P<pci>" + PCI + r"): (?:AER: )?PCIe Bus Error: "
        r"severity=Uncorrect(?:ed|able) \(Non-Fatal\), type=(?P<sub_code>[\w ]{1,32})",
        _K.PCIE_UNCORRECTED,
        "the same",
    ),
    rule(
        "PCIe Bus Error",
        r"[\w-]{1,32} (?P<pci>" + PCI + r"): (?:AER: )?PCIe Bus Error: "
        r"severity=Uncorrect(?:ed|able) \(Fatal\), type=(?P<sub_code>[\w ]{1,32})",
        _K.PCIE_FATAL,
        "the same",
    ),
    *(
        rule(
            "AER: ",
            r"[\w-]{1,32} (?P<port>" + PCI + r"): AER: (?:Multiple )?" + severity + " error "
            r"(?:message )?received(?::| from) (?P<pci>" + PCI + "|id=[0-9a-fA-F]{4})",
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
    rule(
        "AER: device recovery failed",
        r"[\w-]{1,32} (?P<pci>" + PCI + r"): AER: device (?P<sub_code>recovery failed)",
        _K.PCIE_UNCORRECTED,
        "drivers/pci/pcie/err.c, pcie_do_recovery: also where a driver offers no recovery and its device goes on",
    ),
    rule(
        "AER: device recovery successful",
        r"[\w-]{1,32} (?P<pci>" + PCI + r"): AER: device (?P<sub_code>recovery successful)",
        _K.DEVICE_RECOVERED,
        "drivers/pci/pcie/err.c, pcie_do_recovery: each driver below took its device back",
    ),
    rule(
        "retraining non-functional downstream link",
        r"[\w-]{1,32} (?P<pci>"
        + PCI
        + r"): broken device, retraining non-functional downstream link at "
        r"(?P<sub_code>2\.5GT/s)",
        _K.PCIE_LIMITED,
        "drivers/pci/quirks.c, pcie_failed_link_retrain: also printed for a slot that was emptied",
    ),
    rule(
        "DPC: containment event",
        r"pcieport (?P<pci>" + PCI + r"): DPC: containment event",
        _K.PCIE_FATAL,
        "drivers/pci/pcie/dpc.c: the port has cut its device off",
        sub_code="containment",
    ),
    *(
        rule(
            "pciehp",
            r"(?:pcieport|pciehp) (?P<pci>" + PCI + r")(?::pcie\w{1,8})?: (?:pciehp: )?"
            r"[Ss]lot\([^)]{1,32}\): (?:" + words + ")",
            kind,
            "drivers/pci/hotplug/pciehp_ctrl.c, pciehp_hpc.c; before 4.19 as device "
            "0000:00:1c.0:pcie004",
        )
        for words, kind in (
            # A card that is present may still fail to train its link.
            (
                "Link Down(?!/Up ignored)|Card not present|Cannot train link|No link|Power fault",
                _K.SLOT_LINK_DOWN,
            ),
            ("Link Up|Card present", _K.SLOT_LINK_UP),
        )
    ),
    rule(
        "available PCIe bandwidth, limited by",
        r"[\w-]{1,32} (?P<pci>" + PCI + r"): [\d.]+ Gb/s available PCIe bandwidth, limited by "
        r"(?P<sub_code>[\d.]+ GT/s PCIe x\d+ link)",
        _K.PCIE_LIMITED,
        "drivers/pci/pci.c, __pcie_print_link_status",
    ),
    rule(
        "device inaccessible",
        r"[\w-]{1,32} (?P<pci>"
        + PCI
        + r"): (?P<sub_code>Unable to change power state) from \w{2,8} to "
        r"\w{2,8}, device inaccessible",
        _K.PCIE_LINK_DOWN,
        "drivers/pci/pci.c, pci_power_up: the device answers nothing",
    ),
    rule(
        "config space inaccessible",
        r"[\w-]{1,32} (?P<pci>"
        + PCI
        + r"): (?P<sub_code>can't change power state) from \w{2,8} to "
        r"\w{2,8} \(config space inaccessible\)",
        _K.PCIE_LINK_DOWN,
        "drivers/pci/pci.c before 5.19",
    ),
    rule(
        "; giving up",
        r"[\w-]{1,32} (?P<pci>"
        + PCI
        + r"): (?P<sub_code>not ready) \d{1,9}ms after [\w ]{1,32}; giving up",
        _K.PCIE_LINK_DOWN,
        "drivers/pci/pci.c, pci_dev_wait: the device did not come back from a reset",
    ),
    # --- IOMMU
    rule(
        "DMAR:",
        r"DMAR: ?\[(?P<sub_code>DMA Read|DMA Write|INTR-REMAP)[^\]]{0,24}\] Request device "
        r"\[(?P<source>[0-9a-fA-Fx:.]{7,16})\](?: PASID [0-9a-f]{1,8})? fault (?:addr|index)",
        _K.IOMMU_FAULT,
        "drivers/iommu/intel/dmar.c, dmar_fault_do_one: with PASID from 4.4 to 5.14, 0x before each part in 5.14",
        refine=_refine_iommu,
    ),
    rule(
        "DMAR:",
        r"DMAR: VT-d detected (?P<sub_code>Invalidation [\w-]{1,12} Error)",
        _K.IOMMU_FAULT,
        "drivers/iommu/intel/dmar.c, qi_dump_fault",
    ),
    rule(
        "AMD-Vi: ",
        r"(?:[\w-]{1,32} (?P<pci>" + PCI + r"): )?AMD-Vi: Event logged \[(?P<sub_code>[A-Z_]{4,32})"
        r"(?: device=(?P<source>[0-9a-fA-F:.]{7,16}))?",
        _K.IOMMU_FAULT,
        "drivers/iommu/amd/iommu.c",
        refine=_refine_iommu,
    ),
    rule(
        "AMD-Vi: ",
        r"AMD-Vi: (?P<sub_code>Completion-Wait loop timed out)",
        _K.IOMMU_FAULT,
        "drivers/iommu/amd/iommu.c",
    ),
    rule(
        "arm-smmu-v3 ",
        r"arm-smmu-v3 (?P<device>[\w.:-]{1,48}): event (?P<sub_code>0x[0-9a-f]{2}) received",
        _K.IOMMU_FAULT,
        "drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c before 6.14",
    ),
    rule(
        "arm-smmu-v3 ",
        r"arm-smmu-v3 [\w.:-]{1,48}: event: (?P<sub_code>[FC]_\w{2,32}) client: "
        r"(?P<source>[0-9a-fA-F:.]{7,16})",
        _K.IOMMU_FAULT,
        "drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c since 6.14",
        refine=_refine_iommu,
    ),
    # --- memory and CPU hardware
    rule(
        "Uncorrected hardware memory error",
        r"Uncorrected hardware memory error in user-access at [0-9a-f]{1,16}",
        _K.MEMORY_UNCORRECTED,
        "arch/x86/kernel/cpu/mce/core.c, kill_me_maybe, queue_task_work",
    ),
    rule(
        "NMI: ",
        r"NMI: (?P<sub_code>PCI system error \(SERR\)|IOCK error)",
        _K.MACHINE_CHECK,
        "arch/x86/kernel/nmi.c: the chipset's own word",
    ),
    rule(
        "Previous system reset reason [",
        r"x86/amd: Previous system reset reason \[0x[0-9a-f]{8}\]: .{0,40}?"
        r"(?P<sub_code>data fabric sync flood|parity error|BP_THERMTRIP_L|failed warm reset handshake)",
        _K.MACHINE_CHECK_OLD,
        "arch/x86/kernel/cpu/amd.c, print_s5_reset_status_mmio, since 6.16; the register may keep a reason of an older boot: lkml, 2025-09-13",
    ),
    rule(
        "BUG: Bad page",
        r"BUG: (?P<sub_code>Bad page (?:state|map)) in process (?P<process>.{1,32}?) {1,2}(?:pfn|pte):",
        _K.BAD_PAGE,
        "mm/page_alloc.c, bad_page; mm/memory.c, print_bad_pte",
    ),
    rule(
        "EDAC",
        r"EDAC (?P<device>MC\d{1,4}): (?P<code>\d{1,9}) CE .{0,200}?on (?P<sub_code>[^\s(]{1,64})",
        _K.MEMORY_CORRECTED,
        "drivers/edac/edac_mc.c, edac_ce_error",
    ),
    rule(
        "EDAC",
        r"EDAC (?P<device>MC\d{1,4}): (?P<code>\d{1,9}) UE .{0,200}?on (?P<sub_code>[^\s(]{1,64})",
        _K.MEMORY_UNCORRECTED,
        "drivers/edac/edac_mc.c, edac_ue_error",
    ),
    rule(
        "Memory failure: 0x",
        r"Memory failure: 0x[0-9a-f]{1,16}: .{0,80}?"
        r"(?:(?:Sending SIGBUS to|Killing) (?P<process>.{1,64}?):(?P<pid>\d{1,10})|recovery action)",
        _K.MEMORY_UNCORRECTED,
        "mm/memory-failure.c",
    ),
    rule(
        "recovery action for",
        r"MCE 0x[0-9a-f]{1,16}: .{0,80}?recovery action for ",
        _K.MEMORY_UNCORRECTED,
        "mm/memory-failure.c, action_result, before 4.9",
    ),
    rule(
        "due to hardware memory corruption",
        r"MCE:? (?:0x[0-9a-f]{1,16}: )?Killing (?P<process>.{1,64}?):(?P<pid>\d{1,10}) due to hardware",
        _K.MEMORY_UNCORRECTED,
        "arch/x86/mm/fault.c, do_sigbus; mm/memory-failure.c before 4.9",
    ),
    rule(
        "[Hardware Error]: event severity",
        r"\[Hardware Error\]: event severity: (?P<sub_code>fatal)",
        _K.MACHINE_CHECK,
        "drivers/firmware/efi/cper.c; without '{1}' of the boot before (apei/bert.c). Others: "
        "detectors/kernel/rules/firmware_errors.py",
    ),
    rule(
        "Machine Check",
        r"\[Hardware Error\]: CPU (?P<cpu>\d{1,5}): Machine Check(?P<exception> Exception)?: "
        r"[0-9a-f]{1,16} Bank (?P<sub_code>\d{1,3})(?:: (?P<status>[0-9a-f]{1,16})\b)?",
        _K.MACHINE_CHECK,
        "arch/x86/kernel/cpu/mce/core.c, print_mce",
        refine=_refine_mce,
    ),
    rule(
        "Machine check events logged",
        r"mce: \[Hardware Error\]: Machine check events logged",
        _K.MACHINE_CHECK_CORRECTED,
        "arch/x86/kernel/cpu/mce/core.c: a polled one, whose details went to a daemon",
        sub_code="logged",
    ),
    rule(
        "[Hardware Error]: Corrected error",
        r"\[Hardware Error\]: Corrected error, no action required",
        _K.MACHINE_CHECK_CORRECTED,
        "drivers/edac/mce_amd.c",
    ),
    rule(
        "Error Status: Corrected error",
        r"\[Hardware Error\]: Error Status: Corrected error, no action required",
        _K.MACHINE_CHECK_CORRECTED,
        "drivers/edac/mce_amd.c before 3.16",
    ),
    rule(
        "[Hardware Error]: ",
        r"\[Hardware Error\]: (?:Error Status: )?(?P<sub_code>Uncorrected, software (?:restartable|containable) error"
        r"|System Fatal error)",
        _K.MACHINE_CHECK,
        "drivers/edac/mce_amd.c",
    ),
    rule(
        "UECC|Deferred",
        r"\[Hardware Error\]: CPU:\d{1,5} \([0-9a-f:]{1,20}\) MC\d{1,3}_STATUS\[[\w|-]{0,60}\bUECC\|(?P<sub_code>Deferred)\b",
        _K.MACHINE_CHECK,
        "drivers/edac/mce_amd.c: memory that can't be corrected, and that nobody has used yet",
    ),
    rule(
        "[Hardware Error]: Deferred error",
        r"\[Hardware Error\]: (?:Error Status: )?(?P<sub_code>Deferred error), no action required",
        _K.MACHINE_CHECK_CORRECTED,
        "drivers/edac/mce_amd.c; Linux 6.19 printed it of machines that are well: the next line says whether data is lost",
    ),
    rule(
        "above threshold, ",
        r"CPU\d{1,5}: (?P<sub_code>Core|Package) temperature (?:is )?above threshold",
        _K.THROTTLED,
        "drivers/thermal/intel/therm_throt.c; 'is' since 5.5, with 'mce: ' before",
    ),
    rule(
        "ritical temperature reached",
        r"(?:thermal )?(?P<device>thermal_zone\d{1,4}|[\w.-]{1,32}): .{0,40}[Cc]ritical temperature reached",
        _K.OVERHEATED,
        "drivers/thermal/thermal_core.c",
    ),
    # --- memory used up
    rule(
        "Killed process",
        r"(?:Memory cgroup o|O)ut of memory(?: \([^)]{0,40}\))?: Killed process "
        r"(?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<process>.{1,64}?)\)",
        _K.OOM_KILL,
        "mm/oom_kill.c since 4.19",
    ),
    rule(
        "Killed process",
        r"Killed process (?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<process>.{1,64}?)\)",
        _K.OOM_KILL,
        "mm/oom_kill.c before 4.19",
    ),
    # --- a CPU or a task that does not go on
    rule(
        "soft lockup",
        r"BUG: soft lockup - CPU#\d{1,5} stuck for (?P<code>\d{1,9})s! \[(?P<process>.{1,64}?):(?P<pid>\d{1,10})\]",
        _K.SOFT_LOCKUP,
        "kernel/watchdog.c",
        refine=_refine_soft_lockup,
    ),
    rule(
        "workqueue lockup",
        r"BUG: workqueue lockup - pool",
        _K.SOFT_LOCKUP,
        "kernel/workqueue.c",
        sub_code="workqueue",
    ),
    rule(
        "hard LOCKUP",
        r"Watchdog detected hard LOCKUP on cpu ?\d{1,5}",
        _K.HARD_LOCKUP,
        "kernel/watchdog_perf.c, watchdog_buddy.c",
    ),
    rule(
        "blocked for more than",
        r"INFO: task (?P<process>.{1,64}?):(?P<pid>\d{1,10}) (?:<[^>]{1,32}> )?blocked for more than \d+",
        _K.HUNG_TASK,
        "kernel/hung_task.c",
    ),
    rule(
        "blocked in I/O wait",
        r"INFO: task (?P<process>.{1,64}?):(?P<pid>\d{1,10}) blocked in I/O wait for more than",
        _K.HUNG_TASK,
        "kernel/hung_task.c since 6.19",
    ),
    rule(
        "INFO: rcu",
        r"INFO: (?P<sub_code>rcu\w{1,32}) (?:self-)?detected (?:expedited )?stalls? on CPU",
        _K.RCU_STALL,
        "kernel/rcu/tree_stall.h, tree_exp.h",
    ),
    # --- modules that don't fit
    *(
        rule(literal, rf"(?P<sub_code>{_MODULES}): {words}", _K.MODULE_REFUSED, source)
        for literal, words, source in (
            ("version of symbol", "disagrees about version of symbol", "kernel/module/version.c"),
            ("Unknown symbol", "Unknown symbol", "kernel/module/main.c, simplify_symbols"),
            ("version magic", "version magic '.{1,200}?' should be", "kernel/module/main.c"),
        )
    ),
    # --- limits of the node
    rule(
        "table full, dropping packet",
        r"(?P<sub_code>nf_conntrack): .{0,40}?table full, dropping packet",
        _K.LIMIT_REACHED,
        "net/netfilter/nf_conntrack_core.c",
    ),
    rule(
        "file-max limit",
        r"VFS: (?P<sub_code>file-max) limit \d+ reached",
        _K.DESCRIPTORS_LOW,
        "fs/file_table.c",
    ),
    rule(
        "fork rejected by pids controller",
        r"cgroup: fork rejected by (?P<sub_code>pids controller)",
        _K.LIMIT_REACHED,
        "kernel/cgroup/pids.c",
    ),
    rule(
        "neighbor table overflow",
        r"neighbour: (?P<sub_code>\w{1,32}): neighbor table overflow",
        _K.LIMIT_REACHED,
        "net/core/neighbour.c since 3.14",
    ),
    rule(
        "eighbour table overflow",
        r"(?:ipv4: |IPv4: )?(?P<sub_code>[Nn]eighbour table) overflow",
        _K.LIMIT_REACHED,
        "net/ipv4/route.c before 3.14",
    ),
    rule(
        "TCP: ",
        r"TCP: (?P<sub_code>out of memory|too many orphaned sockets)",
        _K.LIMIT_REACHED,
        "net/ipv4/tcp.c",
        needles=("TCP: out of memory", "TCP: too many orphaned"),
    ),
    rule(
        "as unstable because the skew is too large",
        r"clocksource: timekeeping watchdog(?: on CPU\d{1,5})?: Marking clocksource "
        r"'(?P<sub_code>[\w-]{1,16})' as unstable",
        _K.CLOCK_UNSTABLE,
        "kernel/time/clocksource.c",
    ),
    # --- programs and the kernel itself
    rule(
        "segfault at",
        r"(?P<process>.{1,15}?)\[(?P<pid>\d{1,10})\]: segfault at .{0,100}?error \w{1,8}"
        r"(?: in (?P<sub_code>[^\s\[]{1,64}))?",
        _K.SEGFAULT,
        "arch/x86/mm/fault.c",
    ),
    rule(
        "traps: ",
        r"traps: (?P<process>.{1,15}?)\[(?P<pid>\d{1,10})\] (?:general protection fault"
        r"|trap [\w ]{1,32}) ip:.{0,80}?error:\w{1,8}(?: in (?P<sub_code>[^\s\[]{1,64}))?",
        _K.SEGFAULT,
        "arch/x86/kernel/traps.c",
    ),
    rule(
        "unhandled exception",
        r"(?P<process>.{1,15}?)\[(?P<pid>\d{1,10})\]: unhandled exception: .{0,120}?"
        r"(?: in (?P<sub_code>[^\s\[]{1,64})\[|$)",
        _K.SEGFAULT,
        "arch/arm64/kernel/traps.c",
    ),
    rule(
        "Kernel panic",
        r"Kernel panic - not syncing: (?P<sub_code>[^\n]{0,64})",
        _K.PANIC,
        "kernel/panic.c",
    ),
    rule(
        "[#",
        r"(?P<sub_code>Oops|general protection fault|invalid opcode|Internal error|stack segment"
        r"|divide error|double fault|int3).{0,200}?\[#\d{1,6}\]",
        _K.OOPS,
        "arch/x86/kernel/dumpstack.c, arch/arm64/kernel/traps.c",
        needles=(
            *("Oops", "general protection fault", "invalid opcode", "Internal error"),
            *("stack segment", "divide error", "double fault", "int3"),
        ),
    ),
    rule(
        "BUG: kernel NULL pointer dereference",
        r"BUG: kernel NULL pointer dereference",
        _K.OOPS,
        "arch/x86/mm/fault.c since 5.1",
        is_announcement=True,
    ),
    rule(
        "nable to handle",
        r"(?:BUG: u|U)nable to handle (?:kernel |page |NULL )",
        _K.OOPS,
        "arch/x86/mm/fault.c, arch/arm64/mm/fault.c",
        is_announcement=True,
    ),
    rule(
        "kernel BUG at",
        r"kernel BUG at [\w./-]{1,128}:\d+",
        _K.OOPS,
        "lib/bug.c",
        is_announcement=True,
    ),
)
