"""Messages of GPU drivers: NVIDIA with its NVSwitches, AMD, Habana, Intel."""

import re
from dataclasses import replace
from typing import Final

from detectors.kernel.event import PCI, EventKind, KernelEvent, Rule, rule
from detectors.kernel.nvlink import nvlink5_reason, read_nvlink_error

_K = EventKind

_NVLINK5: Final = range(144, 151)
_NVLINK5_DETAIL: Final = re.compile(
    r"([A-Z][A-Z0-9_]{1,40}) +(Non-?fatal|Fatal)(?: +XC ?\d+)?(?: +i ?\d+)?(?: +Link +(-?\d{1,4}))?"
    r"(?: *[(\[]((?:0x[0-9a-fA-F]{1,8}[ ,]*){1,12}))?",
    re.IGNORECASE,
)
_NVLINK_DETAIL: Final = re.compile(
    r"link (\d{1,3}) ?\(((?:0x[0-9a-fA-F]{1,8}[ ,]*){1,12})\)", re.IGNORECASE
)
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,8}")
_SM: Final = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})")
_CAUSED_BY: Final = re.compile(r"caused by previous Xid (\d{1,5})")
_PID: Final = re.compile(r"pid='?(\d{1,10}|<unknown>)'?, ?(?:name=([^,]{1,64}), ?)?")
_VERDICT: Final = re.compile(
    r"GPU recovery action changed from (0x[0-9a-fA-F]{1,8}) \([^)]{0,64}\) "
    r"to (0x[0-9a-fA-F]{1,8}) \(([^)]{0,64})\)",
    re.IGNORECASE,
)

_SXID_MORE: Final = re.compile(r"(?:Severity [2-9]|Engine instance|Data \{)")
_SXID_SEVERITY: Final = re.compile(r"Severity [01]\b")
SEVERITIES: Final = {"Severity 0": "nonfatal", "Severity 1": "fatal"}  # see matcher.SwitchErrors
_SXID_DETAIL: Final = re.compile(
    r"(Non-fatal|Nonfatal|Fatal)?,? ?(?:Link (\d{1,3}))?", re.IGNORECASE
)

# as dev_err writes it ("amdgpu: " twice), drm_err, and DRM_ERROR, which names no device
_AMD: Final = (
    r"(?:amdgpu (?P<pci>"
    + PCI
    + r"): |amdgpu: |(?=\[drm:\w{1,64}(?:\.\w{1,16}){0,3} \[amdgpu\]\]))"
    r"(?:amdgpu: |\[drm\] |\[drm:\w{1,64}(?:\.\w{1,16}){0,3}(?: \[amdgpu\])?\] )?(?:\*ERROR\* )?"
)
_RAS: Final = r"(?:\{\d{1,20}\} ?)?(?:socket: \d{1,4},? )?(?:die: \d{1,4},? )?"
_XE: Final = r"xe (?P<pci>" + PCI + r"): \[drm\] (?:\*ERROR\* )?(?:Tile\d{1,2}: )?(?:GT\d{1,2}: )?"
_HABANA: Final = r"(?:habanalabs|accel) (?P<device>hl\d{1,4}|accel\d{1,4}|" + PCI + r"): "


def _refine_xid(event: KernelEvent, match: re.Match[str]) -> KernelEvent:
    """Return an XID's event with what its details say: process, link, sub-code, verdict."""
    detail = match["detail"] or ""
    if found := _PID.match(detail):
        pid = int(found[1]) if found[1].isdigit() else None
        process = "" if (found[2] or "").startswith("<") else (found[2] or "")
        event = replace(event, pid=pid, process=process)
        detail = detail[found.end() :]
    if event.code in _NVLINK5 and (found := _NVLINK5_DETAIL.match(detail)):
        registers = tuple(int(word, 16) for word in _HEX.findall(found[4] or ""))
        status = f" status {registers[1]:#x}" if len(registers) > 1 and registers[1] else ""
        unit, how = found[1].upper(), found[2].replace("-", "").capitalize()
        sub_code = f"{nvlink5_reason(registers)} {unit} {how} link {found[3] or '-'}{status}"
        return replace(event, sub_code=sub_code, registers=registers)
    if event.code == 74 and (found := _NVLINK_DETAIL.search(detail)):
        registers = tuple(int(word, 16) for word in _HEX.findall(found[2]))
        error = read_nvlink_error(registers)
        return replace(event, sub_code=f"link {found[1]} {error.value}", registers=registers)
    if event.code == 13 and (found := _SM.search(detail)):
        return replace(event, sub_code=f"GPC {found[1]} TPC {found[2]}")
    if event.code == 45 and (found := _CAUSED_BY.search(detail)):
        return replace(event, sub_code=f"caused by {found[1]}")
    if event.code == 154 and (found := _VERDICT.search(detail)):
        return replace(event, sub_code=f"{int(found[2], 16)} {found[3]}")
    return event


def _refine_sxid(event: KernelEvent, match: re.Match[str]) -> KernelEvent | None:
    """Return an SXID's event, or None for the lines that follow it with the same code."""
    detail = match["detail"] or ""
    if _SXID_MORE.match(detail):
        return None
    if severity := _SXID_SEVERITY.match(detail):
        return replace(event, sub_code=severity[0])
    found = _SXID_DETAIL.match(detail)
    if found is None:
        return event
    how = "" if found[1] is None else ("fatal" if found[1].lower() == "fatal" else "nonfatal")
    link = f"link {found[2]}" if found[2] else ""
    return replace(event, sub_code=f"{how} {link}".strip())


GPU_RULES: Final[tuple[Rule, ...]] = (
    # --- NVIDIA driver
    rule(
        "NVRM: Xid",
        r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{4,20})[^)]{0,40}\): (?P<code>\d{1,9})"
        r"(?:[,:] ?(?P<detail>.*))?",
        _K.XID,
        "NVIDIA XID errors; without 'PCI:' and pid before R450; 'GPU-I:' on a MIG instance",
        refine=_refine_xid,
    ),
    rule(
        "SXid",
        r"nvidia-nvswitch\d{1,3}: SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{4,20})\): "
        r"(?P<code>\d{1,9})(?:, ?(?P<detail>.*))?",
        _K.SXID,
        "NVIDIA Fabric Manager user guide, NVSwitch errors",
        refine=_refine_sxid,
    ),
    rule(
        "fallen off the bus",
        r"NVRM: .{0,40}?GPU (?:at )?(?:PCI:)?(?P<pci>" + PCI + r")[\s\S]{0,160}?fallen off the bus",
        _K.GPU_LOST,
        "open-gpu-kernel-modules: os-pci.c, osinit.c; nv.c prints it as four lines of one message",
    ),
    rule("fallen off the bus", r"NVRM: .{0,200}fallen off the bus", _K.GPU_LOST, "the same"),
    *(
        rule(
            status,
            r"NVRM:? (?:GPU\d{1,3} )?nv(?:Assert|Check)\w{1,24}: .{0,200}?\[" + status + r"\]",
            kind,
            "open-gpu-kernel-modules: nvstatuscodes.h, printed by each call that fails with it: #688, sichek#51",
        )
        for status, kind in (
            ("NV_ERR_GPU_IS_LOST", _K.GPU_LOST),
            ("NV_ERR_RESET_REQUIRED", _K.GPU_NEEDS_RESET),
        )
    ),
    rule(
        "RmInitAdapter",
        r"NVRM: (?:GPU (?P<pci>" + PCI + r"): )?RmInitAdapter failed",
        _K.GPU_INIT,
        "open-gpu-kernel-modules: nv.c",
    ),
    rule(
        "rm_init_adapter failed",
        r"NVRM: (?:GPU (?P<pci>" + PCI + r"): )?rm_init_adapter failed",
        _K.GPU_INIT,
        "open-gpu-kernel-modules: nv.c, whatever has failed before",
    ),
    rule(
        "NVRM: ",
        r"NVRM: (?:The NVIDIA probe routine was not called for \d{1,4} device|No NVIDIA (?:graphics adapter|devices) probed)",
        _K.GPU_UNCLAIMED,
        "open-gpu-kernel-modules: nv.c, nvidia_init_module; bigdata#133, bigdata#108: gone with the next boot",
        needles=("probe routine was not called", "adapter probed", "devices probed"),
    ),
    rule(
        "installed in this system",
        r"NVRM: (?:The NVIDIA GPU (?P<pci>"
        + PCI
        + r")[^\n]{0,40}\s{1,40}(?:NVRM: )?)?installed in this system (?P<sub_code>is not supported by open|requires use of the NVIDIA open)",
        _K.GPU_UNCLAIMED,
        "open-gpu-kernel-modules: nv.c: the other flavour of the driver runs it; #322, #587. A GPU that the release does not know may be an old card beside the others",
    ),
    rule(
        "with non-zero usage count",
        r"NVRM: Attempting to remove (?:minor )?device .{1,24}? with non-zero (?P<sub_code>usage) count",
        _K.GPU_UNCLAIMED,
        "open-gpu-kernel-modules: nv.c, nvidia_remove: it waits until the last program has ended; nvidia-xrun#105",
    ),
    rule(
        "RM cannot boot",
        r"NVRM:? (?:GPU\d{1,3} )?(?P<sub_code>kfspSendBootCommands)\w{0,16}: .{0,40}?RM cannot boot",
        _K.GPU_INIT,
        "open-gpu-kernel-modules: kern_fsp_gh100.c: the GPU's boot processor refused; nvtrust#19",
    ),
    rule(
        "GSP",
        r"NVRM: .{0,120}?(?:Rate limiting GSP RPC error prints|Cannot initialize GSP|WPR2 already up"
        r"|GSP.{0,40}lockdown.{0,20}timed? ?out)"
        r"(?:.{0,40}?PCI:(?P<pci>" + PCI + r"))?",
        _K.GSP,
        "open-gpu-kernel-modules: kernel_gsp.c; the dmesg sample of an XID 119",
    ),
    rule(
        "global fatal error",
        r"(?:NVRM:? (?:GPU\d{1,3} )?(?:nvGpuOpsReportFatalError: )?uvm encountered (?P<sub_code>global fatal error 0x[0-9a-f]{1,4})"
        r"|nvidia-uvm: .{0,120}?Encountered a global fatal error: )",
        _K.UVM_FAILED,
        "open-gpu-kernel-modules: nv_gpu_ops.c, nvGpuOpsReportFatalError, which asks for a reboot of the node; uvm_global.c",
    ),
    rule(
        "eartbeat tim",
        r"NVRM: (?:GPU\d{1,3} )?(?P<sub_code>_?kgsp\w{1,40}): (?:GSP(?:[ -]RM)? )?[Hh]eartbeat timed? ?out",
        _K.GSP_HEARTBEAT,
        "open-gpu-kernel-modules: kernel_gsp.c; #1064: every few minutes on a GPU that works, #1080: before XID 109",
    ),
    rule(
        "ostRxDet",
        r"NVRM: (?:GPU\d{1,3} )?(?P<sub_code>knvlink(?:DiscoverPostRxDetLinks|UpdatePostRxDetectLinkMask))\w{0,32}: "
        r"(?:Getting peer\d{1,3}(?:'s)? postRxDetLinkMask failed|Failed to update Rx Detect Link mask)",
        _K.NVLINK_DISCOVERY,
        "open-gpu-kernel-modules: kernel_nvlinkcorelib.c, both LEVEL_ERROR; gpud#1271, #1272: unhealthy, reboot",
    ),
    rule(
        "necessary power cables",
        r"NVRM: (?:GPU (?P<pci>"
        + PCI
        + r"):? )?.{0,24}does not have the necessary (?P<sub_code>power cables) connected",
        _K.GPU_INIT,
        "open-gpu-kernel-modules: nv.c: the GPU is not started without them",
    ),
    rule(
        "rpcRecvPoll timedout",
        r"NVRM: .{0,80}rpcRecvPoll timedout for fn",
        _K.GSP,
        "open-gpu-kernel-modules: rpc.c",
    ),
    rule(
        "NVRM: API mismatch",
        r"NVRM: API mismatch(?:: [Tt]he client '(?P<process>.{1,64}?)' \(pid (?P<pid>\d{1,10})\))?",
        _K.DRIVER_MISMATCH,
        "open-gpu-kernel-modules: nv-reg.h; one program's libraries and the module are of two versions",
    ),
    rule(
        "nvidia-peermem",
        r"nvidia-peermem .{0,80}?(?P<sub_code>ERROR detected invalid context)",
        _K.PEERMEM,
        "open-gpu-kernel-modules: nvidia-peermem.c; a program ended with memory still registered",
    ),
    # --- any GPU's driver that could not be bound
    rule(
        "failed with error",
        r"(?P<sub_code>nvidia|amdgpu|habanalabs): probe of (?P<pci>"
        + PCI
        + r") failed with error -\d+",
        _K.GPU_INIT,
        "drivers/base/dd.c, call_driver_probe, before 6.4",
    ),
    rule(
        "failed with error",
        r"(?P<sub_code>nvidia|amdgpu|habanalabs) (?P<pci>" + PCI + r"): probe with driver \S{1,32} "
        r"failed with error -\d+",
        _K.GPU_INIT,
        "drivers/base/dd.c, call_driver_probe, since 6.4",
    ),
    # --- AMD
    rule(
        "correctable hardware errors detected",
        _AMD + _RAS + r"(?P<code>[1-9]\d{0,8}) new uncorrectable hardware errors detected in "
        r"(?P<sub_code>\w{1,16}) block",
        _K.GPU_MEMORY_UNCORRECTED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c since 6.7: the total follows",
        is_announcement=True,
    ),
    rule(
        "correctable hardware errors detected",
        _AMD + _RAS + r"(?P<code>[1-9]\d{0,8}) uncorrectable hardware errors detected "
        r"(?:in total )?in (?P<sub_code>\w{1,16}) block",
        _K.GPU_MEMORY_UNCORRECTED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c",
    ),
    rule(
        "correctable hardware errors detected",
        _AMD + _RAS + r"(?P<code>[1-9]\d{0,8}) (?:new )?correctable hardware errors detected "
        r"(?:in total )?in (?P<sub_code>\w{1,16}) block",
        _K.GPU_MEMORY_CORRECTED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c",
    ),
    rule(
        "deferred hardware errors detected",
        _AMD + _RAS + r"(?P<code>[1-9]\d{0,8}) (?:new )?deferred hardware errors detected "
        r"(?:in total )?in (?P<sub_code>\w{1,16}) block",
        _K.GPU_MEMORY_DEFERRED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c since 6.8",
    ),
    rule(
        "ERREVENT_ATHUB_INTERRUPT",
        _AMD
        + r"(?:\{\d{1,20}\} ?)?[Uu]ncorrectable hardware error ?\((?P<sub_code>ERREVENT_ATHUB_INTERRUPT)\) detected",
        _K.GPU_MEMORY_UNCORRECTED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_ras_global_ras_isr: fatal; all GPUs of the hive are reset",
    ),
    rule(
        "oison",
        _AMD
        + r"(?:\{\d{1,20}\} ?)?(?:(?P<sub_code>poison is consumed) by client|RAS poison consumption, fall back to gpu reset"
        r"|GPU reset for \w{1,16} RAS poison consumption)",
        _K.GPU_MEMORY_UNCORRECTED,
        "drivers/gpu/drm/amd/amdkfd/kfd_int_process_v9.c, amdgpu_ras.c: a program used bad data, and the driver resets the GPU",
        needles=("poison is consumed by client", "RAS poison consumption"),
    ),
    rule(
        "oison",
        _AMD
        + r"(?:\{\d{1,20}\} ?)?(?:RAS )?(?P<sub_code>[Pp]oison is created|Poison detected in \w{1,16}"
        r"|poison consumption, unmap queue flow succeeded|\w{1,16} RAS poison consumption is issued)",
        _K.GPU_MEMORY_DEFERRED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, vcn_v2_6.c, jpeg_v2_6.c; kfd_int_process_v9.c: no reset is needed",
        needles=("oison is created", "Poison detected in ", "oison consumption"),
    ),
    rule(
        "SMU",
        _AMD + r"(?:SMU: (?:I'm not done with your previous command|No response msg_reg)"
        r"|Failed to export SMU metrics table|Msg issuing pre-check failed and SMU may be not in the right state)",
        _K.GPU_HUNG,
        "drivers/gpu/drm/amd/pm/swsmu/smu_cmn.c: its system management unit does not answer",
        sub_code="SMU",
    ),
    rule(
        "MES",
        _AMD + r"(?P<sub_code>MES)(?:\(\d{1,3}\))? failed to respon(?:d to|se) msg=",
        _K.GPU_HUNG,
        "drivers/gpu/drm/amd/amdgpu/mes_v11_0.c, mes_v12_0.c: its scheduler of queues does not answer",
    ),
    rule(
        "RAS records:",
        _AMD + r"(?P<sub_code>RAS records):\d{1,9} exceed threshold:\d{1,9}",
        _K.GPU_WORN_OUT,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras_eeprom.c",
    ),
    rule(
        "reaches threshold value",
        _AMD + r"(?P<sub_code>Saved bad pages) \d{1,9} reaches threshold value \d{1,9}",
        _K.GPU_WORN_OUT,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras_eeprom.c",
    ),
    rule(
        "GPU reset begin!",
        _AMD + r"GPU reset begin!",
        _K.GPU_RESET,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_device.c, amdgpu_device_gpu_recover",
    ),
    rule(
        "GPU reset",
        _AMD + r"(?P<sub_code>GPU reset\(\d{1,9}\) failed|GPU reset end with ret = -\d{1,4})",
        _K.GPU_RESET_FAILED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_device.c",
    ),
    rule(
        "GPU reset",
        _AMD + r"(?P<sub_code>GPU reset)\(\d{1,9}\) succeeded",
        _K.DEVICE_RECOVERED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_device.c: after the resume; another sort of reset may have failed before",
    ),
    rule(
        " reset failed",
        _AMD + r"(?P<sub_code>GPU mode\d reset failed|ASIC reset failed)",
        _K.GPU_RESET_FAILED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_device.c, amdgpu_reset.c",
    ),
    rule(
        "GPU Recovery Failed",
        _AMD + r"(?P<sub_code>GPU Recovery Failed)",
        _K.GPU_RESET_FAILED,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_device.c, amdgpu_device_gpu_recover",
    ),
    rule(
        "device lost from bus",
        _AMD + r".{0,20}device lost from bus",
        _K.GPU_LOST,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_device.c",
    ),
    rule(
        "Fatal error during GPU init",
        _AMD + r"Fatal error during GPU init",
        _K.GPU_INIT,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_kms.c",
    ),
    rule(
        " test failed (",
        _AMD + r"(?:amdgpu: )?(?P<sub_code>ring) \d{1,3} test failed \((?:scratch\()?0x",
        _K.GPU_INIT,
        "drivers/gpu/drm/amd/amdgpu/gfx_v9_0.c, sdma_v4_0.c before 4.20: the ring is not used; printed at a start and a resume only",
    ),
    rule(
        "PSP create ring failed",
        _AMD + r"(?P<sub_code>PSP create ring failed)",
        _K.GPU_INIT,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_psp.c, psp_hw_start; legacy-rocm-build#2747",
    ),
    rule(
        "failed to load ucode ",
        _AMD + r"failed to load ucode (?P<sub_code>\w{1,24})\(0x",
        _K.GPU_FIRMWARE,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_psp.c, psp_cmd_submit_buf",
    ),
    rule(
        " timeout, signaled seq=",
        _AMD + r"ring (?P<sub_code>[\w.]{1,32}) timeout, signaled seq=",
        _K.GPU_HUNG,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_job.c; 'but soft recovered' is another line and no fault",
    ),
    rule(
        "fence wait loop timeout expired",
        r"(?:amdgpu (?P<pci>"
        + PCI
        + r"): )?(?:amdgpu: |kfd kfd: )*(?P<sub_code>qcm) fence wait loop "
        r"timeout expired",
        _K.GPU_HUNG,
        "drivers/gpu/drm/amd/amdkfd/kfd_device_queue_manager.c",
    ),
    rule(
        "in an unrecoverable state due to an unsuccessful queues preemption",
        r"(?:amdgpu (?P<pci>"
        + PCI
        + r"): )?(?:amdgpu: |kfd kfd: )*The cp might be in an unrecoverable",
        _K.GPU_HUNG,
        "drivers/gpu/drm/amd/amdkfd/kfd_device_queue_manager.c",
        sub_code="preemption",
    ),
    rule(
        "might be in unrecoverable state, issue a GPU reset",
        _AMD + r"(?P<sub_code>MES) might be in unrecoverable state",
        _K.GPU_HUNG,
        "drivers/gpu/drm/amd/amdkfd/kfd_device_queue_manager.c",
    ),
    rule(
        " page fault (src_id:",
        _AMD + r"\[(?P<sub_code>\w{1,16})\] (?:(?:no-)?retry )?page fault \(src_id:",
        _K.GPU_PAGE_FAULT,
        "drivers/gpu/drm/amd/amdgpu/gmc_v9_0.c, gmc_v10_0.c, gmc_v11_0.c",
        is_announcement=True,
    ),
    rule(
        "_L2_PROTECTION_FAULT_STATUS:0x",
        _AMD + r"(?:GC|MM)?VM_L2_PROTECTION_FAULT_STATUS:0x0{0,8}[1-9A-Fa-f]",
        _K.GPU_PAGE_FAULT,
        "the same: what is left of a fault where its first line was dropped; 0 is one that follows another",
    ),
    rule(
        "CTF)",
        _AMD + r"ERROR: GPU (?P<sub_code>over temperature range|HW Critical Temperature Fault)",
        _K.GPU_OVERHEATED,
        "drivers/gpu/drm/amd/pm/swsmu/amdgpu_smu.c, smu13/smu_v13_0.c",
    ),
    rule(
        "amdgpu",
        _AMD
        + r"socket: \d{1,4}, aid: \d{1,4},(?: hbm: \d{1,4},)?(?: fw_status: 0x[0-9a-f]{1,8},)? "
        r"(?P<sub_code>(?:memory|(?:wafl|xgmi|usr [cd]p) link) training failed|firmware (?:boot|load) failed"
        r"|hbm (?:memory|bist) test failed|data abort exception)",
        _K.GPU_INIT,
        "drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_ras_boot_time_error_reporting; psp_v13_0.c before 6.9: its firmware does not boot",
        needles=(
            *("training failed", "firmware boot failed", "firmware load failed", "test failed"),
            "data abort exception",
        ),
    ),
    # --- Habana (Gaudi)
    rule(
        "is NOT usable",
        _HABANA + r"(?P<sub_code>Failed to initialize) (?:hl|accel)\d{1,4}\. Device (?:\S{1,32} )?"
        r"is NOT usable",
        _K.GPU_INIT,
        "drivers/misc/habanalabs (drivers/accel since 6.3), common/device.c, hl_device_init; Setup_and_Install#1",
    ),
    rule(
        "is NOT usable",
        r"habanalabs: (?P<sub_code>Failed to initialize) (?:hl|accel)\d{1,4}\. Device (?P<pci>"
        + PCI
        + r") is NOT usable",
        _K.GPU_INIT,
        "drivers/accel/habanalabs/common/device.c, hl_device_init, since 6.6: pr_err names the device in its text",
    ),
    rule(
        "is NOT usable",
        _HABANA + r"(?:" + PCI + r" )?(?P<sub_code>Failed to reset)! Device is NOT usable",
        _K.GPU_RESET_FAILED,
        "drivers/accel/habanalabs/common/device.c, hl_device_reset",
    ),
    rule(
        "stopping hard reset",
        _HABANA + r"(?:" + PCI + r" )?(?P<sub_code>[\w ]{4,64}?), stopping hard reset",
        _K.GPU_RESET_FAILED,
        "drivers/accel/habanalabs/common/device.c, hl_device_reset: two fatal errors in a row, or a program that does not end",
    ),
    rule(
        "Successfully finished resetting",
        _HABANA + r"(?P<sub_code>Successfully finished resetting) the ",
        _K.DEVICE_RECOVERED,
        "drivers/accel/habanalabs/common/device.c, hl_device_reset",
    ),
    *(
        rule(
            words,
            _HABANA
            + r"(?:Received H/W interrupt \d{1,5} \[\")?(?P<sub_code>\w{1,48}_"
            + words
            + r"\w{0,8})(?:\"\]|: ECC error detected)",
            kind,
            "drivers/accel/habanalabs/gaudi/gaudi.c, gaudi2/gaudi2.c: single errors are corrected, double ones are not",
        )
        for words, kind in (
            ("DERR", _K.GPU_MEMORY_UNCORRECTED),
            ("SERR", _K.GPU_MEMORY_CORRECTED),
        )
    ),
    rule(
        "PCI link is down",
        _HABANA + r"Device heartbeat failed! PCI link is down",
        _K.GPU_LOST,
        "drivers/accel/habanalabs/common/device.c, hl_device_heartbeat",
    ),
    rule(
        "Device heartbeat failed",
        _HABANA + r"(?P<sub_code>Device heartbeat failed)",
        _K.GPU_HUNG,
        "drivers/misc/habanalabs (drivers/accel since 6.3), common/device.c",
    ),
    rule(
        "EQ heartbeat event was not received",
        _HABANA + r"(?P<sub_code>EQ heartbeat) event was not received",
        _K.GPU_HUNG,
        "drivers/accel/habanalabs/common/device.c, hl_device_eq_heartbeat_received: the driver resets it, and says so where it can't",
    ),
    rule(
        "Failed to detect if device is alive",
        _HABANA + r"(?P<sub_code>Failed to detect if device is alive)",
        _K.GPU_RESET_FAILED,
        "drivers/misc/habanalabs/common/device.c",
    ),
    rule(
        "failed to initialize the H/W after reset",
        _HABANA + r"(?P<sub_code>failed to initialize the H/W after reset)",
        _K.GPU_RESET_FAILED,
        "drivers/misc/habanalabs/common/device.c",
    ),
    # --- Intel
    rule(
        "Engine reset: ",
        _XE + r"(?P<sub_code>Engine reset): ",
        _K.GPU_HUNG,
        "drivers/gpu/drm/xe/xe_guc_submit.c, xe_guc_exec_queue_reset_handler: the program's queue is lost",
    ),
    rule(
        "Timedout job: ",
        _XE
        + r"(?P<sub_code>Timedout job): .{0,160}? in (?P<process>.{1,64}?) \[(?P<pid>-?\d{1,10})\]",
        _K.GPU_HUNG,
        "drivers/gpu/drm/xe/xe_guc_submit.c, guc_exec_queue_timedout_job; vllm#55425",
    ),
    rule(
        "Engine memory ",
        _XE + r"(?P<sub_code>Engine memory (?:cat|CAT) error)",
        _K.GPU_PAGE_FAULT,
        "drivers/gpu/drm/xe/xe_guc_submit.c, xe_guc_exec_queue_memory_cat_error_handler",
    ),
    rule(
        "Fault response: Unsuccessful",
        _XE + r"(?P<sub_code>Fault response: Unsuccessful)",
        _K.GPU_PAGE_FAULT,
        "drivers/gpu/drm/xe/xe_gt_pagefault.c; compute-runtime#946",
    ),
    rule(
        "reset started",
        _XE + r"reset started",
        _K.GPU_RESET,
        "drivers/gpu/drm/xe/xe_gt.c, gt_reset",
    ),
    rule(
        "reset failed",
        _XE + r"(?P<sub_code>reset failed) \(",
        _K.GPU_RESET_FAILED,
        "drivers/gpu/drm/xe/xe_gt.c, gt_reset",
    ),
    rule(
        "CRITICAL: Xe has declared device ",
        _XE + r"CRITICAL: Xe has declared device \S{1,16} as (?P<sub_code>wedged)",
        _K.GPU_RESET_FAILED,
        "drivers/gpu/drm/xe/xe_device.c, xe_device_declare_wedged: it takes no work until it is bound again",
    ),
    rule(
        "GPU HANG: ecode ",
        r"(?:i915 (?P<pci>"
        + PCI
        + r"): )?\[drm\] (?P<sub_code>GPU HANG): ecode \S{1,32}, in (?P<process>.{1,64}?) \[(?P<pid>-?\d{1,10})\]",
        _K.GPU_HUNG,
        "drivers/gpu/drm/i915/i915_gpu_error.c, err_print_gt_info: i915 resets what hangs; compute-runtime#939",
    ),
)
