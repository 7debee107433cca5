"""Whether everything that must hold did hold. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from detectors.wording import counted
from recovery.api.wire import IncidentView
from recovery.lab.drill.scenario import DrillHolds

_RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class DrillOutcome:
    """What became of the job and of its faults."""

    exit_code: int | None  # None: it did not end in time
    incidents: tuple[IncidentView, ...]  # oldest first
    result: tuple[int, int] | None  # last step, state
    expected: tuple[int, int] | None  # None: the job's result is not known beforehand
    not_undone: tuple[str, ...]  # faults that were not made or not undone, with what was said


@dataclass(frozen=True, slots=True)
class DrillCheck:
    name: str
    held: bool
    said: str  # what was seen


def judge_drill(holds: DrillHolds, outcome: DrillOutcome) -> tuple[DrillCheck, ...]:
    """Return each thing that must hold, in the order of the scenario's table."""
    found = outcome.incidents
    checks = [
        DrillCheck(
            "every fault was made and undone",
            not outcome.not_undone,
            "; ".join(outcome.not_undone) or "all of them",
        ),
        DrillCheck(
            f"the job ends with exit code {holds.exit_code}",
            outcome.exit_code == holds.exit_code,
            "it did not end in time" if outcome.exit_code is None else f"{outcome.exit_code}",
        ),
    ]
    said = ", ".join(f"{incident.cause}: {incident.outcome}" for incident in found) or "none"
    if holds.incidents is not None:
        name = counted(holds.incidents, "incident")
        checks.append(DrillCheck(name, len(found) == holds.incidents, said))
    if holds.all_recovered:
        is_right = all(incident.outcome == _RECOVERED for incident in found)
        checks.append(DrillCheck("every incident ends recovered", is_right, said))
    if holds.blamed is not None:
        blamed = tuple(tuple(sorted(incident.ranks)) for incident in found)
        wanted = tuple(tuple(sorted(item)) for item in holds.blamed)
        checks.append(DrillCheck(f"blamed: {_shown(wanted)}", blamed == wanted, _shown(blamed)))
    if holds.blamed_only is not None:
        accused = sorted({rank for incident in found for rank in incident.ranks})
        name = f"nobody is blamed but {_shown([holds.blamed_only])}"
        is_right = set(accused) <= set(holds.blamed_only)
        checks.append(DrillCheck(name, is_right, _shown([accused])))
    if holds.restored_steps is not None:
        restored = tuple(incident.restored_step or 0 for incident in found)
        name = f"continues from step {_shown([[step] for step in holds.restored_steps])}"
        said = _shown([[step] for step in restored])
        checks.append(DrillCheck(name, restored == holds.restored_steps, said))
    if holds.same_result and outcome.expected is not None:
        is_same = outcome.result == outcome.expected
        said = (
            "no result"
            if outcome.result is None
            else f"step {outcome.result[0]}, {outcome.result[1]}"
        )
        checks.append(DrillCheck("the same result as without a fault", is_same, said))
    checks += _bounded(
        "steps made again",
        holds.steps_recomputed_max,
        [incident.steps_recomputed for incident in found],
    )
    checks += _bounded("MTTR (s)", holds.mttr_s_max, [incident.total_s for incident in found])
    return tuple(checks)


def _bounded(name: str, most: float | None, values: Sequence[float | None]) -> list[DrillCheck]:
    if most is None:
        return []
    known = [value for value in values if value is not None]
    said = ", ".join(f"{value:.4g}" for value in known) or "none"
    return [DrillCheck(f"{name}: at most {most:g}", all(value <= most for value in known), said)]


def _shown(ranks: Sequence[Sequence[int]]) -> str:
    return ", then ".join(", ".join(map(str, rank)) or "nobody" for rank in ranks) or "nobody"
