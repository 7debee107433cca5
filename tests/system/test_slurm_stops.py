"""What a real Slurm does to a job by itself: each stop is a planned one, and the next start goes on to the same parameters."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import lockstep
from tests.support.eventually import eventually
from tests.support.slurm import SlurmCluster, missing, slurm_cluster
from tests.system.cluster.bed import LOCKSTEP

pytestmark = pytest.mark.site
RANKS = 2
# As in examples/slurm/nodes_and_spares.sbatch.
REQUEUE = """
code=$?
echo "srun ended with $code"
if [ "$code" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60
fi
exit "$code"
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Give a node on which jobs of one partition make place for those of another."""
    if reason := missing():
        pytest.skip(reason)
    partitions = [
        "PartitionName=urgent Nodes=node1 PriorityTier=10 PreemptMode=OFF",
        "PartitionName=requeued Nodes=node1 PriorityTier=1 PreemptMode=REQUEUE GraceTime=30",
        "PartitionName=cancelled Nodes=node1 PriorityTier=1 PreemptMode=CANCEL GraceTime=30",
    ]
    preemption = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), 1, partitions, **preemption) as cluster:
        yield cluster


class Job:
    """A job of two ranks, which save when they are asked to stop."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        self.output, self.checkpoints = folder / "job.out", folder / "ckpt"
        self.checkpoints.mkdir()

    def submit(self, *options: str) -> str:
        words = [
            *(
                "srun",
                "--ntasks=1",
                sys.executable,
                "-m",
                "rankmend.cli",
                "run",
                "--nproc-per-node=2",
            ),
            *(f"--state-dir={self.folder}/state", f"--checkpoint-dir={self.checkpoints}"),
            *("--grace=15", "--no-fork-server", str(LOCKSTEP), f"--until={self.folder}/enough"),
            *(f"--checkpoint-dir={self.checkpoints}", f"--result={self.folder}/result.json"),
            *(
                f"--published={self.folder}/published",
                "--steps=1000000",
                "--step-s=0.05",
                "--keep=3",
            ),
        ]
        line = " ".join(words)
        path = self.folder / "job.sh"
        path.write_text(f'#!/bin/bash\necho "start ${{SLURM_RESTART_COUNT:-0}}"\n{line}\n{REQUEUE}')
        given = ("--ntasks=1", "--exclusive", f"--output={self.output}", "--open-mode=append")
        done = self.slurm.run("sbatch", "--parsable", *given, *options, str(path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def wait(self, is_so: Callable[[], object], what: str) -> None:
        eventually(is_so, lambda: f"{what}: {self.said()}\n{self.slurm.logs()}", pause_s=0.1)

    def published(self) -> int:
        path = self.folder / "published"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_training(self) -> None:
        before = self.published()
        self.wait(lambda: self.published() > before, "training")

    def end(self, number: str) -> None:
        """Have the job end, and compare it with one that nothing has stopped."""
        (self.folder / "enough").touch()
        state = self.slurm.wait_job(number)
        assert state == "COMPLETED", self.said() + self.slurm.logs()
        last = json.loads((self.folder / "result.json").read_text())
        assert last == lockstep.undisturbed(last["step"], RANKS)
        said = self.said()
        assert "stopped: stop requested: SIGTERM" in said
        assert "failed" not in said
        assert said.count("from the beginning (no checkpoint found") == 1
        assert said.count("start again: attempt 2 from") == 1, said


@pytest.fixture
def job(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Job]:
    yield Job(slurm, tmp_path)
    slurm.run("scancel", "--user=root")
    slurm.wait_until_idle()


@pytest.mark.parametrize("partition", ["requeued", "cancelled"])
def test_preempted_job_saves_and_goes_on_once_the_urgent_one_has_ended(
    slurm: SlurmCluster, job: Job, partition: str
) -> None:
    number = job.submit(f"--partition={partition}", "--requeue")
    job.wait_training()
    urgent = slurm.run(
        "sbatch",
        "--parsable",
        "--exclusive",
        "--partition=urgent",
        "--output=/dev/null",
        "--wrap=sleep 1",
    )

    job.wait(lambda: "start 1" in job.said(), "started anew")
    job.wait_training()
    assert slurm.wait_job(urgent.stdout.strip()) == "COMPLETED"
    job.end(number)


def test_time_limit_is_a_planned_stop_and_the_next_turn_goes_on(
    slurm: SlurmCluster, job: Job
) -> None:
    began_s = time.monotonic()
    number = job.submit("--partition=train", "--time=30", "--signal=TERM@95", "--requeue")
    job.wait_training()

    # Slurm looks at time limits every 30 s: the next look finds 95 s to be more than what is left, and not yet the end.
    minutes = int((time.monotonic() - began_s + 40) / 60) + 1
    slurm.run("scontrol", "update", f"jobid={number}", f"timelimit={minutes}")
    job.wait(lambda: "start 1" in job.said(), "started anew")
    slurm.run("scontrol", "update", f"jobid={number}", "timelimit=30")
    job.wait_training()
    job.end(number)
