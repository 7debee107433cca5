"""Flows over RDMA on loopback, by the stand-in for ib_write_bw: what they measure, and how a program that fails or hangs ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from rankmend.errors import LaunchError, NoSourceError, SourceError
from recovery.lab.fabric.fabric_messages import FlowFault, FlowOrder, FlowResult, TransportWish
from recovery.lab.fabric.rails import LocalRail, with_rdma
from recovery.lab.fabric.rdma_ports import Perftest, RailPort, failure_of, find_perftest
from recovery.lab.fabric.rdma_probe import RdmaProbe, RdmaRail
from recovery.lab.fabric.tcp_probe import ProbeListener, Prober
from recovery.lab.fabric.tied_programs import OUTPUT_BYTES_MAX, ProgramEnd, TiedPrograms
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.mounts import hanging_mount
from tests.support.ib_write_bw import FIXTURES, Fault, make_perftest
from tests.support.rdma_tree import make_roce_tree

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[4]
HERE = "127.0.0.1"
RAIL = RdmaRail(RailPort("mlx5_0", 1, True, "lo", 1), HERE)
TOKEN = "ab" * 16


@pytest.fixture
def perftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Perftest]:
    make_roce_tree(tmp_path / "sys", {"mlx5_0": "lo"})
    monkeypatch.setenv("STANDIN_SYSFS", str(tmp_path / "sys"))
    monkeypatch.setenv("PATH", f"{make_perftest(tmp_path / 'bin')}:/usr/bin:/bin")
    yield find_perftest()
    eventually(lambda: programs_below(tmp_path) == [], "the end of all programs")


@dataclass
class Ends:
    """Both ends of a flow, as two nodes in this process."""

    low: Prober
    high: Prober
    address: str = HERE

    def run(
        self, low: RdmaProbe, high: RdmaProbe, *, both_ways: bool = True
    ) -> tuple[FlowResult, FlowResult]:
        found: dict[str, FlowResult] = {}

        def take_part(name: str, own: Prober, other: Prober, probe: RdmaProbe) -> None:
            connects = name == "low"
            order = FlowOrder(7, TOKEN, connects, 0, self.address, other.rails[0][1].port, 0,
                              sends=connects or both_ways, receives=not connects or both_ways)  # fmt: skip
            (found[name],) = own.run((order,), 0.5, probe.exchange)

        threads = [
            threading.Thread(target=take_part, args=arguments)
            for arguments in (
                ("low", self.low, self.high, low),
                ("high", self.high, self.low, high),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        return found["low"], found["high"]


@pytest.fixture(params=[HERE])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    at = request.param
    made = Ends(Prober([(at, ProbeListener(at))]), Prober([(at, ProbeListener(at))]), at)
    yield made
    made.low.close()
    made.high.close()


def probe(perftest: Perftest, end: Prober, setup_s: float = 60.0) -> RdmaProbe:
    rail = RdmaRail(RAIL.port, end.rails[0][0])
    return RdmaProbe(perftest, [rail], end.programs, setup_s)


def with_fault(fault: Fault, folder: Path, perftest: Perftest) -> Perftest:
    """Return a program in which something goes wrong, beside a sound one."""
    folder.mkdir()
    script = folder / "ib_write_bw"
    script.write_text(f"#!/bin/sh\nSTANDIN_FAULT='{fault.value}' exec {perftest.path} \"$@\"\n")
    script.chmod(0o755)
    return replace(perftest, path=str(script))


def programs_below(folder: Path) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]  # fmt: skip


@pytest.mark.parametrize("ends", [HERE, "::1"], indirect=True)
def test_both_directions_are_measured_and_both_ends_say_the_same(
    perftest: Perftest, ends: Ends
) -> None:
    low, high = ends.run(probe(perftest, ends.low), probe(perftest, ends.high))

    assert (low.fault, high.fault, low.text, high.text) == (None, None, "", "")
    assert low.sent_bytes_per_s == high.received_bytes_per_s
    assert high.sent_bytes_per_s == low.received_bytes_per_s
    assert min(low.sent_bytes_per_s or 0, high.sent_bytes_per_s or 0) > 0
    assert low.latency_s is low.resent_ratio is None


def test_one_way_flow_starts_one_program_at_each_end(perftest: Perftest, ends: Ends) -> None:
    low, high = ends.run(probe(perftest, ends.low), probe(perftest, ends.high), both_ways=False)

    assert low.sent_bytes_per_s == high.received_bytes_per_s is not None
    assert low.received_bytes_per_s is high.sent_bytes_per_s is None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.MEMLOCK, "ended with 1: Couldn't allocate MR; failed to create mr; Couldn't create IB"),
        (Fault.RETRY, "Completion with error at client; Failed status 12: wr_id 0 syndrom 0x81; scnt"),
        (Fault.NOT_A_NUMBER, "ib_write_bw reported no bandwidth"),
    ],
)  # fmt: skip
def test_program_that_fails_gives_no_rate_and_its_own_words(
    perftest: Perftest, ends: Ends, tmp_path: Path, fault: Fault, words: str
) -> None:
    bad = with_fault(fault, tmp_path / "bad", perftest)

    low, high = ends.run(probe(bad, ends.low), probe(perftest, ends.high))

    assert low.fault is FlowFault.PROGRAM
    assert words in low.text
    assert low.sent_bytes_per_s is None
    if fault is Fault.RETRY:  # at the sending end only: the other direction is sound
        assert high.sent_bytes_per_s == low.received_bytes_per_s is not None


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.HANG_AT_START, Fault.FLOOD])
def test_program_that_hangs_is_killed_with_its_children(
    perftest: Perftest, ends: Ends, tmp_path: Path, fault: Fault
) -> None:
    bad = with_fault(fault, tmp_path / "bad", perftest)

    setup_s = 60.0 if fault is Fault.FLOOD else 1.0  # it ends by itself, once it has begun
    low, _high = ends.run(probe(bad, ends.low, setup_s), probe(perftest, ends.high, setup_s), both_ways=False)  # fmt: skip

    assert low.fault is FlowFault.PROGRAM
    if fault is Fault.FLOOD:  # the kernel takes no more of its output
        assert "ib_write_bw ended with" in low.text
    else:
        assert "ib_write_bw did not end within 2 s and was killed" in low.text
    assert programs_below(tmp_path) == []


def test_end_of_the_test_kills_the_programs_of_both_ends(
    perftest: Perftest, ends: Ends, tmp_path: Path
) -> None:
    bad = with_fault(Fault.HANG, tmp_path / "bad", perftest)
    found: list[FlowResult] = []
    test = threading.Thread(
        target=lambda: found.extend(ends.run(probe(bad, ends.low), probe(bad, ends.high)))
    )
    test.start()
    eventually(lambda: len(programs_below(tmp_path)) >= 4, "programs and their children")

    ends.low.close()
    test.join(DEADLINE_S)

    assert [one.sent_bytes_per_s for one in found] == [None, None]
    eventually(lambda: programs_below(tmp_path) == [], "the end of the programs and their children")
    with pytest.raises(Exception, match="the test was stopped"), ends.low.programs.run([perftest.path], "mlx5_0"):  # fmt: skip
        pass


@pytest.mark.parametrize("moment", ["starts", "runs"])
def test_program_dies_with_a_node_that_is_killed(
    perftest: Perftest, tmp_path: Path, moment: str
) -> None:
    bad = with_fault(Fault.HANG_AT_START, tmp_path / "bad", perftest)
    words = [bad.path, "-d", "mlx5_0", "-i", "1", "-p", "18600", "-D", "1"]
    code = (
        "import sys, time; from recovery.lab.fabric.tied_programs import TiedPrograms\n"
        f"with TiedPrograms().run({words!r}, 'mlx5_0') as program:\n"
        "    print(program.pid, flush=True); program.wait(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as node:
        assert node.stdout is not None
        node.stdout.readline()
        if moment == "runs":  # it and its own child, and what ties them
            eventually(lambda: len(programs_below(tmp_path)) == 4, "the program and its child")
        os.kill(node.pid, signal.SIGKILL)
    eventually(lambda: programs_below(tmp_path) == [], "the end of the program and of its child")


def test_device_of_a_killed_program_that_the_kernel_holds_is_not_used_until_it_is_gone(
    tmp_path: Path,
) -> None:
    programs, words = TiedPrograms(), ["/usr/bin/stat", "-f", str(tmp_path / "fuse" / "point")]
    with hanging_mount(tmp_path / "fuse") as mounted:
        mounted.stop_answering()
        with programs.run(words, "mlx5_0") as program:
            eventually(mounted.is_waited_for, "the program to hang")
            end = program.wait(limit_s=0.5)
        with pytest.raises(LaunchError, match="a killed stat still holds mlx5_0"), programs.run(words, "mlx5_0"):  # fmt: skip
            pass
        with programs.run(["/usr/bin/true"], "mlx5_1") as other:
            assert other.wait(DEADLINE_S).code == 0
        mounted.answer_again()
        eventually(program.is_gone, "the program's end")
        with programs.run(words, "mlx5_0") as again:
            assert again.wait(DEADLINE_S).code == 0
    assert end.code is None


def test_output_is_bounded_by_the_kernel(tmp_path: Path) -> None:
    programs = TiedPrograms()
    with programs.run(["/usr/bin/yes"], "mlx5_0") as program:
        end = program.wait(DEADLINE_S)

    assert end.code == -signal.SIGXFSZ
    assert len(end.output) == OUTPUT_BYTES_MAX


def test_only_a_new_program_is_asked_to_listen_on_one_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roce = RailPort("mlx5_2", 2, True, "ens1", 3)
    infiniband = RailPort("mlx5_0", 1, False)
    common = ["-p", "18600", "-D", "1", "-F"]

    monkeypatch.setenv("PATH", f"{make_perftest(tmp_path / 'new')}:/usr/bin:/bin")
    new = find_perftest()
    monkeypatch.setenv("PATH", f"{make_perftest(tmp_path / 'old', is_new=False)}:/usr/bin:/bin")
    old = find_perftest()

    assert old.words(roce, "10.0.0.1", 18600, 1, "10.0.0.2")[1:] == ["-d", "mlx5_2", "-i", "2", *common, "-x", "3", "10.0.0.2"]  # fmt: skip
    assert new.words(infiniband, "10.0.0.1", 18600, 1, None)[1:] == ["-d", "mlx5_0", "-i", "1", *common, "--bind_source_ip", "10.0.0.1"]  # fmt: skip


def test_both_ends_are_told_to_meet_over_ipv6_where_the_rail_has_no_ipv4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{make_perftest(tmp_path / 'new')}:/usr/bin:/bin")
    new = find_perftest()
    monkeypatch.setenv("PATH", f"{make_perftest(tmp_path / 'old', is_new=False)}:/usr/bin:/bin")
    make_roce_tree(tmp_path / "sys", {"mlx5_0": "ens1"})
    (rail,) = with_rdma([LocalRail("ens1", "fd00::1")], TransportWish.AUTO, tmp_path / "sys").rails

    def words(gid_index: int | None, server: str | None, *, is_ethernet: bool = True) -> list[str]:
        port = RailPort("mlx5_0", 1, is_ethernet, "ens1", gid_index)
        return new.words(port, "fd00::1", 18600, 1, server)[10:]

    assert words(3, None) == ["-x", "3", "--ipv6-addr", "--bind_source_ip", "fd00::1"]
    assert words(None, "fd00::2") == ["--ipv6-addr", "--ipv6", "--bind_source_ip", "fd00::1", "fd00::2"]  # fmt: skip
    assert words(None, None, is_ethernet=False) == ["--ipv6-addr", "--bind_source_ip", "fd00::1"]
    assert rail.rdma is None
    assert rail.rdma_problem == "ib_write_bw can't meet at fd00::1: it knows IPv6 from perftest 23.07 on"  # fmt: skip


def test_missing_and_foreign_programs_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSourceError, match="ib_write_bw is not installed"):
        find_perftest()
    other = tmp_path / "ib_write_bw"
    other.write_text("#!/bin/sh\necho ib_write_bw: error while loading shared libraries: libibverbs.so.1 >&2\nexit 127\n")  # fmt: skip
    other.chmod(0o755)
    with pytest.raises(SourceError, match=r"is not perftest's ib_write_bw: .*libibverbs.so.1"):
        find_perftest()


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ("no-device.txt", "Did not detect devices; If device exists, check if driver is up; Unable to find"),
        ("unknown-option.txt", "unrecognized option '--bind_source_ip'; Invalid Command or flag."),
    ],
)  # fmt: skip
def test_what_the_real_program_says_is_told_in_one_line(recorded: str, words: str) -> None:
    text = (FIXTURES / recorded).read_text(encoding="utf-8")

    told = failure_of(ProgramEnd(1, "", text), 21.0)

    assert f"ib_write_bw ended with 1: {words}" in told.replace("ib_write_bw: unrecognized", "unrecognized")  # fmt: skip
    assert "\n" not in told
