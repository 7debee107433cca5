"""The same on a real kube-apiserver: ownership, conflicts, budgets and evictions as it has them."""

import threading

import pytest

from rankmend.kubernetes_api import KubernetesApi, KubernetesAwayError, KubernetesBudgetError
from recovery.journal.slurm_records import SlurmOutcome
from recovery.schedulers.kubernetes.client import KubernetesClient
from recovery.schedulers.kubernetes.node_states import read_state
from recovery.schedulers.slurm.ledger import Work
from recovery.schedulers.slurm.requests import SchedulerAction
from tests.recovery.schedulers.kubernetes.conftest import Make, Site
from tests.support.eventually import eventually
from tests.support.kubernetes import Cluster

pytestmark = [pytest.mark.site, pytest.mark.safety]
EVICT, DRAIN, RESUME = SchedulerAction.EVICT, SchedulerAction.DRAIN, SchedulerAction.RESUME
MERGE = "application/merge-patch+json"


def outcome(work: Work) -> SlurmOutcome:
    assert work.ended is not None
    return work.ended.outcome


def cordon_as(site: Site, who: str) -> None:
    path = f"/api/v1/nodes/{site.node}?fieldManager={who}"
    site.cluster.call("PATCH", path, {"spec": {"unschedulable": True}}, MERGE)


@pytest.mark.component("Kubernetes")
def test_a_node_is_cordoned_under_our_name_with_the_reason_and_taken_back(make: Make) -> None:
    site = make()

    drained = site.finish(DRAIN, "inc-1")
    node = site.cluster.core.read_node(site.node)
    back = site.finish(RESUME, "back-1")
    after = site.cluster.core.read_node(site.node)

    assert outcome(drained) is SlurmOutcome.DONE
    assert node.spec.unschedulable
    assert node.metadata.annotations["rankmend.io/cordon"].startswith("rankmend: GPU 3 is bad #")
    (ours,) = [one for one in node.metadata.managed_fields if one.manager == "rankmend"]
    assert "f:unschedulable" in ours.fields_v1["f:spec"]
    assert outcome(back) is SlurmOutcome.DONE
    assert not after.spec.unschedulable
    assert not after.metadata.annotations
    assert len(drained.acts) == 1


def test_a_persons_cordon_and_taint_are_neither_changed_nor_taken_back(make: Make) -> None:
    site = make()
    taint = {"key": "nvidia.com/gpu-fault", "effect": "NoSchedule"}
    site.cluster.call(
        "PATCH", f"/api/v1/nodes/{site.node}?fieldManager=gpu-operator",
        {"spec": {"taints": [taint]}}, MERGE,
    )  # fmt: skip
    cordon_as(site, "kubectl-cordon")

    drained = site.finish(DRAIN, "inc-1")
    back = site.finish(RESUME, "back-1")
    node = site.cluster.core.read_node(site.node)

    assert (outcome(drained), outcome(back)) == (SlurmOutcome.LEFT, SlurmOutcome.LEFT)
    assert drained.ended is not None
    # Before 1.22 the server keeps whose a field is only once somebody has applied the object.
    assert drained.ended.text.startswith(f"{site.node} is drained")
    assert node.spec.unschedulable
    assert "nvidia.com/gpu-fault" in [one.key for one in node.spec.taints]


def test_a_foreign_taint_outlives_our_cordon(make: Make) -> None:
    site = make()
    taint = {"key": "nvidia.com/gpu-fault", "effect": "NoSchedule"}
    site.finish(DRAIN, "inc-1")
    site.cluster.call(
        "PATCH", f"/api/v1/nodes/{site.node}?fieldManager=gpu-operator",
        {"spec": {"taints": [taint]}}, MERGE,
    )  # fmt: skip

    site.finish(RESUME, "back-1")

    node = site.cluster.core.read_node(site.node)
    assert not node.spec.unschedulable
    assert "nvidia.com/gpu-fault" in [one.key for one in node.spec.taints]


def test_a_cordon_that_a_person_takes_over_stays(make: Make) -> None:
    site = make()
    site.finish(DRAIN, "inc-1")

    # As `kubectl cordon` does after `kubectl uncordon`; a cordon of a cordoned node changes nothing.
    site.cluster.call(
        "PATCH", f"/api/v1/nodes/{site.node}?fieldManager=kubectl-uncordon",
        {"spec": {"unschedulable": None}}, MERGE,
    )  # fmt: skip
    cordon_as(site, "kubectl-cordon")
    back = site.finish(RESUME, "back-1")

    assert outcome(back) is SlurmOutcome.LEFT
    assert site.cluster.core.read_node(site.node).spec.unschedulable


def test_kubelets_that_write_all_the_time_keep_no_cordon_from_being_set(make: Make) -> None:
    site = make()
    should_stop = threading.Event()

    def kubelet() -> None:
        flip = False
        while not should_stop.is_set():
            flip = not flip
            site.cluster.set_ready(site.node, "True" if flip else "False")

    thread = threading.Thread(target=kubelet)
    thread.start()
    try:
        drained = site.finish(DRAIN, "inc-1")
    finally:
        should_stop.set()
        thread.join()

    assert outcome(drained) is SlurmOutcome.DONE
    assert site.cluster.core.read_node(site.node).spec.unschedulable


def budget(site: Site, least: int) -> None:
    """Have a PodDisruptionBudget, with the status that the disruption controller would give it."""
    path = f"/apis/policy/v1beta1/namespaces/{site.namespace}/poddisruptionbudgets"
    labels = {"matchLabels": {"rankmend.io/job": "train"}}
    body = {"metadata": {"name": "train"}, "spec": {"minAvailable": least, "selector": labels}}
    site.cluster.call("POST", path, body)

    def is_counted() -> bool:
        told = site.cluster.call("GET", f"{path}/train")
        status = told.get("status") or {}
        return bool(status.get("observedGeneration")) and status.get("expectedPods") == 1

    eventually(is_counted, "the budget has counted its pods")


def test_a_budget_forbids_an_eviction_until_it_is_gone(make: Make) -> None:
    site = make()
    labels = {"rankmend.io/job": "train"}
    uid = site.cluster.add_pod(site.namespace, "train-0", site.node, labels)
    budget(site, least=1)
    reference = f"{site.namespace}/train-0/{uid}"

    with pytest.raises(KubernetesBudgetError, match="disruption budget"):
        site.client.evict(reference)
    site.finish(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turn_until(lambda: "budget" in site.desk.waits_for("evict-1"), "the budget forbids it")
    assert site.cluster.core.read_namespaced_pod("train-0", site.namespace)
    path = f"/apis/policy/v1beta1/namespaces/{site.namespace}/poddisruptionbudgets/train"
    site.cluster.call("DELETE", path)
    site.turn_until(lambda: "ending" in site.desk.waits_for("evict-1"), "the pod is ending")
    site.cluster.end_pod(site.namespace, "train-0")
    site.turn_until(lambda: site.desk.ledger.works["evict-1"].ended is not None, "evicted")

    assert outcome(site.desk.ledger.works["evict-1"]) is SlurmOutcome.DONE


def test_a_pod_of_the_same_name_with_another_uid_is_never_touched(make: Make) -> None:
    site = make()
    old = site.cluster.add_pod(site.namespace, "train-0", site.node)
    site.cluster.end_pod(site.namespace, "train-0")
    site.cluster.add_pod(site.namespace, "train-0", site.node)

    site.client.evict(f"{site.namespace}/train-0/{old}")
    site.client.delete_pod(f"{site.namespace}/train-0/{old}")

    pod = site.cluster.core.read_namespaced_pod("train-0", site.namespace)
    assert pod.metadata.uid != old
    assert pod.metadata.deletion_timestamp is None


def test_a_pod_on_a_node_that_is_not_heard_is_deleted_once_it_is_evicted(make: Make) -> None:
    site = make()
    site.cluster.add_pod(site.namespace, "train-0", site.node, {"rankmend.io/job": "train"})
    site.cluster.add_pod(site.namespace, "other-0", site.node, {"rankmend.io/job": "other"})
    site.cluster.set_ready(site.node, "Unknown")

    site.finish(DRAIN, "inc-1")
    evicted = site.finish(EVICT, "evict-1", pods_of="train")

    assert outcome(evicted) is SlurmOutcome.DONE
    assert [one.act.value for one in evicted.acts] == ["evict", "delete_pod"]
    assert not site.cluster.is_there(site.namespace, "train-0")
    assert site.cluster.is_there(site.namespace, "other-0")


def test_nodes_are_counted_without_being_read(make: Make, kubernetes_cluster: Cluster) -> None:
    site = make()

    assert site.client.node_count() == len(kubernetes_cluster.core.list_node().items)


def test_an_api_that_does_not_answer_is_away(make: Make) -> None:
    site = make()
    settings = site.cluster.api_of("x")
    settings.configuration.host = "https://127.0.0.1:1"

    with pytest.raises(KubernetesAwayError, match="GET /api/v1/nodes/n: no answer"):
        KubernetesApi(settings, 1.0).call("GET", "/api/v1/nodes/n")


def test_a_token_that_has_expired_ends_no_request_and_a_new_one_is_enough(make: Make) -> None:
    site = make()
    settings = site.client._api._api.configuration
    good, settings.api_key = settings.api_key, {"authorization": "Bearer worn out"}
    site.ask(SchedulerAction.DRAIN, "k")
    for _turn in range(3):
        site.desk.turn()
    waits = site.desk.waits_for("k")
    ended = site.desk.ledger.works["k"].ended

    settings.api_key = good
    site.turn_until(lambda: site.desk.ledger.works["k"].ended is not None, "k")

    assert ended is None
    assert "401" in waits
    assert site.cluster.core.read_node(site.node).spec.unschedulable


def test_a_pod_with_a_finalizer_is_deleted_once_and_stays_until_that_is_gone(make: Make) -> None:
    site = make(evict_timeout_s=600.0)
    site.cluster.add_pod(site.namespace, "train-0", site.node, {"rankmend.io/job": "train"})
    path = f"/api/v1/namespaces/{site.namespace}/pods/train-0"
    site.cluster.call("PATCH", path, {"metadata": {"finalizers": ["example.com/volume"]}}, MERGE)
    site.cluster.set_ready(site.node, "Unknown")

    site.finish(DRAIN, "inc-1")
    site.ask(EVICT, "evict-1", pods_of="train")
    site.turn_until(
        lambda: "example.com/volume lets it go" in site.desk.waits_for("evict-1"), "it is kept"
    )
    for _turn in range(20):
        site.desk.turn()
    acts = [one.act.value for one in site.desk.ledger.works["evict-1"].acts]
    site.cluster.call("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
    site.turn_until(lambda: site.desk.ledger.works["evict-1"].ended is not None, "it is gone")

    assert acts == ["evict", "delete_pod"]
    assert outcome(site.desk.ledger.works["evict-1"]) is SlurmOutcome.DONE


def test_a_node_that_is_deleted_and_made_anew_takes_our_cordon_with_it(make: Make) -> None:
    site = make()
    site.finish(DRAIN, "inc-1")
    site.cluster.core.delete_node(site.node)
    site.turn_until(lambda: site.desk.ledger.ours == [], "it is not ours any more")

    site.cluster.add_node(site.node)
    for _turn in range(5):
        site.desk.turn()

    assert site.desk.ledger.history(site.node).over == "Kubernetes does not know the node any more"
    assert not site.cluster.core.read_node(site.node).spec.unschedulable


def test_pods_of_a_node_are_found_in_the_servers_memory_and_in_its_store(make: Make) -> None:
    site = make()
    site.cluster.add_pod(site.namespace, "train-0", site.node, {"rankmend.io/job": "train"})
    site.cluster.add_pod(site.namespace, "other-0", f"{site.node}x")

    eventually(lambda: len(site.client.pods_on(site.node, may_be_old=True)) == 1, "it is heard of")

    (pod,) = site.client.pods_on(site.node)
    assert (pod.name, pod.node) == ("train-0", site.node)


def test_nodes_are_found_page_by_page_and_a_list_that_is_too_old_is_refused(make: Make) -> None:
    site = make()
    names = [site.cluster.add_node(f"{site.node}-{number}") for number in range(5)]
    client = KubernetesClient(site.client._api, list_over=2, page=2)

    found = client.node_objects([*names, "gone"])

    assert sorted(found) == names
    assert all(told["status"]["conditions"] for told in found.values())


def test_states_of_nodes_are_those_that_a_real_server_has(make: Make) -> None:
    site = make()
    site.finish(DRAIN, "inc-1")
    other = site.cluster.add_node(f"{site.node}-2")
    path = f"/api/v1/nodes/{other}?fieldManager=kubectl-cordon"
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    site.cluster.call("PATCH", path, {"spec": {"unschedulable": True, "taints": taints}}, MERGE)
    site.cluster.set_ready(other, "Unknown")

    ours, theirs = (
        read_state(told, 0.0) for told in site.client.node_objects([site.node, other]).values()
    )

    assert (ours.is_cordoned, ours.is_ours, ours.ready, ours.taints) == (True, True, "True", ())
    assert (theirs.is_cordoned, theirs.is_ours, theirs.ready) == (True, False, "Unknown")
    assert theirs.taints == ("nvidia.com/gpu=present:NoSchedule",)
    assert theirs.conditions == ("Ready is Unknown: Scripted",)
