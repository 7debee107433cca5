"""A job under Slurm whose nodes are hosts of their own, each part of which is killed: two nodes, a spare, and a free node.

One job outlives all that leaves it its allocation, or has it begin anew; what changes how Slurm sees the end of a job has
a job of its own. Each ends with the parameters of an undisturbed run; slurmctld's records, the nodes and rankmend's journal agree.
"""

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import lockstep
from tests.support.eventually import eventually
from tests.support.hosts import Host
from tests.support.slurm_hosts import SlurmHosts, missing, slurm_hosts
from tests.system.cluster.bed import KILL_BOUND_S, LEASE_S, LOCKSTEP, SILENT_S, Watch

pytestmark = [
    pytest.mark.site,
    pytest.mark.safety,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]
RANKS = 2
# As of the other beds: long enough for a machine whose processes wait seconds for their turn.
POLICY = f"""
[policy]
lease_s = {LEASE_S}
kill_bound_s = {KILL_BOUND_S}
lease_margin_s = 1
node_silent_s = {SILENT_S}
join_wait_s = 60
evidence_wait_s = 0.5
node_failures_max = 100
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmHosts]:
    with slurm_hosts(tmp_path_factory.mktemp("slurm"), 4) as made:
        yield made


@dataclass
class Job:
    cluster: SlurmHosts
    folder: Path
    number: str = ""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def submit(self, nodes: int = RANKS + 1, spares: int = 1, excluded: str = "h4") -> None:
        self.checkpoints.mkdir(parents=True)
        (self.folder / "policy.toml").write_text(POLICY)
        states = f"{self.cluster.fleet.folder}/$SLURMD_NODENAME/{self.folder.name}"
        words = [
            *(
                sys.executable,
                "-m",
                "rankmend.cli",
                "run",
                f"--nnodes={nodes}",
                f"--spares={spares}",
                "--nproc-per-node=1",
            ),
            *(f"--config={self.folder}/policy.toml", f"--state-dir={states}"),
            *("--rdzv-endpoint=$(scontrol show hostnames | head -n 1)", "--no-fork-server"),
            *(f"--checkpoint-dir={self.checkpoints}", "--grace=10", str(LOCKSTEP)),
            *(f"--checkpoint-dir={self.checkpoints}", f"--result={self.folder}/result.json"),
            *(f"--until={self.folder}/enough", f"--published={self.folder}/published"),
            *("--steps=1000000", "--step-s=0.05", "--keep=3"),
        ]
        line = " ".join(words)
        (self.folder / "run.sh").write_text(f"exec {line}\n")
        self.number = self.cluster.submit(
            "srun --no-kill --kill-on-bad-exit=0 --wait=0 --ntasks-per-node=1"
            f" sh {self.folder}/run.sh",
            *(f"--nodes={nodes}", "--no-kill", "--requeue", f"--exclude={excluded}"),
        )

    def steps(self) -> list[int]:
        names = (path.stem for path in self.checkpoints.glob("step-*.npz"))
        return sorted(int(name.partition("-")[2]) for name in names)

    def attempts(self) -> list[int]:
        """Return the attempt that published each checkpoint, in the order of time."""
        path = self.folder / "published"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[0]) for line in lines]

    def wait(self, is_so: Any, what: str) -> None:
        def look() -> object:
            state = self.cluster.job_field(self.number, "JobState")
            return is_so() or state in ("FAILED", "CANCELLED", "NODE_FAIL")

        def logs() -> str:
            return f"{what}\n{self.cluster.logs()}\n{self.cluster.output(self.number)[-6000:]}"

        eventually(look, logs, pause_s=0.5)
        assert is_so(), f"the job has ended: {logs()}"

    @property
    def attempt(self) -> int:
        """The newest attempt that has published a checkpoint."""
        return max(self.attempts(), default=0)

    def wait_training(self, after: int = 0) -> None:
        """Wait until an attempt above ``after`` has published a checkpoint."""
        self.wait(lambda: self.attempt > after, f"an attempt after {after}")

    def wait_training_on(self) -> None:
        """Wait until the attempt that runs has published more."""
        before = len(self.attempts())
        eventually(lambda: len(self.attempts()) > before + 2, "it trains on", pause_s=0.1)

    def rank_of(self, host: Host) -> psutil.Process | None:
        """Return the process of the rank on a host."""
        ranks = [one for one in host.processes("lockstep.py") if self._is_rank(one)]
        return ranks[0] if ranks else None

    def launcher_of(self, host: Host) -> psutil.Process:
        return next(one for one in host.processes("rankmend.cli") if one.name() != "sh")

    def _is_rank(self, process: psutil.Process) -> bool:
        try:
            variables = process.environ()
        except psutil.Error:
            return False
        return "RANK" in variables and "RANKMEND_PROGRESS_FILE" in variables

    def used(self) -> list[Host]:
        """Return the hosts with a rank; the first node hosts the controller and the batch script."""
        return [host for host in self.cluster.nodes if host.is_up and self.rank_of(host)]

    def run_id(self) -> str:
        (folder,) = self.cluster.nodes[0].path("/dev/shm/rankmend-0").iterdir()
        return str(uuid.UUID(folder.name.partition("@")[0]))

    def story(self) -> list[dict[str, Any]]:
        """Return the records of the controller that the first node hosts."""
        host = self.cluster.nodes[0]
        state = f"{host.state}/{self.folder.name}"
        words = (sys.executable, "-m", "rankmend.cli", "incidents", "--json")
        told = json.loads(host.run([*words, f"--state-dir={state}"]).stdout)
        incidents: list[dict[str, Any]] = told["incidents"] if isinstance(told, dict) else told
        return incidents

    def end(self, state: str = "COMPLETED", ranks: int = RANKS) -> None:
        """Have the job end, and compare its parameters with those of an undisturbed run."""
        (self.folder / "enough").touch()
        self.wait(lambda: self.cluster.job_field(self.number, "JobState") == state, "the end")
        last = json.loads((self.folder / "result.json").read_text())
        assert last == lockstep.undisturbed(last["step"], ranks)
        assert self.attempts() == sorted(self.attempts())


@contextmanager
def submitted(cluster: SlurmHosts, **sizes: Any) -> Iterator[Job]:
    made = Job(cluster, cluster.fleet.shared / f"job-{uuid.uuid4().hex[:8]}")
    made.submit(**sizes)
    made.wait_training()
    try:
        with Watch(made.run_id()) as watch:
            yield made
        assert watch.looks > 0
        assert watch.together == [], "two attempts ran at once"
    finally:
        cluster.run("scancel", made.number)
        cluster.return_all()
        for host in cluster.nodes:
            for folder in host.path("/dev/shm").glob("rankmend-0/*"):
                host.run(["rm", "-rf", f"/dev/shm/rankmend-0/{folder.name}"])


@pytest.fixture
def job(cluster: SlurmHosts) -> Iterator[Job]:
    with submitted(cluster) as made:
        yield made


def test_one_job_outlives_rank_slurmd_slurmctld_a_drain_a_requeue_a_preemption_and_a_node(
    job: Job,
) -> None:
    a_killed_rank_is_restarted_within_the_allocation(job)
    a_killed_slurmd_does_not_stop_the_job(job)
    a_killed_slurmctld_does_not_stop_the_job(job)
    a_node_that_a_person_drains_in_mid_recovery_keeps_the_persons_reason(job)
    a_requeued_job_goes_on_from_its_checkpoint(job)
    a_preempted_job_goes_on_once_the_urgent_one_has_ended(job)
    victim = a_node_without_power_is_replaced_by_the_spare(job)

    job.end()

    states = {name: state for name, (state, _reason) in job.cluster.nodes_by_state().items()}
    del states[victim.name]
    assert set(states.values()) <= {"idle", "completing"}


def a_killed_rank_is_restarted_within_the_allocation(job: Job) -> None:
    rank = job.rank_of(job.used()[-1])
    assert rank is not None
    rank.kill()

    job.wait_training(after=1)

    assert job.cluster.job_field(job.number, "Restarts") == "0"
    states = {state for state, _reason in job.cluster.nodes_by_state().values()}
    assert states <= {"idle", "mixed", "allocated"}
    assert len(job.story()) == 1


def a_killed_slurmd_does_not_stop_the_job(job: Job) -> None:
    victim, attempt = job.used()[-1], job.attempt
    job.cluster.kill(victim.name)
    job.wait_training_on()

    assert job.rank_of(victim) is not None
    job.cluster.start_node(victim)
    job.wait_training_on()

    assert job.attempt == attempt
    assert job.cluster.job_field(job.number, "Restarts") == "0"


def a_killed_slurmctld_does_not_stop_the_job(job: Job) -> None:
    attempt = job.attempt
    job.cluster.kill("slurmctld")
    job.wait_training_on()
    job.cluster.start_controller()
    job.cluster.wait(
        lambda: job.cluster.job_field(job.number, "JobState") == "RUNNING", "slurmctld knows it"
    )
    job.wait_training_on()

    assert job.attempt == attempt


def a_node_that_a_person_drains_in_mid_recovery_keeps_the_persons_reason(job: Job) -> None:
    victim, attempt = job.used()[-1], job.attempt
    rank = job.rank_of(victim)
    assert rank is not None
    os.kill(rank.pid, signal.SIGKILL)
    job.cluster.run("scontrol", "update", f"nodename={victim.name}", "state=drain", "reason=mine")

    job.wait_training(attempt)

    state, reason = job.cluster.nodes_by_state()[victim.name]
    assert (state[:5], reason) == ("drain", "mine")  # drained where the job has just left the node
    job.cluster.run("scontrol", "update", f"nodename={victim.name}", "state=resume")


def a_requeued_job_goes_on_from_its_checkpoint(job: Job) -> None:
    last, attempt = job.steps()[-1], job.attempt
    job.cluster.run("scontrol", "requeue", job.number)
    job.cluster.wait(
        lambda: job.cluster.job_field(job.number, "JobState") == "PENDING", "it is pending"
    )
    # A start at once can lose the job: slurmctld revokes the credential with a grain of a second.
    begin = job.cluster.job_field(job.number, "StartTime")
    assert begin
    job.wait_training(attempt)

    assert job.cluster.job_field(job.number, "Restarts") == "1"
    assert job.steps()[-1] > last


def a_preempted_job_goes_on_once_the_urgent_one_has_ended(job: Job) -> None:
    last, attempt = job.steps()[-1], job.attempt
    urgent = job.cluster.submit(
        f"touch {job.folder}/urgent", "--partition=urgent", "--nodes=4", "--exclusive"
    )
    job.cluster.wait((job.folder / "urgent").exists, "the urgent job runs")
    assert job.cluster.job_field(job.number, "JobState") == "PENDING"

    job.wait_training(attempt)

    assert job.cluster.job_field(urgent, "JobState") == "COMPLETED"
    assert job.cluster.job_field(job.number, "Restarts") == "2"
    assert job.steps()[-1] > last


def a_node_without_power_is_replaced_by_the_spare(job: Job) -> Host:
    victim, attempt = job.used()[-1], job.attempt
    fault = victim.power_off()
    job.wait_training(attempt)
    assert len(job.used()) == RANKS
    job.cluster.wait(
        lambda: "down" in job.cluster.nodes_by_state()[victim.name][0], "slurmctld sees it"
    )
    assert job.cluster.nodes_by_state()[victim.name][1] == "Not responding"

    fault.end()
    job.cluster.start_node(victim)
    return victim


def test_a_killed_launcher_is_replaced_and_slurm_records_its_death(job: Job) -> None:
    victim = job.used()[-1]
    job.launcher_of(victim).kill()

    job.wait_training(after=1)
    assert victim not in job.used()
    # srun's exit code is that of its worst task, also where the job reached its end without it.
    job.end(state="FAILED")

    assert job.cluster.job_field(job.number, "ExitCode") == "137:0"
    assert job.cluster.job_field(job.number, "Restarts") == "0"


def test_training_goes_on_without_the_first_node_and_frees_the_others_at_its_end(
    job: Job,
) -> None:
    first = job.cluster.nodes[0]
    fault = first.power_off()
    job.wait_training(after=1)
    job.cluster.wait(
        lambda: "down" in job.cluster.nodes_by_state()[first.name][0], "slurmctld sees it"
    )
    job.end(state="CANCELLED")  # nothing can say COMPLETED without the batch script

    assert job.cluster.job_field(job.number, "Restarts") == "0"
    fault.end()
    job.cluster.start_node(first)


def test_a_job_that_is_requeued_on_entirely_other_nodes_waits_for_nobody(
    cluster: SlurmHosts,
) -> None:
    """The state folders are of the nodes: the new ones have the copy beside the checkpoints alone."""
    with submitted(cluster, nodes=2, spares=0, excluded="") as job:
        before, attempt, last = job.used(), job.attempt, job.steps()[-1]
        for host in before:
            words = (f"nodename={host.name}", "state=drain", "reason=repair")
            cluster.run("scontrol", "update", *words)

        cluster.run("scontrol", "requeue", job.number)
        job.wait_training(attempt)

        assert not {host.name for host in job.used()} & {host.name for host in before}
        assert job.steps()[-1] > last
        job.end(ranks=2)
