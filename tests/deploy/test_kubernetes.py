"""deploy/kubernetes: what kustomize makes of it is what a real API server takes, with configurations that are read."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.config import load as load_agent
from recovery.service.controller_config import AGENT_PORT
from recovery.service.controller_config import load as load_controller
from tests.support.eventually import eventually
from tests.support.kubernetes import Cluster

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
GROUPS = {
    "Namespace": ("v1", "namespaces", False),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "ConfigMap": ("v1", "configmaps", True),
    "Service": ("v1", "services", True),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Deployment": ("apps/v1", "deployments", True),
    "DaemonSet": ("apps/v1", "daemonsets", True),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets", True),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies", True),
}


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: kustomizations are built with it")
    try:
        return build(FOLDER)
    except AssertionError as error:
        if "must be a file" not in str(error):
            raise
        # The kustomize of kubectl before 1.21, which Debian 12 has, takes no folder as a resource.
        parts = [build(FOLDER / part) for part in ("controller", "agent")]
        spaces = list(yaml.safe_load_all((FOLDER / "namespace.yaml").read_text(encoding="utf-8")))
        return [*spaces, *parts[0], *parts[1]]


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    """Two controllers on PostgreSQL."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: kustomizations are built with it")
    return build(FOLDER / "controllers")


def build(folder: Path) -> list[dict[str, Any]]:
    built = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return [one for one in yaml.safe_load_all(built.stdout) if one]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [
        one for one in objects if one["kind"] == kind and one["metadata"]["name"].startswith(name)
    ]
    return found


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    return dict(workload["spec"]["template"]["spec"])


def test_configurations_are_read_by_what_they_are_for(tmp_path: Path) -> None:
    controller = load_controller(FOLDER / "controller/controller.toml")
    text = (FOLDER / "agent/agent.toml").read_text()
    (tmp_path / "agent.toml").write_text(text.replace("/var/lib/rankmend-agent", str(tmp_path)))
    agent = load_agent(tmp_path / "agent.toml")

    assert (controller.kubernetes.enabled, controller.kubernetes.act) == (True, False)
    assert controller.kubernetes.kubeconfig is None
    assert agent.listen == ":9476"


def test_everything_is_in_one_namespace_and_of_one_image(objects: list[dict[str, Any]]) -> None:
    pods = [pod_of(one) for one in objects if one["kind"] in ("Deployment", "DaemonSet")]
    images = {
        container["image"]
        for pod in pods
        for container in [*pod["containers"], *pod.get("initContainers", ())]
    }

    spaces = {one["metadata"].get("namespace") for one in objects if GROUPS[one["kind"]][2]}
    assert (spaces, images) == ({"rankmend"}, {"rankmend:0.1.0"})


def test_every_volume_that_is_mounted_exists_and_configuration_is_the_generated_one(
    objects: list[dict[str, Any]],
) -> None:
    maps = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    for workload in (one for one in objects if one["kind"] in ("Deployment", "DaemonSet")):
        pod = pod_of(workload)
        volumes = {one["name"]: one for one in pod["volumes"]}
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            assert {one["name"] for one in container["volumeMounts"]} <= set(volumes)
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"]
        assert volumes["config"]["configMap"]["name"] in maps


def test_only_the_container_that_tells_findings_has_the_agents_token(
    objects: list[dict[str, Any]],
) -> None:
    pod = pod_of(named(objects, "DaemonSet", "rankmend-agent"))

    mounts = {one["name"]: {m["name"] for m in one["volumeMounts"]} for one in pod["containers"]}
    assert pod["automountServiceAccountToken"] is False
    assert {name for name, mounted in mounts.items() if "token" in mounted} == {"kubernetes"}


def test_secrets_are_copied_so_that_only_the_controller_reads_them(
    objects: list[dict[str, Any]], tmp_path: Path
) -> None:
    command = pod_of(named(objects, "Deployment", "rankmend-controller"))["initContainers"][0]
    secret, files = tmp_path / "secret", tmp_path / "files"
    secret.mkdir()
    files.mkdir()
    (secret / "tokens.toml").write_text("# none")
    (secret / "tokens.toml").chmod(0o440)

    shell = command["command"][2].replace("/secret/", f"{secret}/")
    shell = shell.replace("/etc/rankmend/controller/", f"{files}/")
    subprocess.run([*command["command"][:2], shell], check=True, timeout=200)

    assert (files / "tokens.toml").stat().st_mode & 0o777 == 0o600


def test_two_controllers_have_no_volume_and_one_of_them_stays_through_drains_and_updates(
    two: list[dict[str, Any]],
) -> None:
    deployment = named(two, "Deployment", "rankmend-controller")
    pod = pod_of(deployment)

    assert [one for one in two if one["kind"] == "PersistentVolumeClaim"] == []
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    budget = named(two, "PodDisruptionBudget", "rankmend-controller")["spec"]
    assert (budget["minAvailable"], "maxUnavailable" in budget) == (1, False)
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert set(volumes["state"]) == {"name", "emptyDir"}
    mounted = [
        m["name"]
        for one in [*pod["containers"], *pod["initContainers"]]
        for m in one["volumeMounts"]
    ]
    assert set(mounted) <= set(volumes)
    assert named(two, "Service", "rankmend-controllers")["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize(
    ("address", "name"), [("10.1.2.3", "10-1-2-3"), ("fd00::1:2", "fd00--1-2")]
)
def test_each_of_two_controllers_has_an_address_of_its_own(
    two: list[dict[str, Any]], tmp_path: Path, address: str, name: str
) -> None:
    (command,) = pod_of(named(two, "Deployment", "rankmend-controller"))["initContainers"]
    for folder in ("secret", "files", "config"):
        (tmp_path / folder).mkdir()
    (tmp_path / "secret/tokens.toml").write_text("# none")
    text = named(two, "ConfigMap", "rankmend-controller")["data"]["controller.toml"]
    (tmp_path / "config/controller.toml").write_text(text)

    shell = command["command"][2].replace("/secret/", f"{tmp_path}/secret/")
    shell = shell.replace("/etc/rankmend/controller/", f"{tmp_path}/files/")
    shell = shell.replace("/config/", f"{tmp_path}/config/")
    subprocess.run(
        [*command["command"][:2], shell],
        check=True,
        timeout=200,
        env={"PATH": "/usr/bin:/bin", "POD_IP": address, "POD_NAMESPACE": "ml"},
    )
    config = load_controller(tmp_path / "files/controller.toml")

    assert config.postgres.url == f"https://{name}.rankmend-controllers.ml.svc:9477"
    assert config.journal is not None
    assert (config.kubernetes.enabled, config.kubernetes.act) == (True, False)


def test_the_network_policy_lets_out_what_the_controller_asks(
    objects: list[dict[str, Any]],
) -> None:
    policy = named(objects, "NetworkPolicy", "rankmend-controller")["spec"]

    out = {(port["port"], port["protocol"]) for rule in policy["egress"] for port in rule["ports"]}
    into = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}

    names, kubernetes = {(53, "UDP"), (53, "TCP")}, {(443, "TCP"), (6443, "TCP")}
    assert out >= {*names, *kubernetes, (9093, "TCP"), (AGENT_PORT, "TCP")}
    assert into == {9477}
    assert (
        policy["podSelector"]["matchLabels"]
        == (named(objects, "Deployment", "rankmend-controller")["spec"]["selector"]["matchLabels"])
    )


def overlay(folder: Path, part: str, *lines: str) -> list[dict[str, Any]]:
    """Return what an overlay makes of a part: a kustomization of somebody's own, with the shipped folder as its base."""
    shutil.copytree(FOLDER, folder / "base")
    text = "".join(f"{line}\n" for line in ("bases:", f"  - base/{part}", *lines))
    (folder / "kustomization.yaml").write_text(text)
    return build(folder)


@pytest.mark.parametrize(
    ("part", "suffix", "path", "verb"),
    [("controller", "", "nodes", "patch"), ("agent", "-b", "events", "create")],
)
def test_accounts_have_their_rights_in_any_namespace_and_under_another_name(
    tmp_path: Path, kubernetes_cluster: Cluster, part: str, suffix: str, path: str, verb: str
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: kustomizations are built with it")
    space, name = "ml-infra", f"rankmend-{part}{suffix}"
    lines = [f"namespace: {space}", *([f"nameSuffix: {suffix}"] if suffix else ())]
    kubernetes_cluster.add_namespace(space)
    for one in overlay(tmp_path, part, *lines):
        if one["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
            version, plural, is_in_namespace = GROUPS[one["kind"]]
            where = "/api/v1" if version == "v1" else f"/apis/{version}"
            inside = f"/namespaces/{space}" if is_in_namespace else ""
            kubernetes_cluster.apply(one, f"{where}{inside}/{plural}")

    def is_allowed() -> bool:
        asked = {
            "user": f"system:serviceaccount:{space}:{name}",
            "resourceAttributes": {"verb": verb, "resource": path, "namespace": "default"},
        }
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        told = kubernetes_cluster.call(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {**review, "spec": asked},
        )
        return bool(told["status"]["allowed"])

    eventually(is_allowed, f"{name} in {space} may {verb} {path}")


def test_role_to_evict_is_bound_in_single_namespaces_only(objects: list[dict[str, Any]]) -> None:
    bound = [one["roleRef"]["name"] for one in objects if one["kind"] == "ClusterRoleBinding"]
    (binding,) = yaml.safe_load_all((FOLDER / "training-namespace.yaml").read_text())
    roles = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ClusterRole"}

    assert "rankmend-controller-evict" not in bound
    assert (binding["kind"], binding["roleRef"]["name"]) == (
        "RoleBinding",
        "rankmend-controller-evict",
    )
    assert binding["roleRef"]["name"] in roles
    acting = {"create", "delete", "patch", "update", "*"}
    of_cluster = [rule for name in bound for rule in roles[name]["rules"]]
    assert [
        rule for rule in of_cluster if "pods" in rule["resources"][0] and acting & {*rule["verbs"]}
    ] == []


# Of ValidatingAdmissionPolicySpec and its parts in admissionregistration.k8s.io/v1, Kubernetes 1.30.
POLICY_FIELDS = {
    "spec": {
        *("auditAnnotations", "failurePolicy", "matchConditions", "matchConstraints"),
        *("paramKind", "validations", "variables"),
    },
    "validation": {"expression", "message", "messageExpression", "reason"},
    "variable": {"name", "expression"},
    "rule": {"apiGroups", "apiVersions", "operations", "resourceNames", "resources", "scope"},
}


def test_policy_of_nodes_has_the_form_that_is_published_and_names_the_account() -> None:
    policy, binding = yaml.safe_load_all((FOLDER / "node-policy.yaml").read_text())
    spec = policy["spec"]

    assert policy["apiVersion"] == binding["apiVersion"] == "admissionregistration.k8s.io/v1"
    assert spec.keys() <= POLICY_FIELDS["spec"]
    assert all(one.keys() <= POLICY_FIELDS["validation"] for one in spec["validations"])
    named = [*spec["variables"], *spec["matchConditions"]]
    assert all(one.keys() == POLICY_FIELDS["variable"] for one in named)
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert rule.keys() <= POLICY_FIELDS["rule"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["nodes"])
    assert spec["failurePolicy"] == "Fail"
    assert (
        "system:serviceaccount:rankmend:rankmend-controller"
        in spec["matchConditions"][0]["expression"]
    )
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }
    for text in (one["expression"] for one in [*named, *spec["validations"]]):
        assert text.count("(") == text.count(")")
        assert text.count('"') % 2 == 0


def test_where_pod_security_is_enforced_the_agents_pods_are_allowed(
    objects: list[dict[str, Any]],
) -> None:
    space = named(objects, "Namespace", "rankmend")

    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_a_drain_of_the_controllers_node_is_never_blocked(objects: list[dict[str, Any]]) -> None:
    budget = named(objects, "PodDisruptionBudget", "rankmend-controller")["spec"]
    deployment = named(objects, "Deployment", "rankmend-controller")["spec"]

    assert budget["maxUnavailable"] >= 1
    assert budget["selector"] == deployment["selector"]


def test_probes_ask_the_port_that_is_served(objects: list[dict[str, Any]]) -> None:
    for kind in ("Deployment", "DaemonSet"):
        container = pod_of(named(objects, kind, "rankmend"))["containers"][0]
        ports = {one["name"] for one in container["ports"]}
        probes = [container["livenessProbe"], container["readinessProbe"]]
        assert {one["httpGet"]["port"] for one in probes} <= ports


def test_a_real_api_server_takes_every_object(
    objects: list[dict[str, Any]], two: list[dict[str, Any]], kubernetes_cluster: Cluster
) -> None:
    kubernetes_cluster.add_namespace("rankmend")
    for one in [*objects, *two]:
        version, plural, is_in_namespace = GROUPS[one["kind"]]
        assert one["apiVersion"] == version
        if one["kind"] == "PodDisruptionBudget":
            # The server of the tests is 1.20: policy/v1 came with 1.21, with the same fields.
            version = "policy/v1beta1"
        where = "/api/v1" if version == "v1" else f"/apis/{version}"
        space = "/namespaces/rankmend" if is_in_namespace else ""

        made = kubernetes_cluster.apply(
            {**one, "apiVersion": version}, f"{where}{space}/{plural}", is_dry=True
        )

        assert made["metadata"]["name"] == one["metadata"]["name"]
