"""The agent's findings as conditions and events of the node: on a stand-in, and with a real API server and the rights that are shipped."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.kubernetes.conditions import CONDITIONS_MAX, read_page
from agent.kubernetes.teller import AGAIN_S, SILENT_S, Teller
from rankmend.errors import SourceError
from rankmend.kubernetes_api import KubernetesApi, KubernetesConflictError, KubernetesDeniedError
from tests.recovery.slurm.fakes import MovedClock
from tests.support.kubernetes import Cluster

ROLE = Path(__file__).parents[3] / "deploy/kubernetes/agent/account.yaml"
LOST = {
    "id": "gpu_lost/GPU-5f3c",
    "check": "gpu_lost",
    "severity": "critical",
    "action": "reset_gpu",
    "summary": "GPU 3 has fallen off the bus",
    "since": 1_764_000_000.0,
}


class FakeApi:
    """A node's conditions, and events by name."""

    def __init__(self) -> None:
        self.conditions: dict[str, dict[str, str]] = {"Ready": {"type": "Ready", "status": "True"}}
        self.events: dict[str, dict[str, Any]] = {}
        self.patches = 0

    def call(self, method: str, path: str, query: Any = (), body: Any = None, **_kinds: str) -> Any:
        if method == "GET":
            return {"status": {"conditions": list(self.conditions.values())}}
        if method == "PATCH":
            assert path == "/api/v1/nodes/n1/status"
            self.patches += 1
            for one in body["status"]["conditions"]:
                self.conditions[one["type"]] = one
            return {}
        name = body["metadata"]["name"]
        if name in self.events:
            raise KubernetesConflictError(name)
        self.events[name] = body
        return body


class Site:
    def __init__(self) -> None:
        self.api, self.clock = FakeApi(), MovedClock()
        self.findings: list[dict[str, Any]] | None = []
        self.restart()

    def restart(self) -> None:
        self.teller = Teller(self.api, "n1", self._page, self.clock)  # type: ignore[arg-type]

    def _page(self) -> bytes:
        if self.findings is None:
            raise SourceError("no node agent answers at http://127.0.0.1:9476")
        return json.dumps({"node": "n1", "findings": self.findings}).encode()

    def look(self, after_s: float = 10.0) -> dict[str, str]:
        self.clock.unix += after_s
        self.teller.look()
        told = self.api.conditions.values()
        return {one["type"]: one["status"] for one in told if one["type"] != "Ready"}


def test_a_finding_is_a_condition_while_it_lasts_and_one_event() -> None:
    site = Site()

    quiet = site.look()
    site.findings = [LOST]
    found = site.look()
    condition = site.api.conditions["RankmendGpuLost"]
    site.restart()
    site.look()
    site.findings = []
    over = site.look()

    assert (quiet, found, over) == (
        {},
        {"RankmendGpuLost": "True"},
        {"RankmendGpuLost": "False"},
    )
    assert condition["message"] == "GPU 3 has fallen off the bus (action: reset_gpu)"
    assert (condition["reason"], condition["lastTransitionTime"]) == (
        "Critical",
        "2025-11-24T16:00:00Z",
    )
    (event,) = site.api.events.values()
    assert (event["reason"], event["involvedObject"]["name"]) == ("RankmendGpuLost", "n1")
    assert site.api.conditions["Ready"] == {"type": "Ready", "status": "True"}


def test_the_same_fault_that_comes_back_is_another_event() -> None:
    site = Site()
    site.findings = [LOST]
    site.look()
    site.findings = []
    site.look()
    site.findings = [{**LOST, "since": LOST["since"] + 60}]  # type: ignore[operator]
    site.look()

    assert len(site.api.events) == 2


def test_an_agent_that_is_silent_is_unknown_and_not_well() -> None:
    site = Site()
    site.findings = [LOST]
    site.look()
    site.findings = None

    soon = site.look()
    late = site.look(SILENT_S)
    site.findings = []
    back = site.look()

    assert (soon, late, back) == (
        {"RankmendGpuLost": "True"},
        {"RankmendGpuLost": "Unknown"},
        {"RankmendGpuLost": "False"},
    )
    assert site.api.conditions["RankmendGpuLost"]["reason"] == "NothingFound"


def test_nothing_is_written_while_nothing_changes_but_for_a_word_now_and_then() -> None:
    site = Site()
    site.findings = [LOST]
    for _look in range(5):
        site.look()
    once = site.api.patches
    site.look(AGAIN_S)

    assert (once, site.api.patches) == (1, 2)


def test_info_and_silenced_findings_are_told_nobody() -> None:
    site = Site()
    site.findings = [{**LOST, "severity": "info"}, {**LOST, "id": "x", "is_silenced": True}]

    assert site.look() == {}


def test_what_a_node_can_have_is_bounded_the_worst_first() -> None:
    site = Site()
    many = [{**LOST, "id": f"c{n}", "check": f"check_{n:03}", "severity": "warning"} for n in range(100)]  # fmt: skip
    site.findings = [*many, LOST]

    told = site.look()

    assert len(told) == CONDITIONS_MAX
    assert "RankmendGpuLost" in told


@pytest.mark.parametrize("page", [b"", b"{}", b"[1]", b'{"findings": [{"id": 1}]}', b"\xff"])
def test_a_page_that_is_none_is_named(page: bytes) -> None:
    with pytest.raises(SourceError, match="not the agent's page of findings"):
        read_page(page)


# On a real API server.


def shipped_rules() -> list[dict[str, Any]]:
    (role,) = [one for one in yaml.safe_load_all(ROLE.read_text()) if one["kind"] == "ClusterRole"]
    return list(role["rules"])


def teller_of(
    cluster: Cluster, name: str, rules: Sequence[dict[str, Any]], page: Callable[[], bytes]
) -> tuple[Teller, str]:
    token = cluster.add_account(name, "agent", rules)
    node = cluster.add_node(f"{name}-node")
    api = KubernetesApi(cluster.api_of(token), 10.0, "rankmend-agent")
    return Teller(api, node, page, MovedClock(1_764_000_100.0)), node


@pytest.mark.real
@pytest.mark.long
def test_a_real_node_has_the_condition_and_the_event(kubernetes_cluster: Cluster) -> None:
    pages = iter([[LOST], []])
    teller, node = teller_of(
        kubernetes_cluster,
        "teller",
        shipped_rules(),
        lambda: json.dumps({"findings": next(pages)}).encode(),
    )

    def statuses() -> dict[str, str]:
        conditions = kubernetes_cluster.core.read_node(node).status.conditions
        return {one.type: one.status for one in conditions}

    teller.look()
    found = statuses()
    teller.look()
    events = kubernetes_cluster.core.list_namespaced_event(
        "default", field_selector=f"involvedObject.name={node}"
    )

    assert found == {"Ready": "True", "RankmendGpuLost": "True"}
    assert statuses() == {"Ready": "True", "RankmendGpuLost": "False"}
    assert [one.message for one in events.items] == [
        "GPU 3 has fallen off the bus (action: reset_gpu)"
    ]


@pytest.mark.real
@pytest.mark.long
@pytest.mark.parametrize("number", range(len(shipped_rules())))
def test_a_right_that_is_taken_away_is_named(kubernetes_cluster: Cluster, number: int) -> None:
    rules = shipped_rules()
    gone = rules.pop(number)
    teller, _node = teller_of(
        kubernetes_cluster,
        f"teller-{number}",
        rules,
        lambda: json.dumps({"findings": [LOST]}).encode(),
    )

    with pytest.raises(KubernetesDeniedError) as refused:
        teller.look()

    resource = gone["resources"][0].partition("/")[0]
    assert f'cannot {gone["verbs"][0]} resource \\"{resource}' in str(refused.value) or (
        f'cannot {gone["verbs"][0]} resource "{resource}' in str(refused.value)
    )
