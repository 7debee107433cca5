"""The launcher itself is killed, or told to stop, at every point of a job's life."""

import json
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recovery.journal.attempt_records import AttemptVerified, Cause
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.incident_machine import Phase
from recovery.journal.job_records import OutcomeKind
from recovery.journal.records import Entry
from recovery.launcher.processes.process_tree import find_marked, read_state
from recovery.local.report.overview import read_entries
from tests.support.eventually import eventually
from tests.system.faults.harness import (
    Job,
    assert_recovered,
    guardian_of,
    kill,
    kill_launcher,
    kill_with_guardian,
)

pytestmark = [pytest.mark.process, pytest.mark.safety]
Make = Callable[..., Job]


def phase_of(job: Job) -> Phase | None:
    return phase_in(job.entries)


def phase_in(entries: Sequence[Entry]) -> Phase | None:
    incident = fold_all(entries).incident
    return incident.state.phase if incident else None


@pytest.mark.real_fault("launcher killed")
def test_a_killed_launcher_leaves_no_orphan_and_the_same_command_goes_on(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()
    job.start()
    job.pids_at_step(25)

    kill_launcher(job)
    job.start()

    assert_recovered(job, undisturbed, incidents=0)
    assert [attempt.cause for attempt in job.attempts] == [Cause.FIRST, Cause.TAKEOVER]


def test_a_launcher_killed_before_the_first_step_is_taken_over(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()
    job.start()
    eventually(lambda: job.has_state and job.attempts, "the first attempt is journaled")

    kill_launcher(job)
    job.start()

    assert_recovered(job, undisturbed, incidents=0)


@pytest.mark.parametrize("phase", [Phase.FENCING, Phase.RESTORING, Phase.VERIFYING])
def test_a_launcher_killed_in_any_phase_of_an_incident_takes_it_up_again(
    make_lockstep: Make, undisturbed_long: dict[str, object], phase: Phase
) -> None:
    job = make_lockstep("--steps=600", "--ballast-mb=100")
    job.start()
    incidents = freeze_in(job, phase)

    kill_launcher(job)
    assert phase_of(job) is phase
    job.start()

    assert_recovered(job, undisturbed_long, incidents)
    numbers = [attempt.attempt for attempt in job.attempts]
    assert numbers == sorted(set(numbers))


def freeze_in(job: Job, phase: Phase) -> int:
    """Kill ranks until the launcher could be stopped in ``phase``; return how many it took."""
    for number in range(1, 11):
        kill(job.pids_at_step(20 * number, attempt=number)[1])
        eventually(lambda wanted=number: len(job.incidents) == wanted, "the incident is journaled")
        while fold_all(job.entries).incident is not None:  # it ends by itself, and in time
            if phase_of(job) is phase:
                job.signal(signal.SIGSTOP)
                if phase_on_disk(job) is phase:
                    return number
                job.signal(signal.SIGCONT)
                break  # it was quicker: another rank, another incident
    raise AssertionError(f"ten incidents, and none could be stopped while {phase.name}")


def phase_on_disk(job: Job) -> Phase | None:
    """Return the phase that is found once a launcher that was just stopped is dead.

    It may have written a record of which readers don't know before it goes on.
    """
    assert job.process is not None
    tasks = Path(f"/proc/{job.process.pid}/task")
    for task in tasks.iterdir():
        eventually(
            lambda task=task: read_letter(task) in ("", "T"), "each of its threads stands still"
        )
    with tempfile.TemporaryDirectory(dir=job.folder) as copy:
        for name in ("journal.db", "journal.db-wal"):
            shutil.copy(job.state_folder / name, copy)
        return phase_in(read_entries(Path(copy)))


def read_letter(task: Path) -> str:
    state = read_state(task.name, str(task.parent))
    return "" if state is None else state.letter


def test_the_guardian_and_the_launcher_killed_together_are_cleaned_up_by_the_next_start(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()
    job.start()
    job.pids_at_step(25)
    kill_with_guardian(job)
    job.start()

    assert_recovered(job, undisturbed, incidents=0)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.real_fault("job preempted")),
        (signal.SIGINT, 130),
    ],
)
def test_a_planned_stop_saves_and_is_no_incident(
    make_lockstep: Make, undisturbed: dict[str, object], number: signal.Signals, code: int
) -> None:
    job = make_lockstep("--every=1000")  # no step saves by itself
    job.start()
    job.pids_at_step(25)

    job.signal(number)

    assert job.wait() == code, job.output
    saved = job.result()["step"]
    assert job.ended[-1].outcome.kind is OutcomeKind.STOPPED
    job.start()
    assert_recovered(job, undisturbed, incidents=0)
    assert job.attempts[-1].choice.restore.step == saved


def test_a_time_limit_is_a_planned_stop(make_lockstep: Make) -> None:
    for limit_s in (2, 8, 32, 60):  # on a busy machine ranks begin late
        job = make_lockstep("--steps=100000", flags=[f"--time-limit={limit_s}s"])

        job.start()

        code = job.wait()
        assert job.ended[-1].outcome.kind is OutcomeKind.TIME_LIMIT
        if job.records(AttemptVerified):
            break
    assert code == 124, job.output
    assert json.loads((job.folder / "result.json").read_text())["step"] > 0


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(make_lockstep: Make) -> None:
    job = make_lockstep("--steps=100000", "--ignore-sigterm")
    job.flags = [
        "--grace=1",
        "--shutdown-timeout=1h",
    ]  # by the second alone it would outlive the test
    job.start()
    job.pids_at_step(5)

    job.signal(signal.SIGTERM)

    assert job.wait() == 143, job.output
    assert not find_marked(job.job_id)


def test_a_second_interrupt_does_not_wait_for_the_grace(make_lockstep: Make) -> None:
    job = make_lockstep("--steps=100000", "--ignore-sigterm", flags=["--grace=1h"])
    job.start()
    job.pids_at_step(5)

    job.signal(signal.SIGINT)
    eventually(lambda: "stopping" in job.output, "the first interrupt is noticed")
    job.signal(signal.SIGINT)

    assert job.wait() == 130, job.output


def test_user_signals_are_passed_on_to_the_ranks(make_job: Make) -> None:
    job = make_job("wait_for_signal.py", world_size=2)
    job.start()
    eventually(lambda: job.output.count("ready") == 2, "both ranks wait")

    job.signal(signal.SIGUSR1)

    assert job.wait() == 0, job.output
    assert job.output.count("got SIGUSR1") == 2


@pytest.mark.real_fault("guardian killed")
def test_a_guardian_that_is_killed_costs_one_restart(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()
    job.start()
    job.pids_at_step(25)

    kill(guardian_of(job))

    assert_recovered(job, undisturbed, incidents=1)
    assert job.incidents[0].failure.finding.ranks == ()


def test_a_job_under_nohup_outlives_its_terminal(
    make_lockstep: Make, undisturbed: dict[str, object]
) -> None:
    job = make_lockstep()
    job.prefix = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    job.start()
    job.pids_at_step(5)

    job.signal(signal.SIGHUP)

    assert_recovered(job, undisturbed, incidents=0)
