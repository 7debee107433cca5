"""A checkpoint that the program can't load costs one save's training, and never the job."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.job_records import OutcomeKind
from tests.system.faults.harness import JOBS, Job

pytestmark = pytest.mark.process
Make = Callable[..., Job]
DIES = ("--fail-rank=1", "--fail-step=45", "--fail-with=kill")


def restored(job: Job) -> list[str | None]:
    """Return the name of what each attempt began from."""
    paths = [one.choice.restored_path for one in job.attempts]
    return [None if path is None else path.rpartition("/")[2] for path in paths]


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        ("key", "KeyError: 'state is not a file in the archive'"),
        ("size", "ValueError: could not broadcast input array from shape (8,) into shape (4,)"),
    ],
)
def test_job_goes_on_from_the_one_before_the_checkpoint_that_it_cannot_load(
    make_lockstep: Make, undisturbed: dict[str, object], spoil: str, error: str
) -> None:
    job = make_lockstep(*DIES, "--spoil-step=40", f"--spoil={spoil}")

    job.start()

    assert job.wait() == 0, job.output
    newest, before = "step-00000040.npz", "step-00000030.npz"
    assert restored(job) == [None, newest, before]
    assert job.result() == undisturbed
    (passed,) = job.attempts[-1].choice.passed_over
    assert passed.path == str(job.checkpoints / newest)
    assert passed.reason == f"attempt 2 could not load it: {error}"
    assert f"passed over {job.checkpoints / newest}: {passed.reason}" in job.output


def test_service_that_refuses_at_the_start_costs_no_step_back(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep(*DIES, "--service-fails=2")

    job.start()

    assert job.wait() == 0, job.output
    newest = "step-00000040.npz"
    assert restored(job) == [None, newest, newest]
    assert job.result() == undisturbed


def test_nor_does_one_that_refuses_again_and_again(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep(*DIES, "--service-fails=4")

    job.start()

    assert job.wait() == 0, job.output
    assert restored(job) == [None, *["step-00000040.npz"] * 4]
    assert job.result() == undisturbed


@pytest.mark.parametrize("how", ["spawn", "torchrun"])
def test_job_that_starts_its_own_ranks_outlives_kills_behind_newer_checkpoints(
    make_job: Make, how: str
) -> None:
    job = make_job("own_ranks.py", world_size=1)
    job.arguments = [how, str(job.checkpoints), "{checkpoint}"]

    job.start()

    assert job.wait() == 0, job.output
    assert restored(job) == [None, "step-40.npz", "step-60.npz"]
    state = 1.0
    for step in range(1, 101):
        state = state * 1.01 + step
    assert (job.folder / "result").read_text() == repr([state] * 4)


def test_script_that_looks_for_the_newest_itself_is_named_and_gets_no_older_one(
    make_job: Make, tmp_path: Path
) -> None:
    job = make_job("looks_itself.py", world_size=1)
    job.script = tmp_path / "apart" / "train.py"  # where no file beside it knows rankmend
    job.script.parent.mkdir()
    shutil.copy(JOBS / "looks_itself.py", job.script)
    job.arguments = [str(job.checkpoints)]

    job.start()

    assert job.wait() != 0
    assert restored(job) == [None, "step-40.npz", "step-40.npz"]
    assert [one.is_taken for one in job.attempts] == [False, False, False]
    assert "it begins from what it finds itself, and no older one can be tried for it" in job.output
    (ended,) = job.ended
    assert ended.outcome.kind is OutcomeKind.ESCALATED
