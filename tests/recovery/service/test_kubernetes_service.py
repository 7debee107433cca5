"""A controller with [kubernetes]: what jobs leave is asked there, and shown, whether the API answers or not."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from agent.preflight.children import LoadChildren
from agent.preflight.result_file import FlightResult
from detectors.preflight.verdicts import CheckStanding, CheckVerdict, FlightOutcome
from rankmend.cli import cli
from rankmend.cli.preflights.preflight_holds import HoldOptions, hold_or_return
from rankmend.errors import ConfigError
from rankmend.kubernetes_api import connect
from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest
from recovery.service.controller_config import Config
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.kubernetes import Cluster
from tests.support.service import make_folder, running

pytestmark = pytest.mark.site


def test_a_kubeconfig_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"kubernetes.kubeconfig: no file /nowhere/config"):
        connect("/nowhere/config", None, 1.0)


def test_outside_a_pod_a_kubeconfig_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"set kubernetes.kubeconfig elsewhere"):
        connect(None, None, 1.0)


def test_an_api_that_does_not_answer_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    make_folder(tmp_path / "c")
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    config = {"current-context": "c", "clusters": [cluster], "contexts": [context], "users": [user]}
    kubeconfig.write_text(json.dumps(config))
    limits = KubernetesLimits(enabled=True, act=True, kubeconfig=str(kubeconfig), timeout_s=1.0)

    with running(tmp_path / "c", lambda one: msgspec.structs.replace(one, kubernetes=limits)) as up:
        assert up.service.kubernetes is not None
        desk = up.service.kubernetes.desk
        desk.ask(SchedulerRequest("k", SchedulerAction.DRAIN, ("n1",), reason="slow"))
        eventually(lambda: desk.bench.is_answering is False, "the API is away")
        view = up.client("admin").kubernetes()
        page = generate_latest(up.service.measures.registry).decode()

    (shown,) = view.requests
    assert (view.enabled, view.acts, shown.outcome) == (True, True, "")
    assert shown.text.startswith("Kubernetes does not answer: GET /api/v1/nodes/n1: no answer")
    assert "rankmend_controller_kubernetes_answering 0.0" in page


def test_a_node_is_cordoned_shown_and_returned_by_a_person(
    tmp_path: Path, kubernetes_cluster: Cluster
) -> None:
    make_folder(tmp_path / "c")
    node = kubernetes_cluster.add_node("service-node-1")
    other = kubernetes_cluster.add_node("service-node-2")
    path = f"/api/v1/nodes/{other}"
    taint = {"key": "example.com/bad", "effect": "NoExecute"}
    spec = {"unschedulable": True, "taints": [taint]}
    kubernetes_cluster.call("PATCH", path, {"spec": spec}, "application/merge-patch+json")
    limits = KubernetesLimits(
        enabled=True,
        act=True,
        nodes_drained_percent=100.0,
        kubeconfig=str(kubernetes_cluster.folder / "admin.kubeconfig"),
    )

    def change(one: Config) -> Config:
        seen = msgspec.structs.replace(one.discovery, nodes=(node, other))
        return msgspec.structs.replace(one, kubernetes=limits, discovery=seen)

    with running(tmp_path / "c", change) as up:
        assert up.service.kubernetes is not None
        desk = up.service.kubernetes.desk
        desk.ask(SchedulerRequest("k", SchedulerAction.DRAIN, (node,), reason="GPU 3 is bad"))
        eventually(lambda: len(up.service.kubernetes.states()) == 2, "the nodes are read")
        eventually(lambda: not desk.ledger.open, "the node is cordoned")
        access = ["--controller", up.url, "--ca-file", str(up.ca)]
        access += ["--token-file", str(up.folder / "admin.token")]
        told = CliRunner().invoke(cli, ["kubernetes", *access])
        status = CliRunner().invoke(cli, ["status", "--nodes", *access])
        plain = CliRunner().invoke(cli, ["status", "--nodes", "--json", *access])
        cordoned = kubernetes_cluster.core.read_node(node)
        words = ["resume", "--node", node, "--reason", "board replaced", *access]
        resumed = CliRunner().invoke(cli, words)
        assert resumed.exit_code == 0, resumed.output
        eventually(lambda: not desk.ledger.ours, "the cordon is taken back")
        after = kubernetes_cluster.core.read_node(node)

    assert told.exit_code == 0, told.output
    assert "Kubernetes: acts" in told.output
    assert f"done: drain {node}" in told.output
    assert f"{node}: drained in Kubernetes" in told.output
    said = f"{other} in Kubernetes: cordoned by somebody else; tainted example.com/bad:NoExecute"
    for shown in (told, status):
        assert said in " ".join(shown.output.split())
        assert f"{node}: drained in Kubernetes" in shown.output
    states = json.loads(plain.output)["kubernetes"]["states"]
    assert [(one["node"], one["taints"]) for one in states][1] == (
        other,
        ["example.com/bad:NoExecute"],
    )
    assert cordoned.spec.unschedulable
    assert resumed.exit_code == 0, resumed.output
    assert not after.spec.unschedulable


def flown(node: str, standing: CheckStanding) -> FlightResult:
    check = CheckVerdict("cpu_hash_bytes_per_s", "cpu", standing, "300 MB/s")
    is_bad = standing is CheckStanding.FAILED
    outcome = FlightOutcome.FAILED if is_bad else FlightOutcome.PASSED
    return FlightResult(node, "quick", outcome, 0.0, 1.0, 60.0, 1, (check,))


def test_a_node_that_fails_its_preflight_is_cordoned_and_returned_once_it_passes(
    tmp_path: Path, kubernetes_cluster: Cluster
) -> None:
    make_folder(tmp_path / "c")
    node = kubernetes_cluster.add_node("preflight-node-1")
    limits = KubernetesLimits(
        enabled=True,
        act=True,
        nodes_drained_percent=100.0,
        kubeconfig=str(kubernetes_cluster.folder / "admin.kubeconfig"),
    )

    def is_cordoned() -> bool:
        return bool(kubernetes_cluster.core.read_node(node).spec.unschedulable)

    with running(tmp_path / "c", lambda one: msgspec.structs.replace(one, kubernetes=limits)) as up:
        token = up.folder / "admin.token"
        options = HoldOptions("kubernetes", True, False, 0.1, up.url, token, up.ca)
        first = hold_or_return(
            options, flown(node, CheckStanding.FAILED), tmp_path, LoadChildren(), DEADLINE_S
        )
        eventually(is_cordoned, "the node is cordoned")
        again = hold_or_return(
            options, flown(node, CheckStanding.FAILED), tmp_path, LoadChildren(), DEADLINE_S
        )
        done = hold_or_return(
            options, flown(node, CheckStanding.PASSED), tmp_path, LoadChildren(), DEADLINE_S
        )
        eventually(lambda: not is_cordoned(), "the cordon is taken back")

    assert (first["outcome"], "Kubernetes is asked to take it out" in str(first["said"])) == (
        "held",
        True,
    )
    assert again["outcome"] == "out_already"
    assert done["outcome"] == "returned"
