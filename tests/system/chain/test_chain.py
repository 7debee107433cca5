"""Fault in an exporter to order carried out, by the real Prometheus, Alertmanager, controller, launchers.

One bed for all, in this order: each test leaves a job that trains on two nodes, with a spare.
"""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest

from recovery.messages.outside import PersonAct
from tests.support.eventually import DEADLINE_S, eventually
from tests.system.chain.bed import NODES, Bed, missing_daemons

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_daemons()), reason=f"not installed: {missing_daemons()}"),
]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    made = Bed(tmp_path_factory.mktemp("chain"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def moved_off(bed: Bed, node: str, attempt: int) -> tuple[str, ...]:
    """Wait for the next attempt, and return its nodes."""
    now, nodes = bed.wait_trains(attempt + 1)
    assert node not in nodes, bed.story()
    assert now == attempt + 1, bed.story()
    assert len(nodes) == 2
    return nodes


def give_back(bed: Bed, node: str) -> None:
    """Repair a node, and let the job use it again."""
    assert bed.client is not None
    bed.repair(node)
    bed.client.command(bed.job_id, PersonAct.RESUME, node=node, reason="repaired")


@dataclass(frozen=True)
class Moved:
    """A job that has left a node whose GPU was lost."""

    bad: str
    after: tuple[str, ...]  # the nodes of the next attempt


@pytest.fixture(scope="module")
def moved(bed: Bed) -> Moved:
    attempt, nodes = bed.wait_trains()
    bed.wire.refuse, bed.wire.copies = 1, 2

    bed.hang(attempt)
    bed.break_gpu(nodes[0])

    after = moved_off(bed, nodes[0], attempt)
    bed.wire.copies = 1
    return Moved(nodes[0], after)


@pytest.mark.real_fault("GPU lost")
def test_a_lost_gpu_moves_the_job_to_the_spare_though_the_webhook_fails_and_comes_twice(
    bed: Bed, moved: Moved
) -> None:
    assert set(moved.after) == set(NODES) - {moved.bad}
    assert bed.wire.refuse == 0, "the first message was answered 503"
    assert bed.wire.heard("firing", moved.bad) >= 2
    plans = [one["plan"] for one in bed.records("decided")]
    assert [(plan["step"], plan["without"]) for plan in plans] == [("move", [moved.bad])]
    assert "RankmendGpuLost" in plans[0]["reason"]
    assert len(bed.records("incident_opened")) == 1


def test_resolved_by_the_death_of_prometheus_gives_the_node_nothing_back(
    bed: Bed, moved: Moved
) -> None:
    attempt, nodes = bed.wait_trains()
    bad = moved.bad

    bed.kill("prometheus")
    eventually(lambda: bed.wire.heard("resolved", bad), lambda: f"resolved: {bed.wire.arrived}")

    assert bed.client is not None
    (view,) = [one for one in bed.client.job(bed.job_id).nodes if one.node == bad]
    assert view.held is not None
    assert "RankmendGpuLost" in view.held
    assert bed.placed() == (attempt, nodes)
    bed.start_prometheus()
    give_back(bed, bad)


def test_alerts_that_fired_while_the_controller_was_down_are_read_at_its_start(bed: Bed) -> None:
    attempt, nodes = bed.wait_trains()
    bad = nodes[0]

    bed.kill("service")
    bed.wire.is_lost = True  # Alertmanager believes that it was heard
    bed.hang(attempt)
    bed.break_gpu(bad)
    eventually(lambda: bed.accusing(bad), "an active alert")
    bed.start_controller()

    moved_off(bed, bad, attempt)
    assert bed.wire.is_lost, "no webhook has told the controller"
    bed.wire.is_lost = False
    give_back(bed, bad)


def test_an_old_alert_about_a_node_whose_ranks_train_is_kept_and_not_acted_upon(bed: Bed) -> None:
    attempt, nodes = bed.wait_trains()
    incidents = len(bed.records("incident_opened"))
    began = datetime.now(timezone.utc) - timedelta(hours=2)
    labels = {
        "alertname": "RankmendGpuLost",
        "node": nodes[0],
        "uuid": "GPU-old",
        "severity": "critical",
        "action": "drain",
    }

    bed.post([{"labels": labels, "startsAt": began.isoformat()}])

    def kept() -> bool:
        taken = [one for record in bed.records("evidence_taken") for one in record["evidence"]]
        return any(one["device"] == "GPU-old" and one["since_age_s"] > 7000 for one in taken)

    eventually(kept, lambda: f"the alert on record:\n{bed.story()}")
    highest = bed.records("milestone")[-1]["step"]
    eventually(lambda: bed.records("milestone")[-1]["step"] > highest, "the job trains on")
    assert bed.placed() == (attempt, nodes)
    assert len(bed.records("incident_opened")) == incidents
    bed.post([{"labels": labels, "endsAt": datetime.now(timezone.utc).isoformat()}])


def test_a_thousand_alerts_of_a_switch_are_one_incident_with_one_plan(bed: Bed) -> None:
    attempt, nodes = bed.wait_trains()
    incidents, plans = len(bed.records("incident_opened")), len(bed.records("decided"))
    labels = {"alertname": "RankmendNicPortDown", "severity": "critical", "action": "drain"}
    # Of the others no alert ends their use: a rule that accuses ten nodes of so small a fleet is doubted, unless the hang's verdict is faster.
    watched = {**labels, "severity": "warning", "action": "watch"}
    names = {nodes[0]: labels, **{f"far-{number}": watched for number in range(9)}}

    bed.hang(attempt)
    bed.post(
        [
            {"labels": {**what, "node": node, "device": f"mlx5_{port}"}}
            for node, what in names.items()
            for port in range(100)
        ]
    )

    moved_off(bed, nodes[0], attempt)
    assert len(bed.records("incident_opened")) == incidents + 1
    new = [one["plan"] for one in bed.records("decided")[plans:]]
    assert [(plan["step"], plan["without"]) for plan in new] == [("move", [nodes[0]])]
    taken = [one for record in bed.records("evidence_taken") for one in record["evidence"]]
    assert sum(one["alertname"] == "RankmendNicPortDown" for one in taken) == 100


def test_a_node_whose_agent_is_gone_hushes_its_gpus(bed: Bed) -> None:
    dead = {"alertname": "RankmendAgentDown", "node": "dead", "severity": "critical"}
    bed.post([{"labels": dead}])
    eventually(lambda: bed.wire.heard("firing", "dead"), "the controller hears of the agent")

    bed.post(
        [
            {"labels": {"alertname": "RankmendGpuHot", "node": "dead", "uuid": f"GPU-{number}"}}
            for number in range(8)
        ]
    )

    def hushed() -> bool:
        gpus = [one for one in bed.active("dead") if "uuid" in one["labels"]]
        return len(gpus) == 8 and all(one["status"]["inhibitedBy"] for one in gpus)

    eventually(hushed, lambda: f"inhibited: {bed.active('dead')}")
    # of the same group, so in the message in which the devices would be, too
    bed.post([{"labels": {"alertname": "RankmendHostFull", "node": "dead"}}])
    eventually(lambda: bed.wire.heard("firing", "dead") >= 3, "both alerts about the host")
    names = {labels["alertname"] for labels in bed.wire.about("dead")}
    assert names == {"RankmendAgentDown", "RankmendHostFull"}


def test_a_reload_with_a_wrong_policy_keeps_the_old_and_a_right_one_takes_effect(bed: Bed) -> None:
    bed.wait_trains()
    path = bed.files / "policy.toml"
    good = path.read_text()

    path.write_text(good + "\n[budgets]\nnodes_held_max = -1\n")
    bed.running["service"].send_signal(signal.SIGHUP)
    eventually(lambda: "the old one stays" in bed.log("service"), "the log names the mistake")
    assert "nodes_held_max" in bed.log("service")
    assert bed.policy()["budgets"]["nodes_held_max"] == 20

    path.write_text(good + "\n[budgets]\nnodes_held_max = 7\n")
    bed.running["service"].send_signal(signal.SIGHUP)
    eventually(lambda: bed.policy()["budgets"]["nodes_held_max"] == 7, "the new policy")


def test_an_escalation_reaches_a_person_until_it_is_acknowledged(bed: Bed) -> None:
    bed.wait_trains()
    job_id = bed.job_id
    (bed.folder / "give-up").touch()

    # A message about the job may still stand from the test before: then this goes on in its thread.
    def told(status: str) -> list[dict[str, str]]:
        return [
            {**alert["labels"], **alert["annotations"]}
            for message in list(bed.people)
            for alert in message["alerts"]
            if alert["labels"]["alertname"] == "RankmendIncident"
            and alert["labels"].get("stage") == "given_up"
            and message["status"] == alert["status"] == status
        ]

    (alert,) = eventually(
        lambda: told("firing"), lambda: f"a person is told, after {bed.people}:\n{bed.logs}"
    )
    assert alert["job_id"] == job_id
    assert alert["job_name"] == "chain"
    assert "exit code 93" in alert["what"]
    assert "given up" in alert["summary"]
    assert alert["runbook_url"].endswith("controller.md#rankmendincidentescalated")
    command, _space, incident = alert["next"].rpartition(" ")
    assert (command, incident[:8]) == ("rankmend why", job_id[:8])
    bed.kill("service")
    bed.start_controller()
    token = (bed.files / "admin.token").read_text().strip()
    answer = bed.http.request(
        "POST",
        f"{bed.url}/v1/incidents/{incident}/acknowledge",
        body=json.dumps({"reason": "seen"}),
        headers={"Authorization": f"Bearer {token}"},
        timeout=DEADLINE_S,
    )
    assert answer.status == 200, answer.data
    (ended,) = eventually(lambda: told("resolved"), "the alert ends")
    assert ended["incident"] == alert["incident"]
    assert len(told("firing")) == 1, "one message, although the controller was killed"
    accused = [one for message, _status in bed.wire.arrived for one in message["alerts"]]
    assert not any("to" in one["labels"] for one in accused), "words for people stay with people"


def test_what_an_agent_repeats_of_a_slow_rank_is_hushed_and_never_comes_to_the_controller(
    bed: Bed,
) -> None:
    slow = {"alertname": "RankmendRankSlow", "node": "slow", "severity": "warning"}
    own = {
        "alertname": "RankmendCovered",
        "to": "nobody",
        "incident": "slow-j-slow",
        "node": "slow",
    }
    bed.post([{"labels": own}])
    eventually(lambda: bed.active("slow"), "the mark of the controller's own message")

    bed.post([{"labels": slow}])

    def hushed() -> bool:
        agents = [one for one in bed.active("slow") if "to" not in one["labels"]]
        return len(agents) == 1 and bool(agents[0]["status"]["inhibitedBy"])

    eventually(hushed, lambda: f"inhibited: {bed.active('slow')}")
    # of the same group, so in the message in which the slow rank would be, too
    bed.post([{"labels": {"alertname": "RankmendHostFull", "node": "slow"}}])
    eventually(lambda: bed.wire.heard("firing", "slow"), "the alert about the host")
    assert bed.wire.heard("firing", "slow") == 1
