"""Kubernetes as the service has it."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import RankmendError
from rankmend.kubernetes_api import connect
from rankmend.packages import Extra, require
from recovery.cluster.incoming_alerts import IncomingAlert
from recovery.journal.open_journal import OpenJournal
from recovery.journal.slurm_records import PodProved
from recovery.kubernetes.client import KubernetesClient
from recovery.kubernetes.limits import KubernetesLimits
from recovery.kubernetes.node_states import SeenNode
from recovery.kubernetes.pod_work import PodWork
from recovery.service.desk_service import STOP_S_MAX, DeskService
from recovery.service.kubernetes_signals import KubernetesSignals
from recovery.slurm.desk import RequestDesk
from recovery.slurm.desk_lease import DeskLease, OwnDesk
from recovery.slurm.requests import SchedulerRequest

# An API server that has just started may deny what it grants once it has read the roles.
DENIED_S: Final = 20.0
CLAIMS_MAX: Final = 4_000  # launchers that join at once, and wait for their pods' review
CLAIMS_OF_SUBJECT_MAX: Final = CLAIMS_MAX // 2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A launcher that has joined a job, and the token of its pod."""

    job_id: str
    node: str
    launcher_id: str
    owner: str
    token: str = field(repr=False)  # a secret: in no log


class ClaimQueue:
    """Claims that wait, each subject's in turn: one that joins all the time delays another's by one review, and not by thousands."""

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
        """Have these nodes read, and what others say of them taken in, if that is switched on."""
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
