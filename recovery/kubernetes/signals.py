"""What other tools say of a node in Kubernetes, as alerts: one table of conditions and taints. Pure.

Sources: Node Problem Detector, config/ (kernel-monitor, docker-monitor, systemd-monitor-counter, health-checker-*); NVSentinel,
docs/INTEGRATIONS.md (conditions of its monitors, and the taints that its guide names; sites choose their own, so the table is for exact keys only).
The taint `nvidia.com/gpu` of GPU pools says that there are GPUs, and is no fault. A condition of the kubelet itself (Ready,
MemoryPressure ...) is none either: rankmend hears the ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from detectors.finding import Action, Severity
from rankmend.printable import printable
from recovery.cluster.incoming_alerts import IncomingAlert

_TEXT_MAX: Final = 300


class SignalKind(Enum):
    CONDITION = "condition"  # of the node, with status True
    TAINT = "taint"


@dataclass(frozen=True, slots=True)
class NodeSignal:
    kind: SignalKind
    name: str  # type of the condition, or key of the taint
    source: str
    severity: Severity
    action: Action
    says: str


def _npd(name: str, severity: Severity, action: Action, says: str) -> NodeSignal:
    return NodeSignal(SignalKind.CONDITION, name, "Node Problem Detector", severity, action, says)


def _nvs(name: str, action: Action, says: str) -> NodeSignal:
    """NVSentinel sets a condition only for what it calls fatal."""
    return NodeSignal(SignalKind.CONDITION, name, "NVSentinel", Severity.CRITICAL, action, says)


def _taint(name: str, action: Action, says: str) -> NodeSignal:
    return NodeSignal(SignalKind.TAINT, name, "NVSentinel", Severity.CRITICAL, action, says)


SIGNALS: Final = (
    _npd("KernelDeadlock", Severity.CRITICAL, Action.REBOOT, "the kernel hangs"),
    _npd("ReadonlyFilesystem", Severity.CRITICAL, Action.DRAIN, "a file system is read-only"),
    _npd("FrequentUnregisterNetDevice", Severity.WARNING, Action.WATCH, "a network device does not go away"),
    _npd("CorruptDockerOverlay2", Severity.WARNING, Action.WATCH, "the container runtime's storage is corrupt"),
    _npd("FrequentKubeletRestart", Severity.WARNING, Action.WATCH, "the kubelet restarts often"),
    _npd("FrequentContainerdRestart", Severity.WARNING, Action.WATCH, "containerd restarts often"),
    _npd("FrequentDockerRestart", Severity.WARNING, Action.WATCH, "Docker restarts often"),
    _npd("KubeletUnhealthy", Severity.WARNING, Action.WATCH, "the kubelet is not well"),
    _npd("ContainerRuntimeUnhealthy", Severity.WARNING, Action.WATCH, "the container runtime is not well"),
    _nvs("GpuMemWatch", Action.DRAIN, "a GPU's memory fails"),
    _nvs("GpuNvlinkWatch", Action.DRAIN, "an NVLink fails"),
    _nvs("GpuPcieWatch", Action.DRAIN, "a GPU's PCIe link fails"),
    _nvs("GpuSmWatch", Action.DRAIN, "a GPU's multiprocessor fails"),
    _nvs("GpuInforomWatch", Action.DRAIN, "a GPU's inforom is corrupt"),
    _nvs("GpuPowerWatch", Action.DRAIN, "a GPU's power fails"),
    _nvs("GpuThermalWatch", Action.DRAIN, "a GPU is too hot"),
    _nvs("GpuMcuWatch", Action.DRAIN, "a GPU's microcontroller fails"),
    _nvs("GpuPmuWatch", Action.DRAIN, "a GPU's power management unit fails"),
    _nvs("GpuDriverWatch", Action.REBOOT, "the GPU driver fails"),
    _nvs("SysLogsXIDError", Action.RESET_GPU, "the kernel log has a fatal XID"),
    _nvs("SysLogsSXIDError", Action.DRAIN, "the kernel log has a fatal SXID of an NVSwitch"),
    _nvs("SysLogsGPUFallenOff", Action.REBOOT, "a GPU has fallen off the bus"),
    _nvs("NVSwitchFatalError", Action.DRAIN, "an NVSwitch fails"),
    _nvs("NVSwitchDown", Action.DRAIN, "an NVSwitch is away"),
    _taint("AggregatedNodeHealth", Action.DRAIN, "the node was quarantined"),
    _taint("nvidia.com/gpu-xid-error", Action.DRAIN, "the node was quarantined for an XID"),
    _taint("nvidia.com/syslog-xid-error", Action.DRAIN, "the node was quarantined for an XID"),
    _taint("nvidia.com/gpu-nvlink-error", Action.DRAIN, "the node was quarantined for an NVLink"),
    _taint("nvidia.com/gpu-error", Action.DRAIN, "the node was quarantined for a GPU"),
)  # fmt: skip
_BY_NAME: Final = {(one.kind, one.name): one for one in SIGNALS}


def read_signals(told: Mapping[str, Any]) -> Iterator[tuple[NodeSignal, str]]:
    """Yield what a node's object says that the table has, each with the tool's own words."""
    for one in (told.get("status") or {}).get("conditions") or ():
        signal = _BY_NAME.get((SignalKind.CONDITION, str(one.get("type"))))
        if signal is not None and one.get("status") == "True":
            yield signal, str(one.get("message") or one.get("reason") or "")
    seen = set()
    for one in (told.get("spec") or {}).get("taints") or ():
        signal = _BY_NAME.get((SignalKind.TAINT, str(one.get("key"))))
        if signal is not None and signal not in seen:  # once, whatever its effects
            seen.add(signal)
            yield signal, str(one.get("value") or "")


def alert_of(node: str, signal: NodeSignal, text: str, *, is_firing: bool) -> IncomingAlert:
    """Return the alert that stands for a signal; ``text``: the tool's own words."""
    told = f": {printable(text)[:_TEXT_MAX]}" if text else ""
    labels = {
        "alertname": "RankmendNodeSignal",
        "node": node,
        "device": signal.name,
        "severity": signal.severity.value,
        "action": signal.action.value,
    }
    summary = f"{signal.source} says that {signal.says} ({signal.name}{told})"
    return IncomingAlert(labels, {"summary": summary}, None, is_firing)
