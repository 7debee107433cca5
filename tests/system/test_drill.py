"""`rankmend drill` on a real job: the exit code and the reports say what held."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.eventually import DEADLINE_S
from tests.support.torch_here import needs_torch

pytestmark = pytest.mark.process


def test_drill_says_by_exit_code_and_reports_what_held_and_what_did_not(tmp_path: Path) -> None:
    scenario = tmp_path / "wrong.toml"
    scenario.write_text(
        '[job]\nsteps = 60\n[[faults]]\nfault = "kill"\non = "rank:1"\nat_step = 20\n'
        "[holds]\nincidents = 1\nblamed = [[0]]\n"
    )
    page, junit = tmp_path / "drill.html", tmp_path / "drill.xml"
    command = [sys.executable, "-m", "rankmend.cli", "drill", str(scenario), "--json"]

    done = subprocess.run(
        [*command, f"--html={page}", f"--junit={junit}", f"--dir={tmp_path / 'runs'}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    checks = {one["name"]: one["held"] for one in json.loads(done.stdout)[0]["checks"]}
    assert checks == {
        "every fault was made and undone": True,
        "the job ends with exit code 0": True,
        "1 incident": True,
        "every incident ends recovered": True,
        "blamed: 0": False,
        "the same result as without a fault": True,
    }, done.stderr
    assert ElementTree.parse(junit).getroot()[0].attrib["failures"] == "1"
    text = page.read_text()
    assert "did not hold" in text
    assert 'class="detect"' in text or "detect:" in text


def test_drill_whose_folder_is_removed_ends_soon_and_says_why(tmp_path: Path) -> None:
    scenario = tmp_path / "long.toml"
    scenario.write_text(
        '[job]\nsteps = 100000\ndeadline_s = 3000\n[[faults]]\nfault = "stop"\non = "rank:1"\n'
        "for_s = 2000\nat_step = 5\n[holds]\nincidents = 1\n"
    )
    command = [sys.executable, "-m", "rankmend.cli", "drill", str(scenario)]

    with subprocess.Popen(
        [*command, f"--dir={tmp_path / 'runs'}"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "fault:" in line)
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)  # some of it may be made anew
        rest = process.communicate(timeout=DEADLINE_S)[1]

    assert "stop on rank:drill/1" in said
    assert process.returncode == 1
    assert "was removed while the drill ran" in rest


@pytest.mark.torch
def test_rank_that_stands_still_under_torchrun_is_named_and_nothing_is_touched(
    tmp_path: Path,
) -> None:
    needs_torch()

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rankmend.cli",
            "drill",
            "watched-stopped",
            "--json",
            f"--dir={tmp_path}",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    assert {one["name"] for one in told["checks"]} >= {
        "1 incident",
        "blamed: 1",
        "every incident ends recovered",
        "no rank is named that nothing was made on",
        "rankmend touches nothing",
        "the same result as without a fault",
    }
    (incident,) = told["incidents"]
    assert incident["cause"] == "hung"
    assert "stalled" in {stretch["state"] for stretch in told["ranks"][0]}


def test_scenarios_that_break_a_job_in_other_phases_hold(tmp_path: Path) -> None:
    names = ["killed-in-checkpoint", "killed-in-recovery", "two-at-once"]

    done = subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "drill", *names, f"--dir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "killed-in-recovery: fault: kill on rank:drill/2" in done.stderr
