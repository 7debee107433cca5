"""The one thread that decides for all jobs.

Reports go through a bounded queue and are processed in batches. Commands from people and alerts are calls
whose result the caller awaits. Jobs tick when they are due; then the orders of the whole batch go to the polls
at once. The event loop does I/O only, and this thread waits for the disk only.
"""

import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

from rankmend.clock import Clock
from rankmend.errors import ConfigError, RankmendError
from recovery.api import wire
from recovery.api.wire import Join
from recovery.cluster.active_alerts import JobNode
from recovery.cluster.alert_shares import READ_BACK, Sender
from recovery.cluster.alerts import IncomingAlert
from recovery.cluster.cluster import ClusterController
from recovery.cluster.limits import AlertRules
from recovery.job.adoption import EPOCH_JUMP_MAX
from recovery.journal.ledger import Wish
from recovery.journal.limits import Policy
from recovery.journal.records import Entry, JobOutcome, PersonActed
from recovery.messages.exchange import Report
from recovery.messages.outside import PersonCommand, Refusal
from recovery.service import stored_jobs
from recovery.service.dry_run import foresee
from recovery.service.listening_clock import Hearing
from recovery.service.newest_orders import NewestOrders
from recovery.service.roles import UnknownError
from recovery.service.served_job import (
    TICK_BUSY_S,
    CoreMaker,
    Job,
    Parts,
    make_core,
    policy_of,
    settings_of,
)
from recovery.service.stored_jobs import FIXED, Ended, StateFolder, StoredJob
from recovery.service.views import view_plans

log = logging.getLogger(__name__)

REPORTS_MAX: Final = 20_000  # 10 s of 2,000 nodes that report each second
# Total size of queued report bodies. A report for 8 ranks is 3 to 30 kB.
REPORT_BYTES_MAX: Final = 64 * 1024 * 1024
CALLS_MAX: Final = 4096  # 2,000 launchers that join at once, and people
BATCH_MAX: Final = 1000  # reports between two looks at the other jobs' ticks
BATCH_S: Final = 0.005  # 2,000 reports a second then take 200 turns
IDLE_S: Final = 0.25  # longest sleep
ENDED_MAX: Final = 10_000  # jobs whose end is kept in memory for their late launchers
_SWEEP_S: Final = 3600.0
_RETELL_S: Final = 5.0  # active alerts to jobs that have come to a node since

_R = TypeVar("_R")


class FullError(RankmendError):
    """The queue is full: try again later."""


class CallConflictError(RankmendError):
    """The request conflicts with the current state."""

    def __init__(
        self, message: str, field: str, value: object, refusal: Refusal | None = None
    ) -> None:
        super().__init__(message)
        self.field, self.value = field, str(value)
        self.refusal = "" if refusal is None else refusal.value


class EndedError(RankmendError):
    """The job has ended."""

    def __init__(self, message: str, outcome: JobOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class KnownToWorker:
    """What the event loop knows of a job without asking the deciding thread."""

    owner: str
    name: str
    outcome: JobOutcome | None  # None while it runs
    path: Path  # of its folder
    incident_prefix: str  # with which the ids of its incidents begin


class WorkerListener(Protocol):
    """Who counts what happens (`recovery.service.measures`)."""

    def entry(self, job: Job, entry: Entry) -> None: ...
    def failed(self, job: Job, error: Exception) -> None: ...
    def taken_up(self, job: Job) -> None: ...
    def ended(self, job: Job) -> None: ...
    def turned(self, reports: int, took_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class _Call:
    act: Callable[[], object]
    result: "Future[object]"


class Worker:
    def __init__(
        self,
        folder: StateFolder,
        desk: ClusterController,
        board: NewestOrders,
        listener: WorkerListener,
        clock: Clock,
        policy_for: Callable[[str], Policy],
        *,
        parts: Callable[[Join], Parts] | None = None,
        make_core: CoreMaker = make_core,
        jobs_max: int = 500,
        ended_kept_s: float = 90 * 86400.0,
        ended_max: int = ENDED_MAX,
    ) -> None:
        """``parts``: what jobs are given beside the desk, for a service with one job in a launcher."""
        self._folder = folder
        self.desk = desk
        self._board = board
        self._listener = listener
        self._clock = clock
        self.hearing = Hearing(clock)
        self.policy_for = policy_for
        self._parts = parts or (lambda _join: Parts(desk, desk, hears_evidence=True))
        self._make_core = make_core
        self._jobs_max = jobs_max
        self._ended_kept_s = ended_kept_s
        self._ended_max = ended_max
        self.jobs: dict[str, Job] = {}  # by job id; for the thread itself
        self._by_key: dict[tuple[str, str], str] = {}
        self._ended: dict[str, stored_jobs.FoundJobs] = {}
        self.known: Mapping[str, KnownToWorker] = {}  # replaced as a whole: any thread may look
        self.problems: tuple[str, ...] = ()
        self._condition = threading.Condition()
        self._reports: deque[tuple[Report, int, float]] = deque()
        self._report_bytes = 0
        self._calls: deque[_Call] = deque()
        self._should_stop = False
        self._swept_at_s = self._retold_at_s = clock.now_s()
        self.turned_at_s = clock.now_s()  # when the thread was last seen going round
        self.is_taken_up = False
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    # Any thread.

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Finish what is queued and let go of all journals; training goes on."""
        with self._condition:
            self._should_stop = True
            self._condition.notify()
        if self._thread.ident is None:
            return  # it was never started: the port is taken
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("the deciding thread does not end", extra={"waited_s": timeout_s})

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def queued(self) -> int:
        return len(self._reports)

    @property
    def lateness_s(self) -> float:
        """Return how long the oldest report has waited for the thread."""
        with self._condition:
            return self.hearing.listened_s() - self._reports[0][2] if self._reports else 0.0

    def put_report(self, report: Report, size: int) -> None:
        """Queue a report of ``size`` bytes, or raise FullError."""
        with self._condition:
            if len(self._reports) >= REPORTS_MAX or self._report_bytes + size > REPORT_BYTES_MAX:
                self.hearing.refuse()
                raise FullError(
                    f"{len(self._reports)} reports with {self._report_bytes} bytes are queued; "
                    f"the limits are {REPORTS_MAX} reports and {REPORT_BYTES_MAX} bytes"
                )
            was_idle = not self._reports
            self._reports.append((report, size, self.hearing.listened_s()))
            self._report_bytes += size
            if was_idle:
                self._condition.notify()

    def call(self, act: Callable[[], _R]) -> "Future[_R]":
        """Run ``act`` in the thread between two batches, or raise FullError."""
        result: Future[_R] = Future()
        with self._condition:
            if len(self._calls) >= CALLS_MAX or self._should_stop or not self.is_alive:
                raise FullError(
                    f"{len(self._calls)} requests wait for the deciding thread; try again"
                )
            self._calls.append(_Call(act, result))  # type: ignore[arg-type]
            self._condition.notify()
        return result

    # The thread.

    def _run(self) -> None:
        try:
            self._take_up_all()
            self.is_taken_up = True
            while not self._turn():
                pass
        except Exception:
            log.exception("the deciding thread failed")  # the watchdog sees that it is gone
        finally:
            for job in self.jobs.values():
                job.close()
            self._refuse_calls()

    def _turn(self) -> bool:
        """Do what is queued and due once; return whether to stop."""
        with self._condition:
            if not self._reports and not self._calls and not self._should_stop:
                self._condition.wait(self._sleep_s())
                # one turn for all that comes within a moment, and not one for each report
                self._condition.wait_for(lambda: self._calls or self._should_stop, BATCH_S)
            began_s = self._clock.now_s()
            calls, self._calls = self._calls, deque()
            reports = [self._reports.popleft() for _ in range(min(BATCH_MAX, len(self._reports)))]
            self._report_bytes -= sum(size for _report, size, _at_s in reports)
            through_s = self._reports[0][2] if self._reports else self.hearing.listened_s()
            should_stop = self._should_stop and not self._reports
        for report, _size, at_s in reports:
            self.hearing.hear_through(at_s)
            job = self.jobs.get(report.job_id)
            if job is not None:
                job.take_report(report)
        self.hearing.hear_through(through_s)
        self.hearing.admit()
        for call in calls:
            _answer(call)
        now_s = self._clock.now_s()
        for job in list(self.jobs.values()):
            if job.is_due(now_s):
                job.tick(now_s)
            outcome = job.outcome
            if outcome is not None:
                self._end(job, outcome)
        self._do_rarely(now_s)
        self._board.flush()
        self.turned_at_s = self._clock.now_s()
        if reports or calls:
            self._listener.turned(len(reports), self.turned_at_s - began_s)
        return should_stop

    def _sleep_s(self) -> float:
        is_busy = any(job.is_touched for job in self.jobs.values())
        return TICK_BUSY_S if is_busy else IDLE_S

    def _refuse_calls(self) -> None:
        with self._condition:
            calls, self._calls = self._calls, deque()
            self._should_stop = True
        for call in calls:
            call.result.set_exception(FullError("the controller is stopping"))

    # Jobs.

    def _take_up_all(self) -> None:
        found, problems = self._folder.find()
        for one in found:
            if one.ended is not None:
                self._note_ended(one)
                continue
            try:
                self._open(one.stored.owner, one.stored.join, one.stored, resumes=False)
            except RankmendError as error:
                problems.append(f"{one.path}: {error}")
        for problem in problems:
            log.error("cannot resume a job", extra={"error": problem})
        self.problems = tuple(problems)
        self._publish()

    def _open(self, owner: str, join: Join, before: StoredJob | None, *, resumes: bool) -> Job:
        """Open a job's folder and have its controller begin; ``before``: what is known of it already."""
        parts = replace(self._parts(join), hearing=self.hearing)
        if resumes and join.epoch:  # bounded: a forged one leaves room above itself
            epoch_min = min(join.epoch, EPOCH_JUMP_MAX) + 1
            parts = replace(parts, epoch_min=max(parts.epoch_min, epoch_min))
        folder = self._folder.open(owner, join, self._clock.unix_s())
        job_id = str(folder.job_id)
        secret = before.secret if before is not None else stored_jobs.new_secret()
        prefix = before.incident_prefix if before is not None else self._new_prefix(job_id)
        kept = StoredJob(owner, secret, join, prefix)
        try:
            settings = settings_of(job_id, join, self.policy_for(join.name), parts, prefix)
            if job_id in self.jobs:
                raise CallConflictError(f"job {job_id} has another key", "job_id", job_id)
            if (
                resumes
            ):  # else it is what was just read, and a full disk keeps no job from being taken up
                stored_jobs.save(folder.path, kept)
        except BaseException:
            os.close(folder.lock_descriptor)
            raise
        job = Job(
            folder=folder,
            stored=kept,
            settings=settings,
            parts=parts,
            orders=self._board,
            clock=self._clock,
            listener=self._listener,
            make_core=self._make_core,
            resumes=resumes,
            joined_at_s=self.hearing.now_s(),
        )
        self.jobs[job_id] = job
        self._by_key[owner, join.key] = job_id
        self._ended.pop(job_id, None)
        job.start()
        self._listener.taken_up(job)
        return job

    def join(self, owner: str, join: Join) -> tuple[Job, bool]:
        """Return the job that a launcher joins, and whether it is the first of it."""
        job_id = self._by_key.get((owner, join.key))
        job = self.jobs.get(job_id) if job_id is not None else None
        if job is not None:
            job = self._agreed(job, owner, join)
            is_new = False
        else:
            job, is_new = self._begin(owner, join, job_id), True
        job.note_launcher(join)
        return job, is_new

    def _agreed(self, job: Job, owner: str, join: Join) -> Job:
        """Return the job, as a launcher says that it is to run; raise where another one says else.

        Who stopped a job before it began, and starts it with other settings, needs to stop nothing first.
        """
        try:
            _refuse_difference(job.stored.join, join)
        except CallConflictError:
            if not job.is_abandoned():
                raise
            log.info("job begins with other settings", extra={"job_id": job.job_id})
            job.close()
            del self.jobs[job.job_id]
            self._board.end(job.job_id)
            self._listener.ended(job)
            job = self._open(owner, join, job.stored, resumes=True)
            self._publish()
        return job

    def _begin(self, owner: str, join: Join, job_id: str | None) -> Job:
        if not join.begins:
            raise UnknownError(f"job {join.name} does not run here")
        before = self._ended.get(job_id) if job_id is not None else None
        if before is not None and before.ended is not None:
            ended = before.ended
            if (join.run and join.run in ended.runs) or join.launcher_id in ended.launchers:
                raise EndedError("this run of the job has ended", ended.outcome)
        if len(self.jobs) >= self._jobs_max:
            raise FullError(f"{len(self.jobs)} jobs run, {self._jobs_max} are allowed")
        claimed = self.known.get(join.job_id) if join.job_id is not None else None
        if claimed is not None and join.job_id != job_id:
            raise CallConflictError(
                f"job {join.job_id} is known under another key or owner", "job_id", join.job_id
            )
        job = self._open(owner, join, before.stored if before is not None else None, resumes=True)
        self._publish()
        return job

    def _new_prefix(self, job_id: str) -> str:
        """Return with what the ids of a new job's incidents begin: its UUID's first block, or another where a job has that.

        A launcher may choose the UUID, and ids must name one incident: people approve by them.
        """
        taken = {one.incident_prefix for one in self.known.values()}
        taken |= {job.stored.incident_prefix or other[:8] for other, job in self.jobs.items()}
        prefix = job_id[:8]
        while prefix in taken:
            prefix = secrets.token_hex(4)
        return prefix

    def _end(self, job: Job, outcome: JobOutcome) -> None:
        fields = {"job_id": job.job_id, "outcome": f"{outcome.kind.value}: {outcome.reason}"}
        log.info("job ended", extra=fields)
        runs, launchers = sorted(job.runs), sorted(job.launchers)
        ended = Ended(self._clock.unix_s(), outcome, runs, launchers)
        try:
            stored_jobs.save_end(job.folder.path, ended)
        except RankmendError as error:  # the next start finds it in the journal
            log.error("cannot save the end of a job", extra={"error": str(error)})  # noqa: TRY400
        job.close()
        del self.jobs[job.job_id]
        self._note_ended(stored_jobs.FoundJobs(job.folder.path, job.job_id, job.stored, ended))
        self._publish()
        self._board.end(job.job_id)
        self._listener.ended(job)

    def _note_ended(self, found: stored_jobs.FoundJobs) -> None:
        self._ended[found.job_id] = found
        self._by_key[found.stored.owner, found.stored.join.key] = found.job_id
        while len(self._ended) > self._ended_max:
            self._forget(next(iter(self._ended)))

    def _forget(self, job_id: str) -> None:
        found = self._ended.pop(job_id)
        self._by_key.pop((found.stored.owner, found.stored.join.key), None)
        try:
            self._folder.remove(found.path)
        except (OSError, ConfigError) as error:
            log.warning("cannot remove an ended job", extra={"job_id": job_id, "error": str(error)})

    def _publish(self) -> None:
        running = {
            job_id: _known(job_id, job.stored, None, job.folder.path)
            for job_id, job in self.jobs.items()
        }
        ended = {
            job_id: _known(job_id, one.stored, one.ended.outcome, one.path)
            for job_id, one in self._ended.items()
            if one.ended is not None
        }
        self.known = {**ended, **running}

    def ended(self) -> tuple[stored_jobs.FoundJobs, ...]:
        """Return the jobs that have ended and are kept."""
        return tuple(self._ended.values())

    def find_ended(self, job_id: str) -> stored_jobs.FoundJobs:
        found = self._ended.get(job_id)
        if found is None:
            raise UnknownError(f"no job {job_id}")
        return found

    # People and alerts.

    def command(self, job_id: str, command: PersonCommand, plan_id: str = "") -> PersonActed:
        """Carry out a person's command, or return why not.

        With ``plan_id``, refuse unless that very plan is pending.
        """
        job = self._running(job_id)
        if plan_id and plan_id not in {plan.plan_id for plan in view_plans(job)}:
            raise CallConflictError("the named plan is no longer pending", "plan_id", plan_id)
        return job.take_command(command)

    def dry_run(self, job_id: str, node: str | None) -> wire.PlanView:
        """Return the plan that would be made if the node, or a rank, failed now."""
        return foresee(self._running(job_id), self.desk, node)

    def _running(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            known = self.known.get(job_id)
            if known is not None and known.outcome is not None:
                raise EndedError(f"job {job_id} has ended", known.outcome)
            raise UnknownError(f"no job {job_id}")
        if job.controller is None:
            raise FullError(f"the controller cannot manage job {job_id} now: {job.problem}")
        return job

    def known_nodes(self) -> set[str]:
        """Return the nodes that a launcher, an alert or a person has named."""
        members = {
            node
            for job in self.jobs.values()
            if job.controller is not None
            for node in job.controller.ledger.members
        }
        return members | self.desk.known_nodes()

    def take_alerts(
        self,
        alerts: Iterable[IncomingAlert],
        sender: Sender = READ_BACK,
        rules: AlertRules | None = None,
    ) -> int:
        """Accept alerts and pass each job its evidence; return how many alerts did not fit."""
        taken, heard = self.desk.take_alerts(alerts, self._jobs_on(), sender, rules)
        for job_id, evidence in heard:
            job = self.jobs.get(job_id)
            if job is not None:
                job.take_evidence(evidence)
        if taken.passed_over:
            fields = {"count": len(taken.passed_over), "first": taken.passed_over[0]}
            log.info("alerts that match no job", extra=fields)
        return taken.refused

    def _jobs_on(self) -> dict[str, tuple[JobNode, ...]]:
        """Return which jobs run which ranks on each node, by what was ordered last."""
        found: dict[str, tuple[JobNode, ...]] = {}
        for job in self.jobs.values():
            if job.controller is None or job.controller.ledger.wish is not Wish.RANKS:
                continue
            started = job.controller.ledger.started
            for place in started.placement if started is not None else ():
                node = JobNode(job.job_id, place.ranks)
                found[place.node] = (*found.get(place.node, ()), node)
        return found

    def _do_rarely(self, now_s: float) -> None:
        if now_s - self._retold_at_s >= _RETELL_S:
            self._retold_at_s = now_s
            jobs_on = self._jobs_on()
            self.desk.note_running(jobs_on)
            for job_id, evidence in self.desk.retell(jobs_on):
                job = self.jobs.get(job_id)
                if job is not None:
                    job.take_evidence(evidence)
        if now_s - self._swept_at_s >= _SWEEP_S:
            self._swept_at_s = now_s
            due_unix_s = self._clock.unix_s() - self._ended_kept_s
            old = [
                job_id
                for job_id, one in self._ended.items()
                if one.ended is not None and one.ended.unix_s < due_unix_s
            ]
            for job_id in old:
                self._forget(job_id)
            if old:
                self._publish()


def refuse_ended(job_id: str, known: KnownToWorker) -> None:
    """Raise EndedError where the job has ended."""
    outcome = known.outcome
    if outcome is not None:
        raise EndedError(f"job {job_id} has ended: {outcome.kind.value}: {outcome.reason}", outcome)


def _known(job_id: str, job: StoredJob, outcome: JobOutcome | None, path: Path) -> KnownToWorker:
    prefix = job.incident_prefix or job_id[:8]
    return KnownToWorker(job.owner, job.join.name, outcome, path, prefix)


def _answer(call: _Call) -> None:
    if not call.result.set_running_or_notify_cancel():
        return
    try:
        call.result.set_result(call.act())
    except Exception as error:  # noqa: BLE001 - of one request: its client hears of it
        call.result.set_exception(error)


def _refuse_difference(first: Join, other: Join) -> None:
    """Raise CallConflictError if a launcher's settings differ from the job's first launcher."""
    for name in FIXED:
        if getattr(first, name) != getattr(other, name):
            raise CallConflictError(
                f"the job runs with {name} {getattr(first, name)!r:.200}, "
                f"this launcher says {getattr(other, name)!r:.200}: every launcher of a job says the same; "
                "to change it end the job first (SIGTERM to a launcher with ranks, or rankmend stop)",
                name,
                getattr(other, name),
            )


def check_join(join: Join, policy: Policy) -> None:
    """Raise ConfigError if a launcher asks for settings that the limits forbid."""
    policy_of(join, policy)
