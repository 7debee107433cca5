"""Messages of GPU drivers: NVIDIA with its NVSwitches, AMD, Habana."""

import re
from dataclasses import replace
from typing import Final

from detectors.kernel_event import PCI, EventKind, KernelEvent, Rule, rule

_K = EventKind

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
    rule(
        "RmInitAdapter",
        r"NVRM: (?:GPU (?P<pci>" + PCI + r"): )?RmInitAdapter failed",
        _K.GPU_INIT,
        "open-gpu-kernel-modules: nv.c",
    ),
    rule(
        "GSP",
        r"NVRM: .{0,120}?(?:Rate limiting GSP RPC error prints|Cannot initialize GSP"
        r"|GSP.{0,40}(?:heartbeat timed? ?out|lockdown.{0,20}timed? ?out))"
        r"(?:.{0,40}?PCI:(?P<pci>" + PCI + r"))?",
        _K.GSP,
        "open-gpu-kernel-modules: kernel_gsp.c; the dmesg sample of an XID 119",
    ),
    rule(
        "rpcRecvPoll timedout",
        r"NVRM: .{0,80}rpcRecvPoll timedout for fn",
        _K.GSP,
        "open-gpu-kernel-modules: rpc.c",
    ),
    rule(
        "NVRM: API mismatch",
        r"NVRM: API mismatch",
        _K.DRIVER_MISMATCH,
        "open-gpu-kernel-modules: nv-reg.h; module and libraries of two versions",
    ),
    rule(
        "nvidia-peermem",
        r"nvidia-peermem .{0,80}?(?P<sub_code>ERROR detected invalid context)",
        _K.PEERMEM,
        "open-gpu-kernel-modules: nvidia-peermem.c; a program ended with memory still registered",
    ),
)
