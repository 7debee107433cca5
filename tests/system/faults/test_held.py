"""A job whose checkpoints can't be restored trains nothing until one can, or a person wants it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recovery.journal.attempt_records import StartWaits
from recovery.journal.incident_records import PlanWaits, WaitCause
from tests.support.eventually import eventually
from tests.system.faults.harness import Job

pytestmark = pytest.mark.process

# Saves half a file and dies; ends well once it has something to begin from, or is told to.
SCRIPT = """\
import os, signal, sys
from pathlib import Path
if len(sys.argv) == 1 and not Path("enough").exists():
    Path("checkpoints/step_5.npz").write_bytes(b"PK" + bytes(100))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = Job(tmp_path, script, ["{checkpoint}"], world_size=1)
    yield job
    job.close()


def held(job: Job) -> PlanWaits:
    return eventually(lambda: next(iter(job.records(PlanWaits)), None), "the job is held")


def test_held_recovery_goes_on_once_a_checkpoint_is_whole(job: Job) -> None:
    job.start()
    assert held(job).cause is WaitCause.CHECKPOINT
    job.expect_output("1 file or folder looks like a checkpoint")

    np.savez(job.checkpoints / "step_4.npz", step=4)

    assert job.wait() == 0
    first, second = job.attempts
    assert first.choice.restore is None
    assert second.choice.restore.path == str(job.checkpoints / "step_4.npz")


def test_held_start_waits_until_a_person_starts_it_from_scratch(job: Job) -> None:
    np.savez(job.folder / "whole.npz", step=4)
    job.checkpoints.mkdir()
    kept = job.checkpoints / "step_4.npz"
    kept.write_bytes((job.folder / "whole.npz").read_bytes())
    job.start()
    assert job.wait() == 0
    kept.write_bytes(kept.read_bytes()[:50])

    job.start()
    (waits,) = eventually(lambda: job.records(StartWaits), "the start is held")
    assert str(kept) in waits.reason
    assert len(job.attempts) == 1
    job.signal(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT

    (job.folder / "enough").touch()
    job.start("--start-from-scratch")
    assert job.wait() == 0
    assert job.attempts[-1].choice.restore is None
