"""Reading /dev/kmsg: each record once, over restarts, with every loss counted."""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.collectors.kernel_log import KernelLogCollector
from agent.sources.kmsg import KmsgDevice, KmsgReader, SavedKernelLog, load_saved, save
from detectors.finding import Severity
from detectors.kernel.event import EventKind, KernelEvent
from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.log import Record
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import ROOT, FakeClock, running_agent, values_of
from tests.support.collectors import KMSG, POLICY, FakeDevice, collector
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

PR_SET_NAME = 15  # prctl(2)


def xid_record(seq: int, code: int = 79, priority: int = 3) -> bytes:
    return f"{priority},{seq},{seq * 1000},-;NVRM: Xid (PCI:0000:3b:00): {code}, x\n".encode()


def values(one: KernelLogCollector) -> dict[str, float]:
    return values_of(list(one.collect()))


# --- the reader


def test_reader_starts_at_the_oldest_record_and_stops_where_there_is_none() -> None:
    reader = KmsgReader(FakeDevice(*(xid_record(seq) for seq in range(5))))

    first, second, third = (reader.read_batch(3) for _ in range(3))

    assert [record.seq for record in first + second + third] == [0, 1, 2, 3, 4]
    assert (third, reader.newest, reader.lost) == ([], 4, 0)


def test_overwritten_records_are_counted_by_the_gap_in_the_numbers() -> None:
    device = FakeDevice(*(xid_record(seq) for seq in range(10)))
    reader = KmsgReader(device)
    reader.read_batch(2)

    device.overwrite(5)
    records = reader.read_batch(100)

    assert [record.seq for record in records] == [7, 8, 9]
    assert reader.lost == 5


def test_what_was_overwritten_before_the_agent_first_started_is_lost_too() -> None:
    reader = KmsgReader(FakeDevice(xid_record(40)))

    reader.read_batch(10)

    assert reader.lost == 40


def test_records_in_no_known_form_are_counted_and_stop_nothing() -> None:
    reader = KmsgReader(FakeDevice(b"what is this\n", b"\xff\xfe", xid_record(0)))

    records = reader.read_batch(10)

    assert (len(records), reader.broken) == (1, 2)


def test_a_log_that_runs_away_ends_the_batch() -> None:
    class RunningAway(FakeDevice):
        def read(self) -> bytes | None:
            raise BrokenPipeError

    assert KmsgReader(RunningAway()).read_batch(1_000_000) == []


def test_missing_log_is_absent_and_one_that_can_not_be_opened_is_broken(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError, match="no kernel log at"):
        KmsgDevice(tmp_path / "none")
    with pytest.raises(SourceError, match="cannot open"):
        KmsgDevice(tmp_path / ("x" * 300))


def test_forbidden_log_names_the_capability_that_is_missing() -> None:
    restrict = Path("/proc/sys/kernel/dmesg_restrict")
    if os.geteuid() != 0 or not KMSG.exists() or restrict.read_text().strip() != "1":
        pytest.skip("needs root and kernel.dmesg_restrict = 1")
    script = (
        "import os, pathlib\n"
        "from agent.sources.kmsg import KmsgDevice\n"
        "os.setuid(65534)\n"
        f"KmsgDevice(pathlib.Path('{KMSG}'))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert "SourceError: cannot open /dev/kmsg: it needs CAP_SYSLOG" in done.stderr


# --- what outlives a restart


def test_saved_state_comes_back_in_the_same_boot_only(tmp_path: Path) -> None:
    path = tmp_path / "kernel-log.json"
    state = KernelLogState()
    state.feed(Record("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=é, x", at_s=1.5, seq=3))
    saved = SavedKernelLog("boot-1", newest=3, lost=2, broken=1, state=state.snapshot())

    save(path, saved)

    assert load_saved(path, "boot-1") == saved
    assert load_saved(path, "boot-2") is None
    assert [one.name for one in tmp_path.iterdir()] == ["kernel-log.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"boot_id": 3}', b"\xff", b"x" * 5_000_000])
def test_saved_state_that_is_damaged_is_ignored(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "kernel-log.json"
    path.write_bytes(data)

    assert load_saved(path, "boot-1") is None


def test_saved_state_of_another_version_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "kernel-log.json"
    save(path, replace(SavedKernelLog("boot-1", 3, 0, 0), version=99))

    assert load_saved(path, "boot-1") is None


@pytest.mark.component("kernel log")
def test_restarted_agent_neither_loses_nor_counts_again(tmp_path: Path) -> None:
    path = tmp_path / "kernel-log.json"
    first = collector(FakeDevice(*(xid_record(seq) for seq in range(3))), path)
    before = values(first)
    first.stop()

    # the kernel still holds the old records, and two came while no agent ran
    second = collector(FakeDevice(*(xid_record(seq) for seq in range(5))), path)
    after = values(second)
    second.stop()

    assert before["gpu_xid_total{0000:3b:00.0,79}"] == 3
    assert after["gpu_xid_total{0000:3b:00.0,79}"] == 5
    assert after["kernel_log_records_total"] == 5
    assert after["kernel_log_lost_total"] == 0


def test_records_overwritten_while_no_agent_ran_are_counted_as_lost(tmp_path: Path) -> None:
    path = tmp_path / "kernel-log.json"
    first = collector(FakeDevice(xid_record(0)), path)
    values(first)
    first.stop()

    second = collector(FakeDevice(xid_record(11)), path)
    after = values(second)
    second.stop()

    assert (after["kernel_log_lost_total"], after["kernel_log_records_total"]) == (10, 2)


def test_agent_killed_before_it_saved_counts_the_same(tmp_path: Path) -> None:
    path = tmp_path / "kernel-log.json"
    killed = collector(FakeDevice(*(xid_record(seq) for seq in range(3))), path)
    assert values(killed)["kernel_log_records_total"] == 3
    # never stopped, so never saved

    again = collector(FakeDevice(*(xid_record(seq) for seq in range(4))), path)
    after = values(again)
    again.stop()
    killed.stop()

    assert after["gpu_xid_total{0000:3b:00.0,79}"] == 4


def test_new_boot_begins_at_zero(tmp_path: Path) -> None:
    path = tmp_path / "kernel-log.json"
    first = collector(FakeDevice(*(xid_record(seq) for seq in range(3))), path, "boot-1")
    values(first)
    first.stop()

    second = collector(FakeDevice(xid_record(0)), path, "boot-2")
    after = values(second)
    second.stop()

    assert after["gpu_xid_total{0000:3b:00.0,79}"] == 1
    assert after["kernel_log_lost_total"] == 0


def test_silent_log_is_not_saved_again(tmp_path: Path) -> None:
    path = tmp_path / "kernel-log.json"
    first = collector(FakeDevice(xid_record(0)), path)
    values(first)
    first.stop()
    written = path.stat().st_ino

    silent = collector(FakeDevice(xid_record(0)), path)
    values(silent)
    silent.stop()

    assert path.stat().st_ino == written


def test_disk_that_takes_nothing_is_logged_once_and_when_it_takes_all_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "kernel-log.json"
    path.mkdir()  # can't be replaced, not by root either
    one = collector(FakeDevice(xid_record(0)), path)
    values(one)

    for _ in range(3):
        one.stop()  # each saves
    path.rmdir()
    one.stop()

    assert caplog.text.count("kernel log state not saved") == 1
    assert caplog.text.count("kernel log state is saved again") == 1
    assert path.is_file()


# --- the collector


def test_collector_counts_by_kind_code_and_device_and_shows_zeros() -> None:
    link = b"6,2,5,-;mlx5_core 0000:3b:00.0 eth1: Link down\n"
    sxid = b"3,3,6,-;nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 x\n"
    one = collector(FakeDevice(xid_record(0), xid_record(1, 45), link, sxid))

    found = values(one)
    one.stop()

    assert found["gpu_xid_total{0000:3b:00.0,79}"] == 1
    assert found["gpu_xid_total{0000:3b:00.0,45}"] == 1
    assert found["nvswitch_sxid_total{0000:06:00.0,20034}"] == 1
    assert found["kernel_log_device_messages_total{link_down,eth1}"] == 1
    assert found["kernel_log_messages_total{xid}"] == 2
    assert found["kernel_log_messages_total{panic}"] == 0
    assert sum(name.startswith("kernel_log_messages_total") for name in found) == len(EventKind)


def test_messages_that_the_kernel_left_out_by_its_own_limit_are_counted(tmp_path: Path) -> None:
    limit = b"6,0,5,-;net_ratelimit: 23 callbacks suppressed\n"
    first = collector(FakeDevice(limit), tmp_path / "kernel-log.json")
    before = values(first)
    first.stop()

    again = collector(FakeDevice(limit, b"6,1,6,-;fine\n"), tmp_path / "kernel-log.json")
    after = values(again)
    again.stop()

    assert before["kernel_log_suppressed_total"] == after["kernel_log_suppressed_total"] == 23


def test_message_that_comes_later_is_heard_without_a_collect() -> None:
    heard: list[KernelEvent] = []
    device = FakeDevice(xid_record(0))
    one = collector(device, on_events=heard.extend)
    values(one)

    device.put(xid_record(1, 95))
    eventually(lambda: len(heard) == 2, "the second event")
    after = values(one)
    (worst, _other) = one.findings()
    one.stop()

    assert after["gpu_xid_total{0000:3b:00.0,95}"] == 1
    assert worst.severity is Severity.CRITICAL


def test_log_that_has_not_grown_is_neither_counted_nor_judged_anew() -> None:
    device = FakeDevice(xid_record(0))
    one = collector(device)
    first, judged = list(one.collect()), one.findings()

    again, judged_again = list(one.collect()), one.findings()
    device.put(xid_record(1, 95))
    eventually(lambda: len(one.findings()) == 2, "the second event")
    grown = values(one)
    one.stop()

    assert all(new is old for new, old in zip(again, first, strict=True))
    assert judged_again is judged
    assert grown["gpu_xid_total{0000:3b:00.0,95}"] == 1


def test_userspace_lines_are_untrusted_unless_a_test_says_otherwise() -> None:
    for trusts_user, xids, untrusted in ((False, None, 1), (True, 1, 0)):
        one = collector(FakeDevice(xid_record(0, priority=11)), trusts_user=trusts_user)
        found = values(one)
        one.stop()

        assert found.get("gpu_xid_total{0000:3b:00.0,79}") == xids
        assert found["kernel_log_untrusted_total"] == untrusted


def test_log_that_breaks_is_reported_and_taken_up_again_without_counting_twice() -> None:
    broken = FakeDevice(xid_record(0))
    devices = [broken, FakeDevice(xid_record(0), xid_record(1))]
    one = KernelLogCollector(
        FakeClock(), POLICY, KMSG, open_device=lambda _path: devices.pop(0), boot_id="b"
    )
    values(one)

    broken.fail(SourceError("cannot read /dev/kmsg"))
    eventually(lambda: broken.is_closed, "the thread gives up")
    with pytest.raises(SourceError, match="reading the kernel log failed"):
        values(one)
    after = values(one)
    one.stop()

    assert after["gpu_xid_total{0000:3b:00.0,79}"] == 2


def test_collector_without_a_path_is_absent() -> None:
    one = KernelLogCollector(FakeClock(), POLICY, None)

    with pytest.raises(NoSourceError, match="no kernel log is configured"):
        values(one)
    one.stop()


def test_state_folder_that_can_not_be_written_loses_nothing(tmp_path: Path) -> None:
    one = collector(FakeDevice(xid_record(0)), tmp_path / "none" / "kernel-log.json")

    found = values(one)
    one.stop()

    assert found["gpu_xid_total{0000:3b:00.0,79}"] == 1


def test_collector_that_waits_for_a_quiet_log_stops_at_once(tmp_path: Path) -> None:
    quiet = tmp_path / "kmsg"
    os.mkfifo(quiet)
    one = KernelLogCollector(FakeClock(), POLICY, quiet, boot_id="boot-1")
    one.collect()
    (thread,) = (one for one in threading.enumerate() if one.name == "kernel-log")

    one.stop()

    assert not thread.is_alive()  # without the wake-up it waits longer than `stop` does


# --- the real kernel


@contextmanager
def real_kmsg() -> Iterator[KmsgDevice]:
    if not os.access(KMSG, os.R_OK | os.W_OK):
        pytest.skip(f"{KMSG} can't be read and written here")
    device = KmsgDevice(KMSG)
    try:
        yield device
    finally:
        device.close()


def write_kmsg(text: str) -> None:
    """Write one record. Each opening has its own rate limit, so a few are never dropped."""
    fd = os.open(KMSG, os.O_WRONLY)
    try:
        os.write(fd, f"{text}\n".encode())  # without the newline no reader sees it
    finally:
        os.close(fd)


def find_record(reader: KmsgReader, token: str) -> Record:
    found: list[Record] = []

    def look() -> bool:
        found.extend(record for record in reader.read_batch(10_000) if token in record.text)
        return bool(found)

    eventually(look, f"a record with {token}")
    return found[0]


def test_xid_that_a_process_writes_comes_back_as_not_the_kernels() -> None:
    token = uuid.uuid4().hex[:12]
    with real_kmsg() as device:
        reader = KmsgReader(device)
        reader.read_batch(1_000_000)

        write_kmsg(f"<3>NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name={token}, lost")
        record = find_record(reader, token)

    assert (record.facility, record.level, record.is_from_user) == (1, 3, True)
    assert reader.broken == 0


def test_segmentation_fault_is_told_by_the_kernel_itself() -> None:
    switch = Path("/proc/sys/debug/exception-trace")
    if not switch.exists() or switch.read_text().strip() != "1":
        pytest.skip("this kernel does not print segmentation faults")
    name = f"t{uuid.uuid4().hex[:12]}"
    crash = (
        "import ctypes, faulthandler\n"
        f"ctypes.CDLL(None).prctl({PR_SET_NAME}, b'{name}', 0, 0, 0)\n"
        "ctypes.string_at(8)\n"
    )
    heard: list[KernelEvent] = []
    with real_kmsg():
        one = KernelLogCollector(FakeClock(), POLICY, KMSG, on_events=heard.extend)
        list(one.collect())

        done = subprocess.run(
            [sys.executable, "-c", crash],
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=DEADLINE_S,
        )
        eventually(lambda: any(event.process == name for event in heard), f"the crash of {name}")
        one.stop()

    assert done.returncode == -11
    (event,) = [event for event in heard if event.process == name]
    assert (event.kind, event.facility) == (EventKind.SEGFAULT, 0)
    assert event.sub_code.startswith(("lib", "python", "ld-", "_ctypes"))


def test_oom_kill_in_a_cgroup_is_told_with_process_and_cgroup() -> None:
    root = Path("/sys/fs/cgroup/memory")
    if not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip("no writable memory cgroup (v1) here")
    group = root / f"rankmend-test-{uuid.uuid4().hex[:8]}"
    eat = (
        "import pathlib, os, sys\n"
        f"pathlib.Path('{group}/cgroup.procs').write_text(str(os.getpid()))\n"
        "kept = bytearray(200_000_000)\n"
    )
    heard: list[KernelEvent] = []
    with real_kmsg():
        group.mkdir()
        try:
            (group / "memory.limit_in_bytes").write_text("20000000")
            one = KernelLogCollector(FakeClock(), POLICY, KMSG, on_events=heard.extend)
            list(one.collect())

            eater = subprocess.Popen([sys.executable, "-c", eat], stderr=subprocess.DEVNULL)
            eater.wait(timeout=DEADLINE_S)
            eventually(lambda: any(e.pid == eater.pid for e in heard), "the word of the kill")
            one.stop()
        finally:
            group.rmdir()

    (event,) = [event for event in heard if event.pid == eater.pid]
    assert eater.returncode == -9
    assert (event.kind, event.sub_code) == (EventKind.OOM_KILL, "cgroup")
    assert event.cgroup == f"/{group.name}"
    assert event.process.startswith("python")


def test_agent_serves_an_xid_from_the_real_log_with_the_test_switch(tmp_path: Path) -> None:
    with real_kmsg():
        pass
    # an address that no other test uses, told apart by its numbers
    bus, device = uuid.uuid4().hex[:2], f"{int(uuid.uuid4().hex[:1], 16):02x}"
    config = tmp_path / "agent.toml"
    config.write_text(f'kmsg_trusts_user = true\nstate_dir = "{tmp_path}"\n')
    series = f'rankmend_gpu_xid_total{{pci_bus_id="beef:{bus}:{device}.0",xid="95"}} '
    arguments = ("--config", str(config), "--socket", str(tmp_path / "agent.sock"))

    def xids(agent: object, port: int) -> float:
        _status, page = agent.get(port, "/metrics")  # type: ignore[attr-defined]
        return sum(float(line.split()[-1]) for line in page.splitlines() if series in line)

    with running_agent(*arguments) as (agent, port):
        eventually(
            lambda: 'kernel_log_messages_total{kind="xid"}' in agent.get(port, "/metrics")[1],
            "a page",
        )
        before = xids(agent, port)
        write_kmsg(f"<3>NVRM: Xid (PCI:beef:{bus}:{device}): 95, pid=7, name=x, Uncontained")
        eventually(lambda: xids(agent, port) == before + 1, "the XID on the page")
        assert agent.stop() == 0
    with running_agent(*arguments) as (agent, port):
        after = eventually(lambda: xids(agent, port), "the XID after a restart")
        assert after == before + 1
        agent.stop()


def test_xid_is_a_finding_as_it_is_printed_and_not_at_the_next_sweep(tmp_path: Path) -> None:
    with real_kmsg():
        pass
    bus, device = uuid.uuid4().hex[:2], f"{int(uuid.uuid4().hex[:1], 16):02x}"
    config = tmp_path / "agent.toml"
    # the sweep after the first comes in an hour
    config.write_text("kmsg_trusts_user = true\n[intervals_s]\nfindings = 3600\n")
    arguments = ("--config", str(config), "--socket", str(tmp_path / "agent.sock"))

    with running_agent(*arguments) as (agent, port):
        eventually(
            lambda: 'kernel_log_messages_total{kind="xid"}' in agent.get(port, "/metrics")[1],
            "a page",
        )
        eventually(
            lambda: json.loads(agent.get(port, "/api/v1/findings")[1])["looks"] > 0, "a sweep"
        )
        write_kmsg(f"<3>NVRM: Xid (PCI:beef:{bus}:{device}): 95, pid=7, name=x, Uncontained")
        eventually(
            lambda: f"beef:{bus}:{device}" in agent.get(port, "/api/v1/findings")[1],
            "the finding",
        )
        assert agent.stop() == 0
