"""What may be done about a watched job that hangs: by policy, through the scheduler, and by default nothing.

Rules, in this order. The first that holds gives the reason why nothing is done:
1. The policy says ``tell`` (the default).
2. Another restarter tends the job: it is left to that one.
3. The verdict names no rank, or ranks of several nodes where a node would be drained: nothing is done on a guess.
4. The verdict has not stood for ``confirm_s``.
5. Slurm has no such job, or there is no scheduler.
6. Somebody has paused the cluster, the job or the node.
7. The policy is a dry run, or observe mode is on: the request is journaled, and not made.
8. ``acts_per_hour_max`` requests of all jobs were made within the hour, or the user's share of them: a job says itself that it hangs.

A hang is acted on once: its key is made of the job, its attempt and its step, so that a controller that starts anew finds it
in the journal. The request is durable in the cluster's journal before it is sent to the scheduler, and the scheduler carries a key out once.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from detectors.hang.live import HangCause
from detectors.wording import counted
from recovery.controller.cluster.cluster_ledger import ClusterLedger
from recovery.controller.cluster.cluster_limits import ClusterPolicy, WatchedAction
from recovery.controller.watched.verdict import WatchedState, WatchedVerdict
from recovery.journal.cluster_records import WatchedAsked
from recovery.journal.witnesses import share_of
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest

HOUR_S: Final = 3600.0
_REASON_MAX: Final = 200  # Slurm shows it in one line
_FACTS: Final = frozenset({HangCause.GONE.value, HangCause.BLOCKED.value})
_ACTION: Final = {
    WatchedAction.DRAIN: SchedulerAction.DRAIN,
    WatchedAction.CANCEL: SchedulerAction.CANCEL,
    WatchedAction.REQUEUE: SchedulerAction.REQUEUE,
}


class ActedOn(Protocol):
    """A job with its verdict."""

    job_id: str
    name: str
    user: str
    slurm_job: str
    restarter: str
    attempt: int
    verdict: WatchedVerdict

    @property
    def nodes(self) -> list[str]: ...

    def step(self) -> int | None: ...
    def node_of(self, rank: int) -> str: ...


@dataclass(frozen=True, slots=True)
class WatchedAct:
    """The act that is due, or why none is."""

    text: str
    record: WatchedAsked | None = None  # None: nothing to journal
    request: SchedulerRequest | None = None


def decide(
    job: ActedOn,
    stood_s: float,
    policy: ClusterPolicy,
    ledger: ClusterLedger,
    now_unix_s: float,
    *,
    has_scheduler: bool,
    is_shared: bool = False,
) -> WatchedAct:
    """Return what the policy wants done about the job's verdict now. ``is_shared``: other users have watched jobs, too."""
    rules = policy.watched
    if rules.action is WatchedAction.TELL or job.verdict.state is not WatchedState.HUNG:
        return WatchedAct("")
    nodes = tuple(sorted({job.node_of(rank) for rank in job.verdict.ranks}))
    if rules.action is WatchedAction.REQUEUE and _is_stopped(job):
        nodes = ()  # somebody has stopped it: its node can be used on
    key = f"watched-{job.job_id}-{job.attempt}-{job.step()}-{rules.action.value}"
    observed = policy.why_observed(job.name, nodes)
    is_dry = rules.dry_run or policy.is_dry_for(job.name) or observed is not None
    words = _in_words(rules.action, job.slurm_job, nodes)
    reason = f"rankmend: job {job.name} hung: {job.verdict.reason}"[:_REASON_MAX]
    # The job's number is its ranks' word, which its user can write: Slurm has to confirm whose it is.
    request = SchedulerRequest(
        key, _ACTION[rules.action], nodes, job.slurm_job, reason, job.user, tuple(job.nodes)
    )
    known = ledger.watched_asked(key)
    if known is not None and not known.is_dry:  # again after a restart: a key is carried out once
        return WatchedAct(
            f"asked the scheduler to {words}", None, request if has_scheduler else None
        )
    why = _why_not(job, stood_s, policy, nodes) or _unable(job, rules.action, ledger, nodes)
    if why is None and not is_dry:
        sharer = job.user if is_shared and not policy.single_tenant else None
        why = _beyond_bounds(policy, ledger, now_unix_s, sharer, has_scheduler=has_scheduler)
    if why is not None:
        return WatchedAct(f"rankmend does not {words}: {why}")
    record = WatchedAsked(
        key,
        job.job_id,
        job.name,
        job.slurm_job,
        rules.action.value,
        nodes,
        reason,
        is_dry,
        job.user,
    )
    if is_dry:
        mode = "dry run" if observed is None else f"observe mode ({observed})"
        return WatchedAct(f"{mode}: would {words}", record if known is None else None)
    return WatchedAct(f"asked the scheduler to {words}", record, request)


def _beyond_bounds(
    policy: ClusterPolicy,
    ledger: ClusterLedger,
    now_unix_s: float,
    sharer: str | None,
    *,
    has_scheduler: bool,
) -> str | None:
    """``sharer``: the user of whose share it would be; None: nobody's."""
    if not has_scheduler:
        return "the controller has no scheduler to ask"
    requested = ledger.watched_asked_since(now_unix_s - HOUR_S)
    count, most = requested.total(), policy.watched.acts_per_hour_max
    if count >= most:
        return f"{count} requests within the last hour; {most} are allowed ([watched] acts_per_hour_max)"
    if sharer is None:
        return None
    own = requested[sharer]
    share = share_of(most, count, own)
    if own >= share:
        return (
            f"{counted(own, 'request')} for jobs of {sharer or 'users who are not known'} within the last hour, their share of "
            f"[watched] acts_per_hour_max: {share} of {most}"
        )
    return None


def _why_not(  # noqa: PLR0911 - a reason each
    job: ActedOn, stood_s: float, policy: ClusterPolicy, nodes: tuple[str, ...]
) -> str | None:
    """Return why the verdict is no ground to act on."""
    if job.restarter:
        return f"{job.restarter} restarts its ranks"
    if not job.verdict.ranks:
        return "no rank is blamed"
    if len(nodes) > 1 and policy.watched.action is WatchedAction.DRAIN:
        return f"the ranks are on {len(nodes)} nodes, so no single node is to blame"
    (finding, *_rest) = job.verdict.findings
    is_fact = finding.symptom.detail in _FACTS
    if not is_fact and policy.watched.action is WatchedAction.DRAIN:
        if _is_stopped(job):
            return "a signal has stopped its process: its node is not at fault"
        return "its process runs: the program may be at fault"
    if stood_s < policy.watched.confirm_s:
        return f"it has hung for {stood_s:.0f} s of {policy.watched.confirm_s:g} s (confirm_s)"
    return None


def _is_stopped(job: ActedOn) -> bool:
    return any(
        finding.symptom.detail == HangCause.STOPPED.value for finding in job.verdict.findings
    )


def _unable(
    job: ActedOn, action: WatchedAction, ledger: ClusterLedger, nodes: tuple[str, ...]
) -> str | None:
    if action is not WatchedAction.DRAIN and not job.slurm_job.isdecimal():
        return "it is not a Slurm job"
    if action is not WatchedAction.DRAIN and not job.user:
        return "whose job it is, is not known"
    for scope in ("cluster", f"job:{job.job_id}", *(f"node:{node}" for node in nodes)):
        paused = ledger.paused.get(scope)
        if paused is not None:
            return f"paused ({scope}) by {paused.who}"
    return None


def _in_words(action: WatchedAction, slurm_job: str, nodes: tuple[str, ...]) -> str:
    where = ", ".join(nodes[:8])
    if action is WatchedAction.DRAIN:
        return f"drain {where}" if where else "drain a node"
    if action is WatchedAction.CANCEL:
        return f"cancel job {slurm_job}"
    return f"requeue job {slurm_job}" + (f" without {where}" if where else "")
