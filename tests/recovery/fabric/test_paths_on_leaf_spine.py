"""Flows that share an uplink are found by traceroutes with their own ports, and other ports spread them."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from recovery.fabric.path_trace import trace_path
from tests.support.fabric import run_on
from tests.support.hosts import why_not
from tests.support.hosts.fleet import ROOT
from tests.support.leaf_spine import LeafSpine

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

LINK_BYTES_PER_S = 0.5e6  # little enough for a busy processor


@pytest.fixture(scope="module")
def network() -> Iterator[LeafSpine]:
    with LeafSpine(
        leaves=4, hosts_per_leaf=4, spines=4, link_bytes_per_s=LINK_BYTES_PER_S
    ) as found:
        yield found


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_trace_shows_the_path_that_the_kernel_hash_chooses(
    network: LeafSpine, protocol: str
) -> None:
    source, target = "h2", "h14"
    code = (
        "import json, time; from recovery.fabric.path_trace import trace_path;"
        f"print(json.dumps([trace_path({network.address(source)!r}, port, {network.address(target)!r}, 4791, {protocol!r},"
        " time.monotonic() + 60) for port in range(43000, 43012)]))"
    )
    done = subprocess.run(
        ["nsenter", "-t", str(network.pid(source)), "-n", "--", sys.executable, "-c", code],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=True,
    )  # fmt: skip
    traced = json.loads(done.stdout)

    expected = [
        network.spine_of(source, target, protocol, port, 4791) for port in range(43000, 43012)
    ]
    assert [hops[1] for hops in traced] == expected
    assert len(set(expected)) > 1
    assert {len(hops) for hops in traced} == {3}  # leaf, spine, leaf
    assert {hops[0] for hops in traced} == {"10.0.1.1"}


def test_plan_of_source_ports_halves_the_fullest_link_and_raises_throughput(
    network: LeafSpine,
) -> None:
    report = run_on(
        [network.pid(host) for host in network.hosts], network.address("h1"), "paths", seconds=4.0
    )

    assert report.paths is not None
    plan = report.paths.plan
    assert len(plan.ports) == 16
    assert report.problems == ()
    assert not plan.single_path
    assert plan.worst_after == 1
    assert plan.worst_before >= 2, "16 flows without a collision: one chance in 10,000"
    assert sum(report.paths.after_bytes_per_s) >= 1.1 * sum(report.paths.before_bytes_per_s)
    for shared in plan.collisions:
        assert len(shared.flows) > 1
        assert shared.idle


def test_trace_of_loopback_has_no_router() -> None:
    assert trace_path("127.0.0.1", 43999, "127.0.0.1", 1, "udp", time.monotonic() + 10) == ()
