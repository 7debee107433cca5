import uuid
from collections import Counter
from random import Random

from recovery.postgres.spread import choose_controller

RANDOM = Random(7)
JOBS = [uuid.UUID(int=RANDOM.getrandbits(128)) for _ in range(3_000)]
CONTROLLERS = [uuid.UUID(int=RANDOM.getrandbits(128)) for _ in range(3)]


def test_jobs_are_shared_evenly_and_every_controller_agrees_on_whose_each_is() -> None:
    chosen = [choose_controller(job, CONTROLLERS) for job in JOBS]

    assert chosen == [choose_controller(job, reversed(CONTROLLERS)) for job in JOBS]
    assert all(900 < count < 1_100 for count in Counter(chosen).values())
    assert len(Counter(chosen)) == 3


def test_only_the_jobs_of_a_controller_that_is_gone_move() -> None:
    gone, *left = CONTROLLERS

    for job in JOBS:
        before, after = choose_controller(job, CONTROLLERS), choose_controller(job, left)
        assert before in (after, gone)


def test_without_a_controller_nobody_takes_a_job() -> None:
    assert choose_controller(JOBS[0], []) is None
