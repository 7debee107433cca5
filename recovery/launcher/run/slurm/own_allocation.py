"""Has Slurm requeue or end the job of launchers that host their controller themselves. `recovery.schedulers.slurm.requests.Scheduler`.

The requeue ends this launcher, too, so nobody could let go a job that it held. It is therefore one plain `scontrol
requeue`: Slurm itself sets a begin time behind the end of the job's credential. Only from then on Slurm takes nodes to exclude, while
the processes of this start still have KillWait to end: the exclusion is repeated until it is read back.

A job with --no-kill goes on without its first node, but the batch script is gone with that, and Slurm lets the job run to its
time limit: once training has ended, its last host ends it.
"""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmend.clock import SystemClock, read_boot_id
from rankmend.errors import RankmendError
from recovery.journal.slurm_records import SlurmAct, SlurmActs, SlurmAsked, SlurmEnded, SlurmOutcome
from recovery.journal.store import Journal
from recovery.launcher.run.assembly import say
from recovery.schedulers.slurm.answers import JobInSlurm
from recovery.schedulers.slurm.bench import Bench
from recovery.schedulers.slurm.bounds import refuse_foreign_job, refuse_shared_job
from recovery.schedulers.slurm.client import SlurmClient
from recovery.schedulers.slurm.commands import SlurmCommands, SlurmError
from recovery.schedulers.slurm.desk import check_request
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest

WAIT_S: Final = 60.0  # for a usable node; as [slurm] requeue_after_s of a service
RESTARTS_MAX: Final = 100  # by Slurm, of one job; as the examples have it
COMMAND_S_MAX: Final = 10.0
TRIES: Final = 5  # of the requeue, where Slurm does not answer
EXCLUDE_S_MAX: Final = 20.0  # KillWait is 30 s
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class OwnSlurm:
    """The Slurm job that this launcher runs in."""

    environment: Mapping[str, str]
    requeue_after_s: float | None  # None: people are notified, and nothing is done

    @property
    def after_s(self) -> float:
        return WAIT_S if self.requeue_after_s is None else self.requeue_after_s


class OwnAllocation:
    def __init__(self, slurm: OwnSlurm, folder: Path) -> None:
        self._slurm = slurm
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        clock = SystemClock()
        self._journal = Journal(folder / "journal.db", clock, read_boot_id())
        run = SlurmCommands(COMMAND_S_MAX, slurm.environment)
        limits = SlurmLimits(enabled=True, act=slurm.requeue_after_s is not None)
        self._client = SlurmClient(run)
        self._bench = Bench(self._journal, self._client, limits, clock)
        self._thread: threading.Thread | None = None

    @property
    def owner(self) -> str:
        return str(os.getuid())

    def ask(self, request: SchedulerRequest, /) -> None:
        check_request(request)
        if request.key in self._bench.ledger.works:
            return
        self._note(request)
        self._thread = threading.Thread(target=self._work, args=(request,), daemon=True)
        self._thread.start()

    def _note(self, request: SchedulerRequest) -> None:
        self._bench.write(
            SlurmAsked(
                request.key,
                request.action.value,
                request.nodes,
                request.slurm_job,
                request.reason,
                request.owner,
                request.seen_on,
                request.slurm_step,
                request.shared_by,
            )
        )

    def leave(self) -> None:
        """End the Slurm job, whose training has ended, if its batch script is gone with its node and nothing else runs in it."""
        number = self._slurm.environment.get("SLURM_JOB_ID", "")
        own = self._slurm.environment.get("SLURM_STEP_ID", "")
        restart = self._slurm.environment.get("SLURM_RESTART_COUNT", "0")
        key = f"cancel/{number}/{restart}"
        if not (number.isdecimal() and own.isdecimal()) or key in self._bench.ledger.works:
            return
        request = SchedulerRequest(
            key,
            SchedulerAction.CANCEL,
            (),
            number,
            "training has ended, and the batch script is gone with its node",
            self.owner,
            (self._slurm.environment.get("SLURMD_NODENAME", ""),),
            own,
        )
        try:
            lost = self._lost_batch_host(request)
            if lost:
                self._cancel(request, lost)
        except RankmendError as error:
            say(f"Slurm job {number} may run on without a batch script: {error}")

    def _lost_batch_host(self, request: SchedulerRequest) -> str:
        """Return the node that took the batch script along, if that is so and the job is ours alone; else nothing."""
        client = self._client
        job = self._look(request.slurm_job)
        if job is None or job.state != "RUNNING" or not job.is_batch:
            return ""
        nodes = client.expand(job.nodes)
        host = job.fields.get("BatchHost", "")
        if not host or host in nodes or refuse_foreign_job(request, job, nodes) is not None:
            return ""
        return "" if client.steps(job.number) - {request.slurm_step} else host

    def _cancel(self, request: SchedulerRequest, lost: str) -> None:
        number = request.slurm_job
        say(
            f"Slurm job {number} is ended: its batch script is gone with {lost}, and training has ended"
        )
        self._note(request)
        self._bench.write(SlurmActs(request.key, SlurmAct.CANCEL, number))
        try:
            self._client.cancel(number)
        except SlurmError as error:
            self._bench.write(SlurmEnded(request.key, SlurmOutcome.FAILED, str(error)))
            raise
        self._bench.write(SlurmEnded(request.key, SlurmOutcome.DONE, "its nodes are free"))

    def close(self) -> None:
        """Let a requeue that has begun come to its end, which is that of this launcher."""
        if self._thread is not None:
            self._thread.join(EXCLUDE_S_MAX + COMMAND_S_MAX)
            if self._thread.is_alive():
                return  # its journal stays open: what it still writes is kept
        self._journal.close()

    def _work(self, request: SchedulerRequest) -> None:
        try:
            outcome, text = self._requeue(request)
        except RankmendError as error:
            outcome, text = SlurmOutcome.FAILED, str(error)
        say(f"Slurm job {request.slurm_job} has no usable node left: {text}")
        self._bench.write(SlurmEnded(request.key, outcome, text))

    def _requeue(self, request: SchedulerRequest) -> tuple[SlurmOutcome, str]:
        number, nodes = request.slurm_job, ", ".join(request.nodes)
        requeued = f"requeued without {nodes}" if nodes else "requeued, with no node left out"
        job = self._look(number)
        if job is None:
            return SlurmOutcome.FAILED, "Slurm does not know it"
        if (why := self._refuse(request, job)) is not None:
            return SlurmOutcome.LEFT, f"it is not requeued: {why}"
        if job.restarts >= RESTARTS_MAX:
            return SlurmOutcome.REFUSED, f"Slurm has restarted it {job.restarts} times"
        if not self._bench.limits.act:
            return SlurmOutcome.DRY, f"--slurm-requeue would have it {requeued}"
        self._bench.write(SlurmActs(request.key, SlurmAct.REQUEUE, number))
        say(f"Slurm job {number} is {requeued}: {request.reason}")
        self._have_requeued(number, job.restarts)
        if nodes:
            self._bench.write(SlurmActs(request.key, SlurmAct.EXCLUDE, number))
            if not self._exclude(number, frozenset(request.nodes)):
                return SlurmOutcome.FAILED, f"it is requeued, but may get {nodes} again"
        return SlurmOutcome.DONE, f"it is {requeued}"

    def _look(self, number: str) -> JobInSlurm | None:
        jobs = self._client.jobs(number)
        return jobs[0] if len(jobs) == 1 else None

    def _refuse(self, request: SchedulerRequest, job: JobInSlurm) -> str | None:
        """Return why the job must not be requeued, or None."""
        client = self._client
        own = self._slurm.environment.get("SLURM_RESTART_COUNT", "0")
        if own.isdecimal() and job.restarts > int(own):
            return "this start of it is being ended already"
        if not job.is_batch:
            return "it has no batch script"
        if not job.may_requeue:
            return "it was submitted with --no-requeue"
        return refuse_foreign_job(request, job, client.expand(job.nodes)) or refuse_shared_job(
            request, client.steps(job.number)
        )

    def _have_requeued(self, number: str, restarts: int) -> None:
        """Requeue the job, or raise SlurmError. Repeated only where it is seen to have had no effect."""
        for left in reversed(range(TRIES)):
            try:
                self._client.requeue(number)
            except SlurmError:  # also where Slurm has already ended the command with the step
                if self._is_requeued(number, restarts):
                    return
                if not left:
                    raise
                time.sleep(_LOOK_S)
            else:
                return

    def _is_requeued(self, number: str, restarts: int) -> bool:
        try:
            job = self._look(number)
        except SlurmError:
            return False
        return job is not None and (job.restarts > restarts or job.state == "PENDING")

    def _exclude(self, number: str, nodes: frozenset[str]) -> bool:
        """Exclude the nodes, and return whether that is read back."""
        until_s = time.monotonic() + EXCLUDE_S_MAX
        client = self._client
        while time.monotonic() < until_s:
            try:
                job = self._look(number)
                if job is not None:
                    known = frozenset(client.nodes(nodes))
                    excluded = frozenset(client.expand(job.excluded))
                    if known <= excluded:
                        return True
                    client.exclude(number, sorted(known | excluded))
                    continue
            except SlurmError:
                pass
            time.sleep(_LOOK_S)
        return False
