"""XIDs and SXIDs: told to this node's agent by a file of its own, or written to the kernel's log, which cannot be undone.

Lines as the drivers print them (docs/reference/kernel-log.md). What a process writes to /dev/kmsg carries the facility
"user": rankmend's agent counts it as untrusted; other programs may not look.
"""

import os
from pathlib import Path
from typing import Final

from rankmend.errors import NoSourceError
from rankmend.injected_log import INJECTED_LOG, write_injected
from recovery.lab.inject.fault import FaultKind
from recovery.lab.inject.plan import FaultPlace, FaultPlan
from recovery.lab.inject.undo import RemoveFile
from recovery.launcher.processes.process_tree import PROC, pids, read_state

KMSG: Final = Path("/dev/kmsg")


def plan(place: FaultPlace) -> FaultPlan:
    options = place.request.options
    assert options.code is not None, "checked with the request"
    assert options.device is not None, "checked with the request"
    line = _line(place.request.fault, options.device.lower(), options.code)
    if options.to_kernel:
        return FaultPlan((f"write to {KMSG}: {line}",), make=lambda: _write_kernel(line))
    if INJECTED_LOG.exists():
        raise NoSourceError(f"{INJECTED_LOG} exists already: another injection is active")
    return FaultPlan(
        (f"write to {INJECTED_LOG}, for the agent: {line}",),
        (RemoveFile(path=str(INJECTED_LOG), must_hold=place.injection_id),),
        lambda: write_injected(INJECTED_LOG, line, place.injection_id),
    )


def _line(fault: FaultKind, device: str, code: int) -> str:
    if fault is FaultKind.XID:
        address = device.rpartition(".")[0] if "." in device else device
        return f"NVRM: Xid (PCI:{address}): {code}, injected by rankmend inject"
    return f"nvidia-nvswitch0: SXid (PCI:{device}): {code}, Non-fatal, Link 0 injected by rankmend inject"


def _write_kernel(line: str) -> None:
    descriptor = os.open(KMSG, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"<4>{line}\n".encode("ascii", "replace"))
    finally:
        os.close(descriptor)


def find_readers() -> list[str]:
    """Return who has the kernel's log open here, as ``name (pid)``: each may drain or reboot this node."""
    found = []
    for pid in pids():
        try:
            targets = [str(link.readlink()) for link in Path(PROC, str(pid), "fd").iterdir()]
        except OSError:
            continue
        reads = str(KMSG) in targets or "/proc/kmsg" in targets
        state = read_state(pid) if reads else None
        if state is not None:
            found.append(f"{state.command} ({pid})")
    return sorted(found)
