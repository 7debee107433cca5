"""Checkpoint storage that hangs stops neither the training nor the checks of it."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.incident_records import IncidentOpened
from tests.support import forked_cli
from tests.support.eventually import eventually
from tests.support.faults.checkpoint_disk import checkpoint_disk
from tests.support.faults.process import keep_stopped
from tests.system.faults.harness import Job, kill

pytestmark = pytest.mark.process
Make = Callable[..., Job]


def ask(job: Job, *words: str) -> str:
    done = forked_cli.run(*words, f"--state-dir={job.state}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("harm", "kind"), [(kill, "rank_failed"), (keep_stopped, "rank_hung")])
def test_faults_are_found_while_the_checkpoint_storage_hangs(
    make_lockstep: Make, tmp_path: Path, harm: Callable[[int], None], kind: str
) -> None:
    with checkpoint_disk(tmp_path) as disk:
        job = make_lockstep(
            "--steps=4000",
            "--every=100000",
            # It has saved nothing, so it waits for the long limit.
            flags=["--hang-stopped=2", "--hang-min=4", "--hang-max=4", "--grace=2"],
        )
        job.folder.joinpath("checkpoints").symlink_to(disk.point)
        job.start()
        job.pids_at_step(20)

        disk.hang()
        pids = job.pids_at_step(150)  # and on it trains; its milestones go beside the checkpoints
        harm(pids[1])
        eventually(lambda: job.incidents, f"an incident: {kind}")
        shown = ask(job, "status", job.name)

        disk.heal()
        job.signal(signal.SIGTERM)
        job.wait()

    found: IncidentOpened = job.incidents[0]
    assert found.failure.finding.kind.value == kind
    assert "incident" in shown
