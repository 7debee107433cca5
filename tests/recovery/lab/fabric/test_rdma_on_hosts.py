"""Fabric tests over RDMA on hosts out of namespaces, by the stand-in for ib_write_bw, whose data takes the hosts' real links.

No RDMA device is here: what a real card does is unproved.
"""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from rankmend.cli.labs.fabric import fabric
from recovery.lab.fabric.fabric_messages import Transport
from recovery.lab.fabric.fabric_report import FabricReport, keep, write_metrics
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.fabric import (
    LINK_BYTES_PER_S,
    NodesFailedError,
    NodeStarter,
    bound_send_buffers,
    slow,
    start_nodes,
)
from tests.support.hosts import Fleet, Host, why_not
from tests.support.hosts.fleet import Process
from tests.support.ib_write_bw import Fault, make_perftest
from tests.support.rdma_tree import DOWN, add_port, make_roce_tree

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not())]

NODES = 8
FEW = 4  # nodes, where no part is searched for


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("rdma")
    with Fleet(NODES, folder, planes=("data", "rail1"), hosts_per_leaf=4) as fleet:
        bound_send_buffers(fleet)
        make_roce_tree(fleet.shared / "sys", {"mlx5_0": "eth0", "mlx5_1": "eth1"})
        add_port(fleet.shared / "sys", "mlx5_2", link_layer="InfiniBand")
        add_port(fleet.shared / "sys", "mlx5_9", state=DOWN)
        make_perftest(fleet.shared / "bin")
        yield fleet


@pytest.fixture(scope="module")
def nodes() -> Iterator[NodeStarter]:
    with start_nodes() as started:
        yield started


def run_test(
    nodes: NodeStarter,
    fleet: Fleet,
    kind: str = "find",
    *rails: str,
    transport: str = "rdma",
    without: str = "",
    bad: tuple[Host, str] | None = None,
    faults: dict[str, Fault] | None = None,
    seconds: float = 1.0,
    count: int = FEW,
) -> FabricReport:
    """Run a test on the first hosts, on links that carry little, so that the hosts share few cores.

    ``without``: a host that lacks the program. ``bad``: a host, and the plane of its slow cable. ``faults``: hosts whose program fails.
    """
    hosts = list(fleet)[:count]
    environments = [
        {
            "PATH": "/usr/bin:/bin" if host.name == without else f"{fleet.shared}/bin:/usr/bin:/bin",
            "STANDIN_SYSFS": str(fleet.shared / "sys"),
            "STANDIN_FAULT": (faults or {}).get(host.name, Fault.NONE).value,
        }
        for host in hosts
    ]  # fmt: skip
    with slow(fleet, bad[0], plane=bad[1]) if bad else slow(fleet):
        return nodes.run_on(
            [host.pid for host in hosts], hosts[0].address, kind, rails=rails or ("eth0",), transport=transport,
            seconds=seconds, sysfs=str(fleet.shared / "sys"), environments=environments,
        )  # fmt: skip


def parts(report: FabricReport) -> list[tuple[str, str]]:
    assert report.verdict is not None
    return [(part.kind.value, part.name) for part in report.verdict.parts]


def test_slow_nic_is_named_by_both_rails_over_rdma(fleet: Fleet, nodes: NodeStarter) -> None:
    bad = (fleet["h4"], "rail1")
    report = run_test(
        nodes, fleet, "find", "eth0", "mlx5_1", transport="auto", bad=bad, count=NODES
    )

    assert parts(report) == [("nic", "h4 mlx5_1")]
    assert report.transport is Transport.RDMA
    assert report.transport_reason == "by ib_write_bw, on eth0 (mlx5_0:1), mlx5_1:1"
    assert report.problems == report.absent == report.unmeasured == ()
    assert report.verdict is not None
    assert report.verdict.usual_bytes_per_s == pytest.approx(LINK_BYTES_PER_S, rel=0.3)
    assert {(one.path, one.latency_s, one.resent_ratio) for one in report.readings} == {(0, None, None)}  # fmt: skip


def test_ports_without_addresses_meet_by_the_way_to_the_first_node(
    fleet: Fleet, nodes: NodeStarter
) -> None:
    report = run_test(nodes, fleet, "ring", "mlx5_2")

    assert report.transport_reason == "by ib_write_bw, on mlx5_2:1"
    assert len(report.readings) == FEW
    assert report.problems == ()
    with pytest.raises(NodesFailedError, match="can't test over TCP: h1: mlx5_2 has no IP address"):
        run_test(nodes, fleet, "ring", "mlx5_2", transport="tcp")


def test_rail_with_ipv6_alone_is_tested_over_rdma(fleet: Fleet, nodes: NodeStarter) -> None:
    for host in fleet:
        host.run(["ip", "link", "add", "v6only", "link", "eth1", "type", "macvlan", "mode", "bridge"])  # fmt: skip
        host.run(["sysctl", "-q", "-w", "net.ipv6.conf.v6only.disable_ipv6=0"])
        host.run(["ip", "addr", "add", f"fd00::{host.number}/64", "dev", "v6only", "nodad"])
        host.run(["ip", "link", "set", "v6only", "up"])
    make_roce_tree(fleet.shared / "sys", {"mlx5_6": "v6only"})

    report = run_test(nodes, fleet, "ring", "v6only")

    assert report.transport_reason == "by ib_write_bw, on v6only (mlx5_6:1)"
    assert report.problems == ()
    assert len(report.readings) == FEW


def test_node_without_the_program_has_all_use_tcp_and_is_named(
    fleet: Fleet, nodes: NodeStarter
) -> None:
    report = run_test(nodes, fleet, transport="auto", without="h3", seconds=0.2)

    assert report.transport is Transport.TCP
    assert report.transport_reason == "not RDMA: h3: ib_write_bw is not installed (Debian, Ubuntu, RHEL: perftest)"  # fmt: skip
    assert report.readings
    with pytest.raises(NodesFailedError, match="can't test over RDMA: h3: ib_write_bw is not"):
        run_test(nodes, fleet, without="h3")
    with pytest.raises(NodesFailedError, match="RDMA port mlx5_9:1 is 'DOWN', not ACTIVE"):
        run_test(nodes, fleet, "find", "mlx5_9")


def test_node_whose_program_fails_is_not_measured_and_never_slow(
    fleet: Fleet, nodes: NodeStarter
) -> None:
    report = run_test(nodes, fleet, faults={"h3": Fault.MEMLOCK})

    assert parts(report) == []
    assert report.unmeasured == ("h3",)
    assert any(one.startswith("h3, eth0 with h") and "Couldn't allocate MR" in one for one in report.problems)  # fmt: skip
    named = {node for one in report.readings for node in (one.sender, one.receiver)}
    assert named == set(range(FEW)) - {2}


def test_program_that_fails_everywhere_leaves_tcp_or_a_clear_error(
    fleet: Fleet, nodes: NodeStarter
) -> None:
    faults = {host.name: Fault.MEMLOCK for host in fleet}

    report = run_test(nodes, fleet, transport="auto", faults=faults)

    assert report.transport is Transport.TCP
    assert report.transport_reason.startswith("not RDMA: no test gave a rate: h")
    assert report.readings
    assert report.problems == ()
    with pytest.raises(NodesFailedError, match=r"can't test over RDMA: no test gave a rate: .*Couldn't allocate MR"):  # fmt: skip
        run_test(nodes, fleet, faults=faults)


class Cli:
    """`rankmend fabric test pairs --transport rdma` on three hosts, where the stand-in runs for half a minute, or hangs."""

    def __init__(self, fleet: Fleet, fault: Fault) -> None:
        self.hosts = list(fleet)[:3]
        shared = fleet.shared / uuid.uuid4().hex
        shared.mkdir(mode=0o700)
        sys_class = fleet.shared / "sys/class"
        for host in self.hosts:
            (host.state / "state").mkdir(exist_ok=True)
            host.run(["mount", "--bind", sys_class, "/sys/class"])
        words = [sys.executable, "-m", "rankmend.cli", "fabric", "test", "pairs", "--nnodes", "3", "--rail", "eth0",
                 "--seconds", "30", "--join-timeout", "5m", "--shared", shared, "--transport", "rdma"]  # fmt: skip
        self.nodes: list[Process] = [
            host.popen(
                [*words, "--node-rank", str(at), "--state-dir", host.state / "state"],
                cwd=Path(__file__).resolve().parents[4],
                env={
                    "PATH": f"{fleet.shared}/bin:/usr/bin:/bin", "STANDIN_SYSFS": str(fleet.shared / "sys"),
                    "STANDIN_FAULT": fault.value, "SLURMD_NODENAME": host.name,
                },
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for at, host in enumerate(self.hosts)
        ]  # fmt: skip

    def programs(self, host: Host | None = None) -> list[psutil.Process]:
        """Return what measures; not the look at the program's options before that."""
        found = [one for each in self.hosts if host in (None, each) for one in each.processes("bin/ib_write_bw")]  # fmt: skip
        return [one for one in found if " -D " in _command(one)]

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            node.communicate()
        for host in self.hosts:
            host.run(["umount", "/sys/class"])


@pytest.fixture
def cli(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[Cli]:
    with slow(fleet):
        started = Cli(fleet, request.param)
        try:
            eventually(lambda: len(started.programs()) >= 2, "the programs of a pair", pause_s=0.1)
            yield started
        finally:
            started.close()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.parametrize(
    ("cli", "number"),
    [
        (Fault.HANG, signal.SIGTERM),
        (Fault.NONE, signal.SIGHUP),
    ],
    indirect=["cli"],
)
def test_signal_to_the_first_node_ends_the_programs_of_all(
    cli: Cli, number: signal.Signals
) -> None:
    cli.nodes[0].send_signal(number)
    told = [node.communicate(timeout=DEADLINE_S) for node in cli.nodes]

    assert [node.returncode for node in cli.nodes] == [128 + number, 2, 2]
    assert told[0] == ("", f"rankmend: stopped by {number.name}\n")
    eventually(
        lambda: cli.programs() == [],
        "the end of the killed programs and their children",
        pause_s=0.1,
    )


@pytest.mark.parametrize(("cli", "victim"), [(Fault.HANG, 0), (Fault.NONE, 1)], indirect=["cli"])
def test_program_ends_with_a_node_that_is_killed_and_the_others_soon_after(
    cli: Cli, victim: int
) -> None:
    cli.nodes[victim].kill()

    eventually(
        lambda: cli.programs(cli.hosts[victim]) == [],
        "the end of the killed node's programs",
        pause_s=0.1,
    )
    if victim == 0:
        for node in cli.nodes[1:]:
            node.communicate(timeout=DEADLINE_S)
        eventually(lambda: cli.programs() == [], "the end of all programs", pause_s=0.1)


def test_result_says_its_transport_in_table_json_history_and_metrics(
    fleet: Fleet, nodes: NodeStarter, tmp_path: Path
) -> None:

    report = run_test(nodes, fleet, "bisect")
    path = keep(report, tmp_path / "fabric")
    write_metrics(report, tmp_path / "metrics.prom")

    shown = CliRunner().invoke(fabric, ["show", str(path)])
    plain = CliRunner().invoke(fabric, ["show", str(path), "--json"])
    kept = CliRunner().invoke(fabric, ["history", "h2", "--state-dir", str(tmp_path), "--json"])

    assert "Measured over RDMA, by ib_write_bw, on eth0 (mlx5_0:1)." in shown.output
    assert json.loads(plain.output)["transport"] == "rdma"
    assert json.loads(kept.output)[0]["transport"] == "rdma"
    assert 'peer_node="h2",transport="rdma"}' in (tmp_path / "metrics.prom").read_text()
