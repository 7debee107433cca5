"""An alert that accuses a large part of the fleet, or of a job, is doubted; one that accuses what failed is not."""

from dataclasses import replace

import pytest

from detectors.parts.fleet_parts import NO_PARTS, FleetPart, FleetParts, HungPart, SharedKind
from recovery.controller.cluster.active_alerts import ActiveAlert, ActiveAlerts, JobNode
from recovery.controller.cluster.alert_shares import Sender
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.doubtful_alerts import (
    WINDOW_S,
    count_causes,
    find_doubtful,
    sizes_of_causes,
)
from recovery.controller.cluster.incoming_alerts import IncomingAlert

NOW = 1_800_000_000.0
FLEET = [f"n{number}" for number in range(40)]
CHASSIS = FleetPart(SharedKind.CHASSIS, "1821325191344")
CLIQUE = FleetPart(SharedKind.NVLINK_DOMAIN, "5f1c9a3e-77b0-4d0c-9f2e-e4a1d2c3b4a5.1")
RACK, FEED = FleetPart(SharedKind.RACK, "r1"), FleetPart(SharedKind.POWER_FEED, "f1")


def alerts_about(
    nodes: list[str],
    name: str = "RankmendGpuLost",
    action: str = "replace",
    severity: str = "critical",
    apart_s: float = 1.0,
    sender: str = "prometheus",
) -> tuple[ActiveAlert, ...]:
    book = ActiveAlerts(AlertRules())
    jobs_on = {node: (JobNode("job-1", (0,)),) for node in FLEET}
    for number, node in enumerate(nodes):
        labels = {"alertname": name, "node": node, "severity": severity, "action": action}
        firing = IncomingAlert(labels, {}, NOW + number * apart_s, True)
        book.receive([firing], jobs_on, NOW + number * apart_s, sender=Sender(sender))
    return book.active


def parts_of(below: dict[FleetPart, list[str]]) -> FleetParts:
    on: dict[str, tuple[HungPart, ...]] = {}
    for part, nodes in below.items():
        for node in nodes:
            on[node] = (*on.get(node, ()), HungPart(part))
    return FleetParts(on)


def doubted(alerts: tuple[ActiveAlert, ...], parts: FleetParts = NO_PARTS) -> list[str]:
    found = find_doubtful(alerts, {"job-1": FLEET[:20]}, len(FLEET), 10.0, parts).of("job-1")
    return sorted(one.node for one in alerts if one.target.key in found)


def test_rule_that_accuses_every_node_is_doubted_with_what_it_accuses() -> None:
    alerts = alerts_about(FLEET)

    found = find_doubtful(alerts, {}, len(FLEET), 10.0, NO_PARTS)

    assert len(found.by_all) == len(FLEET)
    assert found.alertnames == {
        "RankmendGpuLost accuses 40 of 40 nodes within 10 minutes": "RankmendGpuLost"
    }
    assert found.reasons == found.alertnames.keys()


@pytest.mark.parametrize(
    ("nodes", "is_doubted"),
    [
        (FLEET[30:31], False),
        (FLEET[30:34], False),  # 10 %
        (FLEET[30:35], True),
        (FLEET[:1], False),  # of a job of 20
        (FLEET[:2], False),
        (FLEET[:3], True),
    ],
)
def test_share_of_the_fleet_or_of_a_job_is_doubted(nodes: list[str], *, is_doubted: bool) -> None:
    assert doubted(alerts_about(nodes)) == (sorted(nodes) if is_doubted else [])


def test_both_nodes_of_a_small_job_are_doubted_and_one_of_them_is_not() -> None:
    both, one = alerts_about(["n1", "n2"]), alerts_about(["n1"])

    for alerts, count in ((both, 2), (one, 0)):
        found = find_doubtful(alerts, {"job-1": ["n1", "n2"]}, len(FLEET), 10.0, NO_PARTS)
        assert (len(found.of("job-1")), len(found.of("job-2"))) == (count, 0)


def test_fleet_of_unknown_size_doubts_no_alert_for_its_share() -> None:
    alerts = alerts_about(["n1", "n2"])

    unknown = find_doubtful(alerts, {}, 0, 10.0, NO_PARTS)
    known = find_doubtful(alerts, {}, 2, 10.0, NO_PARTS)

    assert unknown.reasons == frozenset()
    assert known.reasons == {"RankmendGpuLost accuses 2 of 2 nodes within 10 minutes"}


def test_a_job_that_claims_to_run_on_broken_nodes_makes_nobody_else_doubt_their_alerts() -> None:
    """Which nodes a job has is its launchers' word: a stranger's job "on" two lost nodes must not keep others there."""
    jobs = {"job-of-alice": FLEET[:30], "job-of-mallory": ["n1", "n2"]}
    alerts = alerts_about(["n1", "n2"])

    found = find_doubtful(alerts, jobs, len(FLEET), 10.0, NO_PARTS)

    assert found.of("job-of-alice") == {}
    assert set(found.of("job-of-mallory").values()) == {
        "RankmendGpuLost accuses 2 of 2 nodes of one job within 10 minutes"
    }


def test_nodes_of_one_rack_or_feed_have_one_cause() -> None:
    rack = parts_of({RACK: FLEET[:10], FEED: FLEET[8:20]})

    assert count_causes(FLEET[:10], rack) == 1
    assert count_causes(FLEET[:20], rack) == 1, "two nodes are below both"
    assert count_causes(FLEET[:22], rack) == 3
    assert count_causes(FLEET[:3], NO_PARTS) == 3
    assert doubted(alerts_about(FLEET[:20]), rack) == []


@pytest.mark.parametrize("part", [CHASSIS, CLIQUE], ids=str)
def test_nodes_of_one_chassis_or_clique_have_one_cause(part: FleetPart) -> None:
    other = replace(part, name="another")
    parts = parts_of({part: FLEET[:18], other: FLEET[18:22]})

    assert count_causes(FLEET[:18], parts) == 1
    assert count_causes(FLEET[16:20], parts) == 2
    assert count_causes(FLEET[18:24], parts) == 3, "two nodes are in neither"
    assert doubted(alerts_about(FLEET[:18]), parts) == []
    assert doubted(alerts_about(FLEET[18:26]), parts) == sorted(FLEET[18:26])


LEAVES = {
    FleetPart(SharedKind.LEAF, f"l{number}"): FLEET[10 * number :][:10] for number in range(4)
}
"""Of ten nodes each, a tenth of which may be accused: as many as there are nodes in 10 %."""
CORE = FleetPart(SharedKind.SWITCH, "core")


@pytest.mark.parametrize("above", [{}, {CORE: FLEET}], ids=["leaves", "a switch above all"])
def test_rule_gone_mad_is_doubted_however_few_and_large_the_parts_of_the_fleet_are(
    above: dict[FleetPart, list[str]],
) -> None:
    parts = parts_of({**LEAVES, **above})

    def found(nodes: list[str]) -> int:
        return len(find_doubtful(alerts_about(nodes), {}, len(FLEET), 10.0, parts).by_all)

    assert found(FLEET) == 40
    assert found(FLEET[5:20]) == 15, "half of a leaf, beside another"
    assert found(FLEET[:10]) == 0, "one leaf"
    assert found(FLEET[:14]) == 0, "a leaf, and as many nodes as may fail beside it"
    assert found(FLEET[20:25] + FLEET[30:31]) == 0


def test_part_that_most_of_the_fleet_hangs_on_joins_no_faults_there() -> None:
    parts = parts_of({CORE: FLEET, RACK: FLEET[:20]})

    assert sizes_of_causes(FLEET[:5], parts) == [5]
    assert sizes_of_causes(FLEET[18:23], parts) == [5]
    assert sizes_of_causes(FLEET[18:23], parts, len(FLEET)) == [2, 1, 1, 1]
    assert sizes_of_causes(FLEET[:20], parts, len(FLEET)) == [20], "half of it is not most"
    assert sizes_of_causes(FLEET[:3], parts, 30) == [3]
    named = FleetParts({}, rack_of=lambda _node: "the only one")
    assert sizes_of_causes(FLEET[:30], named, len(FLEET)) == [1] * 30


def test_one_more_alert_long_after_a_flood_makes_the_flood_no_truer() -> None:
    book = alerts_about(FLEET[:30])
    later = [replace(one, started_unix_s=NOW + 10 * WINDOW_S) for one in alerts_about(FLEET[39:])]

    assert doubted((*book, *later)) == sorted(FLEET[:30])


@pytest.mark.parametrize(
    "alerts",
    [
        alerts_about(FLEET[:10], severity="warning"),
        alerts_about(FLEET[:10], action="watch"),
        alerts_about(FLEET[:10], apart_s=WINDOW_S / 2 + 1.0),
        tuple(
            alert
            for number, node in enumerate(FLEET[:10])
            for alert in alerts_about([node], sender=f"node:{number}")
        ),
        tuple(
            alert
            for number, node in enumerate(FLEET[:10])
            for alert in alerts_about([node], name=f"Rule{number}")
        ),
        tuple(replace(alert, is_firing=False) for alert in alerts_about(FLEET[:10])),
    ],
    ids=["warnings", "no end of use", "over hours", "agents themselves", "other rules", "over"],
)
def test_what_is_no_flood_of_one_rule_is_believed(alerts: tuple[ActiveAlert, ...]) -> None:
    assert doubted(alerts) == []
