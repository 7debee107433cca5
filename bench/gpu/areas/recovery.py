"""Recovery of ranks that hold a CUDA context: kill -9, a stopped rank, an illegal memory access. Beside torchrun.

Two ranks share the GPU (bench/jobs/cuda_ddp.py), each with two fifths of its memory: a successor gets its share only where
the dead rank's memory has been freed.
"""

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench import restart
from bench.gpu.rows import NotTriedError, Telling, Trial

LIMIT_S = 170.0
CLAIMS = {
    "kill": "After kill -9 of a rank all ranks make new steps, sooner than under torchrun.",
    "memory": "A dead rank's GPU memory is free before its successor starts.",
    "fork_server": "The fork server never touches the driver, and forked ranks train on the GPU.",
    "illegal_access": "An illegal memory access is reported as a kernel fault of its rank, and the next attempt trains on the same GPU.",
    "sticky": "The error sticks to the process that made it: the other processes and the GPU go on.",
    "stop": "A rank that is stopped (SIGSTOP) is replaced.",
}
RANKS = 2
KILLS = 2
BALLAST = 0.4  # of the GPU's memory, for each rank
JOB = restart.JOB.with_name("cuda_ddp.py")
PLAN = restart.Plan(ranks=RANKS, kills=KILLS, settle_s=None, start_s_max=45, recover_s_max=60)
DRIVER_FILES = "/dev/nvidia"  # open in whoever has called the driver; `import torch` maps its library and calls nothing
_SERVER = "rankmend.hook.fork_server"


def run(telling: Telling) -> None:
    """Try the rows of this area."""
    os.environ["BENCH_BALLAST"] = str(BALLAST)
    with telling.rows("fork_server", "memory") as (server, memory):
        watch_kill(server, memory)
    with telling.rows("illegal_access", "sticky") as (illegal, sticky):
        break_context(illegal, sticky)
    with telling.row("stop") as row:
        stop(row)
    with telling.row("kill") as row:
        compare(row)


def find_peer(name: str) -> restart.Peer:
    if not (restart.BIN / "rankmend").exists():
        raise NotTriedError(f"rankmend is not installed in {restart.BIN.parent}")
    return replace(restart.known_peers(RANKS)[name], job=JOB)


@contextmanager
def job(name: str) -> Iterator[restart.Run]:
    """Run the job until it has made some steps and its fork server has had time for its imports."""
    folder = Path(tempfile.mkdtemp(prefix="rankmend-gpu-"))
    try:
        with restart.running(find_peer(name), folder) as run:
            run.train(PLAN)
            run.wait(lambda _events: False, restart.settle_time_s(run.log.events))
            yield run
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def watch_kill(server: Trial, memory: Trial) -> None:
    """Kill a rank under rankmend; look at the fork server, and at the memory that its successor found."""
    with job("rankmend") as run:
        servers = [pid for pid in restart.started_pids(run.folder) if _is_server(pid)]
        server.check(servers, "no fork server runs")
        touched = {pid: files for pid in servers if (files := driver_files(pid))}
        server.figure("fork servers and waiting forks", len(servers))
        server.check(not touched, f"they have opened {touched}")
        trial = restart.harm_once(run, PLAN, 1)
        server.check(trial.is_recovered, "no new step after the kill")
        memory.check(trial.is_recovered, "the successors did not get their memory")
        free_mib = [event.step for event in run.log.events if event.name == "free"]
        memory.figure("each rank takes, share of the GPU", BALLAST)
        memory.figure("free when each rank came, MiB", " ".join(map(str, free_mib[:RANKS])))
        memory.figure("and each successor, MiB", " ".join(map(str, free_mib[RANKS:])))
        # The second rank to come may find the first one's share taken.
        memory.check(
            max(free_mib[RANKS:], default=0) >= max(free_mib[:RANKS]),
            "the first successor found less than the first rank",
        )


def driver_files(pid: int) -> list[str]:
    """Return the driver's devices that a process has open or mapped."""
    found = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    mapped = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    found |= {line.split(maxsplit=5)[5] for line in mapped.splitlines() if len(line.split()) > 5}
    return sorted(file for file in found if file.startswith(DRIVER_FILES))


def _is_server(pid: int) -> bool:
    try:
        return _SERVER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def break_context(illegal: Trial, sticky: Trial) -> None:
    """Let a kernel of one rank write to nowhere, and see what rankmend makes of it."""
    with job("rankmend") as run:
        trial = restart.harm_once(run, PLAN, 1, lambda _pid: (run.folder / "fault-1").touch())
        output = (run.folder / "output").read_text(errors="replace")
        illegal.check(trial.is_recovered, f"no new step: {output[-300:]}")
        if trial.first_step_s is not None:
            illegal.figure("fault to the first new step, s", trial.first_step_s)
        incidents = restart.read_incidents(run.folder / "state")
        illegal.check(len(incidents) == 1, f"{len(incidents)} incidents")
        for one in incidents:
            told = {key: one[key] for key in ("cause", "blame", "signature", "ranks", "outcome")}
            illegal.figure("incident", json.dumps(told))
            illegal.check(
                one["signature"].startswith("kernel_fault"), "it is reported as another cause"
            )
            illegal.check(one["ranks"] == [1], "another rank is blamed")
            illegal.check("illegal memory access" in output, "the rank's output has no such error")
            illegal.figure("the rank's last words", output[output.rfind("CUDA error") :][:700])
        sticky.check(trial.is_recovered, "the GPU took no new process")
        sticky.check("illegal memory access" in output, "the process did not see its error again")
        others = [line for line in output.splitlines() if "[rank 0]" in line and "illegal" in line]
        sticky.check(not others, f"the other rank met it too: {others[:1]}")


def stop(row: Trial) -> None:
    with job("rankmend") as run:
        trial = restart.harm_once(run, PLAN, 1, restart.keep_stopped)
        row.check(trial.is_recovered, "no new step after the stop")
        if trial.first_step_s is not None:
            row.figure("stop to the first new step, s", trial.first_step_s)
        row.note(
            "a rank that stops again counts as hung 5 s (--hang-stopped) after SIGCONT, which comes after 5 s"
        )


def compare(row: Trial) -> None:
    """Kill a rank twice under each launcher."""
    names = ("rankmend", "rankmend-cold", "torchrun")
    medians = {}
    for name in names:
        trials = restart.run_trials(find_peer(name), PLAN, 1).trials
        row.check(all(one.is_recovered for one in trials), f"{name}: a kill was not recovered from")
        times = [one.all_ranks_s for one in trials if one.all_ranks_s is not None]
        if times:
            medians[name] = statistics.median(times)
            row.figure(
                f"{name}: kill to new steps of all ranks, s",
                " ".join(f"{one:.2f}" for one in times),
            )
        for phase in sorted({phase for one in trials for phase in one.account}):
            times = [one.account[phase] for one in trials if phase in one.account]
            row.figure(f"{name}: {phase}", statistics.median(times))
    if "torchrun" in medians and "rankmend" in medians:
        row.figure("torchrun / rankmend", medians["torchrun"] / medians["rankmend"])
        row.check(medians["rankmend"] < medians["torchrun"], "torchrun was sooner")
