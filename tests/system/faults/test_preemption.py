"""Jobs whose ranks load data in worker processes, asked to end: the script's own save must not be lost with its workers."""

import signal
from collections.abc import Callable

import pytest

from recovery.journal.job_records import OutcomeKind
from recovery.launcher.processes.process_tree import find_marked
from tests.support.framework_saves import require
from tests.support.torch_here import needs_torch
from tests.system.faults.harness import Job

pytestmark = [pytest.mark.process, pytest.mark.torch]
Make = Callable[..., Job]
# Each way in which a loader's worker starts, on one rank or the other; only a forked one needn't import PyTorch.
EACH_WAY, FORKED = "fork+spawn,fork+forkserver", "fork,fork"
UNSHARED = (
    "--store=ranks",
    "--no-fork-server",
)  # no restart: no process for it that imports PyTorch


def with_workers(make_job: Make, workers: str, *more: str) -> Job:
    """Return a job that saves only when it is asked to end."""
    needs_torch()
    job = make_job("ddp.py", world_size=2, flags=[*UNSHARED])
    job.arguments = [
        f"--checkpoint-dir={job.checkpoints}",
        f"--result={job.folder / 'result.pt'}",
        "--steps=100000",
        "--every=100000",
        f"--workers={workers}",
        "--saves-at=SIGTERM,SIGUSR1",
        *more,
    ]
    return job


def saves(job: Job) -> list[str]:
    return [path.name for path in job.checkpoints.glob("step-*.pt")]


@pytest.mark.parametrize(
    ("number", "code", "workers"), [(signal.SIGTERM, 143, EACH_WAY), (signal.SIGUSR1, 0, FORKED)]
)
def test_job_with_loader_workers_saves_when_it_is_asked_to_end(
    make_job: Make, number: signal.Signals, code: int, workers: str
) -> None:
    job = with_workers(make_job, workers)
    job.start()
    job.pids_at_step(5)

    job.signal(number)

    assert job.wait() == code, job.output
    assert len(saves(job)) == 1, job.output
    assert job.output.count("preempted: saved at") == 2
    assert "DataLoader worker" not in job.output
    assert job.incidents == []
    assert not find_marked(job.job_id)


@pytest.mark.parametrize(
    ("script", "library", "saved", "ranks"),
    [
        ("lightning_stop.py", "lightning", "preempted.ckpt", 1),
        ("trainer_stop.py", "transformers", "checkpoint-*", 2),
    ],
)
def test_a_frameworks_own_save_is_whole_when_its_job_is_asked_to_end(
    make_job: Make, script: str, library: str, saved: str, ranks: int
) -> None:
    require(library)
    job = make_job(script, world_size=ranks, flags=[*UNSHARED])
    job.arguments = [str(job.checkpoints)]
    job.start()
    job.pids_at_step(5)

    job.signal(signal.SIGTERM)

    assert job.wait() == 143, job.output
    assert len(list(job.checkpoints.glob(saved))) == 1, job.output
    assert "DataLoader worker" not in job.output
    assert job.incidents == []


def test_job_with_loader_workers_saves_at_its_time_limit(make_job: Make) -> None:
    for limit_s in (45, 240):  # on a busy machine ranks begin late
        job = with_workers(make_job, FORKED, "--step-s=0.5")
        job.flags = [*UNSHARED, f"--time-limit={limit_s}s"]
        job.start()
        code = job.wait()
        if "makes progress" in job.output:
            break

    assert code == 124, job.output
    assert job.ended[-1].outcome.kind is OutcomeKind.TIME_LIMIT
    assert len(saves(job)) == 1, job.output
    assert "DataLoader worker" not in job.output
