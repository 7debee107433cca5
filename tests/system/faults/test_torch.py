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
from tests.system.faults.harness import EXAMPLES, Job, kill

pytestmark = [pytest.mark.process, pytest.mark.torch]
Make = Callable[..., Job]


@pytest.fixture
def make_unchanged(make_job: Make) -> Make:
    def make(**fields: object) -> Job:
        job = make_job("", world_size=2, **fields)
        job.script = EXAMPLES / "unchanged" / "train.py"
        job.arguments = [f"--folder={job.checkpoints}", "--epochs=30", "--steps-per-epoch=10"]
        return job

    return make


@pytest.mark.real_fault("PyTorch rank killed")
def test_an_unchanged_script_is_seen_stepping_killed_and_brought_back(make_unchanged: Make) -> None:
    job = make_unchanged()
    job.start()

    kill(job.pids_at_step(45)[1])

    assert job.wait() == 0, job.output
    assert len(job.incidents) == 1
    assert job.incidents[0].failure.finding.ranks == (1,)
    restore = job.attempts[1].choice.restore
    assert restore is not None
    assert Path(restore.path).name.startswith("epoch-")
    verified = job.records(AttemptVerified)
    assert verified[-1].telling_ranks == (0, 1)
    assert verified[-1].is_comparable, "AdamW knows its own step, which the checkpoint restores"
    assert verified[-1].first_step is not None
    assert verified[-1].first_step > 1


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


def test_a_rank_stopped_inside_a_gloo_all_reduce_is_named(make_unchanged: Make) -> None:
    job = make_unchanged(flags=["--hang-stopped=1"])
    job.start()

    keep_stopped(job.pids_at_step(45)[0])

    assert job.wait() == 0, job.output
    assert len(job.incidents) == 1
    assert job.incidents[0].failure.finding.ranks == (0,)


def test_a_loop_between_the_steps_of_an_unchanged_script_is_found_before_gloo_gives_up(
    make_job: Make,
) -> None:
    job = make_job("torch_loop.py", "30", world_size=2)
    job.start()

    assert job.wait() == 0, job.output
    finding = job.incidents[0].failure.finding
    assert (finding.kind, finding.ranks) == (Kind.RANK_HUNG, (1,))
    assert len(job.incidents) == 1


def test_ranks_meet_again_on_a_fresh_store_in_every_attempt(make_unchanged: Make) -> None:
    job = make_unchanged()
    job.start()

    for attempt in (1, 2, 3):
        kill(job.pids_at_step(10 + attempt, attempt=attempt)[attempt % 2])

    assert job.wait() == 0, job.output
    assert [attempt.attempt for attempt in job.attempts] == [1, 2, 3, 4]
    assert "failed to bind" not in job.output


def test_a_users_own_sitecustomize_still_runs(make_unchanged: Make, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the own one ran', flush=True)\n")
    job = make_unchanged(environment={"PYTHONPATH": str(tmp_path)})
    job.arguments = [f"--folder={job.checkpoints}", "--epochs=1", "--steps-per-epoch=3"]

    job.start()

    assert job.wait() == 0, job.output
    assert "the own one ran" in job.output  # once, where both ranks are forked from one process
