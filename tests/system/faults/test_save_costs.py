"""`rankmend status` on a job that saves: how long saves take, and what they cost."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.journal.attempt_records import CheckpointSeen, StallSource
from tests.support import forked_cli
from tests.support.agent import running_agent
from tests.support.eventually import eventually
from tests.system.faults.harness import JOBS, Job, kill

pytestmark = pytest.mark.process

SLEPT_S = 0.2  # in each section


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, JOBS / "saves.py", [], world_size=2)
    yield job
    job.close()


def status(job: Job, *options: str) -> str:
    environment = {**os.environ, "COLUMNS": "400"}
    words = ("status", f"--state-dir={job.state}", *options)
    return forked_cli.run(*words, environment=environment, check=True).stdout


def report(job: Job) -> str:
    environment = {**os.environ, "COLUMNS": "400"}
    words = ("report", job.name, f"--state-dir={job.state}")
    return forked_cli.run(*words, environment=environment, check=True).stdout


def shown(job: Job) -> dict[str, Any] | None:
    (one,) = json.loads(status(job, "--json"))["jobs"]
    return one["checkpoint"]


def test_status_shows_the_stall_and_report_the_cost_of_a_running_job(job: Job) -> None:
    job.start()
    seen = eventually(
        lambda: [one for one in job.records(CheckpointSeen) if one.saves and one.saves.interval_s],
        "two saves are measured",
    )[0]

    told = shown(job)

    assert told is not None
    assert seen.saves is not None
    assert seen.saves.stall_source is StallSource.SECTION
    assert (told["format_name"], told["stall_source"]) == ("npz file", "section")
    assert told["step"] % 40 == 0
    assert told["size_bytes"] > 8000
    assert told["interval_s"] > told["stall_s"] >= SLEPT_S
    assert told["failures"] == 0
    assert told["missing"] == ""
    assert told["present"]["interval_s"] == told["interval_s"]
    assert told["best"]["total"] <= told["present"]["total"]
    assert "newest checked checkpoint: " in status(job, job.name)
    text = report(job)
    assert "of goodput" in text
    assert "this job had none in" in text

    kill(job.pids_at_step(told["step"])[1], number=signal.SIGKILL)
    eventually(lambda: job.incidents, "the incident")
    failed = eventually(
        lambda: (now := shown(job)) and now["repair_s"] and now, "the recovery is counted"
    )
    assert 0.99 < failed["failures"] <= 1
    assert "and the published rate" in report(job)
    (job.folder / "enough").touch()
    assert job.wait() == 0


def test_script_without_sections_is_told_a_bound_of_the_stall(job: Job) -> None:
    job.arguments = ["unmarked"]
    job.start()
    eventually(
        lambda: [one for one in job.records(CheckpointSeen) if one.saves and one.saves.stall_s],
        "the steps around a save are compared",
    )

    told = shown(job)

    assert told is not None
    assert told["stall_source"] == "steps"
    assert told["stall_s"] > 0
    assert "a save stops training for at most" in status(job)
    (job.folder / "enough").touch()
    assert job.wait() == 0


def test_agent_exports_the_checkpoints_of_a_job_that_no_service_manages(job: Job) -> None:
    socket = job.folder / "agent.sock"
    with running_agent("--socket", str(socket), "--interval=1") as (agent, port):
        job.flags = [f"--agent-socket={socket}"]
        job.start()

        def page() -> str | None:
            page = agent.get(port, "/metrics")[1]
            return page if "rankmend_controller_checkpoint_interval_seconds{" in page else None

        text = eventually(page, "the agent shows the figures")
        told = shown(job)
        (job.folder / "enough").touch()
        assert job.wait() == 0

    assert told is not None
    label = f'{{job_id="{job.job_id}"}}'
    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line.endswith(tuple("0123456789"))
    )
    assert float(values[f"rankmend_controller_checkpoint_stall_seconds{label}"]) >= SLEPT_S
    assert float(values[f"rankmend_controller_checkpoint_age_seconds{label}"]) >= 0
    assert float(values[f"rankmend_controller_checkpoint_interval_seconds{label}"]) > SLEPT_S
