"""Attacks on spares by alerts: what may accuse a node that runs nothing is what may accuse one with ranks, and nothing else."""

import pytest

from recovery.controller.cluster.active_alerts import JobNode
from recovery.controller.cluster.alert_shares import Sender
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.cluster.node_names import NodeNames
from tests.support.cluster_desk import make_desk

ALICE, MALLORY = "job-of-alice", "job-of-mallory"
JOBS_ON = {
    "n1": (JobNode(ALICE, (0,)),),
    "n2": (JobNode(ALICE, (1,)),),
    "m1": (JobNode(MALLORY, (0,)),),
}
SPARES = ("t3", "t4")
NAMES = NodeNames([*JOBS_ON, *SPARES])


def accuse(desk: ClusterController, *nodes: str, **labels: str) -> None:
    told = {"alertname": "RankmendGpuLost", "severity": "critical", "action": "replace", **labels}
    alerts = [IncomingAlert({**told, "node": node}, {}, desk.now_unix_s(), True) for node in nodes]
    desk.take_alerts(alerts, JOBS_ON, Sender("alertmanager"), names=lambda: NAMES)


@pytest.fixture
def desk() -> ClusterController:
    desk, _journal, _clock = make_desk()
    desk.note_running([*JOBS_ON, *(f"other-{number}" for number in range(40))])
    return desk


def test_an_alert_accuses_a_spare_for_every_job(desk: ClusterController) -> None:
    accuse(desk, "t3")

    assert desk.accused(ALICE) == desk.accused(MALLORY) == {"t3"}


@pytest.mark.parametrize("told", ["T3", "t3:9100", "t3.site.example"])
def test_a_spare_that_an_alert_spells_otherwise_is_accused(
    desk: ClusterController, told: str
) -> None:
    accuse(desk, told)

    assert desk.accused(ALICE) == {"t3"}


def test_an_alert_about_a_job_takes_no_spare_from_another_job(desk: ClusterController) -> None:
    """A token limited to jobs may send alerts about its own jobs alone, on whatever node."""
    accuse(desk, "t3", "n1", job_id=MALLORY)

    assert desk.accused(ALICE) == frozenset()
    assert desk.accused(MALLORY) == {"t3", "n1"}


def test_a_rule_gone_mad_accuses_no_spare(desk: ClusterController) -> None:
    accuse(desk, *JOBS_ON, *SPARES, *(f"other-{number}" for number in range(40)))

    assert desk.accused(ALICE) == frozenset()


def test_a_rule_that_accuses_one_whole_job_still_accuses_the_spare_for_others(
    desk: ClusterController,
) -> None:
    accuse(desk, "n1", "n2", "t3")

    assert desk.accused(MALLORY) >= {"t3"}


def test_an_alert_that_may_mean_two_nodes_accuses_neither(desk: ClusterController) -> None:
    names = NodeNames([*JOBS_ON, "t3.a.example", "t3.b.example"])
    labels = {"alertname": "RankmendGpuLost", "severity": "critical", "action": "replace"}
    alert = IncomingAlert({**labels, "node": "t3"}, {}, desk.now_unix_s(), True)

    desk.take_alerts([alert], JOBS_ON, Sender("alertmanager"), names=lambda: names)

    assert desk.accused(ALICE) == frozenset()
