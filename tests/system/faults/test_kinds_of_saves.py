"""A rank dies, and the job goes on from the training state, whatever files its script keeps."""

from collections.abc import Callable

import pytest

from tests.system.faults.harness import Job, assert_recovered

pytestmark = [pytest.mark.process, pytest.mark.safety]
Make = Callable[..., Job]
TORN = ("--torn-step=40",)


def killed_at(step: int) -> tuple[str, ...]:
    return ("--fail-rank=1", f"--fail-step={step}", "--fail-with=kill")


@pytest.mark.parametrize(
    ("layout", "how", "begins_at", "name"),
    [
        ("side", killed_at(33), 30, "step_30.npz"),
        ("best-last", killed_at(47), 40, "last.npz"),
        ("pair", killed_at(26), 20, "G_20.npz"),
        ("pair", TORN, 30, "G_30.npz"),
        ("per-rank", killed_at(45), 40, "step_40_rank_0.npz"),
        ("per-rank", TORN, 30, "step_30_rank_0.npz"),
    ],
)
def test_killed_job_ends_as_an_undisturbed_one(
    make_lockstep: Make,
    undisturbed: dict[str, object],
    layout: str,
    how: tuple[str, ...],
    begins_at: int,
    name: str,
) -> None:
    job = make_lockstep(f"--layout={layout}", "--resume={checkpoint}", *how)

    job.start()

    assert_recovered(job, undisturbed, incidents=1)
    first, second = job.attempts
    assert first.choice.restore is None
    assert second.choice.begins_at == begins_at
    assert second.choice.restored_path == str(job.checkpoints / name)
