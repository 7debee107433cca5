"""What the loss of a node costs a job whose snapshots are copied to other nodes: steps, and time to the next step.

    python -m bench.node_loss [--megabytes 10 200] [--losses 3] [--output FILE.json]

bench/jobs/snapshot_ddp.py on two nodes of two ranks each, and a spare; the nodes are launchers on this machine, with a folder in shared
memory each. Once a step of every rank is copied, one node that does not host the controller is killed (its launcher with `kill -9`; its guardian
kills its ranks), and the spare takes its place. Each loss is a job of its own. Ranks whose snapshots are equal stand in for those that are lost;
the others begin from the copies.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.restart import describe_machine
from rankmend.errors import RankmendError
from recovery.journal.accounting import account_all
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.folder.job_folder import list_folders
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.records import Entry
from recovery.local.report.overview import read_entries

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 300.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Cluster:
    """Launchers of one job on this machine."""

    def __init__(self, folder: Path, megabytes: float, *, is_apart: bool) -> None:
        self.folder = folder
        self.until = folder / "until"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._meeting = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
        self._name = f"bench-{os.getpid()}-{folder.name[-4:]}"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BENCH_FOLDER": str(folder),
            "BENCH_UNTIL": str(self.until),
            "BENCH_MEGABYTES": str(megabytes),
            "BENCH_EVERY": "5",
            "BENCH_STEP_S": "0.05",
            "BENCH_KINDS": "snapshot",
            "BENCH_APART": "1" if is_apart else "",
        }

    def start(self, node: str) -> None:
        command = [sys.executable, "-m", "rankmend.cli", "run", "--nnodes=3", "--spares=1"]
        command += [
            self._meeting,
            "--nproc-per-node=2",
            f"--job={self._name}",
            f"--node-name={node}",
        ]
        command += [f"--state-dir={self.folder}/state-{node}"]
        command += [f"--checkpoint-dir={self.folder}/checkpoints"]
        command += ["--snapshot-copy-rate=0", str(ROOT / "bench/jobs/snapshot_ddp.py")]
        with (self.folder / f"{node}.log").open("wb") as log:
            self.running[node] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def entries(self) -> tuple[Entry, ...]:
        try:
            (hosted,) = list_folders(self.folder / "state-a")
            return tuple(read_entries(hosted))
        except (RankmendError, ValueError):
            return ()  # the job has not begun

    def started(self) -> list[AttemptStarted]:
        return [one.record for one in self.entries() if isinstance(one.record, AttemptStarted)]

    def copied_step(self) -> int | None:
        """Return the newest step of which every rank's copies are on another node, as the controller says."""
        command = [sys.executable, "-m", "rankmend.cli", "status", "--json"]
        command += [f"--job-folder={self.folder}/checkpoints"]
        told = subprocess.run(command, env=self._environment, capture_output=True, check=False)
        if told.returncode:
            return None  # the job has not begun
        (job,) = json.loads(told.stdout)["jobs"]
        return (job["snapshots"] or {}).get("copied_step")

    def wait(self, is_so: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not is_so():
            logs = "\n".join(path.read_text() for path in self.folder.glob("*.log"))
            has_ended = any(
                one.poll() not in (None, -signal.SIGKILL) for one in self.running.values()
            )
            assert not has_ended, f"a launcher ended\n{logs}"
            assert time.monotonic() < until_s, f"no {what} in {DEADLINE_S:g} s\n{logs}"
            time.sleep(0.05)


@contextmanager
def cluster(megabytes: float, *, is_apart: bool) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="rankmend-bench-") as name:
        made = Cluster(Path(name), megabytes, is_apart=is_apart)
        (made.folder / "checkpoints").mkdir()
        try:
            yield made
        finally:
            made.until.touch()
            for process in made.running.values():
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def measure(megabytes: float, *, is_apart: bool) -> dict[str, Any]:
    """Lose one node; return what that cost. ``is_apart``: no rank's snapshot equals another's."""
    with cluster(megabytes, is_apart=is_apart) as job:
        job.start("a")
        job.wait(lambda: "hosts the controller" in (job.folder / "a.log").read_text(), "host")
        job.start("b")
        job.start("c")
        job.wait(job.started, "first attempt")
        lost = next(one.node for one in job.started()[0].placement if one.node != "a")
        job.wait(lambda: job.copied_step() is not None, "copies")
        time.sleep(10.0)  # of which the pause between two rounds is 5
        job.running[lost].kill()
        job.wait(lambda: len(job.started()) > 1, "second attempt")
        job.wait(lambda: any(one.total_s for one in account_all(job.entries())), "first step")
        (incident,) = [one for one in account_all(job.entries()) if one.total_s][:1]
        choice = job.started()[1].choice
        (opened,) = [one.record for one in job.entries() if isinstance(one.record, IncidentOpened)][
            :1
        ]
    failed_at = opened.failure.step
    begins_at = choice.begins_at
    return {
        "begins_at": begins_at,
        "failed_at": failed_at,
        "lost_steps": None if None in (failed_at, begins_at) else failed_at - begins_at,
        "fetched": len(choice.fetched),
        "total_s": incident.total_s,
    }


def show(told: dict[str, Any]) -> None:
    machine = told["machine"]
    table = Table(title=f"Loss of a node: {machine['cpu']}, {machine['cores']} cores")
    for name in ("MB", "ranks", "steps lost", "from other nodes", "fault to first step"):
        table.add_column(name, justify="right")
    for row in told["rows"]:
        losses = row["losses"]
        total_s = statistics.median(one["total_s"] for one in losses)
        table.add_row(
            f"{row['megabytes']:g}",
            "apart" if row["is_apart"] else "equal",
            ", ".join(str(one["lost_steps"]) for one in losses),
            ", ".join(f"{one['fetched']} of 4 ranks" for one in losses),
            f"{total_s:.1f} s",
        )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=float, nargs="*", default=[10, 200])
    parser.add_argument("--losses", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = [
        {
            "megabytes": megabytes,
            "is_apart": is_apart,
            "losses": [measure(megabytes, is_apart=is_apart) for _one in range(options.losses)],
        }
        for megabytes in options.megabytes
        for is_apart in (True, False)
    ]
    told = {"machine": describe_machine(), "rows": rows}
    show(told)
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
