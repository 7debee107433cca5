"""What the node agent costs: memory, CPU and scrape time with ranks that train.

    python bench/agent_cost.py [--ranks 8] [--seconds 30] [--interval 1]

Starts a real agent and real rank processes that step by the hook (20 steps a second each, two
sections a step), shows their progress files to the agent as a launcher does, scrapes once a
second, and reads the agent's own /proc/PID. Figures are of this machine; its load is printed.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rankmend import progress
from rankmend.agent_socket import OfferedRank
from rankmend.clock import SystemClock
from rankmend.hook import layout
from recovery.launcher.agent_link import AgentLink

ROOT = Path(__file__).parent.parent
RANK = """
import rankmend, time
step = 0
while True:
    step += 1
    with rankmend.section("compute"):
        time.sleep(0.04)
    with rankmend.section("communication"):
        time.sleep(0.01)
    rankmend.step(step)
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def start_agent(folder: Path, interval_s: float) -> tuple[subprocess.Popen[str], str]:
    agent = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rankmend.cli",
            "agent",
            "--listen",
            "127.0.0.1:0",
            "--socket",
            str(folder / "agent.sock"),
            "--interval",
            str(interval_s),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert agent.stderr is not None
    for line in agent.stderr:
        if "agent started" in line:
            port = line.rpartition(" port=")[2].split()[0]
            return agent, f"http://127.0.0.1:{port}/metrics"
    raise SystemExit("the agent did not start")


def start_ranks(folder: Path, count: int) -> tuple[list[subprocess.Popen[bytes]], AgentLink]:
    job_id, ranks, offered = uuid.uuid4(), [], []
    for rank in range(count):
        path = folder / f"rank-{rank}.progress"
        os.close(progress.create(path, progress.RankIdentity(job_id, 1, rank, rank, count)))
        process = subprocess.Popen(
            [sys.executable, "-c", RANK],
            cwd=ROOT,
            env={**os.environ, layout.ENV_PROGRESS_FILE: str(path)},
        )
        ranks.append(process)
        offered.append((OfferedRank(rank, rank, process.pid), path))
    link = AgentLink([folder / "agent.sock"], SystemClock())
    link.offer(job_id, "bench", 1, offered)
    return ranks, link


def measure(agent_pid: int, url: str, seconds: int, *, scrape: bool) -> tuple[float, list[float]]:
    """Return the agent's CPU share and the duration of each scrape."""
    scrapes_s: list[float] = []
    cpu_before_s, began_s = cpu_s(agent_pid), time.monotonic()
    for second in range(1, seconds + 1):
        time.sleep(max(0.0, began_s + second - time.monotonic()))
        if scrape:
            scrape_began_s = time.perf_counter()
            with urllib.request.urlopen(url, timeout=10) as answer:
                answer.read()
            scrapes_s.append(time.perf_counter() - scrape_began_s)
    return (cpu_s(agent_pid) - cpu_before_s) / (time.monotonic() - began_s), scrapes_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--interval", type=float, default=1.0)
    options = parser.parse_args()
    shared_memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rankmend-bench-", dir=shared_memory))
    processes: list[subprocess.Popen[bytes] | subprocess.Popen[str]] = []
    try:
        agent, url = start_agent(folder, options.interval)
        processes.append(agent)
        ranks, link = start_ranks(folder, options.ranks)
        processes.extend(ranks)
        time.sleep(5)  # imports and the first windows of steps
        idle, _none = measure(agent.pid, url, options.seconds, scrape=False)
        busy, scrapes_s = measure(agent.pid, url, options.seconds, scrape=True)
        with urllib.request.urlopen(url, timeout=10) as answer:
            page = answer.read().decode()
        report(options, agent.pid, idle, busy, scrapes_s, page)
        link.close()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def report(
    options: argparse.Namespace,
    pid: int,
    idle: float,
    busy: float,
    scrapes_s: list[float],
    page: str,
) -> None:
    series = [line for line in page.splitlines() if not line.startswith("#")]
    ordered = sorted(scrapes_s)
    table = Table(title=f"rankmend agent, every collector each {options.interval:g} s")
    table.add_column("what")
    table.add_column("value", justify="right")
    for what, value in (
        ("ranks, 20 steps a second each", str(options.ranks)),
        ("resident memory", f"{resident_mb(pid):.1f} MB"),
        ("CPU, collecting only", f"{100 * idle:.2f} % of a core"),
        ("CPU, and scraped once a second", f"{100 * busy:.2f} % of a core"),
        ("scrape, median", f"{1000 * statistics.median(ordered):.1f} ms"),
        ("scrape, slowest", f"{1000 * ordered[-1]:.1f} ms"),
        ("series", str(len(series))),
        ("page", f"{len(page) / 1000:.1f} kB"),
    ):
        table.add_row(what, value)
    console = Console()
    console.print(table)
    console.print(
        f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}, {options.seconds} s a figure"
    )


if __name__ == "__main__":
    main()
