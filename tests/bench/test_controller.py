"""The controller's benchmarks run, small: what they count is right, how long it takes is not asked here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

BENCH = Path(__file__).parents[2] / "bench"
RUN_S_MAX = 300.0


def run(script: str, output: Path, *arguments: str) -> Any:
    subprocess.run(
        [sys.executable, str(BENCH / script), *arguments, "--output", str(output)],
        check=True,
        timeout=RUN_S_MAX,
        capture_output=True,
    )
    return json.loads(output.read_text())


def test_load_of_fifty_nodes_is_taken_survives_a_kill_and_makes_one_plan_of_a_thousand_alerts(
    tmp_path: Path,
) -> None:
    told = run(
        "controller_load.py",
        tmp_path / "load.json",
        *("--nodes", "50", "--spares", "32", "--seconds", "2", "--settle", "1"),
    )

    assert set(told["steady"]["statuses"]) == {"202"}
    assert told["steady"]["report_ms"]["p50"] > 0
    assert told["orders"]["stop_from_journal_s"]["all"] > 0
    for storm in ("storm", "storm_without_pauses"):
        assert told[storm]["answers_and_failures"]["202"] >= 82
    alerts = told["alerts"]
    assert (alerts["alerts"], alerts["nodes"]) == (1000, 32)
    assert alerts["records"]["incident_opened"] == 1
    (plan,) = alerts["plan"]
    assert "spares take their places" in plan


def test_an_order_reaches_every_one_of_fifty_launchers_in_each_round(tmp_path: Path) -> None:
    (told,) = run("fanout.py", tmp_path / "fanout.json", "--nodes", "50", "--rounds", "2")

    assert told["nodes"] == 50
    assert len(told["rounds"]) == 2
    assert told["stop_from_journal_all_s"]["best"] > 0


def test_the_core_alone_is_measured_for_fifty_nodes(tmp_path: Path) -> None:
    (told,) = run("controller_core.py", tmp_path / "core.json", "--nodes", "50", "--seconds", "2")

    assert (told["nodes"], told["ranks"]) == (50, 400)
    assert told["reports_per_s"] > 0


def test_the_page_on_scale_shows_the_figures_that_are_saved() -> None:
    told = subprocess.run(
        [sys.executable, str(BENCH / "scale.py"), "--render"],
        check=True,
        timeout=RUN_S_MAX,
        capture_output=True,
        text=True,
    )

    assert told.stdout.strip() in (BENCH.parent / "docs/operate/scale.md").read_text()
    assert "reports a second" in told.stdout
