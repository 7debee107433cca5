"""What rankmend costs a job that trains undisturbed, beside torchrun, in pairs whose halves alternate.

    python bench/training_cost.py [--pairs 20] [--seconds 10] [--ranks 2] [--output FILE.json]

The job of bench/jobs/ddp.py runs twice at once, under rankmend with its default options and under torchrun. One of the
two stands still (SIGSTOP to all its processes) while the other trains, in turns of SLICE_S, so that other load
affects both equally. From each job's own log comes the mean time of a step within its turns. For rankmend also the CPU time and the
storage traffic of its own processes, beside those of the ranks.
"""

import argparse
import json
import math
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from rich.progress import track

from bench.checkpoint_shares import T_95
from bench.restart import (
    Peer,
    Plan,
    Run,
    describe_machine,
    known_peers,
    running,
    started_pids,
    wait_for_kept_imports,
)

SLICE_S = 1.0
SETTLE_S = 0.1  # of a turn, before it counts
# With one every 10 steps, as for kills, a job would do little but save, and rankmend little but read what was saved.
SAVE_EVERY = (("BENCH_SAVE_EVERY", "2000"),)


@dataclass(frozen=True, slots=True)
class Use:
    """What processes have used so far."""

    cpu_s: float = 0.0
    storage_bytes: int = 0

    def __add__(self, other: "Use") -> "Use":
        return Use(self.cpu_s + other.cpu_s, self.storage_bytes + other.storage_bytes)

    def since(self, before: "Use") -> "Use":
        return Use(self.cpu_s - before.cpu_s, self.storage_bytes - before.storage_bytes)


def use_of(pid: int) -> Use | None:
    """Return what a process has used, with its threads that have ended; None if it is gone."""
    process = psutil.Process(pid)
    try:
        with process.oneshot():
            times, storage = process.cpu_times(), process.io_counters()
    except psutil.NoSuchProcess:
        return None
    return Use(times.user + times.system, storage.read_bytes + storage.write_bytes)


class Job:
    """One of the two jobs, which trains in its turns only."""

    def __init__(self, run: Run) -> None:
        self.name = run.peer.name
        self.turns: list[tuple[int, int]] = []  # ns
        self.ranks = self.own = Use()  # in its turns; own: all of its processes but the ranks
        self._run = run
        self._rank_pids = {event.pid for event in run.log.events}

    def stop(self) -> None:
        for pid in self._pids():
            _signal(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in reversed(self._pids()):
            _signal(pid, signal.SIGCONT)

    def take_turn(self) -> None:
        self.go_on()
        time.sleep(SETTLE_S)
        before = self._uses()
        began_ns = time.monotonic_ns()
        time.sleep(SLICE_S)
        self.turns.append((began_ns, time.monotonic_ns()))
        for pid, use in self._uses().items():
            used = use.since(before.get(pid, Use()))
            if pid in self._rank_pids:
                self.ranks += used
            else:
                self.own += used
        self.stop()

    def _pids(self) -> list[int]:
        """Return all processes of the job: the launcher stops first and goes on last."""
        return sorted(started_pids(self._run.folder), key=lambda pid: pid != self._run.launcher.pid)

    def _uses(self) -> dict[int, Use]:
        uses = {pid: use_of(pid) for pid in self._pids()}
        return {pid: use for pid, use in uses.items() if use is not None}

    def step_s(self, turns: Sequence[tuple[int, int]]) -> float:
        """Return the mean time of rank 0's steps that began and ended within one of these turns."""
        self._run.log.read()
        events = [event for event in self._run.log.events if event.name == "step"]
        ends = [event.at_ns for event in events if event.rank == 0]
        spent_ns = steps = 0
        for began_ns, ended_ns in turns:
            inside = sorted(at for at in ends if began_ns <= at <= ended_ns)
            if inside:
                spent_ns += inside[-1] - inside[0]
                steps += len(inside) - 1
        return spent_ns / steps / 1e9


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def measure(options: argparse.Namespace) -> dict[str, Any]:
    peers = known_peers(options.ranks)
    slowdowns = []
    with ExitStack() as stack:
        theirs = start(stack, peers["torchrun"], options.ranks)
        ours = start(stack, peers["rankmend"], options.ranks)
        turns = math.ceil(options.seconds / SLICE_S)
        for _pair in track(range(options.pairs), "pairs"):
            for number in range(turns):
                for job in (ours, theirs) if number % 2 else (theirs, ours):
                    job.take_turn()
            mine, other = ours.step_s(ours.turns[-turns:]), theirs.step_s(theirs.turns[-turns:])
            slowdowns.append(mine / other - 1)
        taken_s = sum(ended - began for began, ended in ours.turns) / 1e9
        steps = {job.name: job.step_s(job.turns) for job in (ours, theirs)}
        ours.go_on()  # so that they can end
        theirs.go_on()
    return {
        "machine": describe_machine(),
        "ranks": options.ranks,
        "seconds": options.seconds,
        "slowdowns": slowdowns,
        "step_s": steps,
        "taken_s": taken_s,
        "cpu_s": {
            "ranks": ours.ranks.cpu_s,
            "rankmend": ours.own.cpu_s,
            "torchrun": theirs.own.cpu_s,
        },
        "storage_bytes": {
            "ranks": ours.ranks.storage_bytes,
            "rankmend": ours.own.storage_bytes,
            "torchrun": theirs.own.storage_bytes,
        },
    }


def start(stack: ExitStack, peer: Peer, ranks: int) -> Job:
    """Start a job, wait until nothing of its start is left to do, and stop it."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankmend-bench-")))
    peer = replace(peer, environment=(*peer.environment, *SAVE_EVERY))
    run = stack.enter_context(running(peer, folder))
    run.train(Plan(ranks, kills=0, settle_s=None))
    if peer.name == "rankmend":
        wait_for_kept_imports(folder / "state")  # written once the fork server is ready
        time.sleep(SLICE_S)  # the ranks to be are forked
    job = Job(run)
    job.stop()
    return job


def show(told: dict[str, Any]) -> None:
    slowdowns, cpu_s, storage = told["slowdowns"], told["cpu_s"], told["storage_bytes"]
    pairs = len(slowdowns)
    mean = statistics.fmean(slowdowns)
    steps = ", ".join(f"{name} {step_s * 1e3:.1f} ms" for name, step_s in told["step_s"].items())
    print(f"a step of {told['ranks']} ranks: {steps}")
    if pairs - 1 in T_95:
        half = T_95[pairs - 1] * statistics.stdev(slowdowns) / math.sqrt(pairs)
        print(
            f"{pairs} pairs of {told['seconds']:g} s: slowdown {mean:.2%}, 95 % interval {mean - half:.2%} to"
            f" {mean + half:.2%}, median {statistics.median(slowdowns):.2%}"
        )
    for name in ("rankmend", "torchrun"):
        print(
            f"{name}'s own processes: {cpu_s[name] / cpu_s['ranks']:.2%} of the ranks' CPU time"
            f" ({cpu_s[name] / told['taken_s']:.2%} of a core), {storage[name] / told['taken_s'] / 1e3:.1f} kB/s"
            " read from and written to storage"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--pairs", type=int, default=20, help="an interval is shown for 10, 20 and 30"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a pair")
    parser.add_argument("--ranks", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    told = measure(options)
    show(told)
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
