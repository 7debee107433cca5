"""A rotation that deletes the chosen checkpoint while ranks restore it costs no step and no attempt at zero."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.journal.attempt_records import CheckpointPutBack
from tests.support.framework_saves import require
from tests.support.free_port import free_port
from tests.system.faults.harness import JOBS, Job
from tests.system.faults.nodes import PATIENT, Nodes

pytestmark = pytest.mark.process
Make = Callable[..., Job]


def restored(job: Job) -> list[str | None]:
    """Return the name of what each attempt began from."""
    return [
        None if one.choice.restore is None else one.choice.restore.path.rpartition("/")[2]
        for one in job.attempts
    ]


def make(make_job: Make, *arguments: str) -> Job:
    job = make_job("rotating.py", world_size=2, flags=["--checkpoint-marker=COMMIT"])
    job.arguments = [f"--folder={job.checkpoints}", *arguments]
    return job


def test_a_rank_reads_what_another_one_deleted_meanwhile(make_job: Make) -> None:
    job = make(make_job, "--patient")

    job.start()

    assert job.wait() == 0, job.output
    assert restored(job) == [None, "step-10"]
    job.expect_output("step-10 was deleted while it was being restored: put back")
    (put_back,) = job.records(CheckpointPutBack)
    assert (put_back.attempt, put_back.path) == (2, str(job.checkpoints / "step-10"))
    assert not list(job.checkpoints.glob(".rankmend/pinned/*"))


def test_ranks_that_failed_to_read_it_get_the_same_one_again(make_job: Make) -> None:
    job = make(make_job)

    job.start()

    assert job.wait() == 0, job.output
    assert restored(job) == [None, "step-10", "step-10"]
    assert not list(job.checkpoints.glob(".rankmend/pinned/*"))


def test_of_two_nodes_one_puts_back_what_the_ranks_of_both_read(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(PATIENT)
    nodes = Nodes(
        tmp_path,
        "2",
        [f"--folder={tmp_path / 'checkpoints'}", "--patient"],
        flags=[
            f"--rdzv-endpoint=127.0.0.1:{free_port()}",
            f"--config={tmp_path / 'policy.toml'}",
            "--checkpoint-marker=COMMIT",
        ],
        script=JOBS / "rotating.py",
    )
    try:
        nodes.start("a", "b")

        assert nodes.wait_ends("a", "b") == [0, 0], nodes.output
    finally:
        nodes.close()

    assert nodes.output.count("step-10 was deleted while it was being restored: put back") == 1
    assert not list(nodes.checkpoints.glob(".rankmend/pinned/*"))


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_trainers_own_rotation_loses_nothing_while_the_ranks_restore(make_job: Make) -> None:
    require("transformers")
    job = make_job("trainer_rotation.py", world_size=2)
    job.arguments = [
        f"--folder={job.checkpoints}",
        "--resume_from_checkpoint",
        "{checkpoint}",
    ]
    job.environment["OMP_NUM_THREADS"] = "1"

    job.start()

    assert job.wait() == 0, job.output
    assert restored(job) == [None, "checkpoint-20", "checkpoint-20"]
    job.expect_output("left by the rotation: ['.rankmend', 'checkpoint-30']")
    job.expect_output("checkpoint-20 was deleted while it was being restored: put back")
