"""What a pod of rankmend needs of Kubernetes: mounts, rights, token and volume, each with the patch that adds it. Pure.

The names are those of deploy/kubernetes. Tests take each part out of the manifests and apply the patch to a real API server.
"""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from detectors.doctor.check import (
    HostCheck,
    HostPart,
    HostVerdict,
    broken,
    lacking,
    not_applicable,
    ok,
    quoted,
)
from detectors.wording import names_in_words

PODS_OLD_S: Final = 60.0  # rankmend agent-kubernetes writes every 10 s
TOKEN_SOON_S: Final = (
    300.0  # kubelets renew a token once 80 % of its time, of 10 min at least, has passed
)
DAEMONSET: Final = "daemonset rankmend-agent"
DEPLOYMENT: Final = "deployment rankmend-controller"
PLACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


class PodPart(Enum):
    """Which container of deploy/kubernetes this is, as the manifest says in RANKMEND_POD_PART."""

    AGENT = "agent"
    TELLER = "agent-kubernetes"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Right:
    verb: str
    resource: str  # with its subresource
    namespace: str = ""  # empty: in all
    group: str = ""  # of the API; empty: the core's

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


RIGHTS: Final = {
    PodPart.TELLER: (
        Right("get", "nodes"),
        Right("patch", "nodes/status"),
        Right("create", "events", "default"),
    ),
    PodPart.CONTROLLER: (
        *(Right(verb, "nodes") for verb in ("get", "list", "patch")),
        *(Right(verb, "pods") for verb in ("get", "list")),
        Right("get", "namespaces"),
        Right("create", "tokenreviews", group="authentication.k8s.io"),
    ),
}
_ACCOUNTS: Final = {
    PodPart.TELLER: "rankmend-agent",
    PodPart.CONTROLLER: "rankmend-controller",
}


class ApiAnswer(Enum):
    ANSWERS = "answers"
    AWAY = "away"
    DENIED = "denied"  # it does not know the token
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class VolumeFact:
    """Where the controller's journals lie."""

    path: str
    is_volume: bool  # not in the container's own layer
    is_of_pod: bool  # an emptyDir: it ends with the pod


@dataclass(frozen=True, slots=True)
class InPodFacts:
    part: PodPart | None  # None: no pod of deploy/kubernetes
    namespace: str = "rankmend"
    is_root: bool = True
    has_host_pids: bool = True
    has_host_network: bool = True
    has_socket_folder: bool = True
    has_pod_logs: bool = True
    has_pods_in_cgroups: bool = True
    pods_file: str = ""  # empty: the agent's configuration names none
    pods_file_age_s: float | None = None  # None: it is not there
    gpus: int = 0  # on the PCI bus
    has_gpu_files: bool = True
    kubelet_error: str | None = (
        None  # of its pod-resources API; "": it is not there; None: it answers
    )
    needs_api: bool = False
    is_by_file: bool = False  # a kubeconfig in place of the pod's own account
    has_token: bool = False
    token_left_s: float | None = None  # None: the token does not say
    api: ApiAnswer = ApiAnswer.NOT_ASKED
    api_text: str = ""
    missing: tuple[Right, ...] = ()
    volume: VolumeFact | None = None


def patch(workload: str, namespace: str, spec: dict[str, Any]) -> str:
    """Return the line that adds to the pods of a workload what they lack."""
    body = json.dumps({"spec": {"template": {"spec": spec}}}, separators=(",", ":"))
    return f"kubectl -n {quoted(namespace)} patch {workload} -p {quoted(body)}"


def _mount(
    container: str, name: str, path: str, source: dict[str, Any], **more: Any
) -> dict[str, Any]:
    mounted = {"name": container, "volumeMounts": [{"name": name, "mountPath": path, **more}]}
    return {"containers": [mounted], "volumes": [{"name": name, **source}]}


def _host(path: str, kind: str = "Directory") -> dict[str, Any]:
    return {"hostPath": {"path": path, "type": kind}}


def kernel_log_patch(namespace: str = "rankmend") -> str:
    """Return the line that gives the agent the kernel log. A container that may open a device of the host is privileged."""
    spec = _mount("agent", "kmsg", "/dev/kmsg", _host("/dev/kmsg", "CharDevice"))
    spec["containers"][0]["securityContext"] = {
        "privileged": True,
        "allowPrivilegeEscalation": True,
    }
    return (
        f"{patch(DAEMONSET, namespace, spec)}  # and take kernel_log out of disabled in agent.toml"
    )


def _of_agent(facts: InPodFacts) -> HostVerdict | None:
    return None if facts.part is PodPart.AGENT else not_applicable("no container of the agent")


def _root(facts: InPodFacts) -> HostVerdict:
    if facts.part not in (PodPart.AGENT, PodPart.TELLER):
        return not_applicable("no container of the agent's pod")
    if facts.is_root:
        return ok("user 0")
    container = "agent" if facts.part is PodPart.AGENT else "kubernetes"
    spec = {"containers": [{"name": container, "securityContext": {"runAsUser": 0}}]}
    return lacking("another user than 0", patch(DAEMONSET, facts.namespace, spec))


def _pids(facts: InPodFacts) -> HostVerdict:
    if (verdict := _of_agent(facts)) is not None:
        return verdict
    if facts.has_host_pids:
        return ok("the host's")
    return lacking("only the pod's own", patch(DAEMONSET, facts.namespace, {"hostPID": True}))


def _network(facts: InPodFacts) -> HostVerdict:
    if (verdict := _of_agent(facts)) is not None:
        return verdict
    if facts.has_host_network:
        return ok("the host's")
    spec = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return lacking("no device of the host", patch(DAEMONSET, facts.namespace, spec))


def _socket(facts: InPodFacts) -> HostVerdict:
    if (verdict := _of_agent(facts)) is not None:
        return verdict
    if facts.has_socket_folder:
        return ok("/run/rankmend is the host's")
    spec = _mount("agent", "socket", "/run/rankmend", _host("/run/rankmend", "DirectoryOrCreate"))
    return lacking("/run/rankmend is not the host's", patch(DAEMONSET, facts.namespace, spec))


def _pod_logs(facts: InPodFacts) -> HostVerdict:
    if facts.part not in (PodPart.AGENT, PodPart.TELLER):
        return not_applicable("no container of the agent's pod")
    if facts.has_pod_logs:
        return ok("/var/log/pods")
    container = "agent" if facts.part is PodPart.AGENT else "kubernetes"
    spec = _mount(container, "pod-logs", "/var/log/pods", _host("/var/log/pods"), readOnly=True)
    return lacking("no /var/log/pods", patch(DAEMONSET, facts.namespace, spec))


def _cgroups(facts: InPodFacts) -> HostVerdict:
    if (verdict := _of_agent(facts)) is not None:
        return verdict
    if facts.has_pods_in_cgroups:
        return ok("those of pods are seen")
    spec = _mount("agent", "cgroups", "/sys/fs/cgroup", _host("/sys/fs/cgroup"), readOnly=True)
    found = "no kubepods below /sys/fs/cgroup: it is not the host's"
    return lacking(found, patch(DAEMONSET, facts.namespace, spec))


def _pods_file(facts: InPodFacts) -> HostVerdict:
    if (verdict := _of_agent(facts)) is not None:
        return verdict
    if not facts.pods_file:
        return lacking(
            "the agent's configuration names no file",
            'set kubelet_checkpoint = "/pods/devices.json" in [gpu] of agent.toml',
        )
    log = f"kubectl -n {quoted(facts.namespace)} logs {DAEMONSET.replace(' ', '/')} -c kubernetes"
    if facts.pods_file_age_s is None:
        return lacking(f"no {facts.pods_file}", f"{log}  # the container that writes it")
    if facts.pods_file_age_s > PODS_OLD_S:
        return broken(
            f"{facts.pods_file} was written {facts.pods_file_age_s:.0f} s ago",
            f"{log}  # the container that writes it every 10 s",
        )
    return ok(facts.pods_file)


def _gpus(facts: InPodFacts) -> HostVerdict:
    if (verdict := _of_agent(facts)) is not None:
        return verdict
    if not facts.gpus:
        return not_applicable("no GPU on the PCI bus")
    if facts.has_gpu_files:
        return ok("/dev/nvidiactl is there")
    line = patch(DAEMONSET, facts.namespace, {"runtimeClassName": "nvidia"})
    return lacking(
        f"{facts.gpus} on the PCI bus, and no /dev/nvidiactl here",
        f"{line}  # the class of NVIDIA's GPU operator",
    )


def _kubelet(facts: InPodFacts) -> HostVerdict:
    if facts.part is not PodPart.TELLER:
        return not_applicable("rankmend agent-kubernetes asks it")
    if facts.kubelet_error is None:
        return ok("the kubelet answers")
    if not facts.kubelet_error:
        folder = "/var/lib/kubelet/pod-resources"
        spec = _mount("kubernetes", "pod-resources", folder, _host(folder))
        return lacking(f"no {folder}/kubelet.sock", patch(DAEMONSET, facts.namespace, spec))
    return broken(facts.kubelet_error, "journalctl -u kubelet  # on the node")


def _token_patch(facts: InPodFacts) -> str:
    if facts.part is PodPart.CONTROLLER:
        return patch(DEPLOYMENT, facts.namespace, {"automountServiceAccountToken": True})
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    source = {"projected": {"defaultMode": 0o444, "sources": sources}}
    spec = _mount("kubernetes", "token", PLACE, source, readOnly=True)
    return patch(DAEMONSET, facts.namespace, spec)


def _token(facts: InPodFacts) -> HostVerdict:
    if not facts.needs_api or facts.is_by_file:
        return not_applicable("nothing here uses the token of the pod")
    if not facts.has_token:
        return broken(f"no token in {PLACE}", _token_patch(facts))
    left_s = facts.token_left_s
    if left_s is None:
        return ok("without an end")
    workload = DEPLOYMENT if facts.part is PodPart.CONTROLLER else DAEMONSET
    anew = f"kubectl -n {quoted(facts.namespace)} rollout restart {workload}"
    if left_s <= 0:
        return broken(
            f"the token expired {-left_s:.0f} s ago: the kubelet does not renew it, or the clocks differ",
            f"{anew}  # and see journalctl -u kubelet on the node",
        )
    if left_s < TOKEN_SOON_S:
        return lacking(
            f"the token expires in {left_s:.0f} s: the kubelet is late to renew it", anew
        )
    return ok(f"{left_s:.0f} s left; the kubelet renews it")


def _api(facts: InPodFacts) -> HostVerdict:
    match facts.api:
        case ApiAnswer.NOT_ASKED:
            return not_applicable(facts.api_text or "nothing here asks it")
        case ApiAnswer.AWAY:
            network = f"kubectl -n {quoted(facts.namespace)} describe networkpolicy"
            return broken(
                facts.api_text,
                f"{network}  # egress to the API server's port; then DNS and firewall",
            )
        case ApiAnswer.DENIED:
            return broken(facts.api_text, "the token is of another cluster, or its account is gone")
        case ApiAnswer.ANSWERS:
            return ok("it answers")


def _rights(facts: InPodFacts) -> HostVerdict:
    if facts.api is not ApiAnswer.ANSWERS or facts.part not in RIGHTS:
        return not_applicable("Kubernetes was not queried, or does not answer")
    rights, account = RIGHTS[facts.part], _ACCOUNTS[facts.part]
    if not facts.missing:
        return ok(names_in_words([str(right) for right in rights], len(rights)))
    found = f"not allowed: {names_in_words([str(item) for item in facts.missing], len(rights))}"
    if len(facts.missing) == len(rights):
        return broken(
            found,
            f"kubectl create clusterrolebinding {account} --clusterrole={account} "
            f"--serviceaccount={quoted(facts.namespace)}:{account}  # the role: kubectl apply -k deploy/kubernetes",
        )
    rules = [
        {
            "op": "add",
            "path": "/rules/-",
            "value": {
                "apiGroups": [item.group],
                "resources": [item.resource],
                "verbs": [item.verb],
            },
        }
        for item in facts.missing
    ]
    body = json.dumps(rules, separators=(",", ":"))
    return broken(found, f"kubectl patch clusterrole {account} --type json -p {quoted(body)}")


def _volume(facts: InPodFacts) -> HostVerdict:
    seen = facts.volume
    if seen is None or facts.part is not PodPart.CONTROLLER:
        return not_applicable("no container of the controller")
    if seen.is_volume and not seen.is_of_pod:
        return ok(seen.path)
    # An emptyDir under the same name would be merged with the claim: `$retainKeys` has it replaced.
    source = {
        "$retainKeys": ["name", "persistentVolumeClaim"],
        "persistentVolumeClaim": {"claimName": "rankmend-controller"},
    }
    spec = _mount("controller", "state", seen.path, source)
    kind = "an emptyDir" if seen.is_of_pod else "the container's own layer"
    return broken(f"{seen.path} is {kind}", patch(DEPLOYMENT, facts.namespace, spec))


_P: Final = HostPart.KUBERNETES
KUBERNETES_CHECKS: Final[tuple[HostCheck[InPodFacts], ...]] = (
    HostCheck(
        "pod_user", _P, "user", "mounts and processes of other users; the kubelet's socket", _root
    ),
    HostCheck(
        "pod_host_pids", _P, "processes", "ranks, who holds a GPU, and stuck processes", _pids
    ),
    HostCheck(
        "pod_host_network", _P, "network", "the node's interfaces, and the agent's address", _network
    ),
    HostCheck("pod_socket", _P, "socket for launchers", "series of ranks", _socket),
    HostCheck("pod_logs", _P, "names of pods", "pod and namespace on series", _pod_logs),
    HostCheck("pod_cgroups", _P, "control groups of pods", "which pods run: pod and namespace on series", _cgroups),
    HostCheck("pod_devices", _P, "GPUs of pods", "pod and namespace on series of GPUs", _pods_file),
    HostCheck("pod_gpus", _P, "GPUs in the pod", "every GPU metric and finding", _gpus),
    HostCheck("pod_kubelet", _P, "kubelet's pod-resources API", "which pod has which GPU", _kubelet),
    HostCheck("pod_token", _P, "token", "every call to Kubernetes", _token),
    HostCheck("pod_api", _P, "Kubernetes' API", "conditions and events, or cordons and evictions", _api),
    HostCheck("pod_rights", _P, "rights", "the calls that are not allowed", _rights),
    HostCheck("pod_volume", _P, "volume of the journals", "all jobs and their budgets, with the pod", _volume),
)  # fmt: skip
