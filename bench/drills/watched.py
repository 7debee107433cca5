"""The matrix on jobs that are only watched: torchrun has started them and restarts their ranks, and rankmend says what is wrong.

Everything is as a user has it who only watches, but for the policy, which would act on a job of Slurm's. These are none,
and torchrun restarts their ranks: so nothing may be done about them.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.drills.matrix import Cell, FaultOfMatrix
from bench.drills.told import Section, Told, take
from bench.drills.watched_run import RANKS, tell_watched
from bench.drills.watched_site import watched_site
from recovery.lab.drill.runner import at_once
from recovery.lab.drill.scenario import DrillFault, DrillHolds, DrillJob, DrillPhase, Scenario
from recovery.lab.drill.verdict import DrillCheck
from recovery.lab.drill.watched_run import WatchedRun
from recovery.lab.drill.watched_site import WatchedSite

START_S_MAX: Final = 300.0  # that ranks wait in their start for the fault
AT_ONCE: Final = 5  # cells; a job waits for most of its time
_KILL: Final = DrillFault("kill", "rank:1")
_KILL_OTHER: Final = DrillFault("kill", "rank:0", at_step=10)
_KILLS: Final = frozenset({"kill", "exit-code", "exception"})


def _on_rank(fault: str, **options: str | int | float | bool) -> DrillFault:
    return DrillFault(fault, "rank:1", options=options)


STOPPED: Final = FaultOfMatrix("stopped", (replace(_on_rank("stop"), for_s=120.0),))
DEATHS: Final = (
    FaultOfMatrix("killed", (_KILL,), blamed=()),
    FaultOfMatrix("exits with code 7", (_on_rank("exit-code", code=7),), blamed=()),
    FaultOfMatrix("raises", (_on_rank("exception"),), blamed=()),
    FaultOfMatrix(
        "newest checkpoint torn, then killed",
        (DrillFault("torn-checkpoint", "checkpoint:newest"), _KILL),
        blamed=(),
        needs_checkpoint=True,
    ),
)
KINDS: Final = (
    *DEATHS,
    STOPPED,
    FaultOfMatrix("cores loaded", (replace(_on_rank("core-load", workers=2), for_s=10.0),), blamed=()),
)  # fmt: skip


def make_cells(kinds: Sequence[FaultOfMatrix] = KINDS) -> list[Cell]:
    return [
        Cell(kind, phase, scenario_of(kind, phase))
        for kind in kinds
        for phase in DrillPhase
        if not (kind.needs_checkpoint and phase is DrillPhase.START)
    ]


def why_none() -> str:
    return "" if find_spec("torch") is not None else "PyTorch is not installed"


def scenario_of(kind: FaultOfMatrix, phase: DrillPhase) -> Scenario:
    """Return a kind in a phase for a job of two ranks; where another fault is needed, rank 0 is killed."""
    job = DrillJob(ranks=RANKS, steps=60, checkpoint_every=5, step_s=0.2, deadline_s=900)
    first, *rest = kind.faults
    match phase:
        case DrillPhase.START:
            job = replace(job, start_s=START_S_MAX)
            faults = [replace(first, during=phase), *rest]
        case DrillPhase.STEADY:
            faults = [replace(first, at_step=10), *rest]
        case DrillPhase.CHECKPOINT:
            job = replace(job, checkpoint_every=10, save_s=5.0)
            faults = [replace(first, during=phase, at_step=20), *rest]
        case DrillPhase.RECOVERY:
            job = replace(job, start_s=START_S_MAX)
            faults = [_KILL_OTHER, replace(first, during=phase), *rest]
        case DrillPhase.TOGETHER:
            faults = [replace(first, at_step=10), replace(_KILL_OTHER, during=phase), *rest]
    return Scenario(f"{kind.name}, {phase.value}", "", job, tuple(faults), DrillHolds())


def run_all(cells: Sequence[Cell], folder: Path, tell: Callable[[Cell, Told], None]) -> None:
    with watched_site(folder) as found:
        run_each(cells, lambda cell, place: _run_cell(cell, place, found.site, folder), tell)


def run_each(
    cells: Sequence[Cell], run: Callable[[Cell, int], Told], tell: Callable[[Cell, Told], None]
) -> None:
    """Run cells, several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {pool.submit(run, cell, place): cell for place, cell in enumerate(cells)}
        for done in as_completed(waiting):
            tell(waiting[done], take(waiting[done], done))


def _run_cell(cell: Cell, place: int, site: WatchedSite, folder: Path) -> Told:
    home = folder / f"cell-{place:02d}"
    home.mkdir()
    name = f"watched-{place:02d}-{time.monotonic_ns() % 1_000_000:06d}"
    run = WatchedRun(cell.scenario, home, lambda _text: None, site=site, name=name)
    outcome = run.run()
    groups = at_once(cell.scenario.faults)
    due = sum(any(fault.fault in _KILLS for fault in group) for group in groups)
    said = f"{run.attempts} restarts, {run.acts() or 'nothing asked'}"
    untouched = DrillCheck("nothing is touched", run.attempts == due and not run.acts(), said)
    return tell_watched(run, cell, outcome, (untouched,))


SECTION: Final = Section(
    name="watched",
    title="Watched only",
    about="A job of two ranks that torchrun has started and whose ranks it restarts (`--max-restarts=3`), watched by an agent and a controller ([watch](../use/watch.md)). A cell passes if rankmend "
    "reports what\nhappens, names nobody else and touches nothing, and the job ends with the same bits. A stopped rank continues once it is named; the cell shows how long that took. The MTTR is torchrun's. "
    "*At the start* is after the first step, because ranks are not seen before it.",
    first_column="rank 1",
    notes="*With another kill*: rank 0 is killed at the same moment. *In a recovery*: torchrun is recovering from a kill of rank 0.",
    kinds=tuple(kind.name for kind in KINDS),
    cells=tuple(make_cells()),
    run_all=run_all,
    why_not=why_none,
)
