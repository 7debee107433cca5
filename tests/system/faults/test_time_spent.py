"""`rankmend report` on a job whose rank and whose launcher are killed: each second has its part."""

import json
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from recovery.journal.attempt_records import Milestone, SavesStalled
from tests.support import forked_cli
from tests.support.eventually import eventually
from tests.system.faults.harness import JOBS, Job, kill, kill_launcher

pytestmark = pytest.mark.process


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, JOBS / "saves.py", [], world_size=2)
    yield job
    job.close()


def report(job: Job) -> dict[str, Any]:
    done = forked_cli.run("report", f"--state-dir={job.state}", "--json", check=True)
    (one,) = json.loads(done.stdout)["jobs"]
    return one


def test_time_of_a_job_with_two_failures_is_divided_without_a_gap(job: Job) -> None:
    job.start()
    kill(job.pids_at_step(60)[1], number=signal.SIGKILL)
    job.pids_at_step(90, attempt=2)
    eventually(lambda: job.records(SavesStalled), "a save is on record")
    kill_launcher(job)
    left = report(job)
    job.start()
    job.pids_at_step(130, attempt=3)
    (job.folder / "enough").touch()
    assert job.wait() == 0

    told = report(job)

    first, last = job.entries[0], job.entries[-1]
    assert told["wall_s"] == pytest.approx(last.monotonic_s - first.monotonic_s)
    assert sum(part["seconds"] for part in told["parts"].values()) == pytest.approx(told["wall_s"])
    spans = told["spans"]
    assert all(
        one["begin_unix_s"] + one["seconds"] == pytest.approx(two["begin_unix_s"])
        for one, two in pairwise(spans)
    )
    assert told["unaccounted_ratio"] == 0
    assert (told["failures"], told["restarts"]) == (2, 2)
    assert len(told["incidents"]) == 1
    for part in ("productive", "recomputed", "checkpoint", "detect", "fence", "interrupted"):
        assert told["parts"][part]["seconds"] > 0, part
    assert told["by_node"]
    # What was known while no part of rankmend ran does not change once it runs again.
    assert left["parts"]["productive"]["seconds"] <= told["parts"]["productive"]["seconds"]
    assert "interrupted" not in left["parts"]
    assert job.records(Milestone)
