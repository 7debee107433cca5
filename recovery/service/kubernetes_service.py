"""Kubernetes as the service has it: node states and other tools' alerts, reviews of pod tokens, and the desk that evicts pods.

Sources of the table of signals: Node Problem Detector, config/ (kernel-monitor, docker-monitor, systemd-monitor-counter,
health-checker-*); NVSentinel, docs/INTEGRATIONS.md (conditions of its monitors, and the taints that its guide names; sites
choose their own, so the table is for exact keys only).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from detectors.finding import Action, Severity
from rankmend.clock import Clock
from rankmend.errors import RankmendError
from rankmend.kubernetes_api import connect
from rankmend.lasting_trouble import LastingTrouble
from rankmend.packages import Extra, require
from rankmend.printable import printable
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.journal.open_journal import OpenJournal
from recovery.journal.slurm_records import PodProved
from recovery.schedulers.kubernetes.client import KubernetesClient
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.kubernetes.node_states import SeenNode, read_state
from recovery.schedulers.kubernetes.pod_work import PodWork
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.schedulers.slurm.desk_lease import DeskLease, OwnDesk
from recovery.schedulers.slurm.requests import SchedulerRequest
from recovery.service.desk_service import STOP_S_MAX, DeskService

log = logging.getLogger(__name__)

_TEXT_MAX: Final = 300

LOOK_S: Final = 10.0
NODES_MAX: Final = 20_000
SIGNALS_STOP_S_MAX: Final = 5.0
SHARE_MAX: Final = 0.25  # of the time that reading may take: of thousands of nodes it takes seconds

# An API server that has just started may deny what it grants once it has read the roles.
DENIED_S: Final = 20.0
CLAIMS_MAX: Final = 4_000  # launchers that join at once, and wait for their pods' review
CLAIMS_OF_SUBJECT_MAX: Final = CLAIMS_MAX // 2


class SignalKind(Enum):
    CONDITION = "condition"  # of the node, with status True
    TAINT = "taint"


@dataclass(frozen=True, slots=True)
class NodeSignal:
    """A condition or taint by which another tool reports a fault of a node.

    The taint `nvidia.com/gpu` of GPU pools marks nodes with GPUs, and is no fault. A condition of
    the kubelet itself (Ready, MemoryPressure ...) is none either: rankmend receives the ranks'
    reports.
    """

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
_BY_NAME: Final = {(signal.kind, signal.name): signal for signal in SIGNALS}


def read_signals(reported: Mapping[str, Any]) -> Iterator[tuple[NodeSignal, str]]:
    """Yield the signals of the table in a node's object, each with the tool's own words."""
    for item in (reported.get("status") or {}).get("conditions") or ():
        signal = _BY_NAME.get((SignalKind.CONDITION, str(item.get("type"))))
        if signal is not None and item.get("status") == "True":
            yield signal, str(item.get("message") or item.get("reason") or "")
    seen = set()
    for item in (reported.get("spec") or {}).get("taints") or ():
        signal = _BY_NAME.get((SignalKind.TAINT, str(item.get("key"))))
        if signal is not None and signal not in seen:  # once, whatever its effects
            seen.add(signal)
            yield signal, str(item.get("value") or "")


def alert_of(node: str, signal: NodeSignal, text: str, *, is_firing: bool) -> IncomingAlert:
    """Return the alert that stands for a signal; ``text``: the tool's own words."""
    reported = f": {printable(text)[:_TEXT_MAX]}" if text else ""
    labels = {
        "alertname": "RankmendNodeSignal",
        "node": node,
        "device": signal.name,
        "severity": signal.severity.value,
        "action": signal.action.value,
    }
    summary = f"{signal.source} says that {signal.says} ({signal.name}{reported})"
    return IncomingAlert(labels, {"summary": summary}, None, is_firing)


class KubernetesSignals:
    """Reads the nodes of our jobs in Kubernetes: their states for people and, if configured, other tools' signals as alerts."""

    def __init__(
        self,
        read: Callable[[Sequence[str]], Mapping[str, Mapping[str, Any]]],
        nodes: Callable[[], Sequence[str]],
        take: Callable[[Sequence[IncomingAlert]], object] | None,
        clock: Clock,
        look_s: float = LOOK_S,
    ) -> None:
        """``read`` returns nodes' objects by name; ``nodes`` names those of our jobs; ``take`` receives the alerts, None: nobody does."""
        self._read = read
        self._nodes = nodes
        self._take = take
        self._clock = clock
        self.states: Mapping[str, SeenNode] = {}  # replaced as a whole
        self._look_s = look_s
        self._firing: dict[tuple[str, NodeSignal], str] = {}
        self._unread = LastingTrouble(log, "cannot read nodes in Kubernetes", clock)
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubernetes-signals", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()
        if self._thread.ident is not None:
            self._thread.join(SIGNALS_STOP_S_MAX)

    def _run(self) -> None:
        wait_s = self._look_s
        while not self._should_stop.wait(wait_s):
            begun_s = time.monotonic()
            try:
                self.look()
                self._unread.end()
            except RankmendError as error:  # Kubernetes is away: nothing is concluded from that
                self._unread.note(error)
            except Exception:
                log.exception("cannot read nodes in Kubernetes")
            wait_s = max(self._look_s, (time.monotonic() - begun_s) / SHARE_MAX)

    def look(self) -> None:
        """Read the nodes once, store their states, and pass on which signals fire and which have ended."""
        found = self._read(sorted(self._nodes())[:NODES_MAX])
        unix_s = self._clock.unix_s()
        self.states = {name: read_state(reported, unix_s) for name, reported in found.items()}
        if self._take is None:
            return
        firing: dict[tuple[str, NodeSignal], str] = {}
        for name, reported in found.items():
            firing.update({(name, signal): text for signal, text in read_signals(reported)})
        ended = self._firing.keys() - firing.keys()
        alerts = [
            *(alert_of(node, item, text, is_firing=True) for (node, item), text in firing.items()),
            *(alert_of(node, item, "", is_firing=False) for node, item in ended),
        ]
        if alerts:
            self._take(alerts)
        self._firing = firing


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A launcher that has joined a job, and the token of its pod."""

    job_id: str
    node: str
    launcher_id: str
    owner: str
    token: str = field(repr=False)  # a secret: in no log


class ClaimQueue:
    """Claims that wait, each subject's in turn: a subject that joins all the time delays another's claim by one review, and not by thousands."""

    def __init__(self) -> None:
        self._of: dict[str, deque[PodClaim]] = {}  # by subject, the next one first
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, claim: PodClaim) -> bool:
        """Queue a claim, and return whether there is room: for a subject of which nothing waits there always is."""
        with self._changed:
            own = len(self._of.get(claim.owner, ()))
            count = sum(map(len, self._of.values()))
            if own >= CLAIMS_OF_SUBJECT_MAX or (own and count >= CLAIMS_MAX):
                return False
            self._of.setdefault(claim.owner, deque()).append(claim)
            self._changed.notify()
            return True

    def take(self) -> PodClaim | None:
        """Wait for a claim, and return it; None: the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._of or self._is_closed)
            if self._is_closed:
                return None
            owner = next(iter(self._of))
            claims = self._of.pop(owner)
            claim = claims.popleft()
            if claims:
                self._of[owner] = claims
            return claim

    def close(self) -> None:
        with self._changed:
            self._of.clear()
            self._is_closed = True
            self._changed.notify_all()


class PodReviews:
    """Has the tokens of launchers' pods reviewed, in a thread of its own: no join waits for Kubernetes.

    What it finds is journaled (`PodProved`). A token that proves nothing, or comes from a pod on another node, changes nothing: the job
    runs all the same, and nothing outside it follows from the pod.
    """

    def __init__(self, client: KubernetesClient, note: Callable[[PodProved], None]) -> None:
        self._client = client
        self._note = note
        self._waiting = ClaimQueue()
        self._thread = threading.Thread(target=self._run, name="pod reviews", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the review that is under way; the others come with the launchers' next joins."""
        self._waiting.close()
        if self._thread.ident is not None:
            self._thread.join(STOP_S_MAX)

    def add(self, claim: PodClaim) -> None:
        """Have a claim reviewed; where too many wait, it is left out. For any thread."""
        if not self._waiting.put(claim):
            log.warning("pod not reviewed: too many wait", extra={"job_id": claim.job_id})

    def _run(self) -> None:
        while (claim := self._waiting.take()) is not None:
            fields = {"job_id": claim.job_id, "node": claim.node, "launcher_id": claim.launcher_id}
            try:
                why_not = self.review(claim)
            except RankmendError as error:
                why_not = str(error)
            except Exception:
                log.exception("pod not reviewed", extra=fields)
                continue
            if why_not:
                log.warning("a launcher's pod is not proved", extra={**fields, "why": why_not})

    def review(self, claim: PodClaim) -> str:
        """Record the pod of a claim, and return an empty text; or return why it is not proved."""
        reviewed = self._client.review_token(claim.token)
        if reviewed.why_not:
            return reviewed.why_not
        pod = self._client.pod(reviewed.pod)
        if pod is None:
            return f"pod {reviewed.pod} is gone"
        if pod.node != claim.node:
            return f"pod {reviewed.pod} is on {pod.node or 'no node'}: --node-name must be the node's name in Kubernetes"
        proved = PodProved(claim.job_id, claim.node, claim.launcher_id, pod.reference, claim.owner)
        self._note(proved)
        return ""


class KubernetesService(DeskService):
    def __init__(
        self,
        journal: OpenJournal,
        limits: KubernetesLimits,
        clock: Clock,
        may_act: Callable[[SchedulerRequest], str],
        observes: Callable[[SchedulerRequest], str | None] = lambda _request: None,
        of_interest: Callable[[], Sequence[str]] = lambda: (),
        lease: DeskLease | None = None,
    ) -> None:
        """``journal`` is closed at the end; ``lease``: None where no other controller may act. Raises MissingPackageError without the extra, and ConfigError where no cluster is configured."""
        require(Extra.KUBERNETES, "rankmend controller run with [kubernetes]")
        api = connect(limits.kubeconfig, limits.context, limits.timeout_s)
        api.left_s = (lease or OwnDesk()).left_s
        client = KubernetesClient(api)
        desk = RequestDesk(
            journal,
            client,
            limits,
            clock,
            lambda bench: PodWork(bench, client, limits),
            may_act=may_act,
            observes=observes,
            of_interest=of_interest,
            denied_s=DENIED_S,
            left_s=(lease or OwnDesk()).left_s,
        )
        super().__init__(journal, desk, lease)
        self._limits = limits
        self._clock = clock
        self._signals: KubernetesSignals | None = None
        reviewer = KubernetesClient(connect(limits.kubeconfig, limits.context, limits.timeout_s))
        self.reviews = PodReviews(reviewer, desk.note_pod)

    def hear_signals(
        self, nodes: Callable[[], Sequence[str]], take: Callable[[Sequence[IncomingAlert]], object]
    ) -> None:
        """Have these nodes read, and accept other tools' signals of them, if that is switched on."""
        limits = self._limits
        # A client of its own: the thread has one.
        client = KubernetesClient(connect(limits.kubeconfig, limits.context, limits.timeout_s))
        self._signals = KubernetesSignals(
            client.node_objects, nodes, take if limits.signals else None, self._clock
        )

    def states(self) -> Mapping[str, SeenNode]:
        """Return the nodes of jobs as they were read last. For any thread."""
        return {} if self._signals is None else self._signals.states

    def start(self) -> None:
        super().start()
        self.reviews.start()
        if self._signals is not None:
            self._signals.start()

    def stop(self) -> None:
        if self._signals is not None:
            self._signals.stop()
        self.reviews.stop()
        super().stop()
