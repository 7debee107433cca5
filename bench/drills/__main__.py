"""Runs every kind of fault in every phase of a job, and tells what was detected, blamed rightly, recovered, and with which MTTR.

    python -m bench.drills                                  # all of them, some 10 minutes; as root with control groups, too
    python -m bench.drills --only killed --phase recovery
    python -m bench.drills --output drills.json --page docs/reference/drills.md

The jobs are those of `rankmend drill`: three ranks on this machine under `rankmend run`, whose result is known to the bit. The exit code is 1 if
something did not hold.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Final

from bench.drills.matrix import KINDS, Cell, make_matrix
from rankmend.files import write_output
from rankmend.version import RANKMEND_VERSION
from recovery.drill.runner import DrillRun
from recovery.drill.scenario import DrillPhase
from recovery.drill.verdict import DrillCheck, DrillOutcome, judge_drill

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

    @property
    def held(self) -> bool:
        return all(check.held for check in self.checks)


def run_cell(cell: Cell, folder: Path) -> Told:
    outcome = DrillRun(cell.scenario, folder, lambda _text: None).run()
    checks = judge_drill(cell.scenario.holds, outcome)
    held = {check.name: check.held for check in checks}
    return Told(
        cell.kind.name,
        cell.phase.value,
        checks,
        bool(outcome.incidents) is cell.is_incident,
        all(one.outcome == "recovered" for one in outcome.incidents),
        all(held[name] for name in held if "blamed" in name),
        held[_RESULT],
        _mttr(outcome),
    )


def _mttr(outcome: DrillOutcome) -> tuple[float, ...]:
    return tuple(one.total_s for one in outcome.incidents if one.total_s is not None)


def _cell(found: Sequence[Told]) -> str:
    if not found:
        return "-"
    one = found[0]
    if not one.held:
        return "**did not hold**"
    return f"{statistics.median(one.mttr_s):.1f} s" if one.mttr_s else "held"


def page(told: Sequence[Told], took_s: float) -> str:
    """Return the result as a page of the documentation."""
    lines = [
        "# What was broken on purpose",
        "",
        f"`make drills` on {date.today().isoformat()}, rankmend {RANKMEND_VERSION}: {os.cpu_count()} cores, "  # noqa: DTZ011
        f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}; {took_s / 60:.0f} minutes. Each fault meets a job of three ranks "
        "in each phase ([drills](../use/drill.md)). A cell gives the MTTR, or",
        "`held` where the fault must be no incident and was none. What must hold: the right rank alone is blamed, every incident ends recovered, and the",
        "job ends with the same bits as without a fault.",
        "",
        "| rank 1, or what the row says | " + " | ".join(PHASES.values()) + " |",
        "| --- |" + " --- |" * len(PHASES),
    ]
    for kind in KINDS:
        cells = [
            _cell([one for one in told if (one.kind, one.phase) == (kind.name, phase.value)])
            for phase in PHASES
        ]
        lines.append(f"| {kind.name} | " + " | ".join(cells) + " |")
    every = [mttr_s for one in told for mttr_s in one.mttr_s]
    rows = (
        ("scenarios", f"{len(told)}"),
        ("detected, and nothing else taken for a fault", _share([one.is_detected for one in told])),
        ("blamed rightly", _share([one.is_blamed_rightly for one in told])),
        ("every incident recovered", _share([one.is_recovered for one in told])),
        ("the same final parameters", _share([one.is_intact for one in told])),
        ("MTTR, median of all incidents", f"{statistics.median(every):.1f} s" if every else "-"),
    )
    lines += [
        "",
        "| in all | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
    ]
    lines += [
        "",
        "With another kill, rank 2 is killed at the same moment: its death may end the attempt before the other fault finds its rank. In a recovery, that from a kill",
        "of rank 2 goes on. Where the damaged checkpoint is the only one, rankmend does not begin at step 0: it waits until a good one is there, here for the 60 s that",
        "the fault lasts. Not in the matrix: jobs under torchrun and Slurm, jobs that are only watched, faults of the network between nodes and of GPUs.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _share(held: Sequence[bool]) -> str:
    return f"{sum(held)} of {len(held)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.drills", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="kinds whose name contains this")
    parser.add_argument("--phase", choices=[phase.value for phase in DrillPhase])
    parser.add_argument("--output", type=Path, help="write all that was told as JSON")
    parser.add_argument("--page", type=Path, help="write the page of the documentation")
    parser.add_argument("--keep", type=Path, help="keep the jobs' folders here")
    options = parser.parse_args()
    cells = [
        cell
        for cell in make_matrix()
        if (options.only or "") in cell.kind.name
        and options.phase in (None, cell.phase.value)
        and (os.geteuid() == 0 or not cell.kind.needs_root)
    ]
    began_s, told = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="rankmend-drills-") as made:
        home = (options.keep or Path(made)).resolve()
        for place, cell in enumerate(cells, 1):
            folder = home / f"{place:02d}"
            folder.mkdir(parents=True)
            one = run_cell(cell, folder)
            told.append(one)
            failed = "; ".join(
                f"{check.name} ({check.said})" for check in one.checks if not check.held
            )
            mttr = ", ".join(f"{mttr_s:.1f} s" for mttr_s in one.mttr_s)
            print(f"{place}/{len(cells)} {cell.scenario.name}: {failed or 'held'} {mttr}", flush=True)  # fmt: skip
    text = page(told, time.monotonic() - began_s)
    print(text)
    if options.output is not None:
        body = json.dumps([asdict(one) for one in told], indent=1).encode()
        write_output(options.output, body, RuntimeError)
    if options.page is not None:
        write_output(options.page, text.encode(), RuntimeError)
    return 0 if all(one.held for one in told) else 1


if __name__ == "__main__":
    sys.exit(main())
