"""How long a job waits between two ticks, by what calls for them and by what the last one took."""

from typing import Any, cast

import pytest

from recovery.service.jobs.served_job import Job


def job_after_a_tick(took_s: float, *, is_touched: bool) -> Job:
    none = cast(Any, None)
    job = Job(none, none, none, none, none, none, none)
    job.controller = cast(Any, object())
    job.ticked_at_s, job.tick_took_s, job.is_touched = 100.0, took_s, is_touched
    return job


@pytest.mark.parametrize(
    ("took_s", "calm_s", "touched_s"),
    [
        (0.001, 0.25, 0.05),  # of a small job
        (0.02, 0.8, 0.06),  # a look at 80,000 ranks
        (0.1, 1.0, 0.3),  # none waits longer
        (9.0, 1.0, 1.0),
    ],
)
def test_large_jobs_tick_less_often_while_all_is_well_but_not_when_a_decision_may_be_due(
    took_s: float, calm_s: float, touched_s: float
) -> None:
    for is_touched, due_s in ((False, calm_s), (True, touched_s)):
        job = job_after_a_tick(took_s, is_touched=is_touched)
        assert not job.is_due(100.0 + due_s - 0.001)
        assert job.is_due(100.0 + due_s + 0.001)
