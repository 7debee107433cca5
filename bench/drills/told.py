"""What came of the cells of the matrix, and how it is shown."""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.drills.matrix import Cell
from recovery.lab.drill.scenario import DrillPhase
from recovery.lab.drill.verdict import DrillCheck, DrillOutcome

PHASES: Final = {
    DrillPhase.START: "at the start",
    DrillPhase.STEADY: "steady",
    DrillPhase.CHECKPOINT: "in a checkpoint",
    DrillPhase.RECOVERY: "in a recovery",
    DrillPhase.TOGETHER: "with another kill",
}
_RESULT: Final = "the same result as without a fault"


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one cell."""

    kind: str
    phase: str
    checks: tuple[DrillCheck, ...]
    is_detected: bool
    is_recovered: bool
    is_blamed_rightly: bool
    is_intact: bool
    mttr_s: tuple[float, ...]
    shown: str = ""  # in the table, in place of the MTTR

    @property
    def held(self) -> bool:
        return all(check.held for check in self.checks)

    @property
    def failed(self) -> str:
        return "; ".join(f"{one.name} ({one.said})" for one in self.checks if not one.held)


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of launcher: its cells, and how they are run."""

    name: str  # for --section
    title: str
    about: str
    first_column: str
    notes: str
    kinds: tuple[str, ...]
    cells: tuple[Cell, ...]
    run_all: Callable[[Sequence[Cell], Path, Callable[[Cell, Told], None]], None]
    why_not: Callable[[], str]  # it can't be run here; empty: it can


def tell_outcome(cell: Cell, outcome: DrillOutcome, checks: tuple[DrillCheck, ...]) -> Told:
    """Return what came of a cell of our own launcher."""
    held = {check.name: check.held for check in checks}
    return Told(
        cell.kind.name,
        cell.phase.value,
        checks,
        bool(outcome.incidents) is cell.is_incident,
        all(one.outcome == "recovered" for one in outcome.incidents),
        all(held[name] for name in held if "blamed" in name),
        held.get(_RESULT, False),
        tuple(one.total_s for one in outcome.incidents if one.total_s is not None),
    )


def take(cell: Cell, done: "Future[Told]") -> Told:
    """Return what came of a cell; one that broke is told as one that did not hold, and hides no other."""
    try:
        return done.result()
    except Exception as error:  # noqa: BLE001 - whatever it was
        text = f"{type(error).__name__}: {error}"
        check = DrillCheck("the cell could be run", False, text[:300])
        return Told(cell.kind.name, cell.phase.value, (check,), False, False, False, False, ())


def table_of(section: Section, told: Sequence[Told]) -> list[str]:
    """Return a section of the page: its table, and its totals."""
    lines = [
        f"## {section.title}",
        "",
        section.about,
        "",
        f"| {section.first_column} | " + " | ".join(PHASES.values()) + " |",
        "| --- |" + " --- |" * len(PHASES),
    ]
    for kind in section.kinds:
        cells = [
            _cell([one for one in told if (one.kind, one.phase) == (kind, phase.value)])
            for phase in PHASES
        ]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    every = [mttr_s for one in told for mttr_s in one.mttr_s]
    rows = (
        ("scenarios", f"{len(told)}"),
        ("the fault detected, and nothing else", share([one.is_detected for one in told])),
        ("the right rank blamed, or none", share([one.is_blamed_rightly for one in told])),
        ("recovered", share([one.is_recovered for one in told])),
        ("the same final parameters", share([one.is_intact for one in told])),
        ("MTTR, median", f"{statistics.median(every):.1f} s" if every else "-"),
    )
    lines += [
        "",
        "| total | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
    ]
    return [*lines, "", section.notes, ""] if section.notes else [*lines, ""]


def _cell(found: Sequence[Told]) -> str:
    if not found:
        return "-"
    one = found[0]
    if not one.held:
        return "**did not hold**"
    if one.shown:
        return one.shown
    return f"{statistics.median(one.mttr_s):.1f} s" if one.mttr_s else "held"


def share(held: Sequence[bool]) -> str:
    return f"{sum(held)} of {len(held)}"
