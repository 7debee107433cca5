"""What Kubernetes reports of nodes and pods, read from its API objects. Pure and tolerant of missing fields."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from recovery.schedulers.slurm.managed_node import ManagedNode

CORDON: Final = "rankmend.io/cordon"  # annotation of a node: our reason, with the request's mark
JOB: Final = "rankmend.io/job"  # label of a pod: the job's name in rankmend
SUBJECT: Final = "rankmend.io/subject"  # label of a namespace, set by the cluster's administrator: whose pods these are
AUDIENCE: Final = "rankmend"  # of a launcher's projected token: for us, and for no API server
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_ACCOUNT: Final = re.compile(r"system:serviceaccount:([a-z0-9-]{1,63}):([a-z0-9.-]{1,253})")
FIELD_MANAGER: Final = "rankmend"
_OVER: Final = frozenset({"Succeeded", "Failed"})
_MIRROR: Final = (
    "kubernetes.io/config.mirror"  # a pod of a file on the node, which only its kubelet ends
)
_NODE_KINDS: Final = frozenset({"DaemonSet", "Node"})  # owners whose pods belong to the node
_FINALIZERS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PodInKubernetes:
    namespace: str
    name: str
    uid: str
    node: str
    phase: str  # Pending, Running, Succeeded, Failed, Unknown
    is_leaving: bool = False  # it was deleted, and its kubelet has not confirmed its end
    leaves_by_unix_s: float | None = None  # when its grace period ends
    is_of_node: bool = False  # of a DaemonSet, or of a file on the node: it stays there
    finalizers: tuple[str, ...] = ()  # what keeps it from being removed

    @property
    def is_over(self) -> bool:
        return self.phase in _OVER

    @property
    def reference(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"


def read_node(
    reported: Mapping[str, Any],
    unix_s_of: Callable[[str], float | None] = lambda _text: None,
    *,
    is_used: bool = False,
) -> ManagedNode:
    """Return the node; ``unix_s_of`` reads one of Kubernetes' times. A cordon's reason is ours only where nobody else has set `spec.unschedulable`."""
    metadata = reported.get("metadata") or {}
    is_cordoned = bool((reported.get("spec") or {}).get("unschedulable"))
    ready = _condition((reported.get("status") or {}).get("conditions") or (), "Ready")
    flags = set()
    if is_cordoned:
        flags.add("DRAIN")
    if ready not in ("True", "False"):
        flags.add("NOT_RESPONDING")
    owners = _owners(metadata.get("managedFields") or ()) if is_cordoned else []
    is_ours = not [owner for owner in owners if owner != FIELD_MANAGER]
    reason = str((metadata.get("annotations") or {}).get(CORDON, ""))
    return ManagedNode(
        name=str(metadata.get("name", "")),
        base="READY" if ready == "True" else "NOT_READY",
        flags=frozenset(flags),
        reason=reason if is_cordoned and is_ours else "",
        reason_by=", ".join(owner for owner in owners if owner != FIELD_MANAGER),
        is_used=is_used,
        made_unix_s=unix_s_of(str(metadata.get("creationTimestamp") or "")),
    )


@dataclass(frozen=True, slots=True)
class ReviewedToken:
    """What a TokenReview says of a projected token of a pod."""

    pod: str  # namespace/name/uid; empty: it proves no pod
    why_not: str = ""


def read_review(reported: Mapping[str, Any]) -> ReviewedToken:
    """Return which pod a token belongs to, by the status of its TokenReview (authentication.k8s.io/v1).

    The audience is checked here, too: a server that knows no audiences names none, and its word is about a token for itself.
    """
    status = reported.get("status") or {}
    if status.get("authenticated") is not True:
        return ReviewedToken(
            "", f"Kubernetes refuses it: {status.get('error') or 'not authenticated'!s:.200}"
        )
    if AUDIENCE not in (status.get("audiences") or ()):
        return ReviewedToken("", f"it is not for the audience {AUDIENCE}")
    user = status.get("user") or {}
    account = _ACCOUNT.fullmatch(str(user.get("username", "")))
    extra = user.get("extra") or {}
    name, uid = (_only(extra.get(key)) for key in (_POD_NAME, _POD_UID))
    if account is None or not name or not uid:
        return ReviewedToken("", "it is bound to no pod")
    return ReviewedToken(f"{account[1]}/{name}/{uid}")


def _only(values: Any) -> str:
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else ""


def _condition(conditions: Any, kind: str) -> str:
    return next(
        (str(condition.get("status")) for condition in conditions if condition.get("type") == kind),
        "",
    )


def _owners(managed: Any) -> list[str]:
    """Return the field managers that have set `spec.unschedulable`."""
    found = []
    for item in managed:
        spec = (item.get("fieldsV1") or {}).get("f:spec")
        if isinstance(spec, dict) and "f:unschedulable" in spec:
            found.append(str(item.get("manager", "")))
    return sorted(set(found))


def read_pod(reported: Mapping[str, Any], unix_s_of: Any) -> PodInKubernetes:
    """Return the pod; ``unix_s_of`` reads one of Kubernetes' times."""
    metadata = reported.get("metadata") or {}
    spec, status = reported.get("spec") or {}, reported.get("status") or {}
    leaves = metadata.get("deletionTimestamp")
    owners = metadata.get("ownerReferences") or ()
    is_mirror = _MIRROR in (metadata.get("annotations") or {})
    return PodInKubernetes(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        node=str(spec.get("nodeName", "")),
        phase=str(status.get("phase", "Unknown")),
        is_leaving=leaves is not None,
        leaves_by_unix_s=None if leaves is None else unix_s_of(leaves),
        is_of_node=is_mirror or any(owner.get("kind") in _NODE_KINDS for owner in owners),
        finalizers=tuple(
            str(item) for item in (metadata.get("finalizers") or ())[:_FINALIZERS_MAX]
        ),
    )
