"""A rank dies, and the job goes on from the training state, whatever files its script keeps."""

import random
from collections.abc import Callable

import pytest

from tests.system.faults.harness import Job, assert_recovered

pytestmark = [pytest.mark.process, pytest.mark.safety]
Make = Callable[..., Job]
TORN = ("--torn-step=40",)


LAST_STEP = 60


def killed_at(step: int) -> tuple[str, ...]:
    return ("--fail-rank=1", f"--fail-step={step}", "--fail-with=kill")


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("side", "step_{saved}.npz"),
        ("best-last", "last.npz"),
        ("pair", "G_{saved}.npz"),
        ("per-rank", "step_{saved}_rank_0.npz"),
    ],
)
def test_job_killed_at_a_random_step_ends_as_an_undisturbed_one(
    make_lockstep: Make, undisturbed: dict[str, object], layout: str, name: str
) -> None:
    step = random.choice([step for step in range(11, LAST_STEP) if step % 10])
    print(f"killed at step {step}")
    job = make_lockstep(f"--layout={layout}", "--resume={checkpoint}", *killed_at(step))

    job.start()

    assert_goes_on_from(job, undisturbed, step // 10 * 10, name)


@pytest.mark.parametrize(
    ("layout", "name"), [("pair", "G_{saved}.npz"), ("per-rank", "step_{saved}_rank_0.npz")]
)
def test_job_killed_in_a_save_goes_on_from_the_one_before(
    make_lockstep: Make, undisturbed: dict[str, object], layout: str, name: str
) -> None:
    job = make_lockstep(f"--layout={layout}", "--resume={checkpoint}", *TORN)

    job.start()

    assert_goes_on_from(job, undisturbed, 30, name)


def assert_goes_on_from(job: Job, undisturbed: dict[str, object], saved: int, name: str) -> None:
    assert_recovered(job, undisturbed, incidents=1)
    first, second = job.attempts
    assert first.choice.restore is None
    assert second.choice.begins_at == saved
    assert second.choice.restored_path == str(job.checkpoints / name.format(saved=saved))
