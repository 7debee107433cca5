"""`rankmend doctor` in the pods of deploy/kubernetes: each part that is taken away is missed, and the line that it says adds it again."""

import base64
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from agent.doctor.places import Places
from agent.doctor.pod import PART, read_pod, token_left_s
from detectors.doctor.check import CheckResult, HostOutcome, SourceFact, SourceState, judge
from detectors.doctor.host import HOST_CHECKS, IN_KUBERNETES, CgroupMode, HostFacts, KernelLogAccess
from detectors.doctor.kubernetes import (
    KUBERNETES_CHECKS,
    RIGHTS,
    ApiAnswer,
    InPodFacts,
    PodPart,
    VolumeFact,
)
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.kubernetes import Cluster
from tests.support.nics import add_pci

pytestmark = pytest.mark.site

OK, LACKING, BROKEN = HostOutcome.OK, HostOutcome.LACKING, HostOutcome.BROKEN
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
GOOD = InPodFacts(PodPart.AGENT, pods_file="/pods/devices.json", pods_file_age_s=5.0, gpus=8)
TELLER = InPodFacts(
    PodPart.TELLER, needs_api=True, has_token=True, token_left_s=3000.0, api=ApiAnswer.ANSWERS
)
CONTROLLER = replace(
    TELLER, part=PodPart.CONTROLLER, volume=VolumeFact("/var/lib/rankmend-controller", True, False)
)


def gaps(facts: InPodFacts) -> dict[str, CheckResult]:
    fine = (OK, HostOutcome.NOT_APPLICABLE)
    return {one.check: one for one in judge(KUBERNETES_CHECKS, facts) if one.outcome not in fine}


def gap(facts: InPodFacts) -> CheckResult:
    (found,) = gaps(facts).values()
    return found


# What is there and what is not, from files.


@dataclass
class Pod:
    """The files that a container of the agent's pod sees."""

    folder: Path
    part: str = "agent"
    mounts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("var/log/pods", "run/rankmend", "dev"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "dev/nvidiactl").touch()
        (self.folder / "sys/fs/cgroup/kubepods.slice").mkdir(parents=True)
        (self.folder / "sys/class/net/eth0/device").mkdir(parents=True)
        (self.folder / "proc/self/ns").mkdir(parents=True)
        self.set_pids("pid:[4026531836]")
        add_pci(self.folder / "sys", "10/10:00.0", "0x030200", "0x10de", 0, "nvidia")
        (self.folder / "devices.json").touch()
        self.mounts += [
            "20 1 0:30 / / ro - overlay overlay rw",
            "21 20 8:1 /run/rankmend /run/rankmend rw - tmpfs tmpfs rw",
        ]

    def set_pids(self, name: str) -> None:
        path = self.folder / "proc/self/ns/pid"
        path.unlink(missing_ok=True)
        path.symlink_to(name)

    def read(self, state_dir: Path | None = None) -> InPodFacts:
        (self.folder / "proc/self/mountinfo").write_text("\n".join(self.mounts) + "\n")
        places = Places(self.folder / "proc", self.folder / "sys", self.folder, {PART: self.part})
        return read_pod(places, self.folder / "devices.json", state_dir, None)


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="the agent's pod runs as root")
def test_an_agents_pod_as_shipped_lacks_nothing(pod: Pod) -> None:
    assert gaps(pod.read()) == {}


def unlink(name: str) -> Callable[[Pod], None]:
    return lambda pod: (pod.folder / name).unlink()


def rmdir(name: str) -> Callable[[Pod], None]:
    return lambda pod: (pod.folder / name).rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="the agent's pod runs as root")
@pytest.mark.parametrize(
    ("check", "take"),
    [
        ("pod_host_pids", lambda pod: pod.set_pids("pid:[4026532000]")),
        ("pod_host_network", rmdir("sys/class/net/eth0/device")),
        ("pod_socket", lambda pod: pod.mounts.pop()),
        ("pod_logs", rmdir("var/log/pods")),
        ("pod_cgroups", rmdir("sys/fs/cgroup/kubepods.slice")),
        ("pod_devices", unlink("devices.json")),
        ("pod_devices", lambda pod: os.utime(pod.folder / "devices.json", (1, 1))),
        ("pod_gpus", unlink("dev/nvidiactl")),
    ],
)
def test_each_mount_that_is_taken_away_is_missed(
    pod: Pod, check: str, take: Callable[[Pod], object]
) -> None:
    take(pod)

    found = gap(pod.read())

    assert found.check == check
    assert found.lost
    assert "kubectl -n rankmend " in found.mend


def test_another_container_is_asked_for_nothing(pod: Pod) -> None:
    pod.part = ""

    assert {one.outcome for one in judge(KUBERNETES_CHECKS, pod.read())} == {
        HostOutcome.NOT_APPLICABLE
    }


@pytest.mark.safety
@pytest.mark.parametrize(
    ("mount", "found"),
    [
        ("22 20 8:16 / /var/lib/rankmend-controller rw - ext4 /dev/sdb rw", ""),
        (
            "22 20 8:1 /var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/state "
            "/var/lib/rankmend-controller rw - ext4 /dev/sda rw",
            "an emptyDir",
        ),
        ("22 20 8:1 / /elsewhere rw - ext4 /dev/sda rw", "the container's own layer"),
    ],
)
def test_journals_that_would_end_with_the_pod_are_broken(pod: Pod, mount: str, found: str) -> None:
    pod.part = "controller"
    pod.mounts.append(mount)

    told = gaps(pod.read(Path("/var/lib/rankmend-controller")))

    said = told["pod_volume"].found if told else ""
    assert said.removeprefix("/var/lib/rankmend-controller is ") == found


def test_another_user_than_root_is_missed_in_both_containers() -> None:
    for facts, container in ((GOOD, "agent"), (TELLER, "kubernetes")):
        found = gap(replace(facts, is_root=False))
        assert (found.check, f'"name":"{container}"' in found.mend) == ("pod_user", True)


@pytest.mark.parametrize(
    ("left_s", "outcome", "found"),
    [
        (-30.0, BROKEN, "the token expired 30 s ago"),
        (60.0, LACKING, "the token expires in 60 s"),
    ],
)
def test_a_token_that_is_not_renewed_is_told_before_and_after_its_end(
    left_s: float, outcome: HostOutcome, found: str
) -> None:
    told = gap(replace(CONTROLLER, token_left_s=left_s))

    assert (told.check, told.outcome) == ("pod_token", outcome)
    assert told.found.startswith(found)
    assert told.mend.startswith(
        "kubectl -n rankmend rollout restart deployment rankmend-controller"
    )


def jwt(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("token", "left_s"),
    [
        (jwt({"exp": 1100}), 100.0),
        (jwt({"exp": "soon"}), None),
        (jwt({"exp": None}), None),
        (jwt([1]), None),
        (jwt({}), None),
        ("a.b.c", None),
        ("opaque", None),
        ("", None),
        ("e30." + "[" * 100_000 + ".x", None),
    ],
)
def test_the_end_of_a_token_is_read_or_not_told(token: str, left_s: float | None) -> None:
    assert token_left_s(token, 1000.0) == left_s


def test_an_api_that_is_away_points_to_the_network_and_a_kubelet_to_its_log() -> None:
    away = gap(replace(CONTROLLER, api=ApiAnswer.AWAY, api_text="GET /: no answer"))
    kubelet = gap(replace(TELLER, kubelet_error="kubelet's pod resources at /x: unavailable"))

    assert (away.check, "networkpolicy" in away.mend) == ("pod_api", True)
    assert (kubelet.check, "journalctl -u kubelet" in kubelet.mend) == ("pod_kubelet", True)


@pytest.mark.parametrize(
    ("part", "file"),
    [(PodPart.TELLER, "agent/account.yaml"), (PodPart.CONTROLLER, "controller/rbac.yaml")],
)
def test_the_rights_that_are_asked_about_are_those_that_are_shipped(
    part: PodPart, file: str
) -> None:
    objects = yaml.safe_load_all((FOLDER / file).read_text())
    role, *_of_single_namespaces = [one for one in objects if one["kind"] == "ClusterRole"]

    shipped = {(verb, rule["resources"][0]) for rule in role["rules"] for verb in rule["verbs"]}

    assert {(one.verb, one.resource) for one in RIGHTS[part]} == shipped


# The lines that mend, on a real API server.


def built() -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = []
    for name in ("agent", "controller"):
        words = ["kubectl", "kustomize", str(FOLDER / name)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        objects += [one for one in yaml.safe_load_all(done.stdout) if one]
    return objects


@pytest.fixture(scope="module")
def shipped() -> dict[str, dict[str, Any]]:
    """Return DaemonSet and Deployment as they are shipped."""
    return {one["kind"]: one for one in built() if one["kind"] in ("DaemonSet", "Deployment")}


def drop(pod: dict[str, Any], name: str) -> None:
    """Take a volume out of a pod, and its mounts out of all containers."""
    pod["volumes"] = [one for one in pod["volumes"] if one["name"] != name]
    for container in pod["containers"]:
        drop_mount(container, name)


def drop_mount(container: dict[str, Any], name: str) -> None:
    container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != name]


def empty(pod: dict[str, Any], name: str) -> None:
    for one in pod["volumes"]:
        if one["name"] == name:
            del one["persistentVolumeClaim"]
            one["emptyDir"] = {}


Take = Callable[[dict[str, Any]], object]
NO_VOLUME = VolumeFact("/var/lib/rankmend-controller", False, False)
GAPS: dict[str, tuple[InPodFacts, str, Take]] = {
    "pids": (replace(GOOD, has_host_pids=False), "DaemonSet", lambda pod: pod.pop("hostPID")),
    "network": (
        replace(GOOD, has_host_network=False), "DaemonSet",
        lambda pod: (pod.pop("hostNetwork"), pod.pop("dnsPolicy"), pod["containers"][0].pop("ports")),
    ),
    "user": (
        replace(GOOD, is_root=False), "DaemonSet",
        lambda pod: pod["containers"][0]["securityContext"].update(runAsUser=1000),
    ),
    "teller's user": (
        replace(TELLER, is_root=False), "DaemonSet",
        lambda pod: pod["containers"][1]["securityContext"].update(runAsUser=1000),
    ),
    "socket": (replace(GOOD, has_socket_folder=False), "DaemonSet", lambda pod: drop(pod, "socket")),
    "logs": (
        replace(GOOD, has_pod_logs=False), "DaemonSet",
        lambda pod: drop_mount(pod["containers"][0], "pod-logs"),
    ),
    "teller's logs": (
        replace(TELLER, has_pod_logs=False), "DaemonSet",
        lambda pod: drop_mount(pod["containers"][1], "pod-logs"),
    ),
    "cgroups": (replace(GOOD, has_pods_in_cgroups=False), "DaemonSet", lambda pod: drop(pod, "cgroups")),
    "kubelet": (replace(TELLER, kubelet_error=""), "DaemonSet", lambda pod: drop(pod, "pod-resources")),
    "token": (replace(TELLER, has_token=False), "DaemonSet", lambda pod: drop(pod, "token")),
    "controller's token": (
        replace(CONTROLLER, has_token=False), "Deployment",
        lambda pod: pod.update(automountServiceAccountToken=False),
    ),
    "volume": (replace(CONTROLLER, volume=NO_VOLUME), "Deployment", lambda pod: drop(pod, "state")),
    "emptyDir": (
        replace(CONTROLLER, volume=replace(NO_VOLUME, is_volume=True, is_of_pod=True)), "Deployment",
        lambda pod: empty(pod, "state"),
    ),
}  # fmt: skip


def ordered(found: Any) -> Any:
    """Return the same without the order of lists, and without the ports, which no line mends."""
    if isinstance(found, dict):
        return {key: ordered(one) for key, one in found.items() if key != "ports"}
    if isinstance(found, list):
        return sorted(
            (ordered(one) for one in found), key=lambda one: json.dumps(one, sort_keys=True)
        )
    return found


def run_line(cluster: Cluster, line: str) -> None:
    done = subprocess.run(
        ["sh", "-ec", line],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "KUBECONFIG": str(cluster.folder / "admin.kubeconfig")},
    )
    assert done.returncode == 0, (line, done.stderr)


def pod_after(
    cluster: Cluster, workload: dict[str, Any], namespace: str, line: str, take: Take
) -> Any:
    body = copy.deepcopy(workload)
    body["metadata"]["namespace"] = namespace
    take(body["spec"]["template"]["spec"])
    path = f"/apis/apps/v1/namespaces/{namespace}/{workload['kind'].lower()}s"
    cluster.call("POST", path, body)
    if line:
        run_line(cluster, line)
    told = cluster.call("GET", f"{path}/{workload['metadata']['name']}")
    return ordered(told["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def whole(kubernetes_cluster: Cluster, shipped: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the pods as the server has them where nothing is taken away."""
    space = kubernetes_cluster.add_namespace("doctor-whole")
    return {
        kind: pod_after(kubernetes_cluster, one, space, "", lambda _pod: None)
        for kind, one in shipped.items()
    }


@pytest.mark.parametrize("name", GAPS)
def test_the_line_of_each_gap_makes_the_pod_what_is_shipped(
    kubernetes_cluster: Cluster,
    shipped: dict[str, dict[str, Any]],
    whole: dict[str, Any],
    name: str,
) -> None:
    facts, kind, take = GAPS[name]
    space = kubernetes_cluster.add_namespace(f"doctor-{list(GAPS).index(name)}")
    line = gap(replace(facts, namespace=space)).mend

    mended = pod_after(kubernetes_cluster, shipped[kind], space, line, take)

    assert mended == whole[kind]


def test_lines_for_what_is_not_shipped_are_taken_by_a_real_server(
    kubernetes_cluster: Cluster, shipped: dict[str, dict[str, Any]]
) -> None:
    host = HostFacts(
        False, IN_KUBERNETES, False, *[SourceFact(SourceState.MEASURED)] * 3,
        CgroupMode.V2, 1, "tsc", KernelLogAccess.ABSENT,
    )  # fmt: skip
    (log,) = [one for one in judge(HOST_CHECKS, host) if one.check == "kernel_log"]
    space = kubernetes_cluster.add_namespace("doctor-more")
    gpus = gap(replace(GOOD, namespace=space, has_gpu_files=False)).mend
    lines = f"{log.mend.replace('-n rankmend', f'-n {space}')}\n{gpus}"

    pod = pod_after(kubernetes_cluster, shipped["DaemonSet"], space, lines, lambda _pod: None)

    assert pod["runtimeClassName"] == "nvidia"
    (agent,) = [one for one in pod["containers"] if one["name"] == "agent"]
    assert agent["securityContext"]["privileged"]
    assert "/dev/kmsg" in [one["mountPath"] for one in agent["volumeMounts"]]


def kubeconfig(cluster: Cluster, folder: Path, token: str) -> str:
    told = json.loads((cluster.folder / "admin.kubeconfig").read_text())
    told["users"][0]["user"]["token"] = token
    path = folder / "kubeconfig"
    path.write_text(json.dumps(told))
    return str(path)


def test_rights_that_are_taken_away_are_named_and_their_line_gives_them_back(
    kubernetes_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = kubernetes_cluster
    cluster.add_namespace("rankmend")
    account = "/api/v1/namespaces/rankmend/serviceaccounts"
    cluster.call("POST", account, {"metadata": {"name": "rankmend-controller"}})
    objects = {
        one["kind"]: one for one in built() if one["metadata"]["name"] == "rankmend-controller"
    }
    # Another test of this cluster may have installed the controller.
    cluster.remove("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/rankmend-controller")
    role = objects["ClusterRole"]
    kept = [rule for rule in role["rules"] if rule["resources"] == ["nodes"]]
    cluster.apply({**role, "rules": kept}, "/apis/rbac.authorization.k8s.io/v1/clusterroles")
    file = kubeconfig(cluster, tmp_path, cluster.token("rankmend", "rankmend-controller"))
    places = Places(environment={PART: "controller"})

    def look() -> dict[str, CheckResult]:
        facts = read_pod(places, None, None, (file, None), answer_s=30.0)
        return gaps(replace(facts, volume=None))

    def until_no(old: str) -> dict[str, CheckResult]:
        """Return what is missed once the server has heard of the change."""

        def changed() -> tuple[dict[str, CheckResult]] | None:
            found = look()  # perhaps nothing, which is an answer as well
            rights = found.get("pod_rights")
            return (found,) if rights is None or rights.found != old else None

        return eventually(changed, old)[0]

    unbound = look()["pod_rights"]
    run_line(cluster, unbound.mend)
    short = until_no(unbound.found)["pod_rights"]
    run_line(cluster, short.mend)
    after = until_no(short.found)

    assert "create clusterrolebinding" in unbound.mend
    assert short.found == "not allowed: get pods, list pods, get namespaces, create tokenreviews"
    assert "pod_rights" not in after


IN_POD = """
import os, pathlib, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
folder = pathlib.Path("/run/secrets/kubernetes.io/serviceaccount")
folder.mkdir(parents=True)
(folder / "ca.crt").write_text(pathlib.Path(sys.argv[1]).read_text())
(folder / "token").write_text(sys.argv[3])
os.environ |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": sys.argv[2]}
os.environ["RANKMEND_POD_PART"] = "agent-kubernetes"
os.execv(sys.executable, [sys.executable, "-m", "rankmend.cli", "doctor", "kubernetes", "--json", "--timeout", "60"])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a mount namespace")
def test_the_command_in_a_pod_names_rights_token_and_kubelet(kubernetes_cluster: Cluster) -> None:
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    token = kubernetes_cluster.add_account("doctor-pod", "agent", rules)
    port = str(urlsplit(kubernetes_cluster.url).port)
    unshare = ("unshare", "--mount", "--propagation", "private", sys.executable, "-c", IN_POD)

    done = subprocess.run(
        [*unshare, str(kubernetes_cluster.ca_file), port, token],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=ROOT,
    )  # fmt: skip

    told = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert told["pod_api"]["outcome"] == "ok", done.stdout
    assert told["pod_token"]["outcome"] == "ok"
    assert told["pod_rights"]["found"] == "not allowed: patch nodes/status, create events"
    assert "pod-resources/kubelet.sock" in told["pod_kubelet"]["found"]
    assert done.returncode == 2
