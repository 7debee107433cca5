import uuid
from collections import Counter
from random import Random

from recovery.journal.postgres.spread import (
    DEAF_RETRY_S,
    Deafness,
    choose_controller,
    choose_leaving,
)

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


def test_a_controller_that_comes_gets_its_share_and_then_nothing_moves_any_more() -> None:
    held = dict.fromkeys(JOBS, CONTROLLERS[0])
    moves = 0

    while leaving := [job for one in CONTROLLERS for job in choose_leaving(held, one, CONTROLLERS)]:
        moves += len(leaving)
        for job in leaving:
            chosen = choose_controller(job, CONTROLLERS)
            assert chosen is not None
            held[job] = chosen

    assert max(Counter(held.values()).values()) <= 1_101  # a tenth over the mean, rounded up
    assert moves <= 2_000  # each job at most once


def test_nothing_moves_while_the_shares_are_about_even_wherever_the_jobs_began() -> None:
    held = {job: CONTROLLERS[place % 3] for place, job in enumerate(JOBS)}

    assert [choose_leaving(held, one, CONTROLLERS) for one in CONTROLLERS] == [(), (), ()]


def test_one_controller_or_one_that_has_just_begun_lets_nothing_go() -> None:
    held = dict.fromkeys(JOBS, CONTROLLERS[0])

    assert choose_leaving(held, CONTROLLERS[0], CONTROLLERS[:1]) == ()
    assert choose_leaving(held, CONTROLLERS[0], CONTROLLERS[1:]) == ()


def test_a_controller_is_deaf_once_all_its_jobs_are_silent_and_another_one_is_there() -> None:
    deafness = Deafness(lease_s=8.0)

    assert not deafness.observe(100.0, None, others=2)  # it has no job
    assert not deafness.observe(100.0, 31.9, others=2)
    assert not deafness.observe(100.0, 32.0, others=0)  # the last one keeps the jobs
    assert deafness.observe(100.0, 32.0, others=1)
    assert deafness.observe(101.0, None, others=0)  # its jobs are elsewhere now


def test_a_deaf_controller_takes_part_again_after_a_join_or_after_a_while() -> None:
    deafness = Deafness(lease_s=8.0)
    assert deafness.observe(0.0, 32.0, others=1)

    deafness.hear()
    after_a_join = deafness.observe(1.0, 0.0, others=1)
    assert deafness.observe(2.0, 32.0, others=1)
    later = [
        deafness.observe(2.0 + DEAF_RETRY_S - 1.0, None, 1),
        deafness.observe(2.0 + DEAF_RETRY_S, None, 1),
    ]

    assert (after_a_join, later) == (False, [True, False])
