"""What snapshots cost a whole job, and what they save: stall, lost steps, restore, CPU.

    python bench/snapshot_job.py [--megabytes 10 200 2000] [--ranks 4] [--output FILE.json]

bench/jobs/snapshot_ddp.py under `rankmend run`, with so much state over all ranks. First every rank takes turns: a plain copy of
its state, `rankmend.snapshot`, `torch.distributed.checkpoint.async_save`. Medians of the slowest rank's times, since the others wait for it. Then a job that only
snapshots, every few steps, is killed KILLS times (one rank, `kill -9`): steps lost, and how fast the ranks have their state back.
Last, the CPU time of rankmend's own processes beside the ranks', at one snapshot in --interval-s, and without any.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.restart import describe_machine
from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.folder.job_folder import list_folders
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.records import Record
from recovery.local.report.overview import read_entries

ROOT = Path(__file__).resolve().parent.parent
KILLS = 3
TURNS = 9  # of each kind
WINDOW_S = 20.0
DEADLINE_S = 600.0
GOAL_RATIO = 1.3


class Run:
    """One job under `rankmend run`."""

    def __init__(self, folder: Path, ranks: int, environment: dict[str, str]) -> None:
        self.folder = folder
        self.until = folder / "until"
        self._ranks = ranks
        command = [sys.executable, "-m", "rankmend.cli", "run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", f"--job=bench-{os.getpid()}"]
        command += [f"--state-dir={folder}/state", str(ROOT / "bench/jobs/snapshot_ddp.py")]
        own = {"BENCH_FOLDER": str(folder), "BENCH_UNTIL": str(self.until), **environment}
        with (folder / "log").open("wb") as log:
            self.process = Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **own},
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
            )

    def told(self, what: str) -> dict[int, list[tuple[int, float]]]:
        """Return step and seconds of what each rank has told."""
        found: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for rank in range(self._ranks):
            path = self.folder / f"rank{rank}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            for line in lines:
                one = json.loads(line)
                if one["what"] == what:
                    found[rank].append((one["step"], one["s"]))
        return found

    def slowest(self, what: str, skip: int = 0) -> list[float]:
        """Return for each step that of the slowest rank, without the first ``skip``."""
        steps: dict[int, float] = defaultdict(float)
        for times in self.told(what).values():
            for step, took_s in times:
                steps[step] = max(steps[step], took_s)
        return [steps[step] for step in sorted(steps)][skip:]

    def wait_count(self, what: str, count: int) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while len(self.slowest(what)) < count:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until_s, f"no {count} of {what} in {DEADLINE_S:g} s"
            time.sleep(0.1)

    def rank_pids(self) -> dict[int, int]:
        (path,) = Path("/dev/shm").glob(f"rankmend-{os.getuid()}/{self.job_id}/ranks.json")
        return {one["rank"]: one["pid"] for one in json.loads(path.read_text())["ranks"]}

    @property
    def job_id(self) -> str:
        return str(json.loads((self._state() / "job.json").read_text())["job_id"])

    def _state(self) -> Path:
        (found,) = list_folders(self.folder / "state")
        return found

    def records(self) -> list[Record]:
        return [entry.record for entry in read_entries(self._state())]

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU time of the ranks, and that of rankmend's own processes."""
        ranks = set(self.rank_pids().values())
        used = {True: 0.0, False: 0.0}
        launcher = psutil.Process(self.process.pid)
        for process in [launcher, *launcher.children(recursive=True)]:
            times = process.cpu_times()
            used[process.pid in ranks] += times.user + times.system
        return used[True], used[False]


@contextmanager
def running(ranks: int, **environment: object) -> Iterator[Run]:
    settings = {f"BENCH_{name.upper()}": str(value) for name, value in environment.items()}
    with tempfile.TemporaryDirectory(prefix="rankmend-bench-") as name:
        run = Run(Path(name), ranks, settings)
        try:
            yield run
            run.until.touch()
            assert run.process.wait(DEADLINE_S) == 0, (run.folder / "log").read_text()
        finally:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()


def measure(megabytes: float, options: argparse.Namespace) -> dict[str, Any]:
    ranks = options.ranks
    row: dict[str, Any] = {"megabytes": megabytes}
    kinds = "copy,snapshot,async_save"
    with running(ranks, megabytes=megabytes, every=5, step_s=0.02, kinds=kinds) as run:
        run.wait_count("async_save", TURNS + 2)
        for kind in kinds.split(","):
            row[f"{kind}_s"] = statistics.median(run.slowest(kind, skip=2))  # the files are made
    row["ratio"] = row["snapshot_s"] / row["copy_s"]
    row |= measure_kills(megabytes, ranks)
    for kind in ("snapshot", "nothing"):
        every = max(1, round(options.interval_s / 0.05))
        with running(ranks, megabytes=megabytes, every=every, step_s=0.05, kinds=kind) as run:
            run.wait_count(kind, 3)
            before = run.cpu_s()
            time.sleep(WINDOW_S)
            after = run.cpu_s()
        theirs, ours = (later - earlier for later, earlier in zip(after, before, strict=True))
        row[f"cpu_{kind}"] = ours / WINDOW_S
        row[f"cpu_ranks_{kind}"] = theirs / WINDOW_S
    return row


def measure_kills(megabytes: float, ranks: int) -> dict[str, Any]:
    with running(ranks, megabytes=megabytes, every=1, step_s=0.05, kinds="snapshot") as run:
        for number in range(KILLS):
            run.wait_count("restore", number)
            run.wait_count("snapshot", 30 * (number + 1))
            os.kill(run.rank_pids()[number % ranks], 9)
        run.wait_count("restore", KILLS)
        records = run.records()
        restores = run.slowest("restore")
    failed = [one.failure.step for one in records if isinstance(one, IncidentOpened)]
    begun = [one.choice.begins_at for one in records if isinstance(one, AttemptStarted)][1:]
    lost = [max(0, a - b) for a, b in zip(failed, begun, strict=False) if None not in (a, b)]
    restore_s = statistics.median(restores)
    return {
        "lost_steps": lost,
        "restore_s": restore_s,
        "restore_gb_per_s": megabytes / 1e3 / restore_s,
    }


def show(told: dict[str, Any]) -> None:
    machine = told["machine"]
    title = (
        f"Snapshots of a job of {told['ranks']} ranks: {machine['cpu']}, {machine['cores']} cores"
    )
    table = Table(title=title)
    for name in (
        "MB",
        "copy",
        "snapshot",
        "ratio",
        "async_save",
        "lost steps",
        "restore",
        "CPU of ours",
    ):
        table.add_column(name, justify="right")
    for row in told["rows"]:
        more = row["cpu_snapshot"] - row["cpu_nothing"]
        table.add_row(
            f"{row['megabytes']:g}",
            f"{row['copy_s'] * 1e3:.1f} ms",
            f"{row['snapshot_s'] * 1e3:.1f} ms",
            f"{row['ratio']:.2f}" + ("" if row["ratio"] <= GOAL_RATIO else " (goal 1.3)"),
            f"{row['async_save_s'] * 1e3:.0f} ms",
            ", ".join(map(str, row["lost_steps"])),
            f"{row['restore_s'] * 1e3:.0f} ms, {row['restore_gb_per_s']:.1f} GB/s",
            f"{row['cpu_snapshot']:.2%} of a core ({more:+.2%})",
        )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=float, nargs="*", default=[10, 200, 2000])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--interval-s", type=float, default=5.0, help="between snapshots, for the CPU time"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = [measure(megabytes, options) for megabytes in options.megabytes]
    told = {"machine": describe_machine(), "ranks": options.ranks, "rows": rows}
    show(told)
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
