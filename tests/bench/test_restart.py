"""The accounts that bench/restart.py joins to its kills."""

from typing import Any

import pytest

from bench.restart import Trial, with_accounts
from bench.restart_table import print_accounts, summarize

KILLS = [
    Trial("rankmend", 0, is_recovered=True, kill=1, killed_unix_s=100.0),
    Trial("rankmend", 1, is_recovered=True, kill=2, killed_unix_s=110.0),
]


def incident(opened_unix_s: float, total_s: float | None = 2.0, **phases: float | None) -> Any:
    return {"opened_unix_s": opened_unix_s, "total_s": total_s, "phases": phases}


def test_each_kill_has_the_phases_of_its_own_incident_with_detection_from_the_kill() -> None:
    first = incident(100.5, detect_s=0.1, fence_s=0.25, rendezvous_s=None)
    second = incident(110.25, detect_s=0.1, fence_s=0.5, rendezvous_s=0.75)

    one, two = with_accounts(KILLS, [second, first])

    assert one.account == {"detect_s": 0.5, "fence_s": 0.25}, "not observed is absent"
    assert two.account == {"detect_s": 0.25, "fence_s": 0.5, "rendezvous_s": 0.75}


@pytest.mark.parametrize(
    "incidents",
    [[], [incident(99.0)], [incident(101.0, None)], [incident(101.0), incident(105.0)]],
)
def test_a_kill_without_one_ended_incident_of_its_own_has_no_account(incidents: list[Any]) -> None:
    one, _two = with_accounts(KILLS, incidents)

    assert one.account == {}


def test_a_phase_that_no_kill_observed_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    told = with_accounts(
        KILLS,
        [incident(100.5, detect_s=0.1, fence_s=0.25), incident(110.5, detect_s=0.1, restore_s=1.0)],
    )

    print_accounts(summarize(["rankmend"], told))

    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["launcher", "kill", "detect", "fence", "restore"],
        ["rankmend", "1", "0.500", "0.250", "-"],
        ["rankmend", "2", "0.500", "-", "1.000"],
    ]
