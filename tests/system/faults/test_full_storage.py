"""A job whose checkpoint storage is full at a restart is held until there is room."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.incident_records import PlanWaits, TryFailed, WaitCause, WaitsFor
from tests.support import forked_cli
from tests.support.eventually import eventually
from tests.support.faults.mounts import tmpfs
from tests.support.faults.storage import fill
from tests.system.faults.harness import Job, kill

pytestmark = pytest.mark.process


def ask(job: Job, *words: str) -> str:
    environment = {**os.environ, "COLUMNS": "1000"}
    done = forked_cli.run(*words, f"--state-dir={job.state}", environment=environment)
    return done.stdout + done.stderr


def test_job_waits_for_room_and_goes_on_by_itself(
    make_lockstep: Callable[..., Job], tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "disk", "size=4m") as disk:
        job = make_lockstep("--steps=4000", "--every=100000", flags=["--grace=2"])
        job.folder.joinpath("checkpoints").symlink_to(disk)
        job.start()
        pids = job.pids_at_step(20)
        full = fill(disk)

        kill(pids[1], number=signal.SIGKILL)
        (waits,) = eventually(lambda: job.records(PlanWaits), "the job is held")
        refused = ask(job, "approve", waits.incident_id, "--yes")
        shown = ask(job, "status", job.name)

        full.end()
        job.pids_at_step(20, attempt=2)
        job.signal(signal.SIGTERM)
        job.wait()

    assert (waits.cause, waits.waits_for) == (WaitCause.STORAGE, WaitsFor.STORAGE)
    assert waits.about == "full"
    assert f"the file system at {disk} is full: 0 bytes of 4.19 MB free" in waits.reason
    assert "waits for storage, not for approval" in refused
    assert f"the file system at {disk} is full" in shown
    assert job.records(TryFailed) == []
