"""The defaults give no healthy job up and end every broken one: bench/give_up.py, small."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from recovery.journal.limits import Policy

pytestmark = pytest.mark.safety

BENCH: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[4] / "bench" / "give_up.py"), run_name="bench"
)
FAILURES = 800  # a third of a year at one each 3.1 h


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.thorough if number else [])
        for number, case in enumerate(BENCH["HEALTHY"])
    ],
)
def test_job_whose_failures_are_chance_is_not_given_up(case: Any) -> None:
    told = BENCH["run_healthy"](case, FAILURES, 5, Policy())

    assert told["given_up"] == 0


def test_rule_that_asks_for_no_cause_would_have_given_up_a_healthy_job() -> None:
    told = BENCH["run_healthy"](BENCH["HEALTHY"][0], FAILURES, 5, Policy())

    assert told["old_rule"] > 1


@pytest.mark.parametrize(
    ("name", "restarts_max"),
    [
        ("the same exception at the same step", 1),
        ("dies at import, each time of the same", 1),
        ("dies at import, in turn of two errors", 20),
        ("dies at import, each time of another error", 20),
        ("killed from outside before the first step, each time", 20),
        ("SIGSEGV of one rank before the next checkpoint", 3),
        ("a hang that accuses nobody, at about the same place", 3),
        ("one bad node without a spare, always other symptoms", 3),
    ],
)
def test_broken_job_is_ended_after_so_many_restarts(name: str, restarts_max: int) -> None:
    ways = dict(BENCH["BROKEN"])

    restarts, _hours = BENCH["run_broken"](ways[name], 5, Policy())

    assert 1 <= restarts <= restarts_max
    assert len(ways) == 8
