"""The matrix under our own launcher on one host."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.drills.matrix import KINDS, Cell, make_matrix
from bench.drills.told import Section, Told, tell_outcome
from recovery.lab.drill.runner import DrillRun
from recovery.lab.drill.verdict import judge_drill


def run_all(cells: Sequence[Cell], folder: Path, tell: Callable[[Cell, Told], None]) -> None:
    for place, cell in enumerate(cells, 1):
        home = folder / f"{place:02d}"
        home.mkdir()
        outcome = DrillRun(cell.scenario, home, lambda _text: None).run()
        tell(cell, tell_outcome(cell, outcome, judge_drill(cell.scenario.holds, outcome)))


SECTION: Final = Section(
    name="one-host",
    title="`rankmend run` on one host",
    about="A job of three ranks. *With another kill*: rank 2 is killed at the same moment, which may end the attempt before the other fault reaches its rank. *In a recovery*: "
    "the job is\nrecovering from a kill of rank 2.",
    first_column="rank 1, or what the row says",
    notes="If the damaged checkpoint is the only one, rankmend does not start at step 0: it waits for a good one, at most for the 60 s that the fault lasts.",
    kinds=tuple(kind.name for kind in KINDS),
    cells=tuple(make_matrix()),
    run_all=run_all,
    why_not=str,
)
