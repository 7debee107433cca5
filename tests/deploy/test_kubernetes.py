"""deploy/kubernetes: what kustomize makes of it is what a real API server takes, with configurations that are read."""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from kubernetes import client

from agent.config import load as load_agent
from recovery.service.controller_config import AGENT_PORT
from recovery.service.controller_config import load as load_controller
from tests.support.eventually import DEADLINE_S, eventually
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
    return build(FOLDER)


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    """Two controllers on PostgreSQL."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: kustomizations are built with it")
    return build(FOLDER / "controllers")


def build(folder: Path, root: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the objects of a kustomization below ``root``.

    The kubectl of Debian 12 (1.20) lacks today's fields: it gets a copy with those that it knows.
    """
    built = kustomize(folder)
    if built.returncode != 0:
        with TemporaryDirectory() as name:
            copy = Path(name) / "copy"
            shutil.copytree(root, copy)
            for path in copy.rglob("kustomization.yaml"):
                write_older_fields(path)
            older = kustomize(copy / folder.relative_to(root))
        assert older.returncode == 0, f"{built.stderr}\n{older.stderr}"
        built = older
    return [part for part in yaml.safe_load_all(built.stdout) if part]


def kustomize(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def write_older_fields(path: Path) -> None:
    """Write `bases` and `patchesStrategicMerge` in place of folders in `resources` and of `patches`."""
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    resources = fields.pop("resources", [])
    folders = [name for name in resources if (path.parent / name).is_dir()]
    older = {
        "bases": folders,
        "resources": [name for name in resources if name not in folders],
        "patchesStrategicMerge": [patch["path"] for patch in fields.pop("patches", [])],
    }
    fields |= {field: names for field, names in older.items() if names}
    path.write_text(yaml.safe_dump(fields), encoding="utf-8")


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
    subprocess.run([*command["command"][:2], shell], check=True, timeout=DEADLINE_S)

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
        timeout=DEADLINE_S,
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
    text = "".join(f"{line}\n" for line in ("resources:", f"  - base/{part}", *lines))
    (folder / "kustomization.yaml").write_text(text)
    return build(folder, folder)


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


def test_no_kustomization_has_a_deprecated_field() -> None:
    fields = {
        field
        for path in FOLDER.rglob("kustomization.yaml")
        for field in yaml.safe_load(path.read_text(encoding="utf-8"))
    }

    assert (
        fields & {"bases", "commonLabels", "patchesJson6902", "patchesStrategicMerge", "vars"}
        == set()
    )


def test_the_operators_monitors_find_the_pods_by_label_and_port_and_name_the_rules_jobs(
    objects: list[dict[str, Any]],
) -> None:
    for kind, name in (("DaemonSet", "rankmend-agent"), ("Deployment", "rankmend-controller")):
        template = named(objects, kind, name)["spec"]["template"]
        ports = {
            port["name"]
            for container in template["spec"]["containers"]
            for port in container.get("ports", ())
        }
        monitor = named(monitoring("pods.yaml"), "PodMonitor", name)["spec"]
        (endpoint,) = monitor["podMetricsEndpoints"]

        labels = template["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert endpoint["port"] in ports
        assert labels[monitor["jobLabel"]] == name
        assert f'up{{job="{name}"}}' in (FOLDER / "monitoring/rules.yaml").read_text()


def test_the_operators_rules_are_those_of_prometheus() -> None:
    files = sorted((ROOT / "deploy/prometheus").glob("*-rules.yml"))
    shipped = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in files]
    rules = monitoring("rules.yaml")

    assert len(shipped) == 3
    assert {part["kind"] for part in rules} == {"PrometheusRule"}
    assert sorted([part["spec"] for part in rules], key=str) == sorted(shipped, key=str)


def monitoring(name: str) -> list[dict[str, Any]]:
    text = (FOLDER / "monitoring" / name).read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


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


def check_form(told: Any, kind: str, where: str = "") -> None:
    """Check an object against the published schema: the models that Kubernetes' own client has of its OpenAPI."""
    if kind.startswith("List["):
        assert isinstance(told, list), where
        for place, part in enumerate(told):
            check_form(part, kind[5:-1], f"{where}[{place}]")
    elif kind.startswith("Dict["):
        assert isinstance(told, dict), where
    elif (model := getattr(client, kind, None)) is not None:
        assert isinstance(told, dict), where
        names = {name: attribute for attribute, name in model.attribute_map.items()}
        assert told.keys() <= names.keys(), f"{where}: {told.keys() - names.keys()}"
        for name, part in told.items():
            check_form(part, model.openapi_types[names[name]], f"{where}.{name}")
        model(**{names[name]: part for name, part in told.items()})  # raises for what is missing
    else:
        assert isinstance(told, {"str": str, "int": int, "bool": bool}[kind]), where


NODE: dict[str, Any] = {
    "metadata": {
        "name": "n1",
        "labels": {"zone": "a"},
        "annotations": {"site/owner": "ann"},
        "finalizers": ["site/f"],
        "ownerReferences": [{"kind": "Machine", "name": "m1"}],
    },
    "spec": {
        "podCIDR": "10.0.0.0/24",
        "podCIDRs": ["10.0.0.0/24"],
        "providerID": "cloud://1",
        "taints": [{"key": "site/t", "effect": "NoSchedule"}],
    },
}
CORDON = {"rankmend.io/cordon": "inc-1"}
ANNOTATIONS = {"site/owner": "ann"}
BARE: dict[str, Any] = {"metadata": {"name": "n1"}, "spec": {}}
CONTROLLER = "system:serviceaccount:rankmend:rankmend-controller"


def changed(node: dict[str, Any], metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the node with these fields; None removes one."""
    merged = {"metadata": {**node["metadata"], **metadata}, "spec": {**node["spec"], **spec}}
    return {
        part: {key: value for key, value in fields.items() if value is not None}
        for part, fields in merged.items()
    }


def refusals(before: dict[str, Any], after: dict[str, Any], user: str = CONTROLLER) -> list[str]:
    """Return the messages with which the shipped policy refuses an update, by an evaluator of CEL."""
    celpy = pytest.importorskip("celpy", reason="needs cel-python, of the extra dev")
    policy, _binding = yaml.safe_load_all((FOLDER / "node-policy.yaml").read_text())
    spec, environment = policy["spec"], celpy.Environment()
    told = {"oldObject": before, "object": after, "request": {"userInfo": {"username": user}}}
    context = {name: celpy.json_to_cel(value) for name, value in told.items()}

    def holds(expression: str) -> Any:
        return environment.program(environment.compile(expression)).evaluate(context)

    if not all(holds(condition["expression"]) for condition in spec["matchConditions"]):
        return []
    context["variables"] = celpy.celtypes.MapType(
        {
            celpy.celtypes.StringType(variable["name"]): holds(variable["expression"])
            for variable in spec["variables"]
        }
    )
    rules = spec["validations"]
    return [rule["message"] for rule in rules if not holds(rule["expression"])]


@pytest.mark.parametrize(
    ("before", "metadata", "spec"),
    [
        (NODE, {}, {"unschedulable": True}),
        (NODE, {"annotations": {**ANNOTATIONS, **CORDON}}, {"unschedulable": True}),
        (changed(NODE, {"annotations": {**ANNOTATIONS, **CORDON}}, {"unschedulable": True}), {"annotations": ANNOTATIONS}, {"unschedulable": None}),
        (changed(NODE, {"annotations": {**ANNOTATIONS, **CORDON}}, {}), {"annotations": {**ANNOTATIONS, "rankmend.io/cordon": "inc-2"}}, {}),
        (BARE, {"annotations": CORDON}, {"unschedulable": True}),
        (changed(BARE, {"annotations": CORDON}, {}), {"annotations": None}, {"unschedulable": False}),
        (NODE, {}, {}),
    ],
    ids=["cordon", "cordon with its mark", "uncordon", "another mark", "bare node", "last annotation", "nothing"],
)  # fmt: skip
def test_policy_of_nodes_lets_the_controller_cordon_and_mark(
    before: dict[str, Any], metadata: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert refusals(before, changed(before, metadata, spec)) == []


@pytest.mark.parametrize(
    ("before", "metadata", "spec", "what"),
    [
        (NODE, {"annotations": {"site/owner": "mallory"}}, {}, "no annotation"),
        (NODE, {"annotations": {**ANNOTATIONS, "kubeadm.alpha.kubernetes.io/x": "y"}}, {}, "no annotation"),
        (NODE, {"annotations": CORDON}, {}, "no annotation"),
        (NODE, {"annotations": None}, {}, "no annotation"),
        (BARE, {"annotations": {"rankmend.io/other": "x"}}, {}, "no annotation"),
        (NODE, {"labels": {"zone": "b"}}, {}, "no label"),
        (NODE, {"labels": {"zone": "a", "node-role.kubernetes.io/control-plane": ""}}, {}, "no label"),
        (NODE, {"labels": None}, {}, "no label"),
        (NODE, {"finalizers": []}, {}, "no label"),
        (NODE, {"ownerReferences": None}, {}, "no label"),
        (NODE, {}, {"taints": None}, "unschedulable"),
        (NODE, {}, {"taints": [{"key": "site/t", "effect": "NoExecute"}]}, "unschedulable"),
        (BARE, {}, {"taints": [{"key": "x", "effect": "NoExecute"}]}, "unschedulable"),
        (NODE, {}, {"providerID": "cloud://2"}, "unschedulable"),
        (NODE, {}, {"podCIDR": None}, "unschedulable"),
        (NODE, {}, {"podCIDRs": ["10.1.0.0/24"]}, "unschedulable"),
        (BARE, {}, {"externalID": "x"}, "unschedulable"),
        (BARE, {}, {"configSource": {"configMap": {"name": "x"}}}, "unschedulable"),
        (NODE, {}, {"unschedulable": True, "taints": []}, "unschedulable"),
    ],
)  # fmt: skip
def test_policy_of_nodes_refuses_the_controller_every_other_change(
    before: dict[str, Any], metadata: dict[str, Any], spec: dict[str, Any], what: str
) -> None:
    (message,) = refusals(before, changed(before, metadata, spec))

    assert what in message


FOREIGN: dict[str, Any] = changed(NODE, {}, {"unschedulable": True})  # cordoned by a person


@pytest.mark.parametrize(
    ("metadata", "spec"),
    [
        ({}, {"unschedulable": False}),
        ({}, {"unschedulable": None}),
        ({"annotations": {**ANNOTATIONS, **CORDON}}, {}),  # to pass for its own in a second step
        ({"annotations": {**ANNOTATIONS, **CORDON}}, {"unschedulable": None}),
    ],
)
def test_policy_of_nodes_keeps_what_others_have_cordoned(
    metadata: dict[str, Any], spec: dict[str, Any]
) -> None:
    (message,) = refusals(FOREIGN, changed(FOREIGN, metadata, spec))

    assert "what others have cordoned" in message
    assert refusals(FOREIGN, changed(FOREIGN, metadata, spec), "kubernetes-admin") == []


def test_policy_of_nodes_limits_nobody_else() -> None:
    after = changed(NODE, {"labels": None}, {"taints": None})

    for user in ("kubernetes-admin", "system:node:n1", f"{CONTROLLER}-2"):
        assert refusals(NODE, after, user) == []
    assert len(refusals(NODE, after)) == 2


def test_policy_of_nodes_has_the_form_that_is_published_and_names_the_account() -> None:
    policy, binding = yaml.safe_load_all((FOLDER / "node-policy.yaml").read_text())
    spec = policy["spec"]

    assert policy["apiVersion"] == binding["apiVersion"] == "admissionregistration.k8s.io/v1"
    check_form(policy, "V1ValidatingAdmissionPolicy")
    check_form(binding, "V1ValidatingAdmissionPolicyBinding")
    expressions = [*spec["variables"], *spec["matchConditions"], *spec["validations"]]
    (rule,) = spec["matchConstraints"]["resourceRules"]
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
    for text in (part["expression"] for part in expressions):
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
