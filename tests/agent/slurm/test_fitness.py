"""What keeps a job off a node, and what doesn't."""

from typing import Any

import pytest

from agent.slurm.fitness import Use, exit_code_for, judge_fitness


def page(*findings: dict[str, Any], silent: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"findings": list(findings), "silent": list(silent), "blocked": []}


def finding(severity: str, action: str, *, is_silenced: bool = False) -> dict[str, Any]:
    return {
        "id": "check/device",
        "summary": "it is so",
        "severity": severity,
        "action": action,
        "is_silenced": is_silenced,
    }


@pytest.mark.parametrize("action", ["reset_gpu", "reboot", "drain", "replace", "contact_support"])
def test_a_critical_finding_that_ends_the_use_of_something_keeps_jobs_off(action: str) -> None:
    fitness = judge_fitness(page(finding("critical", action)), is_hang_obstacle=False)

    assert fitness.obstacles == ("check/device: it is so",)


@pytest.mark.parametrize(
    ("severity", "action"),
    [("critical", "watch"), ("critical", "restart_app"), ("warning", "drain"), ("info", "watch")],
)
def test_other_findings_do_not(severity: str, action: str) -> None:
    assert judge_fitness(page(finding(severity, action)), is_hang_obstacle=False).is_fit


def test_a_silenced_finding_does_not() -> None:
    assert judge_fitness(
        page(finding("critical", "drain", is_silenced=True)), is_hang_obstacle=False
    ).is_fit


def test_a_hang_is_named_and_keeps_jobs_off_only_where_the_site_says_so() -> None:
    told = page(silent=("gpu", "mounts"))

    by_default = judge_fitness(told, is_hang_obstacle=False)
    strict = judge_fitness(told, is_hang_obstacle=True)

    assert by_default.is_fit
    assert by_default.unanswered == ("gpu", "mounts")
    assert strict.obstacles == ("no answer from gpu, mounts",)


@pytest.mark.parametrize(
    ("use", "is_fit", "code"),
    [
        (Use.PROLOG, True, 0),
        (Use.PROLOG, False, 3),
        (Use.EPILOG, False, 3),
        (Use.HEALTH, False, 0),
    ],
)
def test_exit_codes(use: Use, is_fit: bool, code: int) -> None:
    assert exit_code_for(use, is_fit=is_fit) == code
