"""Is a node fit for the next job? Pure: the findings page in, what keeps a job off it out.

Only a critical finding whose action ends the use of something (reset, reboot, drain, replace, support) keeps jobs off. A
warning doesn't, nor does a finding that only asks to watch or to restart a program, nor a check that did not answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from detectors.finding import Action, Severity

# Exit code of prolog and epilog. Not 2, which a shell, Python and the command line return for a mistake of their own.
UNFIT: Final = 3


class Use(Enum):
    """Who asks, and so what the exit code means."""

    PERSON = "person"
    PROLOG = "prolog"
    EPILOG = "epilog"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class Fitness:
    obstacles: tuple[str, ...] = ()  # what keeps jobs off: "ID: summary"
    warnings: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()  # names of collectors and checks

    @property
    def is_fit(self) -> bool:
        return not self.obstacles


def judge_fitness(page: Mapping[str, Any], *, is_hang_obstacle: bool) -> Fitness:
    """Return what a findings page says of the next job; ``is_hang_obstacle``: a collector without an answer counts, too."""
    obstacles: list[str] = []
    warnings: list[str] = []
    for found in page["findings"]:
        if found["is_silenced"] or found["severity"] == Severity.INFO.value:
            continue
        text = f"{found['id']}: {found['summary']}"
        is_critical = found["severity"] == Severity.CRITICAL.value
        ends_use = Action(found["action"]).ends_use
        (obstacles if is_critical and ends_use else warnings).append(text)
    silent = tuple(page["silent"])
    if is_hang_obstacle and silent:
        obstacles.append(no_answer(silent))
    return Fitness(tuple(obstacles), tuple(warnings), silent)


def no_answer(names: Sequence[str]) -> str:
    return f"no answer from {', '.join(names)}"


def exit_code_for(use: Use, *, is_fit: bool) -> int:
    """Return what Slurm shall see. It ignores a health check's exit code; any other but 0 drains the node."""
    assert use is not Use.PERSON, "a person gets the worst severity"
    return 0 if is_fit or use is Use.HEALTH else UNFIT
