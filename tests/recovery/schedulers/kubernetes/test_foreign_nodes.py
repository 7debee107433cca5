"""A launch token of mallory, who has no right in Kubernetes, against the node and the pods of alice's job, on a real API server.

He joins a job of the same name from a "node" of hers and reports device faults there. Nothing of alice's may be touched.
"""

import json
from pathlib import Path

import pytest

from recovery.journal.slurm_records import SlurmOutcome
from recovery.schedulers.slurm.requests import SchedulerAction
from recovery.service.kubernetes_service import PodClaim, PodReviews
from tests.recovery.schedulers.kubernetes.conftest import EVICTS, Make, shipped_rules
from tests.support.eventually import eventually
from tests.support.kubernetes import Cluster
from tests.support.service import Forger, add_subject, make_folder, running

pytestmark = [pytest.mark.site, pytest.mark.safety]
POLICY = "[policy]\nevidence_wait_s = 0\n"


def make_files(cluster: Cluster, folder: Path) -> None:
    token = cluster.add_account(
        "foreign-controller", "controller", shipped_rules(), shipped_rules(EVICTS)
    )
    config = make_folder(folder)
    server = {"server": cluster.url, "certificate-authority": str(cluster.ca_file)}
    kubeconfig = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
    (folder / "policy.toml").write_text(POLICY)
    text = config.read_text().replace("#policy_file = ", f'policy_file = "{folder}/policy.toml" # ')
    table = f'\n[kubernetes]\nenabled = true\nact = true\nkubeconfig = "{folder}/kubeconfig"\n'
    config.write_text(text.replace("\n[kubernetes]\n", table))
    add_subject(folder, "mallory")


def test_forged_faults_touch_no_node_and_no_pod_of_another_tenant(
    kubernetes_cluster: Cluster, tmp_path: Path
) -> None:
    cluster, folder = kubernetes_cluster, tmp_path / "c"
    for number in range(1, 13):
        cluster.add_node(f"foreign-{number}")
    alice = cluster.add_namespace("foreign-alice", {"rankmend.io/subject": "alice"})
    cluster.add_pod(alice, "train-1", "foreign-1", {"rankmend.io/job": "llama"})
    make_files(cluster, folder)

    with running(folder) as up:
        forger = Forger(up, "mallory", "foreign-1", ("m-a", "m-b"))
        desk = up.service.kubernetes.desk  # type: ignore[union-attr]

        def is_refused() -> bool:
            forger.turn()
            return any(
                one.outcome.value == "refused"
                for work in desk.ledger.works.values()
                for one in work.nodes.values()
            )

        eventually(is_refused, lambda: f"a drain is refused: {desk.ledger.works}", pause_s=0.2)
        shown = up.client("admin").kubernetes().requests

        assert not cluster.core.read_node("foreign-1").spec.unschedulable
        drain, *_more = [one for one in shown if one.action == "drain"]
        assert "by the word of launchers of mallory alone" in drain.text

    assert cluster.is_there(alice, "train-1")
    pod = cluster.core.read_namespaced_pod("train-1", alice)
    assert pod.metadata.deletion_timestamp is None


def test_a_pods_own_token_proves_the_pod_and_only_that_pod_is_evicted(make: Make) -> None:
    """Real tokens, bound to pods by the API server, and its reviews; the namespace has no label."""
    site = make()
    cluster, space, other = site.cluster, site.namespace, f"{site.namespace}-other"
    cluster.add_namespace(other)
    cluster.add_node(elsewhere := f"{space}-elsewhere")
    labels = {"rankmend.io/job": "llama"}
    mine = cluster.add_pod(space, "train-0", site.node, labels)
    cluster.add_pod(space, "train-1", site.node, labels)  # of another job of the same name
    cluster.add_pod(other, "train-0", site.node, labels)
    far = cluster.add_pod(space, "far-0", elsewhere)
    reviews = PodReviews(site.client, site.desk.note_pod)

    def claim(job: str, token: str, node: str = site.node) -> str:
        return reviews.review(PodClaim(job, node, "L", "ann", token))

    assert "on" in claim("far", cluster.pod_token(space, "far-0", far))
    assert "Kubernetes refuses it" in claim("else", cluster.pod_token(space, "train-0", mine, "x"))
    assert "bound to no pod" in claim("loose", cluster.token(space, "controller", ["rankmend"]))
    assert "Kubernetes refuses it" in claim("own", cluster.token(space, "controller"))
    assert site.desk.ledger.pods_proved == {}
    assert claim("job-1", cluster.pod_token(space, "train-0", mine)) == ""
    assert claim("job-1", cluster.pod_token(space, "train-0", mine)) == "", "joined again"
    pod = site.desk.ledger.proved_pod("job-1", site.node, "L")
    assert pod == f"{space}/train-0/{mine}"

    unproved = site.finish(SchedulerAction.DRAIN, "leave-2", subject="ann", pods=())
    drained = site.finish(SchedulerAction.DRAIN, "leave-1", subject="ann", pods=(pod,))
    site.ask(SchedulerAction.EVICT, "evict-1", pods_of="llama", subject="ann", pods=(pod,))
    site.turn_until(lambda: bool(site.desk.ledger.works["evict-1"].acts), "train-0 is evicted")

    assert unproved.nodes[site.node].outcome is SlurmOutcome.REFUSED
    assert drained.nodes[site.node].outcome is SlurmOutcome.DONE
    assert site.desk.ledger.works["evict-1"].pods == (pod,)
    for namespace, name in ((space, "train-1"), (other, "train-0")):
        left = cluster.core.read_namespaced_pod(name, namespace)
        assert left.metadata.deletion_timestamp is None
    cluster.end_pod(space, "train-0")
    cluster.add_pod(space, "train-0", site.node, labels)  # made anew under the same name
    site.turn_until(lambda: site.desk.ledger.works["evict-1"].ended is not None, "it is gone")
    anew = cluster.core.read_namespaced_pod("train-0", space)
    assert anew.metadata.deletion_timestamp is None
