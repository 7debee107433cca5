"""The kernel log's findings as findings of the node: verdicts of detectors/kernel/log_verdict.py as looks.

A message is an event, not a state, so only a new message is a bad look. A finding that needs a
reboot or more is latched until the node has booted. A GPU reset counts as done after the time below.
The rest ends by itself. The driver's verdict in XID 154 overrides other actions for its GPU.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from detectors.finding import Action, Severity
from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.event_groups import EventGroup
from detectors.kernel.log_cases import KernelFinding, account_of
from detectors.kernel.nvlink import XIDS as NVLINK5_XIDS
from detectors.node.checks import Component
from detectors.node.node_state import CheckLook, Labels, NodeState, Snapshot, finding_id
from detectors.node.rank_places import pci_address
from detectors.persistence import Latch, Persistence

STICKY_S: Final = 600.0  # gpud, sticky window of a port: shorter ones go unseen (PR 1110)
STICKY_RESET_S: Final = 10_800.0  # NVSentinel health-events-analyzer: 3 h
REBOOTS_MAX: Final = 2  # gpud xid/threshold.go: then hardware inspection
VERDICT_XID: Final = 154
GPU_INFO: Final = "rankmend_gpu_info"
RECOVERY_ACTION: Final = "rankmend_gpu_recovery_action_id"
NVLINK_XIDS: Final = frozenset({74, *NVLINK5_XIDS})
XID_EVENTS: Final = "rankmend_gpu_xid_events_total"
COLLECTOR: Final = "kernel_log"
_K = EventKind
_GPU_KINDS: Final = frozenset(
    {
        *(_K.GSP_HEARTBEAT, _K.NVLINK_DISCOVERY, _K.FABRIC_DOWN, _K.FABRIC_MULTICAST),
        *(_K.XID, _K.GPU_LOST, _K.GSP, _K.GPU_INIT, _K.GPU_HUNG, _K.GPU_PAGE_FAULT, _K.GPU_RESET),
        *(_K.GPU_RESET_FAILED, _K.GPU_NEEDS_RESET, _K.GPU_FIRMWARE, _K.GPU_UNCLAIMED),
        *(_K.GPU_MEMORY_CORRECTED, _K.GPU_MEMORY_DEFERRED),
        *(_K.GPU_MEMORY_UNCORRECTED, _K.GPU_WORN_OUT, _K.GPU_OVERHEATED),
    }
)
_NIC_KINDS: Final = (
    *(_K.LINK_DOWN, _K.LINK_UP, _K.NIC_HUNG, _K.NIC_RESET, _K.NIC_INIT, _K.NIC_FAULT),
    *(_K.NIC_WARNING, _K.NIC_COMMAND, _K.TRANSCEIVER, _K.TRANSCEIVER_HOT),
)
_MEMORY_KINDS: Final = (_K.MEMORY_CORRECTED, _K.MEMORY_UNCORRECTED, _K.OOM_KILL)
_DISK_KINDS: Final = (
    *(_K.FS_ERROR, _K.FS_READ_ONLY, _K.PATH_LOST, _K.NO_PATH, _K.NVME_TIMEOUT, _K.NVME_RESET),
    *(_K.NVME_DOWN, _K.IO_ERROR, _K.MEDIUM_ERROR, _K.RAID_DEGRADED, _K.STORAGE_FAULT),
)
_COMPONENTS: Final = {
    **dict.fromkeys((*_GPU_KINDS, _K.SXID), Component.GPU),
    **dict.fromkeys(_NIC_KINDS, Component.NIC),
    **dict.fromkeys(_MEMORY_KINDS, Component.MEMORY),
    **dict.fromkeys(_DISK_KINDS, Component.DISK),
    **dict.fromkeys((_K.THROTTLED, _K.OVERHEATED), Component.CPU),
}


DriverEvents = Mapping[tuple[str, int], tuple[float, float]]  # (address, XID) -> count, when


def driver_events(seen: DriverEvents, snapshot: Snapshot) -> DriverEvents:
    """Return the XIDs that the driver itself reported, and when their counts last grew."""
    reading = snapshot.readings.get(XID_EVENTS)
    if reading is None:
        return seen
    events = dict(seen)
    for series in reading.series:
        own = dict(series.labels)
        key = (f"{pci_address(own['pci_bus_id'])}.0", int(own["xid"]))
        if events.get(key, (0.0, 0.0))[0] != series.value:
            events[key] = (series.value, reading.at_s)
    return events


def driver_groups(events: DriverEvents) -> Iterator[EventGroup]:
    """Return the driver's XIDs in the form of log events, for a node whose log can't be read.

    Without XID 154, of which the driver reports no text: its verdict is polled beside.
    """
    for (address, code), (count, at_s) in events.items():
        if code == VERDICT_XID:
            continue
        event = KernelEvent(
            EventKind.XID,
            f"XID {code}, reported by the driver to this agent",
            code=code,
            device=address,
            at_s=at_s,
            seq=int(count),
        )
        yield EventGroup(
            kind=EventKind.XID,
            code=code,
            sub_code="",
            device=address,
            count=int(count),
            first=event,
            last=event,
            last_number=0,
            bursts=((at_s, at_s),),
        )


def by_recovery_action(
    findings: Iterable[KernelFinding], snapshot: Snapshot
) -> Iterator[KernelFinding]:
    """Yield findings about events whose text nobody has: the driver's own verdict says how bad an NVLink error was.

    Its text says Nonfatal or Fatal, and its registers more. Where only the event is known, a driver that asks for no recovery (NVML
    field 230, NONE) has survived it. Source: NVSentinel#1357, where DCGM said fatal and the kernel Nonfatal.
    """
    reading = snapshot.readings.get(RECOVERY_ACTION)
    asks_nothing = {
        f"{pci_address(dict(series.labels)['pci_bus_id'])}.0"
        for series in (reading.series if reading else ())
        if series.value == 0
    }
    for finding in findings:
        if finding.code in NVLINK_XIDS and finding.device in asks_nothing:
            reason = "the driver asks for no recovery, and the kernel's line can't be read here"
            yield replace(finding, severity=Severity.WARNING, action=Action.WATCH, reason=reason)
        else:
            yield finding


def kernel_observations(
    findings: Iterable[KernelFinding],
    state: NodeState,
    snapshot: Snapshot,
    now_s: float,
    collector: str = COLLECTOR,
) -> Iterator[CheckLook]:
    """Return one look at each of the kernel log's findings, new or held."""
    findings = tuple(findings)
    if not findings:
        return
    is_about_gpu = any(finding.kind in _GPU_KINDS for finding in findings)
    gpus = {**_gpus_held(state), **_gpus_by_address(snapshot)} if is_about_gpu else {}
    for finding in findings:
        labels = _labels(finding, gpus)
        check = check_name(finding)
        mark = _mark(finding)
        persistence = _persistence(finding)
        held = state.held.get(finding_id(check, labels))
        is_nothing = finding.action is Action.NONE or finding.severity is Severity.INFO
        is_new = held is None or held.seen.mark != mark
        is_bad = is_new and not is_nothing
        is_idle = held is None or not held.track.is_active
        if is_idle and (is_nothing or _is_over(finding, persistence, now_s)):
            continue
        yield CheckLook(
            check=check,
            component=_component(finding),
            labels=labels,
            collector=collector,
            at_s=now_s,
            is_bad=is_bad,
            persistence=persistence,
            severity=finding.severity,
            action=finding.action,
            summary=_summary(finding),
            evidence=_evidence(finding),
            source=finding.reason,
            reboots_max=REBOOTS_MAX if finding.blames_hardware else None,
            overrules=finding.kind is EventKind.XID and finding.code == VERDICT_XID,
            mark=mark,
            kernel=account_of(finding),
            is_withdrawn=is_nothing,
        )


def check_name(finding: KernelFinding) -> str:
    """Return ``xid_79``, ``nic_link_down`` and the like."""
    if finding.kind in (EventKind.XID, EventKind.SXID) and finding.code is not None:
        return f"{finding.kind.value}_{finding.code}"
    if finding.many is not None:
        return f"kernel_{finding.many.value}"
    return f"kernel_{finding.kind.value}"


def _mark(finding: KernelFinding) -> str:
    last = finding.last
    return f"{last.seq}:{last.at_s}:{finding.severity.value}:{finding.action.value}"


def _persistence(finding: KernelFinding) -> Persistence:
    if finding.severity is Severity.CRITICAL and finding.action.ends_use:
        if finding.action is Action.RESET_GPU:
            return Persistence(sticky_s=STICKY_RESET_S)
        return Persistence(sticky_s=STICKY_S, latch=Latch.BOOT)
    return Persistence(sticky_s=STICKY_S)


def _is_over(finding: KernelFinding, persistence: Persistence, now_s: float) -> bool:
    """Return whether it was over before the first look: the log goes back to the boot."""
    at_s = finding.last.at_s
    return (
        persistence.latch is Latch.NONE and at_s is not None and now_s - at_s > persistence.sticky_s
    )


def _component(finding: KernelFinding) -> Component:
    return _COMPONENTS.get(finding.kind, Component.HOST)


def _gpus_held(state: NodeState) -> Mapping[str, Labels]:
    """Return the GPUs of findings: a lost GPU keeps its name after NVML forgets it."""
    held = (subject.seen.labels for subject in state.held.values())
    return {
        pci_address(dict(labels)["pci_bus_id"]): labels
        for labels in held
        if [name for name, _value in labels] == ["gpu", "uuid", "pci_bus_id"]
    }


def _gpus_by_address(snapshot: Snapshot) -> Mapping[str, Labels]:
    reading = snapshot.readings.get(GPU_INFO)
    found = {}
    for series in reading.series if reading else ():
        own = dict(series.labels)
        retained = tuple(
            (name, own[name]) for name in ("gpu", "uuid", "pci_bus_id") if own.get(name)
        )
        found[pci_address(own.get("pci_bus_id", ""))] = retained
    return found


def _labels(finding: KernelFinding, gpus: Mapping[str, Labels]) -> Labels:
    if not finding.device:
        return ()
    if finding.kind in _GPU_KINDS and (gpu := gpus.get(pci_address(finding.device))):
        return gpu
    return (("device", finding.device),)


def _summary(finding: KernelFinding) -> str:
    code = f" {finding.code}" if finding.code is not None else ""
    where = f" on {finding.device}" if finding.device else ""
    often = f", {finding.count} times" if finding.count > 1 else ""
    name = finding.kind.value.upper() if code else finding.kind.value.replace("_", " ")
    return f"{name}{code}{where}: {finding.meaning}{often}"


def _evidence(finding: KernelFinding) -> tuple[str, ...]:
    lines = dict.fromkeys((finding.first, finding.last))
    return tuple(f"kernel {event.when}: {event.text}" for event in lines)
