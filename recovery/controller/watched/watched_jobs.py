"""All watched jobs of a controller: reports of agents in, verdicts out. For the deciding thread.

Nothing that decides is kept on disk: agents report all that is so every few seconds, and a controller that starts anew knows it again
after one report of each node. How long a job's pauses have been is then learnt anew, too.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

from detectors.finding import Finding
from detectors.hang.live import HungLimits
from rankmend.errors import RankmendError
from rankmend.watched_report import WatchedReport
from recovery.api import nccl_shares, wire
from recovery.controller.cluster.cluster_ledger import ClusterLedger
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.controller.cluster.notices import Notice
from recovery.controller.watched.acting import decide
from recovery.controller.watched.job_watch import JobWatch
from recovery.controller.watched.verdict import WatchedState, notices_of
from recovery.journal.cluster_records import WatchedAsked
from recovery.schedulers.slurm.requests import Scheduler

log = logging.getLogger(__name__)

JOBS_MAX: Final = 5_000
RANKS_MAX: Final = 500_000  # of all jobs: 1 GB
LOOK_S: Final = 1.0
LOOK_S_PER_RANK: Final = 2e-4  # a look costs 10 us a rank: 5 % of the time
TICK_RANKS_MAX: Final = 2_000  # between two batches of reports: 20 ms
ENDED_KEPT_S: Final = 600.0  # a launcher may start the ranks again
SILENT_KEPT_S: Final = 3600.0  # a job whose nodes report nothing


class WatchDesk(Protocol):
    """The part of `recovery.controller.cluster.cluster.ClusterController` that acts need."""

    @property
    def policy(self) -> ClusterPolicy: ...
    @property
    def ledger(self) -> ClusterLedger: ...
    def now_unix_s(self) -> float: ...
    def note_watched(self, requested: WatchedAsked) -> None: ...


class WatchListener(Protocol):
    """Who remembers what watched jobs do (`recovery.service.metrics.time_accounts`)."""

    def judged(self, job: JobWatch, now_s: float) -> None: ...
    def forgotten(self, job: JobWatch, now_s: float) -> None: ...


class WatchedJobs:
    def __init__(
        self,
        now_s: Callable[[], float],
        limits_for: Callable[[str], HungLimits],
        desk: WatchDesk | None = None,
        listener: "WatchListener | None" = None,
    ) -> None:
        """``now_s``: listened seconds; ``limits_for`` gives a job's limits for stand-stills by its name.

        Without a ``desk`` people are notified, and nothing else is done.
        """
        self._desk = desk
        self._listener = listener
        self.scheduler: Scheduler | None = None  # set where there is one
        self._asked: dict[str, None] = {}  # keys of this process's requests to it
        self._now_s = now_s
        self._limits_for = limits_for
        self.jobs: dict[str, JobWatch] = {}
        self._users: set[str] = set()  # of the jobs, as of this tick
        self._of_node: dict[str, frozenset[str]] = {}  # the jobs of its newest report
        self._turn: deque[str] = deque()  # the jobs, the one first that was looked at longest ago
        self.refused = 0
        self.found: Counter[str] = Counter()  # times that a job's trouble began, by kind

    def take(self, report: WatchedReport) -> int:
        """Take in a node's report; return how many of its jobs find no room."""
        now_s, refused = self._now_s(), 0
        named = set()
        for reported in report.jobs:
            job = self.jobs.get(reported.job_id)
            if job is None:
                if not self._has_room(len(reported.ranks)):
                    refused += 1
                    continue
                job = self.jobs[reported.job_id] = JobWatch(reported, now_s)
                self._turn.append(reported.job_id)
            job.take(report.node, reported, now_s)
            named.add(reported.job_id)
        for job_id in self._of_node.get(report.node, frozenset()) - named:
            if (missed := self.jobs.get(job_id)) is not None:
                missed.miss(report.node, now_s)
        if named:
            self._of_node[report.node] = frozenset(named)
        else:
            self._of_node.pop(report.node, None)
        if refused and not self.refused:
            log.warning("watched jobs find no room", extra={"node": report.node, "jobs": refused})
        self.refused += refused
        return refused

    def wanted(self, node: str) -> tuple[str, ...]:
        """Return the jobs of whose ranks on this node evidence is wanted."""
        named = sorted(self._of_node.get(node, frozenset()))
        return tuple(job_id for job_id in named if self.jobs[job_id].wants_evidence(node))

    def _has_room(self, ranks: int) -> bool:
        if len(self.jobs) >= JOBS_MAX:
            return False
        return sum(len(job.seats) for job in self.jobs.values()) + ranks <= RANKS_MAX

    def tick(self) -> None:
        """Judge the jobs whose turn it is: each once a second, large ones less often, and few at a time.

        The same thread decides for the jobs of our own launchers: they must not wait for this.
        """
        now_s, judged = self._now_s(), 0
        self._users = {job.user for job in self.jobs.values()}
        for _job in range(len(self._turn)):
            job_id = self._turn[0]
            job = self.jobs.get(job_id)
            if job is not None:
                look_s = max(LOOK_S, LOOK_S_PER_RANK * len(job.seats))
                if now_s - job.looked_at_s < look_s:
                    self._turn.rotate(-1)
                    continue
                if judged and judged + len(job.seats) > TICK_RANKS_MAX:
                    return
                judged += len(job.seats)
            self._turn.popleft()
            if job is None:
                continue
            job.looked_at_s = now_s
            try:
                self._judge(job, now_s)
            except Exception:  # of one job: the others are judged all the same
                log.exception("watched job not judged", extra={"job": job.name})
                del self.jobs[job_id]
            if self._is_over(job, now_s):
                self.jobs.pop(job_id, None)
                if self._listener is not None:
                    self._listener.forgotten(job, now_s)
            if job_id in self.jobs:
                self._turn.append(job_id)

    def _judge(self, job: JobWatch, now_s: float) -> None:
        before = job.trouble
        job.judge(self._limits_for(job.name), now_s)
        if job.trouble > before:
            self.found[job.verdict.state.value] += 1
        if self._listener is not None:
            self._listener.judged(job, now_s)
        job.act = self._act(job, now_s)

    def _act(self, job: JobWatch, now_s: float) -> str:
        """Do what the policy wants done, and return what that is, or why nothing is."""
        if self._desk is None:
            return ""
        desk, scheduler = self._desk, self.scheduler
        act = decide(
            job,
            now_s - job.since_s,
            desk.policy,
            desk.ledger,
            desk.now_unix_s(),
            has_scheduler=scheduler is not None,
            is_shared=len(self._users) > 1,
        )
        try:
            if act.record is not None:
                desk.note_watched(act.record)
            request = act.request
            if request is not None and scheduler is not None and request.key not in self._asked:
                scheduler.ask(request)
                self._asked[request.key] = None
                if len(self._asked) > JOBS_MAX:
                    del self._asked[next(iter(self._asked))]
        except RankmendError as error:  # requested again at the next look
            return f"{act.text}: failed: {error}"
        return act.text

    def _is_over(self, job: JobWatch, now_s: float) -> bool:
        kept_s = {WatchedState.ENDED: ENDED_KEPT_S, WatchedState.UNKNOWN: SILENT_KEPT_S}
        limit_s = kept_s.get(job.verdict.state)
        return limit_s is not None and now_s - job.since_s >= limit_s

    # What there is to tell.

    def notices(self) -> tuple[Notice, ...]:
        """Return what people must hear of now."""
        return tuple(notice for job in self.jobs.values() for notice in notices_of(job))

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        counts = Counter(job.verdict.state for job in self.jobs.values())
        return {state.value: counts[state] for state in WatchedState}

    def views(self) -> list[wire.WatchedView]:
        """Return the jobs as the API shows them, those in trouble first."""
        now_s = self._now_s()
        ordered = sorted(
            self.jobs.values(),
            key=lambda job: (not job.verdict.state.is_trouble, job.name, job.job_id),
        )
        return [_view(job, now_s) for job in ordered]


def _view(job: JobWatch, now_s: float) -> wire.WatchedView:
    return wire.WatchedView(
        job_id=job.job_id,
        name=job.name,
        user=job.user,
        launcher=job.launcher,
        slurm_job=job.slurm_job,
        restarter=job.restarter,
        attempt=job.attempt,
        world_size=job.world_size,
        ranks_seen=len(job.living),
        nodes=job.nodes,
        step=job.step(),
        step_s=job.step_s(),
        state=job.verdict.state.value,
        state_age_s=max(0.0, now_s - job.since_s),
        reason=job.verdict.reason,
        act=job.act,
        nccl=nccl_shares.to_wire(job.observation.nccl_shares()),
        findings=[_view_finding(finding) for finding in job.verdict.findings],
    )


def _view_finding(finding: Finding) -> wire.WatchedFinding:
    return wire.WatchedFinding(
        kind=finding.kind.value,
        blame=finding.blame.value,
        summary=finding.summary,
        node=finding.node,
        ranks=list(finding.ranks),
        evidence=[f"{evidence.source}: {evidence.text}" for evidence in finding.evidence],
    )
