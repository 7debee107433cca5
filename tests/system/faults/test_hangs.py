"""Ranks that live and do not move."""

import signal
from collections.abc import Callable

import pytest

from detectors.finding import Blame, Kind
from recovery.journal.attempt_records import StandKind, StandStill
from tests.support.eventually import fault_lasts
from tests.support.faults.process import keep_stopped
from tests.system.faults.harness import Job, assert_recovered, kill

pytestmark = pytest.mark.process
Make = Callable[..., Job]


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.real_fault("rank stopped"))])
def test_a_stopped_rank_is_named_and_the_job_goes_on(
    make_lockstep: Make, undisturbed: dict[str, object], rank: int
) -> None:
    job = make_lockstep(flags=["--hang-stopped=1"])
    job.start()

    keep_stopped(job.pids_at_step(25)[rank])

    assert_recovered(job, undisturbed, incidents=1)
    finding = job.incidents[0].failure.finding
    assert finding.kind is Kind.RANK_HUNG
    assert (finding.ranks, finding.blame) == ((rank,), Blame.NOBODY)
    kinds = [one.kind for one in job.records(StandStill)]
    assert kinds.count(StandKind.CONTINUED) == 1, kinds
    assert "SIGCONT is sent once" in job.output
    assert "it has stopped again" in finding.evidence[0].text


def test_a_stopped_rank_goes_on_without_a_restart(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep(flags=["--hang-stopped=1"])
    job.start()

    kill(job.pids_at_step(25)[2], number=signal.SIGSTOP)

    assert_recovered(job, undisturbed, incidents=0)
    kinds = [one.kind for one in job.records(StandStill)]
    assert kinds == [StandKind.CONTINUED, StandKind.ENDED]
    assert len(job.attempts) == 1


def test_a_suspended_job_is_left_alone_until_it_goes_on(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep(flags=["--hang-stopped=1", "--hang-min=1", "--hang-max=1"])
    job.start()
    pids = job.pids_at_step(25).values()

    kill(*pids, number=signal.SIGSTOP)
    job.expect_output("the job is suspended")
    fault_lasts(3.0)
    kill(*pids, number=signal.SIGCONT)

    assert_recovered(job, undisturbed, incidents=0)
    kinds = [one.kind for one in job.records(StandStill)]
    assert kinds == [StandKind.SUSPENDED, StandKind.ENDED]


def test_a_rank_that_stops_inside_the_all_reduce_is_named(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep(
        "--fail-rank=3", "--fail-step=25", "--fail-with=stop", flags=["--hang-stopped=1"]
    )

    job.start()

    assert_recovered(job, undisturbed, incidents=1)
    assert job.incidents[0].failure.finding.ranks == (3,)


def test_ranks_that_all_sleep_are_restarted_and_nobody_is_blamed(make_job: Make) -> None:
    job = make_job(
        "all_sleep.py",
        world_size=2,
        flags=["--hang-min=1.5", "--hang-max=1.5"],
    )

    job.start()

    assert job.wait() == 0, job.output
    finding = job.incidents[0].failure.finding
    assert finding.kind is Kind.RANK_HUNG
    assert finding.ranks == ()
    assert finding.blame is Blame.NOBODY


def test_hang_detection_can_be_switched_off(make_lockstep: Make) -> None:
    job = make_lockstep(flags=["--no-hang-detection", "--hang-stopped=0.5"])
    job.start()
    pid = job.pids_at_step(25)[1]

    kill(pid, number=signal.SIGSTOP)
    fault_lasts(4.0)
    kill(pid, number=signal.SIGCONT)

    assert job.wait() == 0, job.output
    assert not job.incidents
