"""Flows that share an uplink are found by traceroutes with their own ports, and other ports spread them."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from recovery.lab.fabric.path_trace import trace_path
from tests.support.eventually import DEADLINE_S, deadline_s, eventually
from tests.support.fabric import run_on
from tests.support.hosts import why_not
from tests.support.hosts.fleet import ROOT
from tests.support.hosts.network import run_in_network
from tests.support.leaf_spine import LeafSpine

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not())]

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
        "import json, time; from recovery.lab.fabric.path_trace import trace_path;"
        f"print(json.dumps([trace_path({network.address(source)!r}, port, {network.address(target)!r}, 4791, {protocol!r},"
        " time.monotonic() + 60) for port in range(43000, 43012)]))"
    )
    done = subprocess.run(
        ["nsenter", "-t", str(network.pid(source)), "-n", "--", sys.executable, "-c", code],
        capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=True,
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
    for shared in plan.collisions:
        assert len(shared.flows) > 1
        assert shared.idle
    # How many flows collide is chance, so only theirs are compared: two or more had one link's rate.
    nodes = report.network.nodes
    collided = {flow for shared in plan.collisions for flow in shared.flows}
    at = [i for i, node in enumerate(nodes) if f"{node} -> {nodes[(i + 8) % 16]}" in collided]
    assert len(at) == len(collided)
    before, after = report.paths.before_bytes_per_s, report.paths.after_bytes_per_s
    assert sum(after[i] for i in at) > sum(before[i] for i in at)


RECEIVER = """
import socket, sys, threading
listener = socket.create_server(("", 5001))
def drain(connection):
    while connection.recv(1 << 16):
        pass
while True:
    threading.Thread(target=drain, args=(listener.accept()[0],), daemon=True).start()
"""
SENDER = """
import socket, sys, time
address, port = sys.argv[1], int(sys.argv[2])
while True:
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sender.bind(("", port))
    try:
        sender.connect((address, 5001))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
while True:
    sender.sendall(bytes(4096))
"""


@contextlib.contextmanager
def program(network: LeafSpine, ports: dict[str, tuple[str, int]]) -> Iterator[None]:
    """Have hosts send to others from these source ports, by a program that knows nothing of fabric tests."""
    processes = []

    def start(host: str, *words: str) -> None:
        command = ["nsenter", "-t", str(network.pid(host)), "-n", "--", sys.executable, "-c", *words]  # fmt: skip
        processes.append(subprocess.Popen(command))

    try:
        for source, (target, port) in ports.items():
            start(target, RECEIVER)
            start(source, SENDER, network.address(target), str(port))
        for source in ports:
            _await_flow(network, source)
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _await_flow(network: LeafSpine, host: str) -> None:
    words = ["ss", "-H", "-t", "-i", "-n", "-O", "state", "established", "dport", "=", ":5001"]
    eventually(
        lambda: "notsent" in run_in_network(network.pid(host), words),
        f"{host} fills its path",
        pause_s=0.1,
    )


def test_flows_of_a_running_program_that_share_an_uplink_are_named(network: LeafSpine) -> None:
    targets = {"h1": "h5", "h2": "h6", "h3": "h7", "h4": "h8"}
    spines = [f"172.16.{spine}.2" for spine in range(4)]
    wanted = dict(zip(targets, (spines[0], spines[0], spines[1], spines[2]), strict=True))
    ports = {
        source: next(
            port
            for port in range(20_000, 21_000)
            if network.spine_of(source, target, "tcp", port, 5001) == wanted[source]
        )
        for source, target in targets.items()
    }
    pids = [network.pid(host) for host in (*targets, *targets.values())]

    with program(network, {source: (targets[source], ports[source]) for source in targets}):
        report = run_on(pids, network.address("h1"), "flows", seconds=3.0, ports=12)

    assert report.running is not None
    assert report.problems == report.running.untraced == ()
    assert {(one.name, one.source_port) for one in report.running.flows} == {
        (f"{source} -> {targets[source]}", ports[source]) for source in targets
    }
    plan = report.running.plan
    assert plan is not None
    shared = {one.link: one for one in plan.collisions}
    both = (f"h1 -> h5 port {ports['h1']}", f"h2 -> h6 port {ports['h2']}")
    assert shared[spines[0]].flows == both
    assert shared[spines[0]].idle == (spines[3],)
    assert {one.flows for one in plan.collisions} == {both}  # and no other flows
    assert (plan.worst_before, plan.worst_after) == (2, 1)
    assert plan.expected_before_ratio == 0.75
    rates = {one.name: one.bytes_per_s or 0.0 for one in report.running.flows}
    assert rates["h1 -> h5"] + rates["h2 -> h6"] < 1.3 * LINK_BYTES_PER_S  # together one link


def test_trace_of_loopback_has_no_router() -> None:
    assert trace_path("127.0.0.1", 43999, "127.0.0.1", 1, "udp", deadline_s()) == ()
