"""The matrix on several hosts: faults of the network between the nodes of one job.

Three hosts out of namespaces (`tests.support.hosts`), each a node with one rank, under `rankmend run`; the first one hosts the job's
controller. Faults are made by `rankmend inject` in the host that they meet. They last longer than the drill's own job, whose last
step waits until the last fault is over.
"""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench.drills.matrix import Cell, FaultOfMatrix
from bench.drills.told import Section, Told, take, tell_outcome
from rankmend.errors import RankmendError
from recovery.api.wire import IncidentView
from recovery.console.views.incident_view import view_incidents
from recovery.journal.folder.job_folder import find_jobs, find_launchers, read_json
from recovery.lab.drill.runner import JOB, DrillRun, JobProcess
from recovery.lab.drill.scenario import DrillFault, DrillHolds, DrillJob, DrillPhase, Scenario
from recovery.lab.drill.verdict import judge_drill
from recovery.local.report.overview import StoredRankView, read_entries, view_ranks
from tests.support.hosts import Fleet, Host, Process, why_not

NODES: Final = 3
AT_ONCE: Final = 4  # cells: a job waits for most of its time
FIRST: Final = "h1"  # hosts the job's controller, and has rank 0, which adds what the others say
BROKEN: Final = "h2"
OTHER: Final = "h3"
SHORT_S: Final = 5.0  # less than a node may be silent (10 s)
WHILE_S: Final = 15.0
LONG_S: Final = 40.0  # longer than it takes to fence a node that is silent (27 s)
_PORT: Final = 29400
_BESIDE: Final = frozenset({DrillPhase.RECOVERY, DrillPhase.TOGETHER})
_KILL_OTHER: Final = DrillFault("kill", f"{OTHER}/rank", at_step=30)


def _on(fault: str, node: str, for_s: float, **options: str | float) -> DrillFault:
    """Return a fault of a node's interface; ``on``: HOST/TARGET of rankmend inject."""
    return DrillFault(fault, f"{node}/interface:eth0", for_s=for_s, options=dict(options))


_ADDRESS: Final = "10.77.0.{}"
KINDS: Final = (
    FaultOfMatrix("link of a node down, 5 s", (_on("link-down", BROKEN, SHORT_S),), blamed=()),
    FaultOfMatrix("link of a node down, 40 s", (_on("link-down", BROKEN, LONG_S),)),
    FaultOfMatrix("a tenth of its packets lost", (_on("loss", BROKEN, WHILE_S, share=0.1),), blamed=()),
    FaultOfMatrix("64 kB/s", (_on("bandwidth", BROKEN, WHILE_S, rate="64000"),), blamed=()),
    FaultOfMatrix("0.05 s of delay", (_on("delay", BROKEN, WHILE_S, delay=0.05),), blamed=()),
    FaultOfMatrix(
        "two nodes don't reach each other",
        (_on("partition", BROKEN, WHILE_S, peer=_ADDRESS.format(3)),),
        blamed=(),
    ),
    FaultOfMatrix(
        "a node reaches no other, 40 s",
        (replace(_on("loss", BROKEN, LONG_S), options={"share": 1.0}),),
    ),
    FaultOfMatrix(
        "the controller's node reaches no other, 40 s",
        (replace(_on("loss", FIRST, LONG_S), options={"share": 1.0}),),
        blamed=(),
        blames_nobody=True,
    ),
)  # fmt: skip


def make_cells() -> list[Cell]:
    return [Cell(kind, phase, _scenario(kind, phase)) for kind in KINDS for phase in DrillPhase]


def why_none() -> str:
    return why_not()


def _scenario(kind: FaultOfMatrix, phase: DrillPhase) -> Scenario:
    job = DrillJob(ranks=NODES, steps=150, step_s=0.05)
    first = kind.faults[0]
    match phase:
        case DrillPhase.START:
            job = replace(job, start_s=4.0)
            faults = [replace(first, during=phase)]
        case DrillPhase.STEADY:
            faults = [replace(first, at_step=30)]
        case DrillPhase.CHECKPOINT:
            job = replace(job, checkpoint_every=20, save_s=2.0)
            faults = [replace(first, during=phase, at_step=40)]
        case DrillPhase.RECOVERY:
            job = replace(job, start_s=4.0)
            faults = [_KILL_OTHER, replace(first, during=phase)]
        case DrillPhase.TOGETHER:
            faults = [replace(first, at_step=30), replace(_KILL_OTHER, during=phase)]
    is_quiet = not (kind.blamed or kind.blames_nobody or phase in _BESIDE)
    holds = DrillHolds(incidents=0 if is_quiet else None)
    return Scenario(f"{kind.name}, {phase.value}", "", job, tuple(faults), holds)


@dataclass(slots=True)
class _Launchers:
    """The launchers of one job as if they were one process."""

    running: dict[str, Process]

    @property
    def returncode(self) -> int | None:
        codes = [one.returncode for one in self.running.values()]
        return None if None in codes else next((code for code in codes if code), 0)

    def poll(self) -> int | None:
        for one in self.running.values():
            one.poll()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until_s = time.monotonic() + (timeout or 600.0)
        for one in self.running.values():
            one.wait(max(0.1, until_s - time.monotonic()))
        return self.returncode or 0

    def send_signal(self, sig: int) -> None:
        for one in self.running.values():
            if one.poll() is None:
                one.send_signal(sig)


@dataclass(slots=True)
class NodesRun(DrillRun):
    """A scenario's job on the hosts of a fleet; the first part of a fault's target names the host."""

    fleet: Fleet | None = None
    ranks_of: dict[str, int] = field(default_factory=dict)  # by host, once a fault is made

    def hosts(self) -> list[Host]:
        assert self.fleet is not None, "made with one"
        return list(self.fleet)

    def host(self, name: str) -> Host:
        assert self.fleet is not None, "made with one"
        return self.fleet[name]

    def _start(self, log: int) -> JobProcess:
        started: dict[str, Process] = {}
        for host in self.hosts():
            marks = host.state / "drills.toml"
            marks.write_text('[drills]\nallow = ["network"]\ninterfaces = ["eth0"]\n')
            started[host.name] = host.popen(
                [
                    *(sys.executable, "-m", "rankmend.cli", "run", "--drills", f"--nnodes={NODES}"),
                    *("--nproc-per-node=1", f"--job={JOB}", f"--node-name={host.name}"),
                    *(f"--state-dir={host.state}", f"--checkpoint-dir={self.checkpoints}"),
                    *(f"--agent-socket={host.state}/none", *self.scenario.job.flags),
                    f"--rdzv-endpoint={self.host(FIRST).address}:{_PORT}",
                    *self._script(),
                ],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            if host.name == FIRST:
                self._until(self._has_host, "a launcher hosts the controller")
        return _Launchers(started)

    def _has_host(self) -> bool:
        return "hosts the controller" in (self.folder / "job.log").read_text(errors="replace")

    def _let_go(self) -> None:
        self._until(
            lambda: all(one.process.poll() is not None for one in self._injectors), "the faults end"
        )
        (self.folder / "let-go").touch()

    def _ranks(self) -> list[StoredRankView]:
        return [rank for ranks in self._by_host().values() for rank in ranks]

    def _by_host(self) -> dict[str, list[StoredRankView]]:
        found: dict[str, list[StoredRankView]] = {}
        for host in self.hosts():
            for folder in find_launchers(host.state, None):
                with suppress(RankmendError, OSError):
                    runtime = (read_json(folder / "run.json") or {}).get("runtime")
                    if isinstance(runtime, str):
                        ranks = list(view_ranks(host.path(runtime), host.now_s))
                        found[host.name] = [
                            one for one in ranks if host.path(f"/proc/{one.pid}").exists()
                        ]
                        break
        return found

    def _incidents(self) -> list[IncidentView]:
        """Return the incidents of every host of the job's controller: each that takes over begins a journal."""
        found: dict[str, IncidentView] = {}
        for host in self.hosts():
            for folder in find_jobs(host.state, None):
                with suppress(RankmendError, OSError):
                    for one in view_incidents(read_entries(folder), JOB):
                        known = found.get(one.incident_id)
                        if known is None or known.total_s is None:
                            found[one.incident_id] = one
        return sorted(found.values(), key=lambda one: one.opened_unix_s)

    def _target(self, fault: DrillFault) -> str:
        host, _, target = fault.on.partition("/")
        by_host = self._by_host()
        self.ranks_of = {
            name: ranks[0].rank for name, ranks in by_host.items() if ranks
        } or self.ranks_of
        return f"rank:{JOB}/{self.ranks_of[host]}" if target == "rank" else target

    def _injectors_places(self, fault: DrillFault) -> list[str]:
        state = self.host(fault.on.partition("/")[0]).state
        return [f"--state-dir={state}", f"--undo-dir={state}/undo", f"--marks={state}/drills.toml"]

    def _popen_injector(
        self, fault: DrillFault, arguments: Sequence[str], out: int
    ) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "rankmend.cli", *arguments]
        host = self.host(fault.on.partition("/")[0])
        return host.popen(argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def run_cell(cell: Cell, folder: Path) -> Told:
    """Run one cell on a fleet of its own."""
    with Fleet(NODES, folder) as fleet:
        run = NodesRun(cell.scenario, fleet.shared, lambda _text: None, fleet=fleet)
        outcome = run.run()
    hosts = {BROKEN} if cell.kind.blamed else set()
    if cell.phase in _BESIDE:
        hosts.add(OTHER)
    allowed = tuple(sorted(run.ranks_of.get(host, -1) for host in hosts))
    checks = judge_drill(replace(cell.scenario.holds, blamed_only=allowed), outcome)
    told = tell_outcome(cell, outcome, checks)
    # Before the first step ranks may wait for each other until the network is back.
    is_detected = told.is_detected or (cell.phase is DrillPhase.START and not outcome.incidents)
    return replace(told, is_detected=is_detected)


def run_all(cells: Sequence[Cell], folder: Path, tell: Callable[[Cell, Told], None]) -> None:
    """Run cells, several at once, each in a process of its own: a fleet belongs to its process."""
    homes = [folder / f"{place:02d}" for place in range(len(cells))]
    for home in homes:
        home.mkdir()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(AT_ONCE, mp_context=context) as pool:
        waiting = {
            pool.submit(run_cell, cell, home): cell for cell, home in zip(cells, homes, strict=True)
        }
        for done in as_completed(waiting):
            tell(waiting[done], take(waiting[done], done))


SECTION: Final = Section(
    name="nodes",
    title="`rankmend run` on three hosts",
    about="Three nodes in network namespaces, one rank on each, and no spare. The first one hosts the job's controller and has rank 0. The faults are those of "
    "[`rankmend inject`](../use/inject.md)\non the interface of the second node. *With another kill* and *in a recovery*, the rank of the third node is killed. A node that is silent for "
    "10 s is fenced after 27 s, and the job waits for it.",
    first_column="fault",
    notes="At the start the ranks may wait for each other until the network is back; then there is no incident. If the controller's node reaches no other node, nobody is blamed: most of "
    "the job is silent at once.\nThis kernel has no netem, so a program makes the delay ([inject](../use/inject.md#faults)).",
    kinds=tuple(kind.name for kind in KINDS),
    cells=tuple(make_cells()),
    run_all=run_all,
    why_not=why_none,
)
