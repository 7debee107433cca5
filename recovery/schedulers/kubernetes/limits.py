"""How much the controller may do in Kubernetes. Off by default: then it only tells what it would do."""

from typing import Annotated, ClassVar

import msgspec

from recovery.schedulers.slurm.limits import HOUR_S, NodeLimits
from recovery.schedulers.slurm.requests import SchedulerAction


class KubernetesLimits(NodeLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table [kubernetes] of the controller's configuration."""

    table: ClassVar[str] = "kubernetes"
    manager: ClassVar[str] = "Kubernetes"

    # Pods of a job that has left the node. `delete`: at once, where Kubernetes does not hear the node: it would be ending for ever.
    evict: bool = True
    delete: bool = True
    # For how long a budget (PodDisruptionBudget) may forbid an eviction, and a pod may take to end beyond its grace period.
    evict_timeout_s: Annotated[float, msgspec.Meta(ge=1, le=24 * HOUR_S)] = 600.0
    evictions_per_hour_max: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 20

    # Take what other tools say of the nodes of our jobs (conditions, taints) as alerts: recovery/service/kubernetes_service.py.
    signals: bool = False

    kubeconfig: str | None = None  # a file; None: the service account of the controller's own pod
    context: str | None = None  # of the file; None: its current one

    def switch_of(self, action: SchedulerAction) -> bool:
        if action is SchedulerAction.EVICT:
            return self.evict
        return NodeLimits.switch_of(self, action)
