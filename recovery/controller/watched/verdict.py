"""The controller's verdicts on watched jobs, and the notices to people that follow. Pure.

The notices have the names of our own jobs' alerts; ``todo`` says that only a person can act.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from detectors.finding import Finding, Kind, Severity
from detectors.wording import ranks_in_words
from recovery.controller.cluster.notices import Notice, NoticeKind, job_argument

_SLOW_MAX: Final = 8  # ranks of one job; more of them have a common cause
_RANKS_MAX: Final = 32
_NEED_MAX: Final = 60


class WatchedState(Enum):
    STARTING = "starting"  # no rank has made two steps
    TRAINING = "training"
    SLOW = "slow"  # it trains, and waits for a rank
    HUNG = "hung"
    SUSPENDED = "suspended"  # all its ranks are stopped: `scontrol suspend` does that
    UNKNOWN = "unknown"  # a node of it reports nothing, or no rank can be read
    ENDED = "ended"

    @property
    def is_trouble(self) -> bool:
        return self in (WatchedState.SLOW, WatchedState.HUNG)


@dataclass(frozen=True, slots=True)
class WatchedVerdict:
    state: WatchedState
    reason: str
    findings: tuple[Finding, ...] = ()  # of trouble: one of a hang, one for each slow rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that the job waits for."""
        return tuple(sorted({rank for finding in self.findings for rank in finding.ranks}))


class JudgedJob(Protocol):
    """A job with its verdict."""

    job_id: str
    name: str
    user: str
    slurm_job: str
    restarter: str
    verdict: WatchedVerdict
    act: str


def notices_of(job: JudgedJob) -> Iterator[Notice]:
    """Yield the notices about one job."""
    if job.verdict.state is WatchedState.HUNG:
        yield _hung(job, job.verdict.findings[0])
    elif job.verdict.state is WatchedState.SLOW:
        yield from (_slow(job, finding) for finding in job.verdict.findings[:_SLOW_MAX])


def say_job(job: JudgedJob) -> str:
    """Return how people call the job."""
    return f"{job.name} (Slurm job {job.slurm_job})" if job.slurm_job else job.name


def _hung(job: JudgedJob, finding: Finding) -> Notice:
    who = f"it waits for {ranks_in_words(finding.ranks)}" if finding.ranks else "no rank is blamed"
    where = f" on {finding.node}" if finding.node else ""
    if job.act:
        todo = job.act
    elif job.restarter:
        todo = f"{job.restarter} restarts its ranks; rankmend leaves it alone"
    elif job.slurm_job:
        todo = f"look at {finding.node or 'its nodes'}; `scontrol requeue {job.slurm_job}` or `scancel` ends it"
    else:
        todo = f"look at {finding.node or 'its nodes'}; it waits until somebody ends it"
    return Notice(
        NoticeKind.RANK_HUNG,
        Severity.WARNING if job.restarter else Severity.CRITICAL,
        f"job {say_job(job)} hung, {who}{where}: {finding.summary}",
        f"{todo}; `rankmend status` shows the evidence",
        job.job_id,
        job.name,
        node=finding.node,
        rank=",".join(str(rank) for rank in sorted(finding.ranks)[:_RANKS_MAX]),
        what=finding.summary,
        need=f"hung, {who}"[:_NEED_MAX],
        command=f"rankmend status {job_argument(job.name, job.job_id)}",
        owner=job.user,
    )


def _slow(job: JudgedJob, finding: Finding) -> Notice:
    assert finding.kind is Kind.RANK_SLOW, "of a job that waits for slow ranks"
    return Notice(
        NoticeKind.RANK_SLOW,
        finding.severity,
        f"job {say_job(job)}: {finding.summary}",
        f"inspect {finding.node or 'its node'}; `rankmend status` shows the evidence; training continues",
        job.job_id,
        job.name,
        node=finding.node,
        rank=",".join(str(rank) for rank in finding.ranks),
        what=finding.summary,
        need="trains on, slower",
        command=f"rankmend status {job_argument(job.name, job.job_id)}",
        owner=job.user,
    )
