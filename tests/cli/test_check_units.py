"""`rankmend check cooling` and `check power`: exit codes and JSON, which scripts read."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rankmend.cli import cli

HOUR_S = 3600.0
KINDS = [("cooling", "units", "unit", "cdu-1"), ("power", "feeds", "feed", "pdu-1")]


def check(
    folder: Path, kind: str, listed: str, *readings: dict[str, Any], words: str = ""
) -> Result:
    file = folder / f"{kind}.json"
    file.write_text(json.dumps({"format": f"rankmend-{kind}-1", listed: readings}))
    return CliRunner().invoke(cli, ["check", kind, str(file), *words.split()])


@pytest.mark.parametrize(("kind", "listed", "called", "name"), KINDS)
def test_a_reading_that_is_too_old_to_judge_ends_the_check_with_1(
    tmp_path: Path, kind: str, listed: str, called: str, name: str
) -> None:
    fresh = {called: name, "read_unix_s": time.time()}
    old = {called: f"{name}-old", "read_unix_s": time.time() - HOUR_S, "health": "critical"}

    in_order = check(tmp_path, kind, listed, fresh)
    stale = check(tmp_path, kind, listed, fresh, old)
    told = json.loads(check(tmp_path, kind, listed, fresh, old, words="--json").output)

    assert (in_order.exit_code, stale.exit_code) == (0, 1)
    assert f"{name}-old: its newest reading is too old to judge it" in stale.output
    assert [(one[called], one["is_stale"], one["faults"]) for one in told] == [
        (name, False, []),
        (f"{name}-old", True, []),
    ]


def test_json_of_a_coolant_unit_has_its_figures_faults_and_nodes(tmp_path: Path) -> None:
    reading = {"unit": "cdu-1", "read_unix_s": time.time(), "flow_liters_per_s": 2.0,
               "flow_liters_per_s_min": 5.0}  # fmt: skip

    (one,) = json.loads(check(tmp_path, "cooling", "units", reading, words="--json").output)

    figures = ("supply_celsius", "return_celsius", "pressure_pascals", "is_leaking")
    limits = ("rise_kelvin_max", "pressure_pascals_min")
    assert one == {
        "unit": "cdu-1",
        "faults": [{"quantity": "flow", "value": 2.0, "limit": 5.0, "is_of_peers": False}],
        "is_stale": False,
        "reading": {**reading, **dict.fromkeys((*figures, *limits)), "health": ""},
        "nodes": [],
        "hot": [],
        "is_named": False,
        "words": "coolant unit cdu-1: flow 120 l/min, below 300 l/min",
    }


def test_json_of_a_power_feed_has_its_figures_faults_and_nodes(tmp_path: Path) -> None:
    reading = {"feed": "pdu-1", "read_unix_s": time.time(), "power_watts": 47e3,
               "power_watts_max": 45e3}  # fmt: skip

    (one,) = json.loads(check(tmp_path, "power", "feeds", reading, words="--json").output)

    absent = dict.fromkeys(("load_ratio", "is_tripped", "load_ratio_max"))
    assert one == {
        "feed": "pdu-1",
        "faults": [{"quantity": "power", "value": 47e3, "limit": 45e3}],
        "is_stale": False,
        "reading": {**reading, **absent, "health": ""},
        "nodes": [],
        "short": [],
        "is_named": False,
        "words": "power feed pdu-1: 47 kW, above 45 kW",
    }
