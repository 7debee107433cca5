"""Ranks that die, in every way, and what the user gets."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.attempt_records import AttemptVerified
from recovery.journal.job_records import OutcomeKind
from recovery.launcher.processes.process_tree import find_marked, read_state
from tests.support.eventually import eventually
from tests.system.faults.harness import Job, assert_recovered, kill

pytestmark = [pytest.mark.process, pytest.mark.safety]
Make = Callable[..., Job]


def test_an_undisturbed_job_ends_with_0_and_leaves_nothing(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()

    job.start()

    assert_recovered(job, undisturbed, incidents=0)
    assert [attempt.attempt for attempt in job.attempts] == [1]


@pytest.mark.parametrize(
    "rank", [0, 1, pytest.param(2, marks=pytest.mark.real_fault("rank killed")), 3]
)
def test_the_death_of_any_rank_costs_nothing_but_time(
    make_lockstep: Make, undisturbed: dict[str, object], rank: int
) -> None:
    job = make_lockstep("--step-s=0.03")  # not done before the kill, however late that comes
    job.start()

    kill(job.pids_at_step(25)[rank])

    assert_recovered(job, undisturbed, incidents=1)
    failure = job.incidents[0].failure
    assert failure.finding.ranks == (rank,)
    assert "SIGKILL" in failure.finding.summary
    restore = job.attempts[1].choice.restore
    assert restore is not None
    assert restore.step in (20, 30, 40, 50), "on a busy machine it is killed some steps later"
    job.expect_output(f"rank {rank}")


def test_two_ranks_that_die_at_once_are_one_incident_and_both_named(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()
    job.start()

    pids = job.pids_at_step(25)
    kill(pids[1], pids[3])

    assert_recovered(job, undisturbed, incidents=1)
    named = set(job.incidents[0].failure.finding.ranks)
    assert named
    assert named <= {1, 3}


def test_every_attempt_may_be_killed(make_lockstep: Make, undisturbed: dict[str, object]) -> None:
    job = make_lockstep()
    job.start()

    kill(job.pids_at_step(15, attempt=1)[0])
    kill(job.pids_at_step(25, attempt=2)[1])
    kill(job.pids_at_step(35, attempt=3)[2])

    assert_recovered(job, undisturbed, incidents=3)
    assert [attempt.attempt for attempt in job.attempts] == [1, 2, 3, 4]


@pytest.mark.real_fault("rank raises")
def test_a_crash_of_one_rank_is_told_from_the_errors_it_causes(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep("--fail-rank=1", "--fail-step=25", "--fail-with=segv")

    job.start()

    assert_recovered(job, undisturbed, incidents=1)
    finding = job.incidents[0].failure.finding
    assert finding.ranks == (1,)
    assert "SIGSEGV" in finding.summary


def test_an_exception_that_passes_is_survived(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep("--fail-rank=2", "--fail-step=25")

    job.start()

    assert_recovered(job, undisturbed, incidents=1)
    assert job.incidents[0].failure.rank == 2


def test_a_script_that_always_fails_ends_with_its_own_error(make_lockstep: Make) -> None:
    job = make_lockstep("--fail-rank=-2", "--fail-at-start", "--fail-attempts=99")

    job.start()

    assert job.wait() == 1
    job.expect_output("ValueError: the loss is not a number")
    assert job.ended[-1].outcome.kind is OutcomeKind.ESCALATED
    assert [attempt.attempt for attempt in job.attempts] == [1], "all ranks, before any step"
    assert job.incidents[0].failure.finding.ranks == ()
    assert not find_marked(job.job_id)


def test_a_script_that_fails_on_rank_2_only_names_rank_2(make_lockstep: Make) -> None:
    job = make_lockstep("--fail-rank=2", "--fail-step=25", "--fail-attempts=99")

    job.start()

    assert job.wait() == 1
    assert job.ended[-1].outcome.rank == 2
    job.expect_output("ValueError: the loss is not a number")
    assert "at step 24" in job.ended[-1].outcome.reason
    assert len(job.attempts) == 2


@pytest.mark.parametrize("code", [93, 7])
def test_the_exit_code_of_the_first_rank_reaches_the_shell(make_lockstep: Make, code: int) -> None:
    job = make_lockstep(
        "--fail-rank=1", "--fail-step=5", "--fail-attempts=99", f"--fail-with={code}"
    )

    job.start()

    assert job.wait() == code
    assert job.ended[-1].outcome.kind is OutcomeKind.ESCALATED
    assert len(job.attempts) == 1 if code == 93 else len(job.attempts) > 1


def test_a_rank_may_end_early_with_0(make_lockstep: Make) -> None:
    job = make_lockstep("--early-rank=3")

    job.start()

    assert job.wait() == 0, job.output
    assert not job.incidents
    assert job.result()["step"] == 60


def test_a_daemon_that_a_rank_left_is_gone_before_the_next_attempt(
    make_lockstep: Make, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    pid_file = tmp_path / "daemon"
    job = make_lockstep(f"--grandchild={pid_file}")
    job.start()
    pids = job.pids_at_step(25)
    daemon = int(eventually(lambda: pid_file.exists() and pid_file.read_text(), "the daemon"))
    assert read_state(daemon) is not None

    kill(pids[0])
    job.pids_at_step(30, attempt=2)

    eventually(lambda: read_state(daemon) is None, "the daemon is reaped")
    assert_recovered(job, undisturbed, incidents=1)


def test_two_jobs_on_one_machine_do_not_touch_each_other(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    first, second = make_lockstep(world_size=2, flags=[]), make_lockstep()
    first.start()
    second.start()
    untouched = first.pids_at_step(5)

    kill(second.pids_at_step(25)[1])

    assert_recovered(second, undisturbed, incidents=1)
    assert first.wait() == 0, first.output
    assert len(first.attempts) == 1
    assert untouched


def test_the_same_job_started_twice_is_refused_and_the_first_goes_on(
    make_lockstep: Make, undisturbed_long: dict[str, object]
) -> None:
    job = make_lockstep("--steps=600")
    job.start()
    job.pids_at_step(5)
    second = Job(job.folder, job.script, job.arguments, name=job.name, starts=10)

    second.start()

    assert second.wait() == 75
    assert f"process {job.process.pid}" in second.output
    assert_recovered(job, undisturbed_long, incidents=0)


def test_the_budget_of_restarts_ends_a_job_and_outlives_rankmend(make_lockstep: Make) -> None:
    job = make_lockstep(
        "--fail-rank=1",
        "--fail-step=5",
        "--fail-attempts=99",
        "--fail-with=segv",
        flags=["--max-restarts=1"],
    )

    job.start()
    assert job.wait() == 128 + signal.SIGSEGV
    first = len(job.attempts)
    job.start()

    assert job.wait() == 128 + signal.SIGSEGV
    assert first == 2
    assert len(job.attempts) == 3
    assert "1 are allowed" in job.ended[-1].outcome.reason


def test_verified_attempts_are_journaled_with_the_ranks_that_tell_steps(
    make_lockstep: Make,
) -> None:
    job = make_lockstep("--steps=8")

    job.start()

    assert job.wait() == 0, job.output
    assert job.records(AttemptVerified)[0].telling_ranks == (0, 1, 2, 3)


def test_the_ranks_get_their_own_session_and_no_descriptor_of_ours_but_two_out_of_the_way(
    make_job: Make,
) -> None:
    job = make_job("look_around.py", world_size=2)

    job.start()

    assert job.wait() == 0, job.output
    told = dict(line.split(": ", 1) for line in job.output.splitlines() if ": " in line)
    assert told["[rank 0] descriptors"] == "[0, 1, 2]"
    assert told["[rank 0] held by the hook"] == "['.stacks', '.lock']"
    assert told["[rank 0] inherited by children"] == "['.lock']", "they may write checkpoints, too"
    assert told["[rank 0] leads its session"] == "True"
    assert told["[rank 1] ignored signals"] == "[]"
