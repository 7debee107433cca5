"""From a finding to a job that trains on another node: real API server, real rights, real launchers, scripted kubelets.

A GPU is lost while the controller is killed 20 times; then a whole node. Nothing of anybody else is touched.
"""

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.api import wire
from recovery.api.controller_errors import ControllerError
from recovery.api.operator_client import OperatorClient
from tests.recovery.schedulers.kubernetes.conftest import EVICTS, shipped_rules
from tests.support import forked_cli
from tests.support.eventually import DEADLINE_S, eventually, fault_lasts
from tests.support.free_port import free_port
from tests.support.kubernetes import Cluster
from tests.support.service import make_folder
from tests.system.kubernetes.kubelets import Kubelets

pytestmark = [pytest.mark.site, pytest.mark.safety, pytest.mark.timeout(900)]
SPACE = "story"
NODES = tuple(f"story-{number}" for number in range(1, 7))
KEPT = "story-6"  # a person has cordoned it
KILLS = 20
# In the proportions of the defaults, and long enough for a busy machine: a node that falls silent has been lost.
POLICY = """
[policy]
lease_s = 10
kill_bound_s = 3
lease_margin_s = 1
node_silent_s = 8
join_wait_s = 10
evidence_wait_s = 1
"""


class Story:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.files = folder / "files"
        self.url = f"https://127.0.0.1:{free_port()}"
        make_folder(self.files)
        self._configure()
        self._controller: forked_cli.ForkedProcess | None = None
        self.client = OperatorClient(
            [self.url], ca_file=self.files / "ca.crt", token_file=self.files / "admin.token"
        )
        for node in NODES:
            cluster.add_node(node)
        self._foreign()
        self.kubelets = Kubelets(cluster, SPACE, NODES, folder)

    def _configure(self) -> None:
        self.cluster.add_namespace(SPACE, {"rankmend.io/subject": "launch"})
        token = self.cluster.add_account(
            SPACE, "controller", shipped_rules(), shipped_rules(EVICTS)
        )
        server = {
            "server": self.cluster.url,
            "certificate-authority": str(self.cluster.ca_file),
        }
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": server}],
            "contexts": [context],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        (self.files / "kubeconfig").write_text(json.dumps(config))
        toml = self.files / "controller.toml"
        text = toml.read_text().replace('"127.0.0.1:0"', json.dumps(self.url[len("https://") :]))
        text = text.replace(
            "\n[kubernetes]\n",
            f'\n[kubernetes]\nenabled = true\nact = true\nkubeconfig = "{self.files}/kubeconfig"\n'
            "nodes_drained_percent = 100.0\ntimeout_s = 10.0\n",
        )
        toml.write_text(text)

    def _foreign(self) -> None:
        """Have what belongs to others: a cordon, a taint, and a pod beside ours."""
        merge = "application/merge-patch+json"
        self.cluster.call(
            "PATCH", f"/api/v1/nodes/{KEPT}", {"spec": {"unschedulable": True}}, merge
        )
        taint = {"key": "example.com/site", "effect": "PreferNoSchedule"}
        for node in NODES:
            self.cluster.call(
                "PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}}, merge
            )
            self.cluster.add_pod(SPACE, f"other-on-{node}", node, {"rankmend.io/job": "other"})

    def start_job(self) -> None:
        (self.folder / "limits.toml").write_text(POLICY)
        arguments = [
            f"--controller={self.url}",
            f"--ca-file={self.files}/ca.crt",
            f"--token-file={self.files}/launch.token",
            f"--config={self.folder}/limits.toml",
            "--job=train",
            *("--nnodes=3", "--spares=1", "--nproc-per-node=1", "--node-name=$(NODE_NAME)"),
            *("--local-addr=127.0.0.1", f"--state-dir={self.folder}/state-$(POD_NAME)"),
            f"--agent-socket={self.folder}/none",
            str(Path(__file__).with_name("job.py")),
            str(self.folder),
        ]
        container = {"name": "launcher", "image": "example.invalid/training", "args": arguments}
        spec = {"restartPolicy": "Never", "containers": [container]}
        template = {"metadata": {"labels": {"rankmend.io/job": "train"}}, "spec": spec}
        job = {
            "metadata": {"name": "train"},
            "spec": {"completions": 3, "parallelism": 3, "template": template},
        }
        self.cluster.call("POST", f"/apis/batch/v1/namespaces/{SPACE}/jobs", job)
        budget = {
            "metadata": {"name": "train"},
            "spec": {
                "minAvailable": 2,
                "selector": {"matchLabels": {"rankmend.io/job": "train"}},
            },
        }
        path = f"/apis/policy/v1beta1/namespaces/{SPACE}/poddisruptionbudgets"
        self.cluster.call("POST", path, budget)
        self.kubelets.start()

    # The controller.

    def start_controller(self) -> None:
        with (self.folder / "controller.log").open("ab") as log:
            self._controller = forked_cli.start(
                ["controller", "run", "--config", str(self.files / "controller.toml")],
                cwd=Path.cwd(), environment=os.environ, stdout=log,
            )  # fmt: skip

    def kill_controller(self) -> None:
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait(DEADLINE_S)

    def close(self) -> None:
        (self.folder / "finish").touch()
        self.kubelets.stop()
        self.client.close()
        if self._controller is not None and self._controller.poll() is None:
            self.kill_controller()

    # What it tells.

    def job(self) -> wire.JobView | None:
        try:
            return next((one for one in self.client.jobs() if one.name == "train"), None)
        except ControllerError:
            return None

    def members(self) -> dict[str, wire.NodeView]:
        try:
            return {one.node: one for one in self.client.nodes()}
        except ControllerError:
            return {}

    def requests(self) -> list[wire.SlurmRequestView]:
        try:
            return self.client.kubernetes().requests
        except ControllerError:
            return []

    def trains_on(self) -> set[str]:
        """Return the nodes of the newest attempt, once it trains."""
        job = self.job()
        if job is None or job.state != "running":
            return set()
        nodes = {name for name, one in self.members().items() if one.ranks}
        has_begun = all((self.folder / f"rank-on-{name}").exists() for name in nodes)
        return nodes if has_begun else set()

    def pods(self) -> dict[str, str]:
        """Return the job's pods that run, by node: their UIDs."""
        path = f"/api/v1/namespaces/{SPACE}/pods?labelSelector=job-name"
        return {
            one["spec"].get("nodeName", ""): one["metadata"]["uid"]
            for one in self.cluster.call("GET", path)["items"]
            if one["status"].get("phase") == "Running"
        }

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        def state() -> str:
            told = [(one.key, one.outcome, one.text) for one in self.requests()]
            return (
                f"{what}\nrequests: {told}\nnodes: {self.members()}\npods: {self.pods()}\n"
                f"kubelets: {self.kubelets.problem}\n{self.kubelets.logs}"
            )

        eventually(is_so, state, pause_s=0.1)

    def accuse(self, node: str, alertname: str, action: str, summary: str) -> None:
        labels = {"alertname": alertname, "node": node, "severity": "critical", "action": action}
        self.client.post_alerts([{"labels": labels, "annotations": {"summary": summary}}])

    def blame(self, node: str) -> None:
        """Have an agent find a lost GPU, and the rank there die of it."""
        self.accuse(node, "RankmendGpuLost", "reset_gpu", "GPU 3 has fallen off the bus")
        os.kill(int((self.folder / f"rank-on-{node}").read_text()), signal.SIGKILL)

    def is_settled(self, left: str) -> bool:
        """Return whether the job trains without the node, which is cordoned, with a new spare on another one."""
        pods = self.pods()
        on = self.trains_on()
        spec = self.cluster.call("GET", f"/api/v1/nodes/{left}")["spec"]
        is_joined = set(pods) <= set(self.members())
        return (
            len(on) == 2
            and len(pods) == 3
            and left not in pods
            and on <= set(pods)
            and bool(spec.get("unschedulable"))
            and is_joined
        )

    def node(self, name: str) -> dict[str, Any]:
        return dict(self.cluster.call("GET", f"/api/v1/nodes/{name}"))


@pytest.fixture
def story(kubernetes_cluster: Cluster, tmp_path: Path) -> Iterator[Story]:
    if not (Path(os.environ["KUBEBUILDER_ASSETS"]) / "kube-controller-manager").exists():
        pytest.skip("no kube-controller-manager in KUBEBUILDER_ASSETS: nothing makes pods anew")
    made = Story(kubernetes_cluster, tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_lost_gpu_and_then_a_lost_node_are_replaced_and_nothing_foreign_is_touched(
    story: Story,
) -> None:
    chance = random.Random(16)
    story.start_controller()
    story.start_job()
    story.wait(lambda: len(story.trains_on()) == 2 and len(story.pods()) == 3, "the job trains")
    before = story.pods()
    bad = min(story.trains_on())

    story.blame(bad)
    for _kill in range(KILLS):
        fault_lasts(chance.uniform(0.0, 3.0))  # until a moment that nobody has chosen
        story.kill_controller()
        story.start_controller()
    story.wait(lambda: story.is_settled(bad), "the lost GPU's node is replaced")
    after = story.pods()
    story.wait(lambda: all(one.outcome for one in story.requests()), "all requests have ended")
    first = {one.key: one for one in story.requests()}

    # Each thing once, and only the pod on the bad node was made anew.
    assert sorted((one.action, one.outcome) for one in first.values()) == [
        ("drain", "done"),
        ("evict", "done"),
    ], first
    assert set(before.values()) - set(after.values()) == {before[bad]}
    assert len(story.kubelets.seen) == 4, "three pods, and one that replaces"
    reason = story.node(bad)["metadata"]["annotations"]["rankmend.io/cordon"]
    assert reason.startswith("rankmend: rank ")
    assert "SIGKILL" in reason

    lost = min(story.trains_on())
    # Without an alert a launcher that ends says nothing of its node.
    story.accuse(lost, "RankmendAgentDown", "drain", "its agent does not answer")
    story.kubelets.lose(lost)
    story.wait(lambda: story.is_settled(lost), "the lost node is replaced")
    story.wait(lambda: all(one.outcome for one in story.requests()), "all requests have ended")

    assert len(story.kubelets.seen) == 5
    for node in NODES:
        told = story.node(node)
        taints = {one["key"] for one in told["spec"]["taints"]}
        assert "example.com/site" in taints
        assert bool(told["spec"].get("unschedulable")) == (node in (bad, lost, KEPT))
        assert story.cluster.is_there(SPACE, f"other-on-{node}")
    assert "rankmend.io/cordon" not in (story.node(KEPT)["metadata"].get("annotations") or {})

    (story.folder / "finish").touch()
    path = f"/apis/batch/v1/namespaces/{SPACE}/jobs/train"
    story.wait(
        lambda: story.cluster.call("GET", path)["status"].get("succeeded") == 3,
        "the Job has succeeded",
    )
