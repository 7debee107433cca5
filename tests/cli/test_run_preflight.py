"""`rankmend run --preflight`: a node that fails gets no ranks, and one that passes does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.preflight import baseline_file
from agent.preflight.result_file import FlightResult
from detectors.preflight.baseline import Baseline, BaselineSample
from detectors.preflight.verdicts import CheckStanding, CheckVerdict, FlightOutcome
from rankmend.cli.preflights.run_preflight import refusals_of, with_result
from recovery.launcher.run.options import RunOptions
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    script = folder / "train.py"
    script.write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    options = ("--standalone", "--no-fork-server", "--state-dir", str(folder / "state"))
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "run", *options, *words, str(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ},
    )


def test_ranks_start_after_a_pass_and_not_beside_a_much_faster_fleet(tmp_path: Path) -> None:
    passed = run(tmp_path, "--preflight", "quick")
    assert passed.returncode == 0, passed.stderr
    assert "pre-flight check passed" in passed.stderr
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    learned = baseline_file.load([tmp_path / "state" / "preflight"])
    fleet = {
        key: tuple(BaselineSample(node, 1.0, samples[0].value * 50) for node in "abcde")
        for key, samples in learned.samples.items()
        if key[0] == "cpu_hash_bytes_per_s"
    }
    baseline_file.save(tmp_path / "fleet.json", Baseline(fleet))

    refused = run(
        tmp_path, "--preflight", "quick", "--preflight-baseline", str(tmp_path / "fleet.json")
    )

    assert refused.returncode == 69
    assert "cpu_hash_bytes_per_s cpu:" in refused.stderr
    assert "5 nodes (5 samples): median" in refused.stderr
    assert "no rank starts here (exit code 69)" in refused.stderr
    assert not (tmp_path / "ran").exists()


def test_a_broken_baseline_is_a_usage_error_and_no_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")

    done = run(tmp_path, "--preflight", "quick", "--preflight-baseline", str(tmp_path / "bad.json"))

    assert done.returncode == 2
    assert "bad.json is not a baseline" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("standing", CheckStanding)
def test_only_what_failed_or_hangs_keeps_ranks_out(standing: CheckStanding) -> None:
    check = CheckVerdict("disk", "disk", standing, "a reason")
    result = FlightResult("me", "quick", FlightOutcome.PASSED, 0.0, 1.0, 60.0, 1, (check,))

    refuses = standing in (CheckStanding.FAILED, CheckStanding.HUNG)
    assert refusals_of(result) == (["disk disk: a reason"] if refuses else [])


@pytest.mark.parametrize("outcome", FlightOutcome)
def test_only_a_pass_lets_a_node_into_a_job_that_trains(outcome: FlightOutcome) -> None:
    result = FlightResult("me", "quick", outcome, 0.0, 1.0, 60.0, 1, ())

    asked = with_result(RunOptions("train.py"), result)

    assert asked.passed_preflight is (outcome is FlightOutcome.PASSED)
