"""A job whose script saves into another folder than the one that --checkpoint-dir names."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankmend.rank_values import Unsaved
from recovery.journal.attempt_records import SavesMissing
from tests.support import forked_cli
from tests.support.agent import running_agent
from tests.support.eventually import eventually
from tests.system.faults.harness import JOBS, Job

pytestmark = pytest.mark.process


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, JOBS / "saves_elsewhere.py", [], world_size=2)
    limits = tmp_path / "limits.toml"
    limits.write_text("[policy]\nsave_wait_s = 2.0\n")
    job.flags = [f"--config={limits}"]
    yield job
    job.close()


def status(job: Job, *options: str) -> str:
    environment = {**os.environ, "COLUMNS": "400"}
    words = ("status", f"--state-dir={job.state}", *options)
    return forked_cli.run(*words, environment=environment, check=True).stdout


def shown(job: Job) -> dict[str, Any] | None:
    (one,) = json.loads(status(job, "--json"))["jobs"]
    return one["unsaved"]


def test_launcher_and_status_tell_it_while_the_job_trains_until_it_saves(job: Job) -> None:
    job.start()

    told = eventually(lambda: job.records(SavesMissing), "the controller tells it")

    assert [one.cause for one in told] == [Unsaved.NOTHING_FOUND]
    said = f"nothing that looks like a checkpoint has been saved in {job.checkpoints}"
    job.expect_output(said)
    view = shown(job)
    assert view is not None
    assert (view["cause"], view["folder"]) == ("nothing_found", str(job.checkpoints))
    assert view["since_s"] >= 2.0
    assert f"{said}: a restart would begin at step 0; does the script save" in status(job)

    (job.folder / "mended").touch()
    eventually(lambda: shown(job) is None, "status says it no more")
    (job.folder / "enough").touch()
    assert job.wait() == 0
    assert job.output.count(said) == 1


def test_agent_shows_it_of_a_job_that_no_service_manages(job: Job) -> None:
    socket = job.folder / "agent.sock"
    series = "rankmend_controller_unsaved_seconds{"
    with running_agent("--socket", str(socket), "--interval=1") as (agent, port):
        job.flags.append(f"--agent-socket={socket}")
        job.start()

        def line() -> str | None:
            page = agent.get(port, "/metrics")[1]
            return next((one for one in page.splitlines() if one.startswith(series)), None)

        text = eventually(line, "the agent shows the series")
        (job.folder / "mended").touch()
        eventually(lambda: line() is None, "the series ends with a save")
        (job.folder / "enough").touch()
        assert job.wait() == 0

    labels, value = text.rsplit(" ", 1)
    assert f'job_id="{job.job_id}"' in labels
    assert 'cause="nothing_found"' in labels
    assert float(value) >= 2.0
