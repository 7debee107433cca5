"""The node agent beside prometheus-node-exporter, on one node, in one run.

    python bench/agent/compare.py [--seconds 60 | --minutes 20] [--growth 15] [--output FILE.json]

Both read the same tree of 10 NICs and 60 sensors and this machine's /proc; the agent also has 8
GPUs (a stub of NVML in C) and 8 ranks that train. Each is scraped once a second in its own
half of the second, each time at another moment of that half, with the headers that Prometheus sends.
Exits with 1 when the agent misses its budget.
"""

import argparse
import gzip
import http.client
import json
import os
import platform
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from node import make_sysfs  # noqa: E402 - beside this file

from agent.root_helper.client import HelperClient  # noqa: E402
from agent.root_helper.listener import IDLE_S  # noqa: E402
from agent.root_helper.questions import HelperQuery  # noqa: E402
from rankmend import progress  # noqa: E402
from rankmend.agent_socket import OfferedRank  # noqa: E402
from rankmend.clock import SystemClock  # noqa: E402
from rankmend.hook import layout  # noqa: E402
from recovery.launcher.agent_link import AgentLink  # noqa: E402

PSS_MIB_MAX = 48.0
READY_S_MAX = 1.0
GPUS, NICS, SENSORS, RANKS = 8, 10, 60, 8
GOLDEN = 0.618  # its multiples spread evenly over a second
HEADERS = {  # as Prometheus 2.42 sends them
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
    "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/2.42.0",
    "X-Prometheus-Scrape-Timeout-Seconds": "1",
}
RANK = """
import rankmend, time
step = 0
while True:
    step += 1
    with rankmend.section("compute"):
        time.sleep(0.2)
    with rankmend.section("communication"):
        time.sleep(0.05)
    rankmend.step(step)
"""


@dataclass
class Exporter:
    """One of the two, and what was measured of it."""

    name: str
    pid: int
    port: int
    ready_s: float
    connection: http.client.HTTPConnection
    scrapes_s: list[float] = field(default_factory=list)
    body: bytes = b""
    wire_bytes: int = 0

    def scrape(self) -> None:
        began_s = time.perf_counter()
        self.connection.request("GET", "/metrics", headers=HEADERS)
        answer = self.connection.getresponse()
        data = answer.read()
        self.scrapes_s.append(time.perf_counter() - began_s)
        assert answer.status == 200, f"{self.name}: {answer.status}"
        assert answer.getheader("Content-Encoding") == "gzip", f"{self.name} does not compress"
        self.wire_bytes, self.body = len(data), gzip.decompress(data)


@dataclass(frozen=True)
class Figures:
    name: str
    processes: int
    pss_mib: float
    cpu_ratio: float  # share of one core
    scrape_p50_s: float
    scrape_p99_s: float
    ready_s: float
    series: int
    page_bytes: int
    wire_bytes: int


def family_of(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            with suppress(FileNotFoundError):  # the thread has ended meanwhile
                found += [int(text) for text in (task / "children").read_text().split()]
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, of its living children and of those it has reaped."""
    total = 0
    for one in family_of(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile: its parent counts it
        total += sum(int(text) for text in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def pss_mib(pid: int) -> tuple[int, float]:
    kib = count = 0
    for one in family_of(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        count += 1
    return count, kib / 1024


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def build_stub(folder: Path) -> bool:
    """Build the stand-in for NVML; without a compiler the node has no GPUs."""
    if shutil.which("cc") is None:
        return False
    source = ROOT / "tests" / "support" / "nvml_stub" / "nvml_stub.c"
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wl,-soname,libnvidia-ml.so.1", "-o"]
    subprocess.run([*command, str(library), str(source), "-lpthread"], check=True)
    return True


def write_gpus(path: Path, count: int) -> None:
    from tests.support.nvml_stub.node import StubNode

    StubNode(count).save(path)


@contextmanager
def running(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def agent(
    folder: Path, sysfs: Path, gpus: int, *arguments: str, has_stub: bool
) -> Iterator[Exporter]:
    port, run = free_port(), folder / uuid.uuid4().hex[:8]
    run.mkdir()
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(run / "notify"))
    notify.settimeout(30)
    environment = {**os.environ, "NOTIFY_SOCKET": str(run / "notify")}
    if has_stub and gpus:
        write_gpus(run / "gpus", gpus)
        environment |= {"LD_LIBRARY_PATH": str(folder), "NVML_STUB_STATE": str(run / "gpus")}
    command = [sys.executable, "-m", "rankmend.cli", "agent", "--listen", f"127.0.0.1:{port}"]
    command += ["--socket", str(folder / "agent.sock"), "--sysfs", str(sysfs)]
    command += arguments
    log = (run / "log").open("wb")
    began_s = time.perf_counter()
    with running(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)) as process:
        while b"READY=1" not in notify.recv(4096):
            pass
        ready_s = time.perf_counter() - began_s
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        yield Exporter("rankmend agent", process.pid, port, ready_s, connection)
    notify.close()


@contextmanager
def node_exporter(sysfs: Path) -> Iterator[Exporter]:
    port = free_port()
    command = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"]
    command += [f"--path.sysfs={sysfs}", "--log.level=error"]
    began_s = time.perf_counter()
    with running(subprocess.Popen(command, stderr=subprocess.DEVNULL)) as process:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.perf_counter() - began_s > 10:
                    raise SystemExit("node_exporter does not answer") from None
                time.sleep(0.001)
        ready_s = time.perf_counter() - began_s
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        yield Exporter("node_exporter", process.pid, port, ready_s, connection)


@contextmanager
def ranks(folder: Path, count: int) -> Iterator[None]:
    job_id, processes, offered = uuid.uuid4(), [], []
    try:
        for rank in range(count):
            path = folder / f"{job_id}-{rank}.progress"
            os.close(progress.create(path, progress.RankIdentity(job_id, 1, rank, rank, count)))
            environment = {**os.environ, layout.ENV_PROGRESS_FILE: str(path)}
            command = [sys.executable, "-c", RANK]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))
            offered.append((OfferedRank(rank, rank, processes[-1].pid), path))
        link = AgentLink([folder / "agent.sock"], SystemClock())
        link.offer(job_id, "bench", 1, offered)
        yield
        link.close()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(exporters: list[Exporter], seconds: int) -> list[Figures]:
    for exporter in exporters:
        exporter.scrape()
    time.sleep(5)  # imports, first windows of steps
    for exporter in exporters:
        exporter.scrapes_s.clear()
    before = [cpu_s(exporter.pid) for exporter in exporters]
    began_s = time.monotonic()
    for second in range(seconds):
        for place, exporter in enumerate(exporters):
            # The first scrape after a sampling writes the lines that changed: 3.1 ms, later ones 1.7 ms.
            # At a fixed phase the median would be one or the other by chance.
            phase = (place + second * GOLDEN % 1) / len(exporters)
            due_s = began_s + second + phase
            time.sleep(max(0.0, due_s - time.monotonic()))
            exporter.scrape()
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    took_s = time.monotonic() - began_s
    figures = []
    for exporter, was_s in zip(exporters, before, strict=True):
        used = (cpu_s(exporter.pid) - was_s) / took_s
        count, mib = pss_mib(exporter.pid)
        ordered = sorted(exporter.scrapes_s)
        lines = exporter.body.splitlines()
        figures.append(
            Figures(
                name=exporter.name,
                processes=count,
                pss_mib=round(mib, 1),
                cpu_ratio=round(used, 5),
                scrape_p50_s=round(statistics.median(ordered), 5),
                scrape_p99_s=round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 5),
                ready_s=round(exporter.ready_s, 3),
                series=sum(1 for line in lines if not line.startswith(b"#")),
                page_bytes=len(exporter.body),
                wire_bytes=exporter.wire_bytes,
            )
        )
    return figures


@dataclass(frozen=True)
class HelperFigures:
    """The root helper, which systemd starts each minute and which ends when idle."""

    pss_mib: float
    cpu_s: float  # for one start with its questions and its end
    alive_s: float  # per minute, if questions are answered at once


def measure_helper(folder: Path) -> HelperFigures:
    """Ask a helper all that the agent asks in a minute, on this node as it is."""
    path = folder / "helper" / "helper.sock"
    command = [sys.executable, "-m", "rankmend.cli", "agent-helper", "--socket", str(path)]
    command += ["--user", str(os.getuid())]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    with running(process):
        while not path.exists():
            if process.poll() is not None or time.perf_counter() - began_s > 10:
                raise SystemExit("the root helper does not start")
            time.sleep(0.005)
        client = HelperClient(path, SystemClock())
        for query in HelperQuery:
            client.ask(query)
        took_s = time.perf_counter() - began_s
        _count, mib = pss_mib(process.pid)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # the loop looks once a second whether it has been idle for long enough
    return HelperFigures(round(mib, 1), round(used_s, 3), round(took_s + IDLE_S + 1.0, 1))


def table_of(title: str, figures: list[Figures]) -> Table:
    table = Table(title=title)
    for column in ("", "series", "PSS", "CPU", "scrape p50", "p99", "ready", "page", "on the wire"):
        table.add_column(column, justify="left" if not column else "right")
    for one in figures:
        table.add_row(
            f"{one.name} ({one.processes} process{'es' if one.processes > 1 else ''})",
            str(one.series),
            f"{one.pss_mib:.1f} MiB",
            f"{100 * one.cpu_ratio:.2f} %",
            f"{1e3 * one.scrape_p50_s:.2f} ms",
            f"{1e3 * one.scrape_p99_s:.2f} ms",
            f"{one.ready_s:.2f} s",
            f"{one.page_bytes / 1e3:.0f} kB",
            f"{one.wire_bytes / 1e3:.1f} kB",
        )
    return table


def verdicts(ours: Figures, theirs: Figures) -> list[tuple[str, bool]]:
    return [
        (f"PSS at most {PSS_MIB_MAX:.0f} MiB", ours.pss_mib <= PSS_MIB_MAX),
        ("CPU at most node_exporter's", ours.cpu_ratio <= theirs.cpu_ratio),
        ("scrape p50 below node_exporter's", ours.scrape_p50_s < theirs.scrape_p50_s),
        ("scrape p99 below node_exporter's", ours.scrape_p99_s < theirs.scrape_p99_s),
        (f"ready within {READY_S_MAX:.0f} s", ours.ready_s < READY_S_MAX),
    ]


def grow(folder: Path, seconds: int, *, has_stub: bool) -> list[Figures]:
    figures = []
    for factor in (0, 1, 2, 4):
        sysfs = folder / f"sys-{factor}"
        sysfs.mkdir()
        make_sysfs(sysfs, NICS * factor, SENSORS * factor)
        with (
            agent(folder, sysfs, GPUS * factor, has_stub=has_stub) as ours,
            ranks(folder, RANKS * factor),
        ):
            (one,) = measure([ours], seconds)
        figures.append(Figures(**{**asdict(one), "name": f"node x {factor}"}))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument(
        "--minutes", type=float, help="measure for so long, every collector at 1 Hz"
    )
    parser.add_argument("--growth", type=int, default=15, help="seconds a size; 0: not measured")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    seconds = options.seconds if options.minutes is None else round(60 * options.minutes)
    intervals = () if options.minutes is None else ("--interval", "1")
    console = Console(width=110)
    if shutil.which("prometheus-node-exporter") is None:
        raise SystemExit("prometheus-node-exporter is not installed (Debian: apt-get install it)")
    folder = Path(tempfile.mkdtemp(prefix="rankmend-bench-", dir="/dev/shm"))
    try:
        has_stub = build_stub(folder)
        sysfs = folder / "sys"
        sysfs.mkdir()
        make_sysfs(sysfs, NICS, SENSORS)
        with (
            agent(folder, sysfs, GPUS, *intervals, has_stub=has_stub) as ours,
            node_exporter(sysfs) as theirs,
            ranks(folder, RANKS),
        ):
            figures = measure([ours, theirs], seconds)
            helper = measure_helper(folder)
        growth = grow(folder, options.growth, has_stub=has_stub) if options.growth else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(table_of("1 Hz sampling, one scrape a second", figures))
    if growth:
        console.print(table_of("the agent on larger nodes", growth))
    share = helper.alive_s / 60
    console.print(
        f"root helper, not in the table: {helper.pss_mib:.1f} MiB PSS for {helper.alive_s:.0f} s of each minute "
        f"({figures[0].pss_mib + helper.pss_mib:.1f} MiB together then, "
        f"{figures[0].pss_mib + share * helper.pss_mib:.1f} MiB on average), "
        f"{1e3 * helper.cpu_s:.0f} ms of CPU a start ({100 * helper.cpu_s / 60:.2f} %)"
    )
    kept = verdicts(*figures)
    for what, holds in kept:
        console.print(f"{'kept  ' if holds else 'MISSED'}  {what}")
    machine = (
        f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}, {seconds} s"
    )
    console.print(machine + ("" if has_stub else "; no C compiler: no GPUs"))
    if options.output is not None:
        data = {
            "machine": machine,
            "has_gpus": has_stub,
            "compared": [asdict(one) for one in figures],
            "helper": asdict(helper),
            "growth": [asdict(one) for one in growth],
            "budget": dict(kept),
        }
        options.output.write_text(json.dumps(data, indent=1) + "\n")
    sys.exit(0 if all(holds for _what, holds in kept) else 1)


if __name__ == "__main__":
    main()
