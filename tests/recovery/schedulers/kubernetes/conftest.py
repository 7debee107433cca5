"""A controller's part on the real API, as the service account that deploy/kubernetes has for it."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from rankmend.clock import SystemClock
from rankmend.kubernetes_api import KubernetesApi
from recovery.journal.store import Journal
from recovery.schedulers.kubernetes.client import KubernetesClient
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.kubernetes.pod_work import PodWork
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.schedulers.slurm.ledger import Work
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.support.eventually import eventually
from tests.support.kubernetes import Cluster

ROLE = Path(__file__).parents[4] / "deploy/kubernetes/controller/rbac.yaml"
LIMITS = KubernetesLimits(enabled=True, act=True, nodes_drained_percent=100.0, timeout_s=10.0)
_numbers = itertools.count(1)


def shipped_rules(name: str = "rankmend-controller") -> list[dict[str, Any]]:
    """Return the rules of a shipped role; those of `rankmend-controller-evict` hold in single namespaces."""
    documents = yaml.safe_load_all(ROLE.read_text())
    roles = [one for one in documents if one["kind"] == "ClusterRole"]
    (rules,) = [one["rules"] for one in roles if one["metadata"]["name"] == name]
    return list(rules)


EVICTS = "rankmend-controller-evict"


class Site:
    """A desk with a token, in a namespace and with a node of its own."""

    def __init__(self, cluster: Cluster, folder: Path, token: str, name: str, **changes: Any):
        limits = msgspec.structs.replace(LIMITS, **changes)
        self.cluster, self.namespace, self.node = cluster, name, f"{name}-node"
        api = KubernetesApi(cluster.api_of(token), limits.timeout_s)
        self.client = KubernetesClient(api)
        self.journal = Journal(folder / "journal.db", SystemClock(), "boot")
        self.desk = RequestDesk(
            self.journal,
            self.client,
            limits,
            SystemClock(),
            lambda bench: PodWork(bench, self.client, limits),
            settle_s=1.0,
            look_s=0.05,
        )

    def ask(self, action: SchedulerAction, key: str, **fields: Any) -> SchedulerRequest:
        asked = SchedulerRequest(key, action, (self.node,), reason="GPU 3 is bad", **fields)
        self.desk.ask(asked)
        return asked

    def turn_until(self, is_so: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            if is_so():
                return True
            self.desk.turn()
            return False

        eventually(look, lambda: f"{what}: {self.desk.ledger.works}", pause_s=0.05)

    def finish(self, action: SchedulerAction, key: str, **fields: Any) -> Work:
        self.ask(action, key, **fields)
        self.turn_until(lambda: self.desk.ledger.works[key].ended is not None, key)
        return self.desk.ledger.works[key]


Make = Callable[..., Site]


@pytest.fixture
def make(kubernetes_cluster: Cluster, tmp_path: Path) -> Iterator[Make]:
    """Return what makes a site; ``rules``, ``own``: what its account may do in the cluster and in its namespace, in place of what is shipped."""
    made: list[Site] = []

    def site(
        rules: list[dict[str, Any]] | None = None,
        own: list[dict[str, Any]] | None = None,
        **changes: Any,
    ) -> Site:
        name = f"site-{tmp_path.name.replace('_', '-').lower()[:30].strip('-')}-{next(_numbers)}"
        granted = shipped_rules() if rules is None else rules
        inside = shipped_rules(EVICTS) if own is None else own
        token = kubernetes_cluster.add_account(name, "controller", granted, inside)
        kubernetes_cluster.add_node(f"{name}-node")
        folder = tmp_path / name
        folder.mkdir()
        made.append(Site(kubernetes_cluster, folder, token, name, **changes))
        return made[-1]

    yield site
    for one in made:
        one.journal.close()
