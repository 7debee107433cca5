"""PyTorch jobs on gloo under the real `rankmend run`, broken while they train."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from detectors.finding import Kind
from recovery.journal.attempt_records import AttemptVerified
from recovery.local.report.overview import view_ranks
from tests.support.eventually import eventually
from tests.support.faults.process import keep_stopped
from tests.system.faults.harness import Job, kill, paced_training

pytestmark = [pytest.mark.process, pytest.mark.torch]
Make = Callable[..., Job]


@pytest.fixture
def make_unchanged(make_job: Make) -> Make:
    def make(epochs: int = 30, **fields: object) -> Job:
        job = make_job("", world_size=2, **fields)
        job.script = paced_training(job)
        job.arguments = [
            f"--folder={job.checkpoints}",
            f"--epochs={epochs}",
            "--steps-per-epoch=10",
        ]
        return job

    return make


@pytest.mark.real_fault("PyTorch rank killed")
def test_an_unchanged_script_is_seen_stepping_killed_stopped_and_brought_back_each_time(
    make_unchanged: Make,
) -> None:
    job = make_unchanged(flags=["--hang-stopped=1"], epochs=60)
    job.start()

    kill(job.pids_at_step(45)[1])
    kill(job.pids_at_step(50, attempt=2)[0])
    keep_stopped(job.pids_at_step(55, attempt=3)[0])  # its peer waits in an all-reduce of gloo

    assert job.wait() == 0, job.output
    assert [one.failure.finding.ranks for one in job.incidents] == [(1,), (0,), (0,)]
    assert [attempt.attempt for attempt in job.attempts] == [1, 2, 3, 4]
    assert "failed to bind" not in job.output, "each attempt meets on a fresh store"
    for attempt in job.attempts[1:]:
        restore = attempt.choice.restore
        assert restore is not None
        assert Path(restore.path).name.startswith("epoch-")
    for verified in job.records(AttemptVerified)[1:]:
        assert verified.telling_ranks == (0, 1)
        assert verified.is_comparable, "AdamW knows its own step, which the checkpoint restores"
        assert verified.first_step is not None
        assert verified.first_step > 1


def test_an_unchanged_script_without_auto_tells_nothing_and_is_brought_back(
    make_unchanged: Make,
) -> None:
    job = make_unchanged(flags=["--no-auto"])
    job.start()
    first = eventually(lambda: next(job.checkpoints.glob("epoch-*.pt"), None), "a checkpoint")
    assert first
    ranks = list(view_ranks(job.runtime, time.monotonic))
    assert [rank.step for rank in ranks] == [None, None]

    kill(ranks[1].pid)

    assert job.wait() == 0, job.output
    assert len(job.attempts) == 2


def test_a_loop_between_the_steps_of_an_unchanged_script_is_found_before_gloo_gives_up(
    make_job: Make,
) -> None:
    job = make_job("torch_loop.py", "30", world_size=2)
    job.start()

    assert job.wait() == 0, job.output
    finding = job.incidents[0].failure.finding
    assert (finding.kind, finding.ranks) == (Kind.RANK_HUNG, (1,))
    assert len(job.incidents) == 1


def test_a_users_own_sitecustomize_still_runs(make_lockstep: Make, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the own one ran', flush=True)\n")
    job = make_lockstep("--steps=3", world_size=2, environment={"PYTHONPATH": str(tmp_path)})

    job.start()

    assert job.wait() == 0, job.output
    assert "the own one ran" in job.output  # once, where both ranks are forked from one process
