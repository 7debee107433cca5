"""Whole jobs whose loss becomes NaN: who had it first is named."""

import math
from collections.abc import Callable

import pytest

from detectors.numbers.wrong import ToldNumber, Trouble
from recovery.journal.number_records import NumbersWrong
from tests.system.faults.harness import Job

pytestmark = [pytest.mark.real, pytest.mark.long]
Make = Callable[..., Job]
NAN = ("--nan-rank=2", "--nan-step=25", "--step-s=0.1", "--every=10")


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
