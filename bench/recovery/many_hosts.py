"""Measures the recovery of a job of 64 ranks on 8 hosts from `kill -9` of a rank.

    python -m bench.recovery.many_hosts [--hosts 8] [--ranks 8] [--kills 5] [--output FILE.json]

The hosts are network namespaces of this machine (`tests.support.hosts`), with a launcher each; the first one hosts the controller. The job
(bench/jobs/socket_sum.py) sums over plain sockets, without torch: what is measured is rankmend's own way from the death to the first
step that all ranks make in the next attempt. Each kill falls on another host. Needs root and iproute2.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.restart import describe_machine
from tests.support.hosts import Fleet, Process, why_not

JOB: Final = Path(__file__).resolve().parent.parent / "jobs" / "socket_sum.py"
GOAL_S: Final = 2.0
"""Ours, for a machine with a core for each host: on fewer the ranks' own starts take longer."""
START_S_MAX: Final = 300.0
RECOVER_S_MAX: Final = 120.0
END_S_MAX: Final = 60.0
AGAIN_S: Final = (
    5.0  # from the first step of all ranks to the next kill: the fork server is ready by then
)
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A line that a rank has noted."""

    name: str
    attempt: int
    rank: int
    unix_ns: int


@dataclass(frozen=True, slots=True)
class HostsTrial:
    """One kill; seconds after it, None where the job did not come back."""

    rank: int
    started_s: float | None  # the last rank's process
    connected_s: float | None  # all ranks
    step_s: float | None  # the last rank's first step


def parse_events(text: str) -> list[JobEvent]:
    """Return the events of whole lines."""
    events = []
    for line in text.splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and len(words) == 5:
            events.append(JobEvent(words[0], int(words[1]), int(words[2]), int(words[3])))
    return events


def is_complete(events: Sequence[JobEvent], attempt: int, size: int) -> bool:
    """Return whether every rank has made a step of an attempt."""
    made = {one.rank for one in events if one.name == "step" and one.attempt == attempt}
    return len(made) == size


def judge_kill(events: Sequence[JobEvent], attempt: int, size: int) -> HostsTrial:
    """Return what came of the kill in an attempt."""
    killed = next(one for one in events if one.name == "kill" and one.attempt == attempt)
    after = [one for one in events if one.attempt > attempt]
    # A start that failed is part of the way: the attempt that counts is the first in which all ranks step.
    newest = next(
        (
            number
            for number in sorted({one.attempt for one in after})
            if is_complete(after, number, size)
        ),
        None,
    )

    def last_s(name: str) -> float | None:
        at_ns = [one.unix_ns for one in after if one.name == name and one.attempt == newest]
        return (max(at_ns) - killed.unix_ns) / 1e9 if at_ns else None

    return HostsTrial(killed.rank, last_s("started"), last_s("connected"), last_s("step"))


def measure(folder: Path, hosts: int, ranks: int, kills: int) -> list[HostsTrial]:
    """Run the job once and return what came of each kill."""
    size = hosts * ranks
    with Fleet(hosts, folder) as fleet:
        shared = fleet.shared
        checkpoints = shared / "checkpoints"
        checkpoints.mkdir()
        launchers: list[Process] = []
        logs = [shared / f"{host.name}.log" for host in fleet]
        for host, log in zip(fleet, logs, strict=True):
            argv = [
                *(sys.executable, "-m", "rankmend.cli", "run", f"--nnodes={hosts}"),
                *(f"--nproc-per-node={ranks}", f"--rdzv-endpoint={fleet['h1'].address}:29400"),
                *("--job=many-hosts", f"--node-name={host.name}", f"--state-dir={host.state}"),
                *(f"--checkpoint-dir={checkpoints}", f"--agent-socket={host.state}/none"),
                "--store=ranks",  # rank 0 listens at the port
                *(str(JOB), f"--folder={shared}"),
            ]
            with log.open("wb") as out:
                launchers.append(host.popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out))

        def events() -> list[JobEvent]:
            path = shared / "events"
            return parse_events(path.read_text()) if path.exists() else []

        def newest() -> int:
            return max((one.attempt for one in events()), default=0)

        def wait(is_so: Callable[[], bool], what: str, within_s: float) -> None:
            until_s = time.monotonic() + within_s
            while not is_so():
                if time.monotonic() >= until_s:
                    said = "\n".join(log.read_text(errors="replace")[-1000:] for log in logs[:2])
                    raise TimeoutError(f"no {what} within {within_s:g} s\n{said}")
                time.sleep(POLL_S)

        wait(lambda: is_complete(events(), newest(), size), "first step", START_S_MAX)
        trials = []
        for number in range(kills):
            time.sleep(AGAIN_S)
            attempt, rank = newest(), (number * ranks + number) % size
            (shared / "kill").write_text(f"{rank} {attempt}")
            wait(
                lambda attempt=attempt: (
                    newest() > attempt and is_complete(events(), newest(), size)
                ),
                "step after a kill",
                RECOVER_S_MAX,
            )
            trials.append(judge_kill(events(), attempt, size))
            print(f"kill {number + 1}: {describe(trials[-1])}", file=sys.stderr, flush=True)
        (shared / "end").touch()
        for launcher in launchers:
            launcher.wait(END_S_MAX)
        return trials


def describe(trial: HostsTrial) -> str:
    names = ("started", "connected", "first step")
    times = (trial.started_s, trial.connected_s, trial.step_s)
    said = (
        f"{name} {'never' if took_s is None else f'{took_s:.2f} s'}"
        for name, took_s in zip(names, times, strict=True)
    )
    return f"rank {trial.rank}: all ranks {', '.join(said)}"


def judge_goal(trials: Sequence[HostsTrial]) -> tuple[float | None, bool]:
    """Return the median to the first step of all ranks, and whether it meets the goal; None: some kill had none."""
    times = [one.step_s for one in trials if one.step_s is not None]
    if not times or len(times) < len(trials):
        return None, False
    median_s = statistics.median(times)
    return median_s, 0 < median_s <= GOAL_S


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.recovery.many_hosts", description=__doc__)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="of each host")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if reason := why_not():
        print(f"not measured: {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="rankmend-bench-") as folder:
        trials = measure(Path(folder), asked.hosts, asked.ranks, asked.kills)
    median_s, is_met = judge_goal(trials)
    said = "some kill had no recovery" if median_s is None else f"{median_s:.2f} s"
    goal = "met" if is_met else "missed"
    print(
        f"{asked.hosts} hosts, {asked.hosts * asked.ranks} ranks, {asked.kills} kills, load {os.getloadavg()[0]:.1f}: "
        f"median to the first step of all ranks {said} (goal {GOAL_S:g} s: {goal})"
    )
    if asked.output is not None:
        report = {
            "machine": describe_machine(),
            "hosts": asked.hosts,
            "ranks": asked.ranks,
            "median_s": median_s,
            "is_met": is_met,
            "trials": [asdict(one) for one in trials],
        }
        asked.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
