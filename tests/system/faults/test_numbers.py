"""Whole jobs whose loss becomes NaN: who had it first is named, and by policy the job goes back."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from detectors.finding import Kind
from detectors.numbers.wrong import ToldNumber, Trouble
from recovery.journal.observation_records import GoesBack, NumbersWrong
from tests.support.eventually import eventually
from tests.system.faults.harness import Job, assert_recovered

pytestmark = pytest.mark.process
Make = Callable[..., Job]
# Slow steps: the job must go back before what it saves since then has pushed out all that is known to be good.
NAN = ("--nan-rank=2", "--nan-step=25", "--step-s=0.1", "--every=10")


def with_policy(tmp_path: Path, text: str) -> str:
    path = tmp_path / "limits.toml"
    path.write_text(f"[policy]\n{text}\n")
    return f"--config={path}"


def begun_at(job: Job) -> list[int | None]:
    return [attempt.choice.begins_at for attempt in job.attempts]


def test_rank_and_step_of_the_first_nan_are_told_and_the_job_trains_on(make_lockstep: Make) -> None:
    job = make_lockstep(*NAN)
    job.start()

    assert job.wait() == 0, job.output
    (found,) = job.records(NumbersWrong)
    assert (found.step, found.quantity, found.trouble) == (25, ToldNumber.LOSS, Trouble.NOT_FINITE)
    assert (found.ranks, found.odd_rank) == ((2,), 2)
    job.expect_output("the loss became NaN at step 25, first on rank 2")
    assert begun_at(job) == [None]
    assert all(map(math.isnan, job.result()["state"]))  # type: ignore[call-overload]


@pytest.mark.real_fault("loss becomes NaN")
def test_job_goes_back_behind_the_nan_and_ends_as_if_undisturbed(
    make_lockstep: Make, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    job = make_lockstep(*NAN)
    job.start(with_policy(tmp_path, "numbers_rollbacks_max = 2"))

    assert_recovered(job, undisturbed, incidents=1)
    assert begun_at(job) == [None, 20]
    assert job.incidents[0].failure.finding.kind is Kind.NUMBERS_WRONG
    assert job.records(GoesBack) == [GoesBack(1, 25, 25, 1)]


def test_snapshots_from_after_the_nan_are_not_restored(
    make_lockstep: Make, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    job = make_lockstep(*NAN, "--snapshot-every=1")
    job.start(with_policy(tmp_path, "numbers_rollbacks_max = 2"))

    assert_recovered(job, undisturbed, incidents=1)
    (_first, back) = begun_at(job)
    assert back is not None
    assert 20 <= back < 25


def test_nan_that_comes_again_sends_the_job_back_farther_and_at_most_as_often_as_allowed(
    make_lockstep: Make, tmp_path: Path
) -> None:
    job = make_lockstep(*NAN, "--nan-attempts=9")
    job.start(with_policy(tmp_path, "numbers_rollbacks_max = 2"))

    assert job.wait() == 0, job.output
    assert begun_at(job) == [None, 20, 10]
    assert [one.behind for one in job.records(GoesBack)] == [25, 20]
    assert [one.attempt for one in job.records(NumbersWrong)] == [1, 2, 3]
    assert all(map(math.isnan, job.result()["state"]))  # type: ignore[call-overload]


def test_job_with_nothing_to_go_back_to_trains_on(make_lockstep: Make, tmp_path: Path) -> None:
    job = make_lockstep("--nan-rank=1", "--nan-step=5", "--step-s=0.1", "--every=10", "--steps=30")
    job.start(with_policy(tmp_path, "numbers_rollbacks_max = 2"))

    eventually(lambda: job.has_state and job.records(NumbersWrong), "the NaN is found")
    assert job.wait() == 0, job.output
    assert begun_at(job) == [None]
