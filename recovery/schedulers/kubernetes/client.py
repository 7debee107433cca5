"""What the controller asks of Kubernetes and does there, one method for each. Every call is bounded (`api`).

A node is changed by server-side apply under our own field manager, with the version that was read: a conflict is read and decided
anew, the server itself keeps what others have set, and to apply nothing takes back what is ours alone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

from rankmend.kubernetes_api import (
    APPLY,
    KubernetesApi,
    KubernetesAwayError,
    KubernetesConflictError,
    KubernetesError,
    KubernetesUnknownError,
)
from recovery.schedulers.kubernetes.answers import (
    AUDIENCE,
    CORDON,
    JOB,
    SUBJECT,
    PodInKubernetes,
    ReviewedToken,
    read_node,
    read_pod,
    read_review,
)
from recovery.schedulers.slurm.managed_node import ManagedNode
from recovery.schedulers.slurm.requests import mark_in

PAGE: Final = 500
PODS_MAX: Final = 5_000  # of one question
NODES_MAX: Final = 20_000
NAMESPACES_MAX: Final = 100  # with pods on one node
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
LIST_OVER: Final = 50  # nodes; more are found in the list of all, page by page


class KubernetesClient:
    def __init__(self, api: KubernetesApi, list_over: int = LIST_OVER, page: int = PAGE) -> None:
        self._api = api
        self._list_over = list_over
        self._page = page

    # Reading.

    def nodes(self, names: Iterable[str]) -> dict[str, ManagedNode]:
        """Return these nodes, without those that Kubernetes does not know."""
        found = {}
        for name, reported in self.node_objects(names).items():
            node = read_node(reported, _unix_s)
            # Only of a node that we have cordoned it matters whether it is empty yet.
            is_used = mark_in(node.reason) is not None and self._is_used(name)
            found[name] = replace(node, is_used=is_used)
        return found

    def node_objects(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the objects of these nodes, by name, without those that Kubernetes does not know."""
        wanted = sorted(set(names))
        if len(wanted) <= self._list_over:
            requested = ((name, self.node(name)) for name in wanted)
            return {name: reported for name, reported in requested if reported is not None}
        known = set(wanted)
        found: dict[str, dict[str, Any]] = {}
        for count, reported in enumerate(self._all("/api/v1/nodes", [], self._page)):
            if count >= NODES_MAX:
                raise KubernetesError(f"Kubernetes has more than {NODES_MAX} nodes")
            name = str((reported.get("metadata") or {}).get("name", ""))
            if name in known:
                found[name] = reported
        return found

    def _all(
        self, path: str, query: Sequence[tuple[str, str]], page: int
    ) -> Iterator[dict[str, Any]]:
        """Yield all objects of a list, page by page. A list that grows too old meanwhile (410) is a KubernetesError: it is read anew."""
        limited = [*query, ("limit", str(page))]
        more = ""
        while True:
            reported = self._api.call(
                "GET", path, [*limited, ("continue", more)] if more else limited
            )
            yield from reported.get("items") or ()
            more = (reported.get("metadata") or {}).get("continue") or ""
            if not more:
                return

    def node(self, name: str) -> dict[str, Any] | None:
        """Return the node's object; None: Kubernetes has no such node."""
        try:
            return self._api.call("GET", f"/api/v1/nodes/{quote(name, safe='')}")
        except KubernetesUnknownError:
            return None

    def node_count(self) -> int:
        """Return how many nodes Kubernetes has."""
        reported = self._api.call("GET", "/api/v1/nodes", [("limit", "1")])
        more = (reported.get("metadata") or {}).get("remainingItemCount") or 0
        return len(reported.get("items") or ()) + int(more)

    def known(self, names: Iterable[str]) -> frozenset[str]:
        """Return which of these nodes Kubernetes has."""
        return frozenset(self.node_objects(names))

    def pods_on(
        self, node: str, job: str = "", *, may_be_old: bool = False
    ) -> list[PodInKubernetes]:
        """Return the pods on a node, or only those with the label of a job.

        ``may_be_old``: as the server remembers them, a little late. It has them by node there; else it reads all pods of the cluster.
        """
        query = [("fieldSelector", f"spec.nodeName={node}")]
        if may_be_old:
            query.append(("resourceVersion", "0"))
        if job:
            query.append(("labelSelector", f"{JOB}={job}"))
        pods = self._all("/api/v1/pods", query, self._page)
        found = [read_pod(pod, _unix_s) for pod in islice(pods, PODS_MAX + 1)]
        if len(found) > PODS_MAX:
            raise KubernetesError(f"{node} has more than {PODS_MAX} pods")
        return found

    def subjects_on(self, node: str) -> frozenset[str]:
        """Return the subjects of the namespaces that have pods on the node."""
        pods = self.pods_on(node, may_be_old=True)
        namespaces = {pod.namespace for pod in pods if not pod.is_over and not pod.is_of_node}
        found = {self.subject_of(namespace) for namespace in sorted(namespaces)[:NAMESPACES_MAX]}
        return frozenset(found - {""})

    def has_pod(self, node: str, pods: Iterable[str]) -> bool:
        """Return whether one of these pods (namespace/name/uid) lives on the node."""
        found = (self.pod(reference) for reference in pods)
        return any(
            pod is not None and pod.node == node and not pod.is_over and not pod.is_of_node
            for pod in found
        )

    def subject_of(self, namespace: str) -> str:
        """Return whose pods a namespace has, by the label that only the cluster's administrators set; empty: it says nobody's."""
        try:
            reported = self._api.call("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}")
        except KubernetesUnknownError:
            return ""
        labels = (reported.get("metadata") or {}).get("labels") or {}
        return str(labels.get(SUBJECT, ""))

    def pod(self, reference: str) -> PodInKubernetes | None:
        """Return the pod of this UID, or None where it is gone: another of the same name is not it."""
        namespace, name, uid = reference.split("/")
        try:
            reported = self._api.call("GET", _pod_path(namespace, name))
        except KubernetesUnknownError:
            return None
        pod = read_pod(reported, _unix_s)
        return pod if pod.uid == uid else None

    def review_token(self, token: str) -> ReviewedToken:
        """Return which pod a projected token belongs to, by the API server's word."""
        spec = {"token": token, "audiences": [AUDIENCE]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        return read_review(self._api.call("POST", _REVIEWS, body=body))

    def _is_used(self, node: str) -> bool:
        pods = self.pods_on(node, may_be_old=True)
        return any(not pod.is_over and not pod.is_of_node for pod in pods)

    # Acting.

    def drain(self, node: str, reason: str) -> None:
        """Cordon the node, with the reason as annotation; one that is cordoned is left as it is."""

        def change(reported: Mapping[str, Any]) -> dict[str, Any] | None:
            seen = read_node(reported)
            if seen.is_drained:
                if seen.reason == reason:
                    return None
                by = f" by {seen.reason_by}" if seen.reason_by else ""
                raise KubernetesError(f"{node} has been cordoned{by} in the meantime")
            return {
                "metadata": {"annotations": {CORDON: reason}},
                "spec": {"unschedulable": True},
            }

        self._change_node(node, change)

    def undrain(self, node: str) -> None:
        """Take our cordon back; anybody else's stays."""

        def change(reported: Mapping[str, Any]) -> dict[str, Any] | None:
            seen = read_node(reported)
            if not seen.is_drained:
                return None
            if mark_in(seen.reason) is None:
                by = f" by {seen.reason_by}" if seen.reason_by else ""
                raise KubernetesError(f"{node} has been cordoned{by} in the meantime")
            return {"metadata": {}}

        self._change_node(node, change)

    def _change_node(
        self, node: str, change: Callable[[Mapping[str, Any]], dict[str, Any] | None]
    ) -> None:
        """Read the node, and send what is to change of this version; kubelets update nodes all the time."""
        until_s = time.monotonic() + self._api.timeout_s
        while True:
            reported = self.node(node)
            if reported is None:
                raise KubernetesError(f"Kubernetes has no node {node}")
            patch = change(reported)
            if patch is None:
                return
            version = (reported.get("metadata") or {}).get("resourceVersion")
            metadata = {**patch["metadata"], "name": node, "resourceVersion": version}
            body = {**patch, "apiVersion": "v1", "kind": "Node", "metadata": metadata}
            try:
                path = f"/api/v1/nodes/{quote(node, safe='')}"
                self._api.call("PATCH", path, body=body, sends=APPLY)
            except KubernetesConflictError as error:
                if time.monotonic() > until_s:
                    raise KubernetesAwayError(f"{node} keeps changing: {error}") from error
            else:
                return

    def reboot(self, node: str, reason: str) -> None:
        raise KubernetesError(f"Kubernetes restarts no nodes: {node} ({reason})")

    def evict(self, reference: str) -> None:
        """Have the pod of this UID leave, if its budgets allow it. Raises KubernetesBudgetError where they don't."""
        namespace, name, uid = reference.split("/")
        body = {
            "apiVersion": self._eviction_version(),
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._end_pod("POST", f"{_pod_path(namespace, name)}/eviction", body)

    def delete_pod(self, reference: str) -> None:
        """Remove the pod of this UID at once, without its kubelet's word."""
        namespace, name, uid = reference.split("/")
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self._end_pod("DELETE", _pod_path(namespace, name), body)

    def _end_pod(self, method: str, path: str, body: object) -> None:
        try:
            self._api.call(method, path, body=body)
        except (KubernetesUnknownError, KubernetesConflictError):
            return  # it is gone, and another one may have its name: what is read next tells

    def _eviction_version(self) -> str:
        """Return the version of evictions here: policy/v1 since Kubernetes 1.22, policy/v1beta1 before."""
        for item in self._api.call("GET", "/api/v1").get("resources") or ():
            if item.get("name") == "pods/eviction":
                return f"{item.get('group', 'policy')}/{item.get('version', 'v1')}"
        raise KubernetesError("the API has no pods/eviction")


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _unix_s(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
