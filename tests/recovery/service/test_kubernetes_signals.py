"""A controller with [kubernetes] signals: what others say of a node reaches the job that runs there."""

from pathlib import Path

import msgspec
import pytest

from recovery.schedulers.kubernetes.limits import KubernetesLimits
from recovery.service.kubernetes_service import LOOK_S
from tests.support.eventually import eventually
from tests.support.kubernetes import Cluster
from tests.support.service import Speaker, join_of, make_folder, running

pytestmark = pytest.mark.site


def test_a_condition_of_a_node_that_a_job_runs_on_is_an_active_alert(
    tmp_path: Path, kubernetes_cluster: Cluster
) -> None:
    make_folder(tmp_path / "c")
    node = kubernetes_cluster.add_node("signal-node-1")
    limits = KubernetesLimits(
        enabled=True,
        signals=True,
        kubeconfig=str(kubernetes_cluster.folder / "admin.kubeconfig"),
    )
    condition = {"type": "GpuNvlinkWatch", "status": "True", "message": "link 3 is down"}
    kubernetes_cluster.core.patch_node_status(node, {"status": {"conditions": [condition]}})

    with running(tmp_path / "c", lambda one: msgspec.structs.replace(one, kubernetes=limits)) as up:
        client = up.client()
        joined = client.join(join_of(node, nodes_min=1, nodes_max=1))
        speaker = Speaker(client, node, joined.job_id)
        speaker.say()
        eventually(lambda: speaker.ask(wait_s=1) is not None, "an order")
        speaker.obey()
        alerts = up.service.worker.desk.alerts
        eventually(lambda: bool(alerts.active), f"the alert is there within {LOOK_S} s")
        (active,) = alerts.active

    assert (active.target.node, active.target.device) == (node, "GpuNvlinkWatch")
    assert active.summary.startswith("NVSentinel says that an NVLink fails")
