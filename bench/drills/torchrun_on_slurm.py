"""The matrix under torchrun on Slurm: the user's batch script asks for a requeue when torchrun fails, and rankmend does so when the job hangs.

A real Slurm of six nodes on this machine, a real controller that acts on it, and an agent; jobs are watched by Slurm's TaskProlog.
A node dies with its slurmd and all that the job runs there: Slurm itself then requeues the job.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.drills.matrix import Cell, FaultOfMatrix
from bench.drills.told import Section, Told
from bench.drills.watched import DEATHS, STOPPED, run_each
from bench.drills.watched import make_cells as cells_of
from bench.drills.watched import why_none as why_no_torch
from bench.drills.watched_run import RANKS, tell_watched
from bench.drills.watched_site import Place, watched_site
from recovery.api import wire
from recovery.lab.drill.runner import JobProcess
from recovery.lab.drill.scenario import DrillFault, DrillPhase
from recovery.lab.drill.verdict import DrillCheck
from recovery.lab.drill.watched_run import WatchedRun, torchrun
from tests.support.slurm import SlurmCluster, missing

NODES: Final = 6
_DYING: Final = ("node5", "node6")  # of jobs whose node dies
_NODE_DIES: Final = "node-dies"  # no fault of rankmend inject: it would take this machine
# Slurm prefers a node that has jobs already: none of the others may come to one that dies.
_PARTITIONS: Final = (
    f"PartitionName=dying Nodes={','.join(_DYING)} MaxTime=INFINITE State=UP",
    "PartitionName=lasting Nodes=node1,node2,node3,node4 MaxTime=INFINITE State=UP",
)
_LOOK_S: Final = 0.5
_RESTARTS_MAX: Final = 4
KINDS: Final = (
    *DEATHS,
    FaultOfMatrix("its node dies", (DrillFault(_NODE_DIES, "rank:1"),), blamed=()),
    STOPPED,
)
_DIES: Final = "its node dies"


def make_cells() -> list[Cell]:
    return cells_of(KINDS)


def why_none() -> str:
    return missing() or why_no_torch()


@dataclass(slots=True)
class SlurmJob:
    """A batch job as if it were a process."""

    slurm: SlurmCluster
    number: str
    returncode: int | None = None
    looked_at_s: float = 0.0

    def field_of(self, name: str) -> str:
        told = self.slurm.run("scontrol", "show", "job", self.number, "--oneliner").stdout
        return told.partition(f" {name}=")[2].partition(" ")[0]

    def poll(self) -> int | None:
        if self.returncode is None and time.monotonic() - self.looked_at_s > _LOOK_S:
            self.looked_at_s = time.monotonic()
            state = self.field_of("JobState")
            if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"):
                self.returncode = 0 if state == "COMPLETED" else 1
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until_s = time.monotonic() + (timeout or 600.0)
        while self.poll() is None and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return 1 if self.returncode is None else self.returncode

    def send_signal(self, sig: int) -> None:
        self.slurm.run(
            "scancel", *(["--signal=KILL"] if sig == signal.SIGKILL else []), self.number
        )


@dataclass(slots=True)
class SlurmRun(WatchedRun):
    """The same in a batch job that its script requeues when torchrun fails."""

    slurm: SlurmCluster | None = None
    job: SlurmJob | None = None
    dead_node: str = ""

    def cluster(self) -> SlurmCluster:
        assert self.slurm is not None, "made with one"
        return self.slurm

    def _start(self, _log: int) -> JobProcess:
        self._prepare()
        partition = "dying" if self.scenario.name.startswith(_DIES) else "lasting"
        words = " ".join([*torchrun(0, self.name, RANKS), *self._script()])
        script = self.folder / "job.sh"
        script.write_text(
            "#!/bin/sh\n"
            f"#SBATCH --partition={partition} --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=200 --requeue\n"
            f"#SBATCH --job-name={self.name} --output={self.folder}/job.log --open-mode=append\n"
            f"export OMP_NUM_THREADS=1\nsrun {words} && exit 0\ncode=$?\n"
            f'if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {_RESTARTS_MAX} ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi\n'
            "exit $code\n"
        )
        done = self.cluster().run("sbatch", str(script))
        if done.returncode != 0:
            raise RuntimeError(f"sbatch: {done.stderr}")
        self.job = SlurmJob(self.cluster(), done.stdout.split()[-1])
        return self.job

    def _inject(self, faults: Sequence[DrillFault]) -> None:
        super(SlurmRun, self)._inject([one for one in faults if one.fault != _NODE_DIES])
        if any(one.fault == _NODE_DIES for one in faults):
            self._kill_node()

    def _kill_node(self) -> None:
        """Kill slurmd of the job's node, its slurmstepd, and all that it runs, before any of them can say a word."""
        assert self.job is not None, "it was started"
        node = self.job.field_of("BatchHost") or self.job.field_of("NodeList")
        self.dead_node = node
        daemon = self.cluster().processes[node]
        daemon.kill()
        daemon.wait()
        steps = re.compile(rb"slurmstepd: \[" + self.job.number.encode() + rb"\.")
        mark = f"SLURM_JOB_ID={self.job.number}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_step = steps.match((path / "cmdline").read_bytes())
                if is_step or mark in (path / "environ").read_bytes().split(b"\0"):
                    os.kill(int(path.name), signal.SIGKILL)

    def _let_go(self) -> None:
        if self.dead_node:
            job = self.job
            assert job is not None, "it was started"
            restarts = sum(fault.fault == "kill" for fault in self.scenario.faults[:1])
            self._until(
                lambda: int(job.field_of("Restarts") or 0) > restarts, "Slurm requeues the job"
            )
            _start_node(self.cluster(), self.dead_node)
        super(SlurmRun, self)._let_go()

    def is_recovery_due(self) -> bool:
        return True  # each fault of this section ends the attempt

    def ends_stops(self) -> bool:
        return False  # the controller has the job requeued

    def requests(self) -> list[str]:
        """Return what came of each requeue that the controller has asked for."""
        assert self.job is not None, "it was started"
        view = self.services().client.ask("GET", "/v1/slurm", wire.SlurmView)
        found = [one for one in view.requests if one.slurm_job == self.job.number]
        return [f"{one.action}: {one.outcome}" for one in found]


def run_all(cells: Sequence[Cell], folder: Path, tell: Callable[[Cell, Told], None]) -> None:
    """Run the cells on one Slurm."""
    with watched_site(folder, nodes=NODES, partitions=_PARTITIONS) as found:
        run_each(cells, lambda cell, place: _run_cell(cell, place, found, folder), tell)


def _run_cell(cell: Cell, place: int, found: Place, folder: Path) -> Told:
    home = folder / f"cell-{place:02d}"
    home.mkdir()
    name = f"slurm-{place:02d}-{time.monotonic_ns() % 1_000_000:06d}"
    run = SlurmRun(
        cell.scenario, home, lambda _text: None, site=found.site, name=name, slurm=found.slurm
    )
    outcome = run.run()
    requests, done = run.requests(), ["requeue: done"]
    due = [done] if cell.kind is STOPPED else [[]]
    if cell.kind is STOPPED and cell.phase is DrillPhase.TOGETHER:
        due = [
            done,
            [],
        ]  # torchrun waits 30 s for the stopped rank before it ends, and may be later
    asked = DrillCheck(
        "rankmend requeues a job that hangs, and no other", requests in due, f"{requests}"
    )
    return tell_watched(run, cell, outcome, (asked,))


def _start_node(slurm: SlurmCluster, node: str) -> None:
    config = str(slurm.folder / "slurm.conf")
    slurm.start(node, "slurmd", "-D", "-N", node, "-f", config)


SECTION: Final = Section(
    name="slurm",
    title="torchrun on Slurm, with requeue",
    about="A batch job of two ranks under `torchrun --max-restarts=0`, whose script asks Slurm for a requeue when torchrun fails; the controller may requeue jobs that hang "
    "([policy](../use/watch.md#what-may-be-done-about-it), with\n`confirm_s = 5`). Besides the result, this must hold: rankmend names a stopped rank and requeues the job once. After any other fault, "
    "the script or Slurm requeues\nthe job once, rankmend accounts for it, and nobody is named.",
    first_column="rank 1",
    notes="A real Slurm 22.05 with six nodes on one machine (`cred_expire=5`, `SlurmdTimeout=10`). A node dies with its slurmd and all processes of the job. *With another kill*: rank 0 is killed at the same moment.",
    kinds=tuple(kind.name for kind in KINDS),
    cells=tuple(make_cells()),
    run_all=run_all,
    why_not=why_none,
)
