"""Whole jobs that keep their state in memory lose no step, whatever dies."""

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rankmend.milestones import ProcessMilestone
from recovery.journal.attempt_records import Choice
from recovery.journal.observation_records import ReplicasDiffer
from recovery.launcher.processes.process_tree import find_marked
from tests.support.eventually import eventually
from tests.support.milestones import milestones
from tests.system.faults.conftest import run_undisturbed
from tests.system.faults.harness import Job, assert_recovered, kill

pytestmark = pytest.mark.process
Make = Callable[..., Job]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
STEPS_PER_KILL = 12
KILLS = 30
# On a busy machine a rank may be gone for long before its error is: its peers end first.
PATIENT = "[policy]\nsettle_s = 60\n"
EACH_STEP = ("--snapshot-every=1", "--step-s=0.03")


def begun_at(job: Job) -> list[tuple[int | None, bool]]:
    """Return where each attempt after the first began, and whether in memory."""
    return [(one.begins_at, one.snapshot is not None) for one in choices(job)]


def choices(job: Job) -> list[Choice]:
    return [attempt.choice for attempt in job.attempts[1:]]


@pytest.mark.real_fault("rank killed, snapshots kept")
def test_killed_rank_loses_no_step(make_pair: Make, undisturbed_pair: dict[str, object]) -> None:
    job = make_pair(*EACH_STEP, "--every=1000")
    job.start()

    kill(job.pids_at_step(25)[1])

    assert_recovered(job, undisturbed_pair, incidents=1)
    ((step, is_memory),) = begun_at(job)
    failure = job.incidents[0].failure
    assert is_memory
    assert step is not None
    assert failure.step is not None
    assert step >= failure.step - 1, "the others may have reported a step that rank 1 had not made"
    job.expect_output(f"from memory at step {step}")


def test_rank_that_dies_while_it_writes_leaves_the_snapshot_before(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(
        "--snapshot-every=1", "--every=1000", "--snapshot-mb=200", "--steps=60", "--step-s=0.0",
        "--fail-rank=1", "--fail-step=30", "--fail-in-snapshot",
    )  # fmt: skip
    job.start()

    assert_recovered(job, undisturbed_pair, incidents=1)
    ((step, is_memory),) = begun_at(job)
    assert is_memory
    assert step is not None
    assert step >= 29


def test_newer_checkpoint_wins_over_an_older_snapshot(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(
        "--snapshot-every=21", "--every=10", "--step-s=0.03",
        "--fail-rank=1", "--fail-step=37", "--fail-with=kill",
    )  # fmt: skip
    job.start()

    assert_recovered(job, undisturbed_pair, incidents=1)
    assert begun_at(job) == [(30, False)]


def test_snapshot_that_can_not_be_restored_gives_way_to_the_one_before(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(
        *EACH_STEP, "--fail-rank=1", "--fail-step=25", "--fail-with=segv", "--fail-attempts=3",
        "--fail-in-restore",
    )  # fmt: skip
    job.start()

    assert_recovered(job, undisturbed_pair, incidents=1)
    assert begun_at(job) == [(24, True), (24, True), (23, True)]


def test_damaged_snapshot_is_not_restored(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    with milestones() as named:
        job = make_pair("--snapshot-every=59", "--every=59", "--snapshot-mb=1", milestones=named)
        job.start()
        pids = job.pids_at_step(59)  # the last but one, at which the job waits
        # What changes before its first digest was made, by a thread of low priority, can't be told.
        named.wait("launcher", ProcessMilestone.DIGESTED, job.world_size)
    for path in sorted((job.runtime / "snapshots").glob("rank-1.*.snapshot")):
        with path.open("r+b") as file:
            file.seek(4096 + 500_000)
            byte = file.read(1)
            file.seek(4096 + 500_000)
            file.write(bytes([byte[0] ^ 1]))
    kill(*pids.values())

    assert_recovered(job, undisturbed_pair, incidents=1)
    assert begun_at(job) == [(59, False)]
    job.expect_output("changed in memory since it was written, of rank 1")


def test_jobs_folder_that_somebody_removes_is_made_again_and_costs_the_snapshots_in_it(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair("--snapshot-every=1", "--step-s=0.1", "--every=1000")
    job.start()
    pids = job.pids_at_step(5)

    shutil.rmtree(job.runtime)
    snapshots = job.runtime / "snapshots"
    eventually(
        lambda: snapshots.exists() and len(list(snapshots.iterdir())) == 2 * job.world_size,
        "snapshots of every rank",
    )
    kill(pids[1])

    assert_recovered(job, undisturbed_pair, incidents=1)
    ((step, is_memory),) = begun_at(job)
    assert is_memory
    assert step is not None
    assert step > 5


@pytest.mark.real_fault("launcher killed, snapshots kept")
def test_killed_launcher_comes_back_and_goes_on_from_memory(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(*EACH_STEP, "--every=1000")
    job.start()
    job.pids_at_step(25)

    job.signal(signal.SIGKILL)
    job.wait()
    eventually(lambda: not find_marked(job.job_id), "no orphan is left")
    assert job.runtime.exists()
    job.start()

    assert_recovered(job, undisturbed_pair, incidents=0)
    ((step, is_memory),) = begun_at(job)
    assert is_memory
    assert step is not None
    assert step >= 25


@pytest.mark.timeout(600)
def test_kill_after_kill_loses_no_step_and_changes_no_result(
    make_pair: Make, tmp_path: Path
) -> None:
    # Nobody knows how many steps a busy machine makes between two kills.
    enough = tmp_path / "enough"
    job = make_pair("--steps=1000000", f"--until={enough}", "--snapshot-every=1", "--every=1000000")
    job.start()

    for number in range(1, KILLS + 1):
        pids = job.pids_at_step(STEPS_PER_KILL * number, attempt=number)
        kill(pids[number % 2])
    job.pids_at_step(STEPS_PER_KILL * (KILLS + 1), attempt=KILLS + 1)
    enough.touch()

    assert job.wait() == 0, job.output
    steps = ("--step-s=0", f"--steps={job.result()['step']}", "--every=1000000")
    assert_recovered(job, run_undisturbed(tmp_path / "twin", *steps, world_size=2), incidents=KILLS)
    assert all(is_memory for _step, is_memory in begun_at(job))
    lost = [
        incident.failure.step - choice.begins_at
        for incident, choice in zip(job.incidents, choices(job), strict=True)
        if incident.failure.step is not None and choice.begins_at is not None
    ]
    assert max(lost) <= 1


def test_replica_that_differs_is_named_and_its_step_is_not_restored(make_pair: Make) -> None:
    job = make_pair(
        "--steps=80", "--snapshot-every=10", "--every=1000", "--step-s=0.12", "--snapshot-mb=1",
        "--flip-rank=2", "--flip-step=60", world_size=3,
    )  # fmt: skip
    job.start()
    eventually(lambda: job.has_state and job.records(ReplicasDiffer), "the difference is found")
    kill(*job.pids_at_step(62).values())

    eventually(lambda: choices(job), "the next attempt")
    job.signal(signal.SIGTERM)
    job.wait()
    (found,) = job.records(ReplicasDiffer)
    assert (found.part, found.group, found.odd) == ("own", (0, 1, 2), (2,))
    assert found.step in (60, 70)
    ((step, is_memory),) = begun_at(job)[:1]
    assert is_memory == (step == 50)
    assert re.search(r"own of rank 2 \(.+\) differs from that of ranks 0 and 1", job.output)


def test_declared_replica_that_differs_in_its_first_snapshot_is_named(make_pair: Make) -> None:
    job = make_pair(
        "--steps=40", "--snapshot-every=10", "--every=1000", "--step-s=0.12", "--snapshot-mb=1",
        "--flip-rank=2", "--flip-step=1", world_size=3,
    )  # fmt: skip
    job.start("--parallel", "dp=3")
    eventually(lambda: job.has_state and job.records(ReplicasDiffer), "the difference is found")

    job.signal(signal.SIGTERM)
    job.wait()
    (found,) = job.records(ReplicasDiffer)
    assert (found.part, found.group, found.odd) == ("own", (0, 1, 2), (2,))
    assert "though --parallel declares them replicas" in job.output


@needs_root
def test_job_without_room_for_snapshots_trains_on_and_says_so_once(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(
        "--snapshot-every=1", "--snapshot-mb=20", "--fail-rank=1", "--fail-step=25",
        "--fail-with=kill", "--step-s=0.02",
    )  # fmt: skip
    job.prefix = ["unshare", "-m", "sh", "-c"]
    job.prefix += ['mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"', "sh"]
    job.start()

    assert_recovered(job, undisturbed_pair, incidents=1)
    assert begun_at(job) == [(20, False)]
    for rank in range(2):
        said = [
            line
            for line in job.output.splitlines()
            if "no snapshot is kept" in line and f"[rank {rank}]" in line
        ]
        assert len(said) in (1, 2), "once in each attempt"


def test_snapshots_of_another_number_of_ranks_are_not_restored(make_pair: Make) -> None:
    job = make_pair(*EACH_STEP, "--every=10", "--steps=60", world_size=3)
    job.start()
    job.pids_at_step(25)
    job.signal(signal.SIGKILL)
    job.wait()
    eventually(lambda: not find_marked(job.job_id), "no orphan is left")

    job.world_size = 2
    job.start()

    assert job.wait() == 0, job.output
    ((step, is_memory),) = begun_at(job)
    assert not is_memory
    assert step is not None
    assert step % 10 == 0
    job.expect_output("of 3 ranks, and there are 2")


def test_two_jobs_of_one_user_keep_their_snapshots_apart(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    jobs = [make_pair(*EACH_STEP, "--every=1000") for _number in range(2)]
    for job in jobs:
        job.start()

    for job in jobs:
        kill(job.pids_at_step(20)[1])

    for job in jobs:
        assert_recovered(job, undisturbed_pair, incidents=1)
        assert [is_memory for _step, is_memory in begun_at(job)] == [True]


def test_error_that_comes_again_from_memory_sends_the_job_back_to_the_checkpoint(
    make_pair: Make, undisturbed_pair: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(PATIENT)
    job = make_pair(
        *EACH_STEP, "--fail-rank=1", "--fail-step=25", "--fail-attempts=2",
        flags=[f"--config={tmp_path}/policy.toml"],
    )  # fmt: skip
    job.start()

    assert_recovered(job, undisturbed_pair, incidents=1)
    assert begun_at(job) == [(24, True), (20, False)]


def test_error_that_comes_again_from_the_checkpoint_too_is_the_programs(
    make_pair: Make, tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(PATIENT)
    job = make_pair(
        *EACH_STEP, "--fail-rank=1", "--fail-step=25", "--fail-attempts=9",
        flags=[f"--config={tmp_path}/policy.toml"],
    )  # fmt: skip
    job.start()

    assert job.wait() == 1
    assert begun_at(job) == [(24, True), (20, False)]
    assert (
        "the same error at step 24 in 3 attempts in a row: the program itself fails" in job.output
    )


def test_run_without_snapshots_keeps_none_and_goes_on_from_none(
    make_pair: Make, undisturbed_pair: dict[str, object]
) -> None:
    job = make_pair(*EACH_STEP, "--every=10")
    job.start()
    job.pids_at_step(25)
    job.signal(signal.SIGKILL)
    job.wait()
    eventually(lambda: not find_marked(job.job_id), "no orphan is left")

    job.start("--no-snapshots")
    pids = job.pids_at_step(45, attempt=2)
    assert list((job.runtime / "snapshots").iterdir()) == []
    kill(pids[1])

    assert_recovered(job, undisturbed_pair, incidents=1)
    assert [is_memory for _step, is_memory in begun_at(job)] == [False, False]
