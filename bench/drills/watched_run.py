"""What came of one scenario on a job of torchrun that is watched, for the matrix."""

from collections.abc import Sequence
from typing import Final

from bench.drills.matrix import Cell
from bench.drills.told import Told
from recovery.lab.drill.scenario import DrillHolds, DrillPhase
from recovery.lab.drill.verdict import DrillCheck, DrillOutcome, judge_drill
from recovery.lab.drill.watched_run import STOP, WatchedRun

RANKS: Final = 2
HOLDS: Final = DrillHolds(all_recovered=False)


def tell_watched(
    run: WatchedRun, cell: Cell, outcome: DrillOutcome, more: Sequence[DrillCheck]
) -> Told:
    """Return what came of a cell of a watched job; ``more``: what must hold beside it for this kind of launcher."""
    named_s, mttr_s, blamed = run.named_after_s(), run.mttr_s(), run.blamed()
    is_stop = any(fault.fault == STOP for fault in cell.scenario.faults)
    is_named_due = (
        is_stop and cell.phase is not DrillPhase.TOGETHER
    )  # there the other's death ends it
    if is_named_due:
        detected = DrillCheck("a stopped rank is named", named_s is not None, f"after {named_s} s")
    elif run.is_recovery_due():
        detected = DrillCheck("the restart is accounted for", bool(mttr_s), f"{mttr_s}")
    else:
        detected = DrillCheck(
            "nothing is taken for a fault", not mttr_s and not blamed, f"{mttr_s}, {blamed}"
        )
    allowed = {1} if is_stop else set()
    right = DrillCheck("nobody else is named", set(blamed) <= allowed, f"{blamed}")
    base = judge_drill(HOLDS, outcome)
    return Told(
        cell.kind.name,
        cell.phase.value,
        (*base, detected, right, *more),
        is_detected=detected.held,
        is_recovered=outcome.exit_code == 0,
        is_blamed_rightly=right.held,
        is_intact=outcome.result == outcome.expected,
        mttr_s=mttr_s,
        shown=f"named after {named_s:.0f} s" if is_named_due and named_s is not None else "",
    )
