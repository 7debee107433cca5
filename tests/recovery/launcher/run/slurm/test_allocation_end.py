from collections.abc import Sequence

import pytest

from recovery.launcher.run.slurm.allocation_end import AllocationEnd, job_to_watch
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmAwayError
from tests.support.clocks import FakeClock

SHOWN = """JobId=7 JobName=train
   UserId=ann(1000) GroupId=ann(1000)
   JobState={state} Reason=None Dependency=(null)
   RunTime={run} TimeLimit={limit} TimeMin=N/A
"""


class FakeSlurm:
    """What `scontrol show job` prints; None: it doesn't answer."""

    def __init__(self) -> None:
        self.shown: str | None = None
        self.stops = 0

    def show(self, run: str, limit: str, state: str = "RUNNING") -> None:
        self.shown = SHOWN.format(run=run, limit=limit, state=state)

    def __call__(self, words: Sequence[str]) -> str:
        assert list(words) == ["scontrol", "show", "job", "7"]
        if self.shown is None:
            raise SlurmAwayError("no answer")
        return self.shown

    def stop(self) -> None:
        self.stops += 1

    def watch(self, grace_s: float = 60.0, foreseen: str = "") -> AllocationEnd:
        return AllocationEnd(SlurmClient(self), "7", grace_s, FakeClock(), self.stop, foreseen)


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


def test_job_stops_a_grace_and_a_margin_before_its_allocation_ends(slurm: FakeSlurm) -> None:
    watch = slurm.watch()
    slurm.show("00:00:00", "01:00:00")
    assert watch.look() == 600.0, "3530 s are left, and the limit may be made shorter"
    slurm.show("00:58:49", "01:00:00")
    assert watch.look() == 1.0
    slurm.show("00:58:50", "01:00:00")
    assert watch.look() is None


def test_limit_that_was_prolonged_counts(slurm: FakeSlurm) -> None:
    watch = slurm.watch()
    slurm.show("00:50:00", "01:00:00")
    assert watch.look() == 540.0
    slurm.show("00:59:00", "1-01:00:00")

    assert watch.look() == 600.0


def test_job_that_is_shorter_than_its_grace_is_not_stopped_as_it_begins(slurm: FakeSlurm) -> None:
    watch = slurm.watch()
    slurm.show("00:00:00", "00:01:00")
    assert watch.look() == 54.0
    slurm.show("00:00:54", "00:01:00")
    assert watch.look() is None


@pytest.mark.parametrize("limit", ["UNLIMITED", "Partition_Limit", "INVALID"])
def test_job_without_a_limit_is_never_stopped(slurm: FakeSlurm, limit: str) -> None:
    slurm.show("10-00:00:00", limit)

    assert slurm.watch().look() == 600.0


def test_slurm_that_does_not_answer_stops_nothing_unless_the_end_was_foreseen(
    slurm: FakeSlurm,
) -> None:
    assert slurm.watch().look() == 30.0
    assert slurm.watch(foreseen="1700002000").look() == 600.0
    assert slurm.watch(foreseen="1700001000").look() is None


def test_first_node_of_a_step_watches_and_the_others_do_not() -> None:
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURMD_NODENAME": "n1",
    }

    assert job_to_watch(step) == "7"
    assert job_to_watch({**step, "SLURMD_NODENAME": "n2"}) is None
    assert job_to_watch({"SLURM_JOB_ID": "7"}) == "7", "a batch script without srun"
    assert job_to_watch({}) is None
