"""A Kubernetes of a few nodes and pods in memory, with its versions, managers and budgets, and a controller that can be killed anywhere."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rankmend.kubernetes_api import (
    FIELD_MANAGER,
    KubernetesBudgetError,
    KubernetesConflictError,
    KubernetesUnknownError,
)
from recovery.journal.records import Entry
from recovery.journal.slurm_records import SlurmRecord
from recovery.journal.store import Journal
from recovery.schedulers.kubernetes.client import KubernetesClient
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.kubernetes.pod_work import PodWork
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.schedulers.slurm.ledger import Work
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from tests.recovery.schedulers.slurm.fakes import FakeChecks, MovedClock


class CrashError(BaseException):
    """The controller dies here. BaseException: no ordinary handler swallows it."""


class FakeApi:
    """`rankmend.kubernetes_api.KubernetesApi`."""

    timeout_s = 5.0

    def __init__(self, *nodes: str) -> None:
        self._version = itertools.count(1)
        self.nodes = {name: self._new_node(name) for name in nodes}
        self.pods: dict[str, dict[str, Any]] = {}
        self.subjects: dict[str, str] = {}  # of namespaces
        self.effects: list[str] = []  # what was changed, in order
        self.budget = 100  # evictions that are allowed
        self.eviction = "v1beta1"  # version that the server has
        self.before_patch: Callable[[], None] = lambda: None  # somebody else, in between
        self.cross: Callable[[], None] = lambda: None
        self.refuse: Callable[[str, str], None] = lambda _method, _path: None

    def _new_node(self, name: str) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True"}
        return {
            "metadata": {
                "name": name,
                "resourceVersion": str(next(self._version)),
                "annotations": {},
                "managedFields": [],
            },
            "spec": {},
            "status": {"conditions": [ready]},
        }

    def remake(self, node: str, unix_s: float) -> None:
        """Have the node made anew under the same name."""
        self.nodes[node] = self._new_node(node)
        at = datetime.fromtimestamp(unix_s, timezone.utc)
        self.nodes[node]["metadata"]["creationTimestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")

    def cordon(self, node: str, who: str) -> None:
        """Cordon as somebody else."""
        told = self.nodes[node]
        told["spec"]["unschedulable"] = True
        told["metadata"]["managedFields"] = [_managed(who)]
        self.touch(node)

    def touch(self, node: str) -> None:
        """Have a kubelet write its status."""
        self.nodes[node]["metadata"]["resourceVersion"] = str(next(self._version))

    def hear(self, node: str, status: str) -> None:
        self.nodes[node]["status"]["conditions"][0]["status"] = status

    def add_pod(self, name: str, node: str, job: str = "train") -> str:
        uid = f"uid-{next(self._version)}"
        self.pods[name] = {
            "metadata": {
                "namespace": "jobs",
                "name": name,
                "uid": uid,
                "labels": {"rankmend.io/job": job},
            },
            "spec": {"nodeName": node},
            "status": {"phase": "Running"},
        }
        return uid

    def call(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        *,
        sends: str = "",
    ) -> dict[str, Any]:
        self.cross()
        self.refuse(method, path)
        answer = self._answer(method, path, dict(query), body)
        self.cross()
        return copy.deepcopy(answer)

    def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any
    ) -> dict[str, Any]:
        parts = path.strip("/").split("/")
        if path == "/api/v1":
            return {
                "resources": [
                    {"name": "pods", "kind": "Pod"},
                    {"name": "pods/eviction", "group": "policy", "version": self.eviction},
                ]
            }
        if path == "/api/v1/nodes":
            names, first = sorted(self.nodes), int(query.get("continue", "0"))
            after = first + int(query["limit"])
            more = {"continue": str(after)} if after < len(names) else {}
            left = max(0, len(names) - after)
            items = [self.nodes[name] for name in names[first:after]]
            return {"metadata": {"remainingItemCount": left, **more}, "items": items}
        if parts[2] == "nodes":
            if method == "PATCH":
                self.before_patch()
                return self._patch(parts[3], body)
            if parts[3] not in self.nodes:
                raise KubernetesUnknownError(path)
            return self.nodes[parts[3]]
        if path == "/api/v1/pods":
            return {"items": [one for one in self.pods.values() if _matches(one, query)]}
        return self._pod(method, parts, body)

    def _pod(self, method: str, parts: list[str], body: Any) -> dict[str, Any]:
        if len(parts) == 4:  # its namespace
            subject = self.subjects.get(parts[3])
            labels = {} if subject is None else {"rankmend.io/subject": subject}
            return {"metadata": {"name": parts[3], "labels": labels}}
        pod = self.pods.get(parts[5])
        if pod is None:
            raise KubernetesUnknownError("/".join(parts))
        if method == "GET":
            return pod
        options = body.get("deleteOptions", body)
        if options["preconditions"]["uid"] != pod["metadata"]["uid"]:
            raise KubernetesConflictError("uid")
        if method == "DELETE":
            if not pod["metadata"].get("finalizers"):
                del self.pods[parts[5]]
            self.effects.append(f"delete {parts[5]}")
            return {}
        assert body["apiVersion"] == f"policy/{self.eviction}"
        if "deletionTimestamp" in pod["metadata"]:
            return {}
        if self.budget <= 0:
            raise KubernetesBudgetError("the disruption budget train needs 3 healthy pods")
        self.budget -= 1
        pod["metadata"]["deletionTimestamp"] = "2026-11-25T14:28:05Z"
        self.effects.append(f"evict {parts[5]}")
        return {}

    def _patch(self, name: str, body: Any) -> dict[str, Any]:
        told = self.nodes[name]
        if body["metadata"]["resourceVersion"] != told["metadata"]["resourceVersion"]:
            raise KubernetesConflictError(name)
        is_cordon = "spec" in body
        self.effects.append(f"{'cordon' if is_cordon else 'uncordon'} {name}")
        if is_cordon:
            told["spec"]["unschedulable"] = True
            told["metadata"]["annotations"].update(body["metadata"]["annotations"])
            told["metadata"]["managedFields"] = [_managed(FIELD_MANAGER)]
        else:
            del told["spec"]["unschedulable"]
            told["metadata"]["annotations"].clear()
            told["metadata"]["managedFields"] = []
        self.touch(name)
        return told


def _managed(who: str) -> dict[str, Any]:
    return {"manager": who, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}


def _matches(pod: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    if query["fieldSelector"] != f"spec.nodeName={pod['spec']['nodeName']}":
        return False
    wanted = query.get("labelSelector")
    return wanted in (None, f"rankmend.io/job={pod['metadata']['labels']['rankmend.io/job']}")


class KillableJournal:
    """A journal whose writes can be the last thing that a controller does."""

    def __init__(self, journal: Journal, cross: Callable[[], None]) -> None:
        self._journal = journal
        self._cross = cross
        self.opened = journal.opened

    def append_many(self, records: Sequence[SlurmRecord], /) -> Any:
        self._cross()
        entries = self._journal.append_many(records)
        self._cross()
        return entries

    def read_newer(self) -> tuple[Entry, ...]:
        return self._journal.read_newer()


LIMITS = KubernetesLimits(
    enabled=True, act=True, nodes_drained_percent=100.0, timeout_s=5.0, evict_timeout_s=60.0
)


class FakeSite:
    """A controller's part for Kubernetes; `restart` is its next start on the same journal."""

    def __init__(self, folder: Path, api: FakeApi, limits: KubernetesLimits = LIMITS) -> None:
        self.clock, self.checks, self.api = MovedClock(), FakeChecks(), api
        self.limits = limits
        self._folder = folder
        self.crossings, self.crash_at = 0, 0
        api.cross = self._cross
        self.open()

    def _cross(self) -> None:
        self.crossings += 1
        if self.crossings == self.crash_at:
            raise CrashError

    def open(self) -> None:
        self.journal = Journal(self._folder / "journal.db", self.clock, "boot")
        client = KubernetesClient(self.api)  # type: ignore[arg-type]
        self.desk = RequestDesk(
            KillableJournal(self.journal, self._cross),
            client,
            self.limits,
            self.clock,
            lambda bench: PodWork(bench, client, self.limits),
            denied_s=20.0,
            look_s=0.0,
            drains_look_s=0.0,
            start_check=self.checks,
        )

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def turns(self, after_s: float = 0.0, count: int = 6) -> None:
        """Let time pass, then let the desk do all it can; a controller that dies is started again."""
        self.clock.unix += after_s
        for _turn in range(count):
            try:
                self.desk.turn()
            except CrashError:
                self.restart()

    def ask(self, action: SchedulerAction, key: str, node: str = "n1", **fields: Any) -> None:
        request = SchedulerRequest(key, action, (node,), reason="GPU 3 is bad", **fields)
        try:
            self.desk.ask(request)
        except CrashError:
            self.restart()
            self.desk.ask(request)  # whoever asks does it again: it is the same key

    def work(self, key: str) -> Work:
        return self.desk.ledger.works[key]

    def outcome(self, key: str) -> str:
        ended = self.work(key).ended
        return "" if ended is None else ended.outcome.value

    def text(self, key: str) -> str:
        ended = self.work(key).ended
        return self.desk.waits_for(key) if ended is None else ended.text
