"""A checkpoint that there was no time to read is restored, checked on, and left for an older one if it is damaged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.attempt_records import RestoreDamaged
from recovery.journal.incident_records import PlanWaits
from tests.system.faults.harness import Job, wait_for

pytestmark = pytest.mark.process
Make = Callable[..., Job]
DAMAGE_S_MAX = 300.0  # a file that changed less than 10 s ago may still be written


@pytest.fixture
def make_hurried(make_lockstep: Make, tmp_path: Path) -> Callable[..., Job]:
    """Make jobs with checkpoints of 40 MB of which nothing is read before a restart, nor while it waits."""
    config = tmp_path / "config.toml"
    config.write_text("[policy]\ncheckpoint_unverified_redo_s = 0.0\n")

    def make(*arguments: str) -> Job:
        return make_lockstep(
            "--filler-mb=40",
            "--fail-rank=1",
            "--fail-with=kill",
            *arguments,
            world_size=2,
            flags=[
                "--checkpoint-check-wait=0s",
                "--checkpoint-check-rate=1",
                f"--config={config}",
            ],
        )

    return make


@pytest.fixture
def undisturbed_pair(tmp_path: Path) -> dict[str, object]:
    """Return what two ranks come to when nothing goes wrong."""
    from tests.system.faults.conftest import run_undisturbed

    folder = tmp_path / "undisturbed"
    folder.mkdir()
    return run_undisturbed(folder, "--step-s=0", world_size=2)


def restored(job: Job) -> list[str | None]:
    """Return the name of what each attempt began from."""
    return [
        None if one.choice.restore is None else one.choice.restore.path.rpartition("/")[2]
        for one in job.attempts
    ]


def test_job_is_not_held_beside_a_checkpoint_that_nobody_has_read(
    make_hurried: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_hurried("--fail-step=15")

    job.start()
    job.pids_at_step(20, attempt=2)
    assert job.wait() == 0, job.output

    assert job.result() == undisturbed_pair
    assert restored(job) == [None, "step-00000010.npz"]
    assert job.attempts[1].choice.unchecked_bytes > 30_000_000
    assert job.records(PlanWaits) == []
    assert job.records(RestoreDamaged) == []
    assert "MB were not checked yet" in job.output


def test_bit_that_flipped_in_what_nobody_had_read_sends_the_job_to_the_older_checkpoint(
    make_hurried: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_hurried("--fail-step=25", "--flip-saved-step=20")

    job.start()
    (damage,) = wait_for(
        lambda: job.records(RestoreDamaged), "the wrong sum is found", DAMAGE_S_MAX
    )
    assert job.wait() == 0, job.output

    assert job.result() == undisturbed_pair
    assert (damage.attempt, damage.goes_back) == (2, True)
    assert damage.path == str(job.checkpoints / "step-00000020.npz")
    assert restored(job) == [None, "step-00000020.npz", "step-00000010.npz"]
    passed = {one.path.rpartition("/")[2]: one.reason for one in job.attempts[2].choice.passed_over}
    assert passed["step-00000020.npz"].startswith("CRC of filler.npy does not fit")
    job.expect_output("before all of it was checked, is damaged: CRC of filler.npy does not fit")
