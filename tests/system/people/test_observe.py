"""Observe mode with real jobs: what a launcher does, what is journaled, and what the report says of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process
JOB = """
import os, sys, time
import rankmend

healthy = os.path.exists(sys.argv[1])
for step in range(40 if healthy else 4):
    rankmend.step(step)
    time.sleep(0.05)
if not healthy and os.environ["RANK"] == "1":
    os._exit(7)
if not healthy:
    time.sleep(600)
"""


def rankmend(folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", *argv, f"--state-dir={folder / 'state'}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, "NO_COLOR": "1"},
    )


def run(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    script = folder / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "rankmend.cli", "run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, "--job=watch-me", *flags, f"--state-dir={folder / 'state'}",
         f"--agent-socket={folder / 'none'}", str(script), str(folder / "healthy")],
        capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip


def report(folder: Path) -> dict[str, Any]:
    done = rankmend(folder, "report", "--would-have", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.safety
def test_a_rank_that_dies_ends_the_job_as_torchrun_would_and_the_restart_is_only_journaled(
    tmp_path: Path,
) -> None:
    ended = run(tmp_path, "--observe")

    assert ended.returncode == 7, ended.stderr
    assert "would restart in place" in ended.stderr
    assert "attempt 2" not in ended.stderr, "nothing was restarted"
    (decision,) = report(tmp_path)["decisions"]
    assert (decision["action"], decision["why_not"]) == ("restart_in_place", "observe")
    assert decision["verdict"] == "unknown"

    (tmp_path / "healthy").touch()
    again = run(tmp_path, "--observe")

    assert again.returncode == 0, again.stderr
    (decision,) = report(tmp_path)["decisions"]
    assert decision["verdict"] == "right", decision
    assert "started again" in decision["instead"]
    assert decision["took_s"] > 0
    assert decision["saved_s"] is None, "no recovery of any job was measured"
    page = tmp_path / "report.html"
    table = rankmend(tmp_path, "report", "--would-have", "--csv", f"--html={page}")
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[1].split(",")[1] == "watch-me"
    assert "was started again" in page.read_text()
    assert "right 1, wrong 0, unknown 0" in rankmend(tmp_path, "report", "--would-have").stdout


def test_the_same_failure_without_observe_mode_is_recovered(tmp_path: Path) -> None:
    policy = tmp_path / "limits.toml"
    policy.write_text("[policy]\nsame_error_max = 2\n")

    ended = run(tmp_path, f"--config={policy}")

    assert "attempt 2" in ended.stderr
    assert report(tmp_path)["decisions"] == []
