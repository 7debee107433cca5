"""16 hosts with real links: the slow part is named within 2 log2 N rounds, and a sound network accuses nobody."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from detectors.fabric.fabric_verdict import FabricOutcome
from detectors.preflight.answers import read_answers
from detectors.preflight.verdicts import CheckStanding
from rankmend.parts_path import program
from recovery.lab.fabric.fabric_report import FabricReport
from recovery.lab.fabric.flight_child import FlightShare
from tests.support.fabric import (
    SLOW_BYTES_PER_S,
    NodeStarter,
    bound_send_buffers,
    slow,
    start_nodes,
)
from tests.support.hosts import Fleet, Host, why_not

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not())]

NODES = 16
ROUNDS_MAX = 8  # 2 log2 16
FEW = 8  # of them, where each has two cards


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("fabric")
    with Fleet(NODES, folder, planes=("data", "rail1"), hosts_per_leaf=4) as fleet:
        bound_send_buffers(fleet)
        yield fleet


@pytest.fixture(scope="module")
def nodes() -> Iterator[NodeStarter]:
    with start_nodes() as started:
        yield started


def find(nodes: NodeStarter, fleet: Fleet, *rails: str, count: int = NODES) -> FabricReport:
    hosts = list(fleet)[:count]
    leaf_of = {host.name: f"leaf{(host.number - 1) // 4 + 1}" for host in hosts}
    report = nodes.run_on(
        [host.pid for host in hosts], hosts[0].address, "find", rails=rails, leaf_of=leaf_of
    )
    assert report.absent == ()
    assert report.verdict is not None
    assert report.verdict.rounds <= ROUNDS_MAX
    return report


@contextlib.contextmanager
def frames_of_one_segment(fleet: Fleet) -> Iterator[None]:
    for host in fleet:
        host.run(["ip", "link", "set", "eth1", "gso_max_segs", "1"])
    yield
    for host in fleet:
        host.run(["ip", "link", "set", "eth1", "gso_max_segs", "65535"])


def parts(report: FabricReport) -> list[tuple[str, str]]:
    assert report.verdict is not None
    return [(part.kind.value, part.name) for part in report.verdict.parts]


def test_sound_network_accuses_nobody(fleet: Fleet, nodes: NodeStarter) -> None:
    with slow(fleet):
        report = find(nodes, fleet)

    assert parts(report) == []
    assert report.verdict is not None
    assert report.verdict.outcome in (FabricOutcome.SOUND, FabricOutcome.UNCLEAR)  # a busy machine


def test_slow_cable_of_a_node_is_named(fleet: Fleet, nodes: NodeStarter) -> None:
    with slow(fleet, fleet["h7"]):
        assert parts(find(nodes, fleet)) == [("node", "h7")]


def test_lossy_cable_of_a_node_is_named_with_its_loss(fleet: Fleet, nodes: NodeStarter) -> None:
    with (
        slow(fleet),
        frames_of_one_segment(fleet),
        fleet.lose(fleet["h11"], ratio=0.04, plane="rail1"),
    ):
        report = find(nodes, fleet, "eth1")

    assert parts(report) == [("node", "h11")]
    assert report.verdict is not None
    assert (report.verdict.parts[0].resent_ratio or 0) > 0.01


def test_slow_nic_is_told_from_a_slow_node(fleet: Fleet, nodes: NodeStarter) -> None:
    with slow(fleet, fleet["h4"], plane="rail1"):
        found = find(nodes, fleet, "eth0", "eth1", count=FEW)
        assert parts(found) == [("nic", "h4 eth1")]


def test_slow_rail_is_named(fleet: Fleet, nodes: NodeStarter) -> None:
    with slow(fleet, *fleet, plane="rail1"):
        found = find(nodes, fleet, "eth0", "eth1", count=FEW)
        assert parts(found) == [("rail", "eth1")]


def test_slow_leaf_switch_is_named(fleet: Fleet, nodes: NodeStarter) -> None:
    with slow(fleet, *(fleet[f"h{number}"] for number in (5, 6, 7, 8)), plane="data"):
        assert parts(find(nodes, fleet)) == [("switch", "leaf2")]


def test_slow_uplink_of_a_leaf_switch_is_named(fleet: Fleet, nodes: NodeStarter) -> None:
    with slow(fleet), fleet.slow_uplink("leaf3", bytes_per_s=SLOW_BYTES_PER_S * 2):
        assert parts(find(nodes, fleet)) == [("uplink", "leaf3")]


def test_pre_flight_check_of_all_nodes_fails_the_one_whose_cable_is_slow(fleet: Fleet) -> None:
    meet = fleet.shared / "meet"
    meet.mkdir(mode=0o700)
    hosts = list(fleet)[:8]
    with slow(fleet, hosts[2]):
        processes = [
            host.popen(
                [
                    sys.executable,
                    *program("recovery.lab.fabric.flight_child"),
                    _share(host, at, meet),
                ],
                stdout=subprocess.PIPE,
            )
            for at, host in enumerate(hosts)
        ]
        told = [read_answers(map(json.loads, one.communicate()[0].splitlines()), "") for one in processes]  # fmt: skip

    standings = {
        host.name: [one.standing for one in each.verdicts]
        for host, each in zip(hosts, told, strict=True)
    }
    assert standings == {
        host.name: [CheckStanding.FAILED if host is hosts[2] else CheckStanding.PASSED]
        for host in hosts
    }
    sent = [each.figures[0].value for each in told]
    assert sent[2] == min(sent)


def _share(host: Host, at: int, meet: Path) -> str:
    share = FlightShare(host.name, 240.0, 480.0, ("eth0",), str(meet), 8, at)
    return msgspec.json.encode(share).decode()
