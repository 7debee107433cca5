"""The agent's findings as conditions and events of the node: on a stand-in, and with a real API server and the rights that are shipped."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.kubernetes.conditions import CONDITIONS_MAX, TYPES_MAX, read_page
from agent.kubernetes.teller import AGAIN_S, EVENTS_A_LOOK_MAX, LOOK_S, SILENT_S, Teller
from rankmend.errors import SourceError
from rankmend.kubernetes_api import (
    KubernetesApi,
    KubernetesAwayError,
    KubernetesConflictError,
    KubernetesDeniedError,
    KubernetesError,
    KubernetesUnknownError,
)
from tests.recovery.schedulers.slurm.fakes import MovedClock
from tests.support.kubernetes import Cluster

pytestmark = pytest.mark.site

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
        self.calls = 0
        self.refuse: Callable[[str, Any], None] = lambda _method, _body: None

    def call(self, method: str, path: str, query: Any = (), body: Any = None, **_kinds: str) -> Any:
        self.calls += 1
        self.refuse(method, body)
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


def look_for(site: Site, seconds: float) -> int:
    """Let a second pass again and again; return how many calls were made."""
    before = site.api.calls
    for _second in range(int(seconds)):
        try:
            site.look(1.0)
        except KubernetesError:
            continue
    return site.api.calls - before


def test_an_api_that_is_away_for_long_is_asked_ever_more_rarely_and_told_once_it_is_back() -> None:
    site = Site()
    site.findings = [LOST]

    def away(_method: str, _body: Any) -> None:
        raise KubernetesAwayError("no answer")

    site.api.refuse = away
    first, later = look_for(site, 600), look_for(site, 3600)
    site.api.refuse = lambda _method, _body: None
    look_for(site, AGAIN_S + 1)

    assert first < 20
    assert later <= 3600 / (AGAIN_S / 2)
    assert site.api.conditions["RankmendGpuLost"]["status"] == "True"
    assert len(site.api.events) == 1


def test_an_event_that_is_refused_keeps_no_other_and_no_condition_from_being_told() -> None:
    site = Site()
    site.findings = [LOST, {**LOST, "id": "other", "check": "nic_down", "summary": "mlx5_0"}]

    def refuse(method: str, body: Any) -> None:
        if method == "POST" and body["reason"] == "RankmendGpuLost":
            raise KubernetesError("422: it is not valid")

    site.api.refuse = refuse
    with pytest.raises(KubernetesError, match="422"):
        site.look()
    look_for(site, 250)

    assert [one["reason"] for one in site.api.events.values()] == ["RankmendNicDown"]
    assert site.api.patches == 1  # what was told is not told again for an event's sake


def test_a_node_that_was_made_anew_has_its_conditions_again() -> None:
    site = Site()
    site.findings = [LOST]
    site.look()

    def gone(_method: str, _body: Any) -> None:
        raise KubernetesUnknownError("404")

    site.api.refuse = gone
    site.api.conditions.clear()
    look_for(site, 400)
    site.api.refuse = lambda _method, _body: None
    look_for(site, 2 * AGAIN_S)

    assert site.api.conditions["RankmendGpuLost"]["status"] == "True"


def test_a_wall_clock_that_jumps_makes_no_event_and_no_patch() -> None:
    site = Site()
    site.findings = [LOST]
    site.look()
    calls = site.api.calls

    class Jumped(MovedClock):
        def unix_s(self) -> float:
            return -1e12

    clock = Jumped(site.clock.unix)
    site.teller._clock = clock
    for _look in range(10):
        clock.unix += LOOK_S
        site.teller.look()
    quiet = site.api.calls
    site.findings = []
    clock.unix += LOOK_S
    site.teller.look()

    assert quiet == calls
    assert len(site.api.events) == 1
    assert site.api.conditions["RankmendGpuLost"]["status"] == "False"
    assert site.api.conditions["RankmendGpuLost"]["lastTransitionTime"] == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize("since", [-1e300, -1.0, 0.0, 1e18, 1e300])
def test_any_number_is_a_time(since: float) -> None:
    site = Site()
    site.findings = [{**LOST, "since": since}]

    assert site.look() == {"RankmendGpuLost": "True"}


def test_words_of_any_size_and_kind_are_bounded() -> None:
    site = Site()
    site.findings = [
        {
            **LOST,
            "check": "x\x1b\u202e_y" * 1000,
            "summary": "\x1b[2J" + "z" * 100_000,
            "id": "i" * 100_000,
        }
    ]

    (kind,) = site.look()

    assert kind.isascii()
    assert kind.isalnum()
    assert len(kind) <= 100
    (event,) = site.api.events.values()
    assert len(json.dumps(event)) < 2000
    assert "\x1b" not in event["message"]
    assert len(json.dumps(site.api.conditions[kind])) < 1500


def test_checks_that_change_their_names_do_not_fill_the_node() -> None:
    site = Site()
    for number in range(TYPES_MAX + 50):
        site.findings = [{**LOST, "check": f"check_{number}"}]
        told = site.look()

    assert len(told) == TYPES_MAX


def test_a_storm_of_findings_is_told_over_several_looks() -> None:
    site = Site()
    site.findings = [{**LOST, "id": f"i{number}"} for number in range(EVENTS_A_LOOK_MAX + 5)]

    site.look()
    first = len(site.api.events)
    site.look()

    assert (first, len(site.api.events)) == (EVENTS_A_LOOK_MAX, EVENTS_A_LOOK_MAX + 5)


def test_an_agent_that_is_silent_for_long_is_not_asked_about_all_the_time() -> None:
    site = Site()
    site.findings = [LOST]
    site.look()
    site.findings = None

    assert look_for(site, 10 * AGAIN_S) <= 2 * 10 + 2


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


def test_a_real_server_takes_the_longest_name_and_text(kubernetes_cluster: Cluster) -> None:
    token = kubernetes_cluster.add_account("teller-long", "agent", shipped_rules())
    name = ".".join(["n" * 60] * 4) + ".example1"
    assert len(name) > 250
    node = kubernetes_cluster.add_node(name)
    api = KubernetesApi(kubernetes_cluster.api_of(token), 10.0, "rankmend-agent")
    worst = {
        **LOST,
        "summary": "\x1b\u202e\U0001f525" * 10_000,
        "since": 1e300,
        "check": "\u202e" + "k" * 1000,
    }
    page = json.dumps({"findings": [LOST, worst]}).encode()

    Teller(api, node, lambda: page, MovedClock(1e300)).look()

    events = kubernetes_cluster.core.list_namespaced_event(
        "default", field_selector=f"involvedObject.name={node}"
    )
    conditions = kubernetes_cluster.core.read_node(node).status.conditions
    assert len(events.items) == 2
    assert sum(one.type.startswith("Rankmend") for one in conditions) == 2


def test_a_real_node_of_the_same_name_and_another_uid_is_told_of_too(
    kubernetes_cluster: Cluster,
) -> None:
    clock = MovedClock(1_764_000_100.0)
    token = kubernetes_cluster.add_account("teller-anew", "agent", shipped_rules())
    node = kubernetes_cluster.add_node("teller-anew-node")
    api = KubernetesApi(kubernetes_cluster.api_of(token), 10.0, "rankmend-agent")
    teller = Teller(api, node, lambda: json.dumps({"findings": [LOST]}).encode(), clock)
    teller.look()
    kubernetes_cluster.core.delete_node(node)
    clock.unix += AGAIN_S
    with pytest.raises(KubernetesUnknownError):
        teller.look()

    kubernetes_cluster.add_node(node)
    clock.unix += AGAIN_S
    teller.look()

    conditions = kubernetes_cluster.core.read_node(node).status.conditions
    assert "RankmendGpuLost" in [one.type for one in conditions]
