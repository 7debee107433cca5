"""What the node agent costs where Prometheus asks each 15 s, beside node_exporter and a former tree, in one run.

    python bench/agent/at_scrape.py [--before TREE] [--rounds 3] [--seconds 60] [--no-gpus]

All read the same tree of NICs and sensors; the agents also have 8 GPUs (a stub of NVML in C). CPU is
the exact clock of each process (clock_getcpuclockid(3)) with its children and the root helper, which a
stand-in for systemd starts as `rankmend-agent-helper.socket` does, and which is asked what the agent of
that tree asks on a node without IPMI, disks and optics. Prints each round, then medians.
"""

import argparse
import gzip
import http.client
import os
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from compare import (  # noqa: E402 - beside this file
    GPUS,
    HEADERS,
    NICS,
    SENSORS,
    build_stub,
    family_of,
    free_port,
    pss_mib,
    running,
    write_gpus,
)
from node import make_sysfs  # noqa: E402 - beside this file

SCRAPE_S = 15.0
START_S_MAX = 30.0
WARM_S = 8.0  # imports, the first answers
HELPER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)  # inheritable, as systemd hands it over
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


def process_clock_s(pid: int) -> float:
    """Return the CPU time of a process, ended threads included, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)


def wakeups(pid: int) -> int:
    """Return how often the threads that are there now have waited."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return total


@dataclass
class Reading:
    cpu_s: float
    wakeups: int


@dataclass
class Subject:
    """One exporter that is measured."""

    name: str
    pid: int
    port: int
    helper: "SocketUnit | None" = None
    body: bytes = b""

    def wait_until_served(self) -> None:
        ends_s = time.monotonic() + START_S_MAX
        while time.monotonic() < ends_s:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise SystemExit(f"{self.name} does not start")

    def scrape(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics", headers=HEADERS)
        self.body = gzip.decompress(connection.getresponse().read())
        connection.close()

    def read(self) -> Reading:
        pids = family_of(self.pid)
        used_s, waits = self.helper.used_s() if self.helper else 0.0, 0
        for pid in pids:
            with suppress(OSError):
                used_s += process_clock_s(pid)
                waits += wakeups(pid)
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        used_s += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return Reading(used_s, waits)

    def pss_mib(self) -> float:
        total = pss_mib(self.pid)[1]
        if self.helper is not None and self.helper.pid is not None:
            total += pss_mib(self.helper.pid)[1]
        return total


class SocketUnit:
    """Does for the root helper what systemd does: listens, and starts it when somebody connects."""

    def __init__(self, tree: Path, path: Path) -> None:
        self._tree = tree
        path.parent.mkdir(mode=0o755)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._ended_s = 0.0
        self.pid: int | None = None
        self.starts = 0
        self._stopping = Event()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def used_s(self) -> float:
        pid = self.pid
        with suppress(OSError):
            return self._ended_s + (process_clock_s(pid) if pid is not None else 0.0)
        return self._ended_s

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            if select.select([self._listener], [], [], 0.2)[0]:
                self._run()

    def _run(self) -> None:
        python, listener = sys.executable, self._listener.fileno()
        command = [python, "-S", "-c", HELPER, str(listener), python, "-m", "rankmend.cli"]
        process = subprocess.Popen(
            [*command, "agent-helper", "--user", str(os.getuid())],
            cwd=self._tree,
            env={**os.environ, "PYTHONPATH": str(self._tree), "LISTEN_FDS": "1"},
            stderr=subprocess.DEVNULL,
            pass_fds=(listener,),
        )
        self.pid, self.starts = process.pid, self.starts + 1
        while not self._stopping.is_set():
            pid, _status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = 0
                self.pid = None
                self._ended_s += usage.ru_utime + usage.ru_stime
                return
            self._stopping.wait(0.1)
        process.kill()
        process.wait()


def start_agent(
    stack: ExitStack, name: str, tree: Path, folder: Path, sysfs: Path, gpus: int, *, live: bool
) -> Subject:
    run = Path(tempfile.mkdtemp(dir=folder))
    unit = SocketUnit(tree, run / "helper" / "helper.sock")
    stack.callback(unit.close)
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    if gpus:
        write_gpus(run / "gpus", gpus)
        environment |= {"LD_LIBRARY_PATH": str(folder), "NVML_STUB_STATE": str(run / "gpus")}
    config = run / "agent.toml"
    config.write_text(f'helper_socket = "{run}/helper/helper.sock"\n')
    command = [sys.executable, "-m", "rankmend.cli", "agent", "--config", str(config)]
    command += ["--listen", f"127.0.0.1:{port}", "--socket", str(run / "agent.sock")]
    if not live:
        command += ["--sysfs", str(sysfs)]
    process = stack.enter_context(
        running(
            subprocess.Popen(command, cwd=tree, env=environment, stderr=(run / "log").open("wb"))
        )
    )
    return Subject(name, process.pid, port, unit)


def start_node_exporter(stack: ExitStack, sysfs: Path) -> Subject:
    port = free_port()
    command = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"]
    command += [f"--path.sysfs={sysfs}", "--log.level=error"]
    process = stack.enter_context(running(subprocess.Popen(command, stderr=subprocess.DEVNULL)))
    return Subject("node_exporter", process.pid, port)


def measure(subjects: Sequence[Subject], seconds: float) -> list[tuple[float, float, float]]:
    """Return for each the share of a core, the wake-ups a second and the PSS."""
    before = [subject.read() for subject in subjects]
    began_s = time.monotonic()
    due_s = began_s
    while (due_s := due_s + SCRAPE_S) <= began_s + seconds:
        time.sleep(max(0.0, due_s - 0.5 - time.monotonic()))
        for subject in subjects:
            subject.scrape()
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    took_s = time.monotonic() - began_s
    figures = []
    for subject, was in zip(subjects, before, strict=True):
        now = subject.read()
        figures.append(
            (
                100 * (now.cpu_s - was.cpu_s) / took_s,
                (now.wakeups - was.wakeups) / took_s,
                subject.pss_mib(),
            )
        )
    return figures


def show(title: str, subjects: Sequence[Subject], rows: Sequence[tuple[float, ...]]) -> None:
    print(title)
    for subject, (share, waits, mib) in zip(subjects, rows, strict=True):
        starts = f"  helper starts {subject.helper.starts}" if subject.helper else ""
        print(
            f"  {subject.name:16} {share:6.3f} % of a core  {waits:6.1f} wake-ups/s  {mib:5.1f} MiB PSS{starts}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--before", type=Path, help="another tree of this project, measured beside this one"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--no-gpus", action="store_true")
    parser.add_argument(
        "--live", action="store_true", help="read this machine's own /sys, and ask the root helper"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rankmend-bench-", dir="/dev/shm"))
    try:
        gpus = GPUS if not options.no_gpus and build_stub(folder) else 0
        sysfs = folder / "sys"
        sysfs.mkdir()
        if gpus:
            make_sysfs(sysfs, NICS, SENSORS)
        with ExitStack() as stack:
            trees = [("now", ROOT)] + ([("before", options.before)] if options.before else [])
            subjects = [
                start_agent(stack, name, tree, folder, sysfs, gpus, live=options.live)
                for name, tree in trees
            ]
            if shutil.which("prometheus-node-exporter") is not None:
                subjects.append(start_node_exporter(stack, sysfs))
            for subject in subjects:
                subject.wait_until_served()
            time.sleep(WARM_S)
            for subject in subjects:
                subject.scrape()
            rounds = []
            for number in range(options.rounds):
                rounds.append(measure(subjects, options.seconds))
                show(f"round {number + 1}, load {os.getloadavg()[0]:.1f}", subjects, rounds[-1])
            medians = [
                tuple(statistics.median(values) for values in zip(*of_one, strict=True))
                for of_one in zip(*rounds, strict=True)
            ]
            show("medians", subjects, medians)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
