"""Kubernetes as the service has it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rankmend.clock import Clock
from rankmend.kubernetes_api import connect
from rankmend.packages import Extra, require
from recovery.cluster.incoming_alerts import IncomingAlert
from recovery.journal.open_journal import OpenJournal
from recovery.kubernetes.client import KubernetesClient
from recovery.kubernetes.limits import KubernetesLimits
from recovery.kubernetes.node_states import SeenNode
from recovery.kubernetes.pod_work import PodWork
from recovery.service.desk_service import DeskService
from recovery.service.kubernetes_signals import KubernetesSignals
from recovery.slurm.desk import RequestDesk
from recovery.slurm.desk_lease import DeskLease, OwnDesk
from recovery.slurm.requests import SchedulerRequest

# An API server that has just started may deny what it grants once it has read the roles.
DENIED_S: Final = 20.0


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
        if self._signals is not None:
            self._signals.start()

    def stop(self) -> None:
        if self._signals is not None:
            self._signals.stop()
        super().stop()
