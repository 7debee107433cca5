"""Coordinator and peers on loopback: who may take part, what they measure, and how a test ends."""

import contextlib
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import urllib3

from detectors.fabric.fabric_verdict import FabricOutcome
from rankmend.errors import ConfigError, LaunchError, RankmendError
from recovery.lab.fabric import fabric_report
from recovery.lab.fabric.coordinator import Coordinator
from recovery.lab.fabric.fabric_messages import FlowFault, FlowOrder, JoinFabric, Rail
from recovery.lab.fabric.fabric_options import FabricKind, FabricOptions
from recovery.lab.fabric.fabric_place import FabricPlace, find_place
from recovery.lab.fabric.fabric_report import FabricReport
from recovery.lab.fabric.fabric_test import run_fabric_test
from recovery.lab.fabric.tcp_probe import (
    SOURCE_PORTS_FIRST,
    ProbeListener,
    Prober,
    TcpCounts,
    read_counts,
    sending_rate,
    unsent_bytes,
)
from recovery.launcher.run.meeting_site import HostFolder
from recovery.service.meeting_secret import Identity
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port

pytestmark = pytest.mark.process

SECRET = "0123456789abcdef" * 4
# For each flow to get its turn, where all nodes are threads of one process on a busy processor.
LONG_ENOUGH_S = 1.5


def take_part(
    folder: Path, nodes: int, kind: FabricKind, seconds: float = 0.05, **options: object
) -> FabricReport:
    """Run a test of several nodes, all of them threads of this process, which meet in a folder."""
    folder.mkdir(mode=0o700)
    found: list[FabricReport] = []
    errors: list[Exception] = []
    wanted = FabricOptions(kind, seconds=seconds, rails=("lo",), join_s=180, **options)  # type: ignore[arg-type]

    def run(rank: int) -> None:
        place = FabricPlace(rank, nodes, folder=HostFolder(folder))
        try:
            run = run_fabric_test(place, f"n{rank}", wanted)
            if run.report is not None:
                found.append(run.report)
        except RankmendError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert errors == []
    return found[0]


def test_nodes_that_meet_in_a_folder_measure_each_other_both_ways(tmp_path: Path) -> None:
    report = take_part(tmp_path / "shared", 4, FabricKind.PAIRS, seconds=LONG_ENOUGH_S)

    pairs = {(one.sender, one.receiver) for one in report.readings}
    assert pairs == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert min(one.bytes_per_s for one in report.readings) > 0
    assert report.network.nodes == ("n0", "n1", "n2", "n3")
    assert report.absent == report.problems == ()
    assert not (tmp_path / "shared" / "host.json").exists(), (
        "a later test would find the old address"
    )


def test_ring_bisect_and_all_to_all_load_every_node_at_once(tmp_path: Path) -> None:
    flows = {
        kind: {
            (one.sender, one.receiver)
            for one in take_part(tmp_path / kind.name, 4, kind, LONG_ENOUGH_S).readings
        }
        for kind in (FabricKind.RING, FabricKind.BISECT, FabricKind.ALL_TO_ALL)
    }

    assert flows[FabricKind.RING] == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert flows[FabricKind.BISECT] == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert len(flows[FabricKind.ALL_TO_ALL]) == 12


@pytest.mark.component("fabric test")
def test_report_is_kept_and_read_back_by_node(tmp_path: Path) -> None:
    report = take_part(tmp_path / "shared", 3, FabricKind.FIND)

    path = fabric_report.keep(report, tmp_path / "fabric")

    assert fabric_report.read_report(path) == report
    (record,), broken = fabric_report.history(tmp_path / "fabric", "n2")
    assert (record.sends_bytes_per_s is not None, broken) == (True, ())
    assert fabric_report.history(tmp_path / "fabric", "other") == ((), ())


def test_node_that_never_comes_is_named(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o700)
    place = FabricPlace(0, 2, folder=HostFolder(tmp_path / "shared"))
    options = FabricOptions(FabricKind.FIND, rails=("lo",), join_s=0.5)

    with pytest.raises(LaunchError, match=r"of 2 nodes did not join .*: rank(s 0 and)? 1"):
        run_fabric_test(place, "n0", options)


@pytest.fixture
def coordinator() -> "object":
    made = Coordinator(Identity(SECRET), 2, "127.0.0.1", 0)
    made.start()
    yield made
    made.close()


def ask(coordinator: Coordinator, body: bytes, token: str) -> int:
    pool = urllib3.PoolManager(
        cert_reqs="CERT_NONE", assert_fingerprint=Identity(SECRET).fingerprint
    )
    url = f"https://127.0.0.1:{coordinator.port}/v1/fabric/join"
    return int(
        pool.request("POST", url, body=body, headers={"Authorization": f"Bearer {token}"}).status
    )


def join(rank: int, node: str, rails: int = 1) -> bytes:
    found = tuple(Rail(f"eth{number}", "127.0.0.1", 1000) for number in range(rails))
    return msgspec.json.encode(JoinFabric(rank, node, found))


def test_stranger_and_nonsense_are_refused(coordinator: Coordinator) -> None:
    token = Identity(SECRET).token

    assert ask(coordinator, join(0, "a"), "rm_12345678_" + "0" * 64) == 401
    assert ask(coordinator, join(0, "a"), "") == 401
    assert ask(coordinator, b"{", token) == 400
    assert ask(coordinator, b'{"rank": -1, "node": "a", "rails": []}', token) == 400
    assert coordinator.joined == {}


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (join(0, "b"), "two nodes say that they are rank 0"),
        (join(1, "a"), "two ranks are on node a"),
        (join(1, "b", rails=2), "b has 2 rails"),
        (join(7, "b"), "rank 7"),
    ],
)
def test_contradiction_ends_the_test_and_says_who(
    coordinator: Coordinator, second: bytes, problem: str
) -> None:
    token = Identity(SECRET).token

    assert ask(coordinator, join(0, "a"), token) == 200
    assert ask(coordinator, second, token) == 409
    with pytest.raises(ConfigError, match=problem):
        coordinator.wait_for_peers(5)


def test_connection_without_the_flows_token_is_no_flow() -> None:
    listener = ProbeListener("127.0.0.1")
    prober = Prober([("127.0.0.1", listener)])
    try:
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.sendall(b"x" * 16)
            assert listener.take("00" * 16, 0.1) is None
            order = FlowOrder(1, "ab" * 16, True, 0, "127.0.0.1", _closed_port(), 0, True, True)
            (result,) = prober.run((order,), 0.05)
    finally:
        prober.close()

    assert result.fault is FlowFault.UNREACHABLE
    assert result.received_bytes_per_s is None


def test_ports_that_other_programs_have_are_no_fault_of_the_network() -> None:
    # An address of its own: the ports of others are free to other tests.
    here, path = "127.0.11.7", 5
    with contextlib.ExitStack() as others:
        for first in SOURCE_PORTS_FIRST:
            others.enter_context(socket.create_server((here, first + path)))
        ends = [Prober([(here, ProbeListener(here))]) for _ in range(2)]
        ports = [end.rails[0][1].port for end in ends]
        orders = [
            FlowOrder(
                1, "ab" * 16, connects, 0, here, ports[not connects], path, connects, not connects
            )
            for connects in (False, True)
        ]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda end, order: end.run((order,), 0.5), ends, orders))
        for end in ends:
            end.close()

    (received,), (sent,) = found
    assert received.fault is sent.fault is None
    assert received.received_bytes_per_s is not None
    assert sent.source_port not in {0, *(first + path for first in SOURCE_PORTS_FIRST)}


def test_rate_counts_only_the_time_in_which_there_was_something_to_send() -> None:
    before = TcpCounts(resent=0, bytes_acked=1_000, segments=1, busy_us=10_000, reader_us=0)
    after = TcpCounts(resent=3, bytes_acked=401_000, segments=300, busy_us=310_000, reader_us=100_000)  # fmt: skip
    too_short = TcpCounts(resent=0, bytes_acked=401_000, segments=300, busy_us=30_000, reader_us=0)

    assert sending_rate(before, after) == 400_000 / 0.2
    assert sending_rate(before, too_short) is None


def test_segment_that_came_twice_was_not_lost() -> None:
    counts = TcpCounts(resent=30, bytes_acked=1, segments=1_000, busy_us=1, reader_us=0, doubled=25)

    assert counts.resent_ratio == 0.005


def test_kernel_may_hold_a_tenth_of_a_second_unsent() -> None:
    assert unsent_bytes(1_000_000, 0.5) == 200_000
    assert unsent_bytes(0, 0.01) == 32_768
    assert unsent_bytes(10_000_000_000, 1.0) == 8_388_608


def test_kernel_tells_what_a_connection_has_sent() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
        listener.accept()[0] as receiver,
    ):
        sender.sendall(b"x" * 1000)
        assert len(receiver.recv(1000, socket.MSG_WAITALL)) == 1000
        eventually(
            lambda: (counts := read_counts(sender)) is not None and counts.bytes_acked >= 1000,
            "the load",
        )
        counts = read_counts(sender)

    assert counts is not None
    assert counts.segments >= 2
    assert counts.resent == 0


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return int(closed.getsockname()[1])


def test_place_comes_from_options_then_slurm_then_torchrun(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o600)
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0",
                "MASTER_ADDR": "n0", "MASTER_PORT": "29400"}  # fmt: skip
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-4]", "SLURM_NODEID": "2",
             "SLURMD_NODENAME": "n3", "XDG_STATE_HOME": str(tmp_path)}  # fmt: skip

    place = find_place(torchrun, token_file=token)
    assert place is not None
    assert (place.rank, place.count, place.host, place.port) == (1, 2, "n0", 29400)
    assert find_place({**torchrun, "LOCAL_RANK": "1"}, token_file=token) is None
    step = find_place(slurm)
    assert step is not None
    assert (step.rank, step.count, step.run) == (2, 4, "7:0:0")
    assert find_place({**slurm, "SLURM_LOCALID": "1"}) is None
    with pytest.raises(ConfigError, match="share no secret for n0:29400"):
        find_place(torchrun)
    with pytest.raises(ConfigError, match="how many nodes"):
        find_place({})
    with pytest.raises(ConfigError, match="node 5 of 4"):
        find_place({}, nnodes=4, node_rank=5, endpoint="n0:1", token_file=token)
    with pytest.raises(ConfigError, match="HOST:PORT"):
        find_place({}, nnodes=4, node_rank=0, endpoint="n0", token_file=token)


@pytest.mark.torch
def test_collectives_run_under_pytorch_with_bus_bandwidth_and_expected_time(tmp_path: Path) -> None:
    report = take_part(tmp_path / "s", 2, FabricKind.COLLECTIVES, sizes_bytes=(1 << 16,))

    assert report.problems == ()
    assert {one.operation for one in report.collectives} == {"all_reduce", "all_to_all"}
    for one in report.collectives:
        factor = {"all_reduce": 1.0, "all_to_all": 0.5}[one.operation]  # of two ranks
        assert one.bus_bytes_per_s == pytest.approx(one.size_bytes / one.seconds * factor)
        assert one.expected_s is not None
    assert report.verdict is not None
    assert (
        report.verdict.outcome is FabricOutcome.UNCLEAR
    )  # of two nodes, either may be the slow one


def test_peer_whose_coordinator_is_killed_ends_and_leaves_no_load(tmp_path: Path) -> None:
    token = tmp_path / "t"
    token.write_text(SECRET)
    token.chmod(0o600)
    port = free_port()
    words = [sys.executable, "-m", "rankmend.cli", "fabric", "test", "pairs", "--nnodes", "2", "--seconds", "20",
             "--rdzv-endpoint", f"127.0.0.1:{port}", "--token-file", str(token)]  # fmt: skip
    nodes = [
        subprocess.Popen(
            [*words, "--node-rank", str(rank), "--state-dir", str(tmp_path / "s")],
            env={"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": f"n{rank}", "HOME": str(tmp_path)},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in (1, 0)
    ]  # fmt: skip
    try:
        eventually(lambda: _has_test_traffic(nodes[0].pid, port), "the load")
        nodes[1].kill()

        _output, errors = nodes[0].communicate(timeout=DEADLINE_S)
        assert nodes[0].returncode != 0
        assert "coordinator" in errors
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def _has_test_traffic(pid: int, coordinator_port: int) -> bool:
    """Return whether a peer has a connection that isn't its way to the coordinator."""
    told = subprocess.run(["ss", "-tnpH"], capture_output=True, text=True, check=True).stdout
    return any(
        f"pid={pid}," in line and f":{coordinator_port} " not in line and line.startswith("ESTAB")
        for line in told.splitlines()
    )


def test_peer_that_finds_no_coordinator_names_it_and_its_address() -> None:
    port = free_port()
    place = FabricPlace(1, 2, host="127.0.0.1", port=port, secret=SECRET)
    options = FabricOptions(FabricKind.PAIRS, rails=("lo",), join_s=0.1)

    with pytest.raises(LaunchError, match=f"the coordinator does not answer: 127.0.0.1:{port}"):
        run_fabric_test(place, "n1", options)
