"""Ranks whose data comes from worker processes, killed while they train."""

from collections.abc import Callable

import pytest

from recovery.launcher.processes.process_tree import find_marked
from tests.system.faults.harness import Job, children, is_alive, kill, ready_server, starts

pytestmark = [pytest.mark.process, pytest.mark.torch]
Make = Callable[..., Job]
STEPS = 300


def test_forked_ranks_start_their_own_loaders_and_a_dead_one_leaves_none(make_job: Make) -> None:
    torch = pytest.importorskip("torch")
    from tests.system.faults.jobs.ddp import undisturbed

    job = make_job("ddp.py", world_size=2)
    result = job.folder / "result.pt"
    job.arguments = [
        f"--checkpoint-dir={job.checkpoints}",
        f"--result={result}",
        f"--let-go={job.let_go}",
        f"--steps={STEPS}",
        "--step-s=0.06",  # so that the fork server is ready before the job ends
        # Each spawned worker imports PyTorch: one rank's show what a rank's do.
        "--workers=fork,fork+spawn+forkserver",
    ]
    job.start()
    first = job.pids_at_step(3)
    ready_server(job)
    workers = [pid for rank in first.values() for pid in children(rank)]
    assert len(workers) >= 4

    kill(first[1])
    second = job.pids_at_step(20, attempt=2)

    assert starts(job) == {("forked", None)}
    assert not any(is_alive(pid) for pid in workers)
    kill(second[0])
    job.pids_at_step(30, attempt=3)
    assert starts(job) == {("forked", None)}
    assert job.wait() == 0, job.output
    assert len(job.incidents) == 2
    got, want = torch.load(result, weights_only=True), undisturbed(STEPS)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert not find_marked(job.job_id)
