"""The test hosts themselves: what is separate, what is shared, that each fault is in effect and is undone."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankmend.clock import read_boot_id
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.faults.clock import WHY_NOT as WHY_NOT_CLOCK
from tests.support.faults.clock import FakeClock
from tests.support.faults.process import kill, stop
from tests.support.faults.storage import fill
from tests.support.hosts import (
    Fleet,
    Host,
    HostError,
    why_not,
)
from tests.support.hosts.network import Address

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]

ROOT = Path(__file__).resolve().parents[2]
PORT = 7007
SILENT_S = 1.0  # a host that is reached answers within about 1 ms
ECHO = f"""
import socket, threading
def answer(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
def answer_datagrams():
    while True:
        datagrams.sendto(*datagrams.recvfrom(65536))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", {PORT}))
threading.Thread(target=answer_datagrams, daemon=True).start()
listener = socket.create_server(("", {PORT}), backlog=64)
print("listening", flush=True)
while True:
    threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()
"""


def start_echo(host: Host) -> None:
    process = host.popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"listening\n"


def is_answered(host: Host, address: Address) -> bool:
    with host.network(), contextlib.suppress(OSError):
        with socket.socket() as connection:
            connection.settimeout(SILENT_S)
            connection.connect((address.ip, PORT))
            connection.sendall(b"there?")
            return connection.recv(64) == b"there?"
    return False


def reaches(host: Host, other: Host, plane: int = 0) -> bool:
    return is_answered(host, other.addresses[plane])


def wait_until_reached(host: Host, other: Host, plane: int = 0) -> None:
    eventually(lambda: reaches(host, other, plane), f"{host} reaches {other}")


def count_answers(host: Host, other: Host, sent: int) -> int:
    """Send so many datagrams and return how many of them come back."""
    with host.network():
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with datagrams:
        datagrams.settimeout(2 * SILENT_S)
        for number in range(sent):
            datagrams.sendto(b"%d" % number, (other.address, PORT))
        answers: set[bytes] = set()
        with contextlib.suppress(TimeoutError):
            while len(answers) < sent:
                answers.add(datagrams.recv(64))
        return len(answers)


def send_through(host: Host, other: Host, size_bytes: int) -> float:
    """Have bytes go there and back again; return how long that took in seconds."""
    with host.network():
        connection = socket.create_connection((other.address, PORT), timeout=DEADLINE_S)
    with connection:
        begun_s = time.monotonic()
        sender = threading.Thread(target=connection.sendall, args=(bytes(size_bytes),))
        sender.start()
        left = size_bytes
        while left:
            left -= len(connection.recv(65536))
        sender.join(DEADLINE_S)
        return time.monotonic() - begun_s


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four hosts on two planes, below two leaf switches, each with an echo server."""
    folder = tmp_path_factory.mktemp("hosts")
    with Fleet(4, folder, planes=("data", "storage"), hosts_per_leaf=2, cgroups=True) as made:
        for host in made:
            start_echo(host)
        yield made


@pytest.fixture(autouse=True)
def _all_well(request: pytest.FixtureRequest) -> Iterator[None]:
    """Require that a test leaves the shared fleet as it found it: everything reaches everything."""
    yield
    if "fleet" in request.fixturenames:
        shared: Fleet = request.getfixturevalue("fleet")
        for host in shared:
            for plane in range(2):
                wait_until_reached(shared["h1"], host, plane)
                wait_until_reached(host, shared["h1"], plane)


# ------------------------------------------------------------------------ what a host is


def test_host_has_its_own_name_processes_boot_id_and_clock(fleet: Fleet) -> None:
    h1, h2 = fleet["h1"], fleet["h2"]
    look = "import os,socket,time;from rankmend.clock import read_boot_id as b;print(socket.gethostname(),b(),int(time.monotonic()) // 1000)"

    seen = [host.run([sys.executable, "-c", look], cwd=ROOT).stdout.split() for host in (h1, h2)]

    assert [name for name, _boot, _clock in seen] == ["h1", "h2"]
    assert [boot for _name, boot, _clock in seen] == [h1.boot_id, h2.boot_id]
    assert len({h1.boot_id, h2.boot_id, read_boot_id()}) == 3
    assert [clock for _name, _boot, clock in seen] == ["1", "2"]
    assert [int(host.now_s()) // 1000 for host in (h1, h2)] == [1, 2]
    pids = h1.run(["ps", "-e", "-o", "pid="]).stdout.split()
    assert "1" in pids
    assert len(pids) < 10


def test_own_folders_are_separate_and_the_shared_one_is_shared(fleet: Fleet) -> None:
    h1, h2 = fleet["h1"], fleet["h2"]

    for folder in ("/dev/shm", "/tmp", "/run", h1.state):
        h1.run(["touch", f"{folder}/mine"])
    h1.run(["touch", fleet.shared / "ours"])

    for folder in ("/dev/shm", "/tmp", "/run", h1.state):
        assert h2.run(["ls", f"{folder}/mine"], check=False).returncode != 0
        assert not Path(folder, "mine").exists() or folder == h1.state
    assert h1.path("/dev/shm/mine").exists()
    assert h2.run(["ls", fleet.shared]).stdout == "ours\n"
    assert (fleet.shared / "ours").exists()


def test_hosts_talk_to_each_other_by_name_on_both_planes(fleet: Fleet) -> None:
    ask = f"import socket,sys;c=socket.create_connection((sys.argv[1],{PORT}),20);c.sendall(b'hi');print(c.recv(9))"

    for name in ("h2", "h4", "h2-storage", "h1", "localhost"):
        assert fleet["h1"].run([sys.executable, "-c", ask, name]).stdout == "b'hi'\n"


def test_process_has_a_true_pid_exit_status_and_signals(fleet: Fleet) -> None:
    host = fleet["h1"]

    failed = host.popen(["sh", "-c", "exit 7"])
    killed = host.popen(["sleep", "600"])

    assert failed.wait(DEADLINE_S) == 7
    # Within execve(2) a process has no command line for a moment.
    eventually(lambda: psutil.Process(killed.pid).cmdline() == ["sleep", "600"], "it is sleep")
    assert host.run(["cat", f"/proc/{killed.inner_pid}/comm"]).stdout == "sleep\n"
    assert [each.pid for each in host.processes("sleep")] == [killed.pid]
    kill(killed, signal.SIGTERM)
    assert killed.wait(DEADLINE_S) == -signal.SIGTERM
    assert host.run(["cat"], text="in and out").stdout == "in and out"
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        host.run(["no-such-program"])
    with pytest.raises(subprocess.TimeoutExpired):
        host.run(["sh", "-c", "sleep 600; true"], timeout_s=0.1)
    eventually(lambda: not host.processes("sleep"), "what ran past its time is gone")


def test_orphans_are_adopted_and_reaped_by_the_host(fleet: Fleet) -> None:
    host = fleet["h1"]

    host.run(["sh", "-c", "sleep 0.05 >/dev/null 2>&1 </dev/null &"])

    eventually(lambda: not host.processes("sleep"), "the orphan ends")
    eventually(
        lambda: "Z" not in host.run(["ps", "-e", "-o", "stat="]).stdout, "the orphan is reaped"
    )


def test_host_processes_are_in_the_cgroups_of_their_host(fleet: Fleet) -> None:
    shown = fleet["h2"].run(["cat", "/proc/self/cgroup"]).stdout

    assert "-h2\n" in shown
    assert "-h1\n" not in shown


@pytest.mark.component("hosts")
def test_rankmend_run_recovers_a_job_within_a_host(fleet: Fleet) -> None:
    host = fleet["h3"]
    command = [sys.executable, "-m", "rankmend.cli", "run", "--standalone", "--nproc-per-node=2"]
    folders = [f"--state-dir={host.state}/state", f"--checkpoint-dir={fleet.shared}/checkpoints"]
    script = ROOT / "tests" / "system" / "faults" / "jobs" / "lockstep.py"
    arguments = [
        f"--checkpoint-dir={fleet.shared}/checkpoints",
        f"--result={fleet.shared}/result.json",
        "--fail-rank=1",
        "--fail-step=25",
    ]
    (fleet.shared / "checkpoints").mkdir()

    host.run([*command, *folders, script, *arguments], timeout_s=DEADLINE_S, cwd=ROOT)

    assert json.loads((fleet.shared / "result.json").read_text())
    job_ids = [path.name for path in (host.state / "state" / "jobs").iterdir()]
    assert len(job_ids) == 1
    assert not list(Path("/dev/shm").glob(f"rankmend-*/{job_ids[0]}"))


# ---------------------------------------------------------------------------------- links


def test_cut_cable_has_no_carrier_until_the_end(fleet: Fleet) -> None:
    h1, h2 = fleet["h1"], fleet["h2"]
    carrier = ["cat", "/sys/class/net/eth0/carrier"]

    with fleet.cut(h2, plane="data") as fault:
        with fleet.cut(h2):  # a second cut: the cable carries only when both have ended
            assert not reaches(h1, h2)
            assert not reaches(h1, h2, plane=1)
        assert not reaches(h1, h2)
        wait_until_reached(h1, h2, plane=1)
        assert h2.run(carrier).stdout == "0\n"
        assert fault.is_standing

    assert not fault.is_standing
    wait_until_reached(h1, h2)
    assert h2.run(carrier).stdout == "1\n"


def test_partition_parts_the_named_hosts_only(fleet: Fleet) -> None:
    h1, h2, h3, h4 = fleet

    with fleet.partition([h1, h3], [h2]):
        assert not reaches(h1, h2)
        assert not reaches(h2, h3)
        assert not reaches(h2, h3, plane=1)
        wait_until_reached(h1, h3)
        wait_until_reached(h2, h4)
        assert h2.run(["cat", "/sys/class/net/eth0/carrier"]).stdout == "1\n"

    wait_until_reached(h1, h2)


def test_one_way_partition_loses_one_direction(fleet: Fleet) -> None:
    h1, h3 = fleet["h1"], fleet["h3"]
    with h3.network():
        heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        heard.bind((h3.address, 7010))
    with h1.network():
        unheard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        unheard.bind((h1.address, 7010))

    with heard, unheard, fleet.partition([h3], [h1], one_way=True):
        heard.settimeout(DEADLINE_S)
        unheard.settimeout(SILENT_S)
        unheard.sendto(b"from h1", (h3.address, 7010))
        heard.sendto(b"from h3", (h1.address, 7010))

        assert heard.recv(64) == b"from h1"
        with pytest.raises(TimeoutError):
            unheard.recv(64)


def test_loss_loses_some_and_all_arrive_again_after_it(fleet: Fleet) -> None:
    h1, h4 = fleet["h1"], fleet["h4"]
    wait_until_reached(h1, h4)  # and so each knows the other's hardware address

    with fleet.lose(h4, ratio=0.3):
        answers = count_answers(h1, h4, sent=200)

    assert 20 < answers < 180  # 0.7 x 0.7 of 200 is 98; these bounds are 11 standard deviations off
    eventually(lambda: count_answers(h1, h4, sent=100) == 100, "all datagrams are answered")


def test_slow_link_carries_no_more_than_its_rate(fleet: Fleet) -> None:
    h1, h2 = fleet["h1"], fleet["h2"]

    with fleet.slow(h2, bytes_per_s=500_000):
        slow_s = send_through(h1, h2, 300_000)
        with pytest.raises(ValueError, match=r"h2\.0 is slow already"):
            fleet.slow(h2, bytes_per_s=1)

    # No machine is fast enough to be quicker: 32 KiB of burst, then 500 kB a second.
    assert slow_s > (300_000 - 32 * 1024) / 500_000
    queues = h2.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout
    assert "tbf" not in queues
    eventually(lambda: send_through(h1, h2, 300_000) < slow_s, "the link is as fast as before")


def test_delayed_link_takes_its_time_and_other_faults_of_it_go_on(fleet: Fleet) -> None:
    h1, h3 = fleet["h1"], fleet["h3"]

    def round_trip_s() -> float:
        return min(send_through(h1, h3, 1) for _try in range(3))

    with fleet.delay(h3, delay_s=0.1, plane="data"):
        wait_until_reached(h1, h3)
        assert round_trip_s() > 0.2  # no machine is fast enough to be quicker
        send_through(h1, h3, 300_000)  # segments larger than a frame arrive whole
        with fleet.partition([h3]):
            assert not reaches(h1, h3)
        with h3.power_off():
            pass
        start_echo(h3)
        wait_until_reached(h1, h3)
        assert round_trip_s() > 0.2

    wait_until_reached(h1, h3)
    eventually(lambda: round_trip_s() < 0.2, "the link is as fast as before")


def test_dead_leaf_switch_takes_the_carrier_of_its_hosts_only(fleet: Fleet) -> None:
    h1, h2, h3, h4 = fleet

    with fleet.switch_down("leaf2"):
        assert not reaches(h1, h3)
        assert not reaches(h3, h4)
        wait_until_reached(h1, h2)
        wait_until_reached(h3, h4, plane=1)
        assert h4.run(["cat", "/sys/class/net/eth0/carrier"]).stdout == "0\n"


def test_unknown_names_and_shares_are_refused(fleet: Fleet) -> None:
    with pytest.raises(ValueError, match="no switch called 'leaf9'"):
        fleet.switch_down("leaf9")
    with pytest.raises(ValueError, match=r"loss is a share of 1, not 20"):
        fleet.lose(fleet["h1"], ratio=20)


# -------------------------------------------------------------------- hosts and processes


def test_host_without_power_is_silent_and_boots_with_a_new_boot_id(fleet: Fleet) -> None:
    h1, h2 = fleet["h1"], fleet["h2"]
    boot_id, pid = h2.boot_id, h2.pid
    sleeper = h2.popen(["sleep", "600"])
    h2.run(["touch", "/dev/shm/memory", h2.state / "disk"])
    with h1.network():
        connection = socket.create_connection((h2.address, PORT), timeout=DEADLINE_S)
    connection.settimeout(SILENT_S)

    with connection, h2.power_off():
        assert not h2.is_up
        assert sleeper.returncode == -signal.SIGKILL
        assert not psutil.pid_exists(pid)
        with pytest.raises(HostError, match="h2 has no power"):
            h2.run(["true"])
        connection.sendall(b"there?")
        with pytest.raises(TimeoutError):  # no farewell: neither FIN nor RST
            connection.recv(64)

    assert h2.boot_id not in (boot_id, read_boot_id())
    assert h2.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip() == h2.boot_id
    assert h2.run(["ls", "/dev/shm"]).stdout == ""
    assert (h2.state / "disk").exists()
    start_echo(h2)


def test_cut_stays_while_the_host_behind_it_boots(fleet: Fleet) -> None:
    h1, h4 = fleet["h1"], fleet["h4"]

    with fleet.cut(h4), fleet.slow(h4, bytes_per_s=10_000_000):
        with h4.power_off():
            pass
        start_echo(h4)
        assert not reaches(h1, h4)
        assert "tbf" in h4.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout

    wait_until_reached(h1, h4)


def test_killed_processes_say_farewell_and_the_host_stays(fleet: Fleet) -> None:
    h1, h3 = fleet["h1"], fleet["h3"]
    boot_id = h3.boot_id
    with h1.network():
        connection = socket.create_connection((h3.address, PORT), timeout=DEADLINE_S)

    with connection:
        h3.kill_processes()
        assert connection.recv(64) == b""

    assert h3.is_up
    assert h3.boot_id == boot_id
    assert h3.processes() == []
    start_echo(h3)


def test_stopped_process_stands_until_the_end(fleet: Fleet) -> None:
    sleeper = fleet["h1"].popen(["sleep", "600"])
    state = psutil.Process(sleeper.pid).status

    with stop(sleeper):
        eventually(lambda: state() == psutil.STATUS_STOPPED, "stopped")
    eventually(lambda: state() == psutil.STATUS_SLEEPING, "resumed")

    sleeper.kill()
    assert sleeper.wait(DEADLINE_S) == -signal.SIGKILL


def test_frozen_host_answers_nobody_until_the_end(fleet: Fleet) -> None:
    h1, h2 = fleet["h1"], fleet["h2"]

    with h2.freeze():
        assert not reaches(h1, h2)
        with pytest.raises(HostError, match="h2 is frozen"):
            h2.run(["true"])

    wait_until_reached(h1, h2)


def test_frozen_host_can_lose_its_power(fleet: Fleet) -> None:
    h4 = fleet["h4"]
    frozen = h4.freeze()

    with h4.power_off():
        pass
    frozen.end()

    assert h4.run(["echo", "well"]).stdout == "well\n"
    start_echo(h4)


# ------------------------------------------------------------------------ disks and clocks


def test_filled_file_system_takes_not_one_byte_until_the_end(fleet: Fleet) -> None:
    host = fleet["h1"]
    disk = host.state / "disk"
    host.add_disk(disk, 16 << 20)
    host.run(["sh", "-c", f"echo kept > {disk}/kept"])

    for folder in ("/dev/shm", disk):
        write = ["cp", "/etc/hosts", f"{folder}/new"]
        with host.fill(folder):
            refused = host.run(write, check=False)
            assert refused.returncode != 0
            assert "No space left" in refused.stderr
        host.run(write)
        with host.make_read_only(Path(folder)):
            refused = host.run(write, check=False)
            assert "Read-only" in refused.stderr
        host.run(write)

    with host.fill(disk), host.power_off():
        pass
    host.run(["cp", "/etc/hosts", disk / "after"])
    assert host.run(["cat", disk / "kept"]).stdout == "kept\n"
    start_echo(host)


def test_disk_of_this_machine_is_never_filled() -> None:
    with pytest.raises(ValueError, match="refused to fill /"):
        fill(Path("/"))


@pytest.mark.skipif(bool(WHY_NOT_CLOCK), reason=WHY_NOT_CLOCK or "-")
def test_wall_clock_jumps_in_a_running_process_and_the_monotonic_does_not(fleet: Fleet) -> None:
    host = fleet["h2"]
    clock = FakeClock(host.state / "clock")
    look = "import sys,time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    process = host.popen(
        [sys.executable, "-c", look],
        env=clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def hours_off() -> tuple[int, int]:
        process.stdin.write("\n")
        process.stdin.flush()
        unix_s, monotonic_s = map(float, process.stdout.readline().split())
        return round((unix_s - time.time()) / 3600), int(monotonic_s // 3600)

    before = hours_off()
    with clock.jump(-7200):
        back = hours_off()
    with clock.jump(5 * 3600):
        forth = hours_off()
    after = hours_off()

    assert [off for off, _monotonic in (before, back, forth, after)] == [0, -2, 5, 0]
    assert len({monotonic for _off, monotonic in (before, back, forth, after)}) == 1
    process.kill()
    process.wait(DEADLINE_S)


# --------------------------------------------------------------------------- what is left

LEAVE = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.support.hosts import Fleet
from tests.support.faults.process import stop
fleet = Fleet(3, Path(sys.argv[1]), cgroups=True, hosts_per_leaf=2).__enter__()
h1, h2, h3 = fleet
h1.add_disk(h1.state / "disk", 16 << 20)
h1.popen(["sleep", "600"])
h2.popen(["sh", "-c", "setsid sleep 600 & sleep 600"])
fleet.partition([h1]); fleet.cut(h2); fleet.slow(h3, bytes_per_s=1e6); fleet.delay(h1, delay_s=0.01)
h3.power_off()
h2.freeze()
stop(int(sys.argv[2]))
print("broken", flush=True)
{{end}}
"""


def traces_of(folder: Path) -> dict[str, set[str]]:
    """Return what there is on this machine of the fleet in a folder: processes and what hangs on them."""
    found: dict[str, set[str]] = {name: set() for name in ("processes", "mounts", "namespaces")}
    for process in psutil.process_iter():
        own = Path(f"/proc/{process.pid}")
        with contextlib.suppress(OSError, psutil.Error):
            if f"{folder}/" in (own / "mountinfo").read_text():
                found["mounts"].add(own.name)
            mine = any(f"{folder}/" in text for text in process.cmdline())
            if mine and "machine.py" in " ".join(process.cmdline()):
                found["processes"].add(own.name)
                found["namespaces"] |= {str(path.readlink()) for path in (own / "ns").iterdir()}
    outside = {str(path.readlink()) for path in Path("/proc/self/ns").iterdir()}
    found["namespaces"] -= outside
    found["disks"] = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # another test's, which has just been detached
            if str(folder) in path.read_text():
                found["disks"].add(path.parent.parent.name)
    return found


def users_of(namespaces: set[str]) -> set[str]:
    users = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            links = {str(path.readlink()) for path in Path(f"/proc/{process.pid}/ns").iterdir()}
            if links & namespaces:
                users.add(str(process.pid))
    return users


def leftover_cgroups(token: str) -> list[Path]:
    return [  # other tests' groups come and go meanwhile
        Path(base, name)
        for base, names, _files in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith(f"{token}-")
    ]


def token_of(folder: Path) -> str:
    """Return the name that the cgroups of the fleet in a folder begin with."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments = " ".join(process.cmdline())
            if f"{folder}/" in arguments and "rankmend-hosts-" in arguments:
                return arguments.partition("rankmend-hosts-")[2][:8]
    raise AssertionError(f"no fleet in {folder}")


@pytest.mark.parametrize(
    "end",
    [
        "fleet.close()",
        "del fleet",
        "raise ValueError('in a test')",
        "sys.stdin.read()",
    ],
    ids=["closed", "not closed", "exception", "killed"],
)
def test_nothing_is_left_of_a_fleet_however_its_process_ends(end: str, tmp_path: Path) -> None:
    script = LEAVE.replace("{end}", end)
    bystander = subprocess.Popen(["sleep", "600"])
    test = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(bystander.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert test.stdout is not None
        assert test.stdout.readline() == b"broken\n"
        if end == "sys.stdin.read()":
            traces, token = traces_of(tmp_path), token_of(tmp_path)
            assert all(traces.values()), traces
            assert leftover_cgroups(f"rankmend-hosts-{token}")
            test.kill()
            namespaces = traces["namespaces"]
            eventually(lambda: not users_of(namespaces), f"{namespaces} are gone")
            cgroups = f"rankmend-hosts-{token}"
            eventually(lambda: not leftover_cgroups(cgroups), "the cgroups are gone")
        test.wait(DEADLINE_S)

        eventually(lambda: not any(traces_of(tmp_path).values()), "nothing of the fleet is left")
        if end != "sys.stdin.read()":
            status = psutil.Process(bystander.pid).status
            eventually(lambda: status() == psutil.STATUS_SLEEPING, "the bystander goes on")
    finally:
        for process in (test, bystander):
            process.kill()
            process.wait(DEADLINE_S)
        test.stdin.close()
        test.stdout.close()


def test_closed_fleet_leaves_no_descriptor_child_or_link(tmp_path: Path) -> None:
    def count() -> tuple[int, int, set[str]]:
        children = psutil.Process().children()
        links = {path.name for path in Path("/sys/class/net").iterdir()}
        return len(list(Path("/proc/self/fd").iterdir())), len(children), links

    before = count()
    with Fleet(2, tmp_path, cgroups=True) as small:
        h1, h2 = small
        token = token_of(tmp_path)
        h1.popen(["sleep", "600"], stdout=subprocess.PIPE)
        with h2.power_off():
            pass
        small.cut(h1)

    assert count() == before
    assert leftover_cgroups(f"rankmend-hosts-{token}") == []


def test_host_that_cannot_start_names_what_failed(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"h1 did not start: .*No such file.*"):
        with Fleet(2, tmp_path, visible=[Path("/dev/shm/no-such-folder")]):
            pass

    assert not any(traces_of(tmp_path).values())
