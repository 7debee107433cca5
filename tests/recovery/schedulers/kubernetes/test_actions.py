"""Nodes are cordoned and pods evicted once, within their budgets, whatever is killed; nothing of anybody else is touched."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rankmend.kubernetes_api import (
    KubernetesApi,
    KubernetesAwayError,
    KubernetesDeniedError,
    KubernetesError,
)
from recovery.schedulers.kubernetes.client import KubernetesClient
from recovery.schedulers.slurm.requests import SchedulerAction
from tests.recovery.schedulers.kubernetes.fakes import LIMITS, FakeApi, FakeSite

pytestmark = [pytest.mark.process, pytest.mark.safety]

Make = Callable[..., FakeSite]
EVICT, DRAIN, RESUME = SchedulerAction.EVICT, SchedulerAction.DRAIN, SchedulerAction.RESUME


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[FakeSite] = []

    def site(*nodes: str, **changes: object) -> FakeSite:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        limits = msgspec.structs.replace(LIMITS, **changes)
        made.append(FakeSite(folder, FakeApi(*(nodes or ("n1", "n2"))), limits))
        return made[-1]

    yield site
    for one in made:
        one.journal.close()


def test_a_node_is_cordoned_with_the_reason_and_taken_back(make: Make) -> None:
    site = make()

    site.ask(DRAIN, "inc-1")
    site.turns()
    reason = site.api.nodes["n1"]["metadata"]["annotations"]["rankmend.io/cordon"]
    site.ask(RESUME, "back-1")
    site.turns()

    assert reason.startswith("rankmend: GPU 3 is bad #")
    assert (site.outcome("inc-1"), site.outcome("back-1")) == ("done", "done")
    assert site.api.effects == ["cordon n1", "uncordon n1"]
    assert "unschedulable" not in site.api.nodes["n1"]["spec"]


def test_a_foreign_cordon_stays(make: Make) -> None:
    site = make()
    site.api.cordon("n1", "kubectl-cordon")

    site.ask(DRAIN, "inc-1")
    site.turns()
    site.ask(RESUME, "back-1")
    site.turns()

    assert (site.outcome("inc-1"), site.text("inc-1")) == (
        "left",
        "n1 is drained by kubectl-cordon",
    )
    assert site.outcome("back-1") == "left"
    assert site.api.effects == []


def test_a_cordon_that_somebody_else_sets_in_between_is_left(make: Make) -> None:
    site = make()

    def person() -> None:
        site.api.before_patch = lambda: None
        site.api.cordon("n1", "kubectl-cordon")

    site.api.before_patch = person
    site.ask(DRAIN, "inc-1")
    site.turns()
    site.turns(60.0)

    assert (site.outcome("inc-1"), site.api.effects) == ("left", [])
    assert site.desk.ledger.ours == []


def test_our_cordon_that_a_person_has_ended_and_set_anew_is_theirs(make: Make) -> None:
    site = make()
    site.ask(DRAIN, "inc-1")
    site.turns()

    site.api.cordon("n1", "kubectl-cordon")
    site.turns()
    site.ask(RESUME, "back-1")
    site.turns()

    assert site.desk.ledger.history("n1").over == "the reason was changed by kubectl-cordon: "
    assert site.api.effects == ["cordon n1"]


def test_a_conflict_is_read_and_decided_anew(make: Make) -> None:
    site = make()
    kubelets = iter([True, True])

    def kubelet() -> None:
        if next(kubelets, False):
            site.api.touch("n1")

    site.api.before_patch = kubelet
    site.ask(DRAIN, "inc-1")
    site.turns()

    assert (site.outcome("inc-1"), site.api.effects) == ("done", ["cordon n1"])
    assert len(site.work("inc-1").acts) == 1


def test_nothing_is_done_until_act_is_set(make: Make) -> None:
    site = make(act=False)
    site.api.add_pod("train-0", "n1")

    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turns()

    assert (site.outcome("inc-1"), site.text("inc-1")) == ("dry", "would drain n1")
    assert site.text("evict-1") == "would evict the pods of job train from n1"
    assert site.api.effects == []


def test_pods_of_the_job_leave_a_cordoned_node_and_no_others(make: Make) -> None:
    site = make()
    site.api.add_pod("train-0", "n1")
    site.api.add_pod("other-0", "n1", job="other")
    site.api.add_pod("train-1", "n2")

    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turns()
    waits = site.text("evict-1")
    del site.api.pods["train-0"]  # its kubelet confirms
    site.api.add_pod("train-0", "n2")  # of a StatefulSet: the same name again
    site.turns()

    assert waits == "pod jobs/train-0 is ending"
    assert (site.outcome("evict-1"), site.text("evict-1")) == ("done", "pod jobs/train-0 is gone")
    assert site.api.effects == ["cordon n1", "evict train-0"]


def test_pods_stay_on_a_node_that_is_not_cordoned(make: Make) -> None:
    site = make()
    site.api.add_pod("train-0", "n1")

    site.ask(EVICT, "evict-1", pods_of="train")
    site.turns()

    assert (site.outcome("evict-1"), site.text("evict-1")) == ("refused", "n1 is not cordoned")
    assert site.api.effects == []


def test_a_budget_is_respected_and_tried_again_until_the_time_out(make: Make) -> None:
    site = make()
    site.api.budget = 0
    site.api.add_pod("train-0", "n1")

    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turns()
    waits = site.text("evict-1")
    for _time in range(5):
        site.turns(10.0)
    before = site.outcome("evict-1")
    site.turns(15.0)

    assert waits == "the disruption budget train needs 3 healthy pods"
    assert (before, site.outcome("evict-1")) == ("", "refused")
    assert site.text("evict-1") == (
        "pod jobs/train-0 was not evicted within 60 s: the disruption budget train needs 3 healthy pods"
    )
    assert site.api.effects == ["cordon n1"]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_an_eviction_is_of_the_version_that_the_server_has_also_after_its_upgrade(
    make: Make, version: str
) -> None:
    site = make()
    site.api.eviction = version
    site.api.add_pod("train-0", "n1")
    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turns()
    site.api.eviction = "v1"  # the server is upgraded while we run
    site.api.add_pod("train-1", "n2")
    site.ask(DRAIN, "inc-2", "n2")
    site.ask(EVICT, "evict-2", "n2", pods_of="train")
    site.turns()

    assert site.api.effects == ["cordon n1", "evict train-0", "cordon n2", "evict train-1"]


def test_a_budget_that_frees_up_lets_the_pod_go(make: Make) -> None:
    site = make()
    site.api.budget = 0
    site.api.add_pod("train-0", "n1")
    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turns()

    site.api.budget = 1
    site.turns(10.0)

    assert site.api.effects == ["cordon n1", "evict train-0"]


@pytest.mark.parametrize(("delete", "effects"), [(True, ["delete train-0"]), (False, [])])
def test_a_pod_on_a_node_that_is_not_heard_is_deleted_only_where_that_is_on(
    make: Make, delete: bool, effects: list[str]
) -> None:
    site = make(delete=delete)
    site.api.add_pod("train-0", "n1")
    site.api.hear("n1", "Unknown")

    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turns()

    assert site.api.effects == ["cordon n1", "evict train-0", *effects]
    assert site.outcome("evict-1") == ("done" if delete else "")


@pytest.mark.parametrize("count", [1, 60])
def test_kubernetes_knows_its_nodes_among_those_that_launchers_name(make: Make, count: int) -> None:
    site = make()
    forged = [f"forged-{number}" for number in range(count)]

    assert site.desk.bench.client.known(["n1", "n2", *forged]) == {"n1", "n2"}


def test_evictions_within_an_hour_are_bounded(make: Make) -> None:
    site = make(evictions_per_hour_max=1)
    for node in ("n1", "n2"):
        site.api.add_pod(f"train-{node}", node)
        site.ask(DRAIN, f"inc-{node}", node)
        site.ask(EVICT, f"evict-{node}", node, pods_of="train")
        site.turns()

    assert site.api.effects == ["cordon n1", "evict train-n1", "cordon n2"]
    assert site.text("evict-n2") == (
        "1 pod was evicted by rankmend within an hour: kubernetes.evictions_per_hour_max is 1"
    )


def test_cordons_are_bounded_by_the_share_of_all_nodes(make: Make) -> None:
    site = make("n1", "n2", "n3", nodes_drained_percent=50.0)

    for node in ("n1", "n2"):
        site.ask(DRAIN, f"inc-{node}", node)
        site.turns()

    assert site.text("inc-n2") == (
        "n2 is not drained: 1 of 3 nodes are drained by rankmend: kubernetes.nodes_drained_percent is 50"
    )


def ask_all(site: FakeSite) -> None:
    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")


def test_a_pod_that_a_finalizer_keeps_on_a_dead_node_is_deleted_once_and_then_named(
    make: Make,
) -> None:
    site = make()
    site.api.add_pod("train-0", "n1")
    site.api.pods["train-0"]["metadata"]["finalizers"] = ["example.com/volume"]
    site.api.hear("n1", "Unknown")
    ask_all(site)

    site.turns(0.0)
    for _time in range(4):
        site.turns(10.0)
    waits = site.text("evict-1")
    for _time in range(4):
        site.turns(10.0)

    assert waits == "pod jobs/train-0 is deleted once example.com/volume lets it go"
    assert site.api.effects == ["cordon n1", "evict train-0", "delete train-0"]
    assert (site.outcome("evict-1"), site.text("evict-1")) == (
        "failed",
        "pod jobs/train-0 is still there 60 s after its deletion: example.com/volume keeps it",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"ownerReferences": [{"kind": "DaemonSet", "name": "d"}]},
        {"ownerReferences": [{"kind": "Node", "name": "n1"}]},
        {"annotations": {"kubernetes.io/config.mirror": "x"}},
    ],
)
def test_pods_that_belong_to_the_node_are_never_evicted(
    make: Make, change: dict[str, object]
) -> None:
    site = make()
    site.api.add_pod("train-0", "n1")
    site.api.pods["train-0"]["metadata"].update(change)

    ask_all(site)
    site.turns()

    assert site.api.effects == ["cordon n1"]
    assert (site.outcome("evict-1"), site.text("evict-1")) == ("done", "no pod is on n1")


def test_several_pods_of_a_job_on_one_node_leave_each_as_it_can(make: Make) -> None:
    site = make()
    for number in range(3):
        site.api.add_pod(f"train-{number}", "n1")
    site.api.budget = 2

    ask_all(site)
    site.turns()
    for name in ("train-0", "train-1"):
        del site.api.pods[name]
    site.api.budget = 1
    site.turns(10.0)
    site.api.pods.pop("train-2")
    site.turns(10.0)

    assert site.api.effects == ["cordon n1", "evict train-0", "evict train-1", "evict train-2"]
    assert site.outcome("evict-1") == "done"


def anew(site: FakeSite, node: str, after_s: float) -> None:
    """Have the node made anew under the same name, so long after the request, as an autoscaler does."""
    site.api.remake(node, site.clock.unix + after_s)


def test_a_machine_that_has_taken_the_name_of_a_bad_node_is_left(make: Make) -> None:
    site = make()
    site.api.refuse = away
    ask_all(site)
    site.turns()
    anew(site, "n1", 3600.0)
    site.api.add_pod("train-0", "n1")
    site.api.refuse = lambda _method, _path: None
    site.turns(7200.0)

    assert site.api.effects == []
    assert (site.outcome("inc-1"), site.text("inc-1")) == (
        "left",
        "n1 was made anew since: it may be another machine",
    )
    assert site.outcome("evict-1") == "left"


def test_a_node_that_is_as_old_as_its_request_by_two_clocks_is_cordoned(make: Make) -> None:
    site = make()
    anew(site, "n1", 30.0)
    site.ask(DRAIN, "inc-1")
    site.turns()

    assert (site.outcome("inc-1"), site.api.effects) == ("done", ["cordon n1"])


def test_our_cordon_of_a_node_that_was_deleted_and_made_anew_is_over(make: Make) -> None:
    site = make()
    site.ask(DRAIN, "inc-1")
    site.turns()
    anew(site, "n1", 3600.0)
    site.turns(7200.0)

    assert site.desk.ledger.ours == []
    assert site.desk.ledger.history("n1").over == "somebody has taken the drain back"


def away(_method: str, _path: str) -> None:
    raise KubernetesAwayError("no answer")


def test_a_denial_of_a_server_that_has_just_started_is_tried_again(make: Make) -> None:
    site = make()
    until_s = site.clock.unix + 10.0

    def deny(_method: str, _path: str) -> None:
        if site.clock.unix < until_s:
            raise KubernetesDeniedError("403: clusterrole not found")

    site.api.refuse = deny
    site.ask(DRAIN, "inc-1")
    for _time in range(4):
        site.turns(5.0)

    assert (site.outcome("inc-1"), site.api.effects) == ("done", ["cordon n1"])


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_a_denial_that_lasts_ends_the_request_with_the_servers_words(
    make: Make, method: str
) -> None:
    site = make()

    def deny(asked: str, _path: str) -> None:
        if asked == method:
            raise KubernetesDeniedError('403: cannot patch resource "nodes"')

    site.api.refuse = deny
    site.ask(DRAIN, "inc-1")
    for _time in range(10):
        site.turns(5.0)

    assert site.outcome("inc-1") == "failed"
    assert 'cannot patch resource "nodes"' in site.text("inc-1")
    assert site.api.effects == []


def test_a_list_that_has_grown_too_old_between_two_pages_is_read_anew(make: Make) -> None:
    site = make()
    site.api.add_pod("train-0", "n1")
    gone = iter([True])

    def refuse(method: str, path: str) -> None:
        if path == "/api/v1/pods" and next(gone, False):
            raise KubernetesError("410: the provided continue parameter is too old")

    site.api.refuse = refuse
    ask_all(site)
    site.turns()

    assert site.api.effects == ["cordon n1", "evict train-0"]


@pytest.mark.parametrize("page", [1, 3, 100])
def test_many_nodes_are_read_from_the_list_of_all_and_few_by_name(page: int) -> None:
    api = FakeApi(*(f"n{number}" for number in range(10)))
    asked: list[str] = []
    api.refuse = lambda _method, path: asked.append(path)
    client = KubernetesClient(api, list_over=3, page=page)  # type: ignore[arg-type]

    few = client.node_objects(["n1", "n2", "gone"])
    by_name = list(asked)
    many = client.node_objects(["n1", "n2", "n3", "n9", "gone"])

    assert (sorted(few), sorted(many)) == (["n1", "n2"], ["n1", "n2", "n3", "n9"])
    assert by_name == ["/api/v1/nodes/gone", "/api/v1/nodes/n1", "/api/v1/nodes/n2"]
    assert set(asked[3:]) == {"/api/v1/nodes"}
    assert len(asked) - 3 == -(-10 // page)


def run_story(site: FakeSite) -> None:
    site.api.add_pod("train-0", "n1")
    site.api.add_pod("foreign-0", "n1", job="foreign")
    site.api.cordon("n2", "kubectl-cordon")
    site.ask(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    for _time in range(5):
        site.turns(8.0, 1)
    site.api.pods.pop("train-0", None)
    finish(site, "evict-1")
    site.ask(RESUME, "back-1")
    finish(site, "back-1")


def finish(site: FakeSite, key: str) -> None:
    for _time in range(20):
        if not site.outcome(key):
            site.turns(8.0, 1)


def test_a_kill_between_any_two_calls_or_writes_does_nothing_twice(make: Make) -> None:
    whole = make()
    run_story(whole)
    assert whole.api.effects == ["cordon n1", "evict train-0", "uncordon n1"]

    for crash_at in range(1, whole.crossings + 1):
        site = make()
        site.crash_at = crash_at
        run_story(site)

        assert site.api.effects == whole.api.effects, f"killed at crossing {crash_at}"
        assert [site.outcome(key) for key in ("inc-1", "evict-1", "back-1")] == ["done"] * 3
        assert site.api.nodes["n2"]["spec"] == {"unschedulable": True}
        assert "foreign-0" in site.api.pods
        site.journal.close()


@pytest.mark.parametrize("left_s", [1.9, 0.0])
def test_nothing_is_changed_with_too_little_left_of_the_lease(left_s: float) -> None:
    api = KubernetesApi(None, 5.0)
    api.left_s = lambda: left_s

    with pytest.raises(KubernetesAwayError, match=r"not sent: the lease .* has only .* s left"):
        api.call("PATCH", "/api/v1/nodes/n1", body={})
