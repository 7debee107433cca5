"""Whether a plan may be carried out now, by what all jobs share. Pure.

What a person requested is never held back. The order of the other questions is the order of what a
person would say: observe mode and a pause first, then dry run and approval, then the budgets. What restores safety is never refused by a budget: a job that stands is
started again, and ranks that are fenced are stopped, whatever has been spent.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from detectors.wording import counted
from rankmend.backoff import Backoff
from recovery.controller.cluster.cluster_ledger import ClusterLedger, NodeBlame
from recovery.controller.cluster.cluster_limits import DAY_S, Approval, ClusterPolicy
from recovery.controller.cluster.gate import Answer, Judgement, PlanRequest
from recovery.journal.cluster_records import Hold, NodeHeld, PowerOffAsked
from recovery.journal.incident_records import WaitCause
from recovery.journal.limits import PlanStep
from recovery.journal.witnesses import PRESENCE, Witness, share_of

HOUR_S: Final = 3600.0
_NO_FAULT: Final = PRESENCE | {Witness.LAUNCHER}


def judge(
    request: PlanRequest,
    job_name: str,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
    subject: str = "",
) -> Answer:
    """Return whether the plan may be carried out now, and the reason.

    ``subject``: the job's owner, with whom others share the budget of stops; empty: it has all of it.
    """
    if request.finding.is_persons:
        return Answer(Judgement.ALLOWED, "a person asked for it")
    # it stops the remaining ranks, so a pause holds it, too
    is_end = request.step is PlanStep.ESCALATE
    waits = _observes(request, job_name, policy) or _pause(request, ledger)
    if waits is None and not is_end:
        waits = _needs_approval(request, job_name, policy)
    if waits is not None:
        return waits
    if is_end:
        return Answer(Judgement.ALLOWED, "escalation to a person")
    if ledger.is_spent(request.job_id, request.incident_id, request.try_number):
        return Answer(Judgement.ALLOWED, "already allowed")
    spent = _over_budget(request, ledger, policy, now_unix_s, subject)
    if spent is not None and request.approved_by is None:
        return Answer(Judgement.REFUSED, spent)
    why = "no rule forbids it" if request.approved_by is None else _approved(request)
    return Answer(Judgement.ALLOWED, why)


def _approved(request: PlanRequest) -> str:
    return f"approved by {request.approved_by}"


def _observes(request: PlanRequest, job_name: str, policy: ClusterPolicy) -> Answer | None:
    if request.approved_by is not None:
        return None
    nodes = (*request.without, *((request.finding.node,) if request.finding.node else ()))
    why = policy.why_observed(job_name, nodes)
    if why is None:
        return None
    text = f"observe mode ({why}): rankmend would do this, and does nothing"
    return Answer(Judgement.WAIT, text, WaitCause.OBSERVE, why)


def _pause(request: PlanRequest, ledger: ClusterLedger) -> Answer | None:
    # A node's pause holds plans that leave the node and findings about it.
    nodes = dict.fromkeys((*request.without, request.finding.node))
    scopes = ["cluster", f"job:{request.job_id}", *(f"node:{node}" for node in nodes if node)]
    for scope in scopes:
        paused = ledger.paused.get(scope)
        if paused is not None:
            words = f": {paused.reason}" if paused.reason else ""
            text = f"paused ({scope}) by {paused.who}{words}"
            return Answer(Judgement.WAIT, text, WaitCause.PAUSED, f"{scope} {paused.who}")
    return None


def _needs_approval(request: PlanRequest, job_name: str, policy: ClusterPolicy) -> Answer | None:
    if request.approved_by is not None:
        return None
    if policy.is_dry_for(job_name):
        text = "dry run: plans need a person's approval"
        return Answer(Judgement.WAIT, text, WaitCause.DRY_RUN)
    approval = policy.approval_for(job_name)
    if approval is Approval.ALL:
        return _approval("every plan of this job", approval)
    moves = bool(request.without)
    if approval is Approval.MOVES and (moves or not request.is_standing):
        return _approval("leaving a node or stopping a training job", approval)
    if approval is Approval.STOPS and not request.is_standing:
        return _approval("stopping a training job", approval)
    return None


def _approval(what: str, approval: Approval) -> Answer:
    text = f"{what} needs a person's approval"
    return Answer(Judgement.WAIT, text, WaitCause.APPROVAL, approval.value)


def _over_budget(
    request: PlanRequest,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
    subject: str,
) -> str | None:
    """Return which budget of the cluster forbids the plan; never one that restores safety."""
    if request.is_standing:
        return None
    budgets = policy.budgets
    if refusal := _refuse_stop(ledger, budgets.stops_per_hour_max, subject, now_unix_s):
        return refusal
    moves = sum(
        bool(item.nodes) and item.job_id == request.job_id and unix_s > now_unix_s - DAY_S
        for unix_s, item in ledger.spent
    )
    if request.without and moves >= budgets.moves_per_job_day_max:
        return (
            f"this job left a node {counted(moves, 'time')} within a day; "
            f"{budgets.moves_per_job_day_max} are allowed (moves_per_job_day_max)"
        )
    return None


def _refuse_stop(
    ledger: ClusterLedger, stops_max: int, subject: str, now_unix_s: float
) -> str | None:
    """Return why no further training job of this subject may be stopped within the hour, or None.

    All stops together are at most ``stops_max``, whatever rules, senders and subjects they follow from; a subject has its share of them.
    """
    stops = stops_within_an_hour(ledger, now_unix_s)
    count = stops.total()
    if count >= stops_max:
        return (
            f"{count} training jobs were stopped within the last hour; "
            f"{stops_max} are allowed (stops_per_hour_max)"
        )
    if not subject:
        return None
    own = stops[subject]
    share = share_of(stops_max, count, own)
    if own >= share:
        return (
            f"{own} training jobs of {subject} were stopped within the last hour; {share} of {stops_max} are allowed to one subject, "
            "and the rest is for the others (stops_per_hour_max)"
        )
    return None


def stops_within_an_hour(ledger: ClusterLedger, now_unix_s: float) -> Counter[str]:
    """Return the stops within an hour by subject, without those that people wanted: who restarts his own job takes nothing from others."""
    return Counter(
        spent.subject
        for unix_s, spent in ledger.spent
        if spent.stops_training and not spent.by_person and unix_s > now_unix_s - HOUR_S
    )


def _held_most(policy: ClusterPolicy, nodes_active: int) -> int:
    budgets = policy.budgets
    return min(budgets.nodes_held_max, int(nodes_active * budgets.nodes_held_percent / 100.0))


def budgets_left(
    nodes_active: int, ledger: ClusterLedger, policy: ClusterPolicy, now_unix_s: float
) -> dict[str, int]:
    """Return the rest of each cluster budget, by name."""
    stopped = stops_within_an_hour(ledger, now_unix_s).total()
    stops = policy.budgets.stops_per_hour_max - stopped
    held = _held_most(policy, nodes_active) - len(ledger.held_by_policy(now_unix_s))
    return {"stops_per_hour": max(0, stops), "nodes_held": max(0, held)}


def refuse_power_off(
    requested: PowerOffAsked,
    job_name: str,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
) -> str | None:
    """Return why the node's power must not be switched off now, or None. `refuse_share_of_power` knows whose share it would be."""
    if held := _holds_power_off(requested, job_name, ledger, policy, now_unix_s):
        return held
    if any(
        replace(off, sharer="", witnesses=()) == requested for _unix_s, off in ledger.power_offs
    ):
        return "it was asked for in this incident already"
    count = sum(unix_s > now_unix_s - HOUR_S for unix_s, _one in ledger.power_offs)
    most = policy.budgets.power_offs_per_hour_max
    if count >= most:
        return f"{count} within the last hour; {most} are allowed (power_offs_per_hour_max)"
    return None


def refuse_share_of_power(
    ledger: ClusterLedger, policy: ClusterPolicy, now_unix_s: float, sharer: str
) -> str | None:
    """Return why no further node must lose its power for what launchers of this subject report, or None."""
    most = policy.budgets.power_offs_per_hour_max
    lately = Counter(
        off.sharer for unix_s, off in ledger.power_offs if unix_s > now_unix_s - HOUR_S
    )
    own = lately[sharer]
    share = share_of(most, lately.total(), own)
    if own < share:
        return None
    return (
        f"{counted(own, 'node')} within the last hour for what launchers of {sharer} report, their share of power_offs_per_hour_max: "
        f"{share} of {most}"
    )


def _holds_power_off(
    requested: PowerOffAsked,
    job_name: str,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
) -> str | None:
    """Return by what a person holds back what rankmend does by itself, or None."""
    for scope in ("cluster", f"job:{requested.job_id}", f"node:{requested.node}"):
        if (paused := ledger.paused.get(scope)) is not None:
            return f"paused ({scope}) by {paused.who}"
    if ledger.window_of(requested.node, now_unix_s) is not None:
        return "the node is in maintenance"
    if (why := policy.why_observed(job_name, (requested.node,))) is not None:
        return f"observe mode ({why})"
    if policy.is_dry_for(job_name):
        return "dry run"
    if policy.approval_for(job_name) is not Approval.OFF:
        return "plans of this job need a person's approval"
    return None


def counts_as_spent(request: PlanRequest) -> bool:
    """Return whether an allowed plan counts against the budgets."""
    is_end = request.step is PlanStep.ESCALATE
    return not is_end and (bool(request.without) or not request.is_standing)


def unusable(node: str, ledger: ClusterLedger, now_unix_s: float) -> str | None:
    """Return why the node must get no ranks now, or None."""
    held = ledger.hold_of(node, now_unix_s)
    if held is not None and held.hold is Hold.DRAIN:
        return f"drained by {held.who}" + (f": {held.reason}" if held.reason else "")
    if held is not None:
        return f"in quarantine: {held.reason}"
    window = ledger.window_of(node, now_unix_s)
    if window is not None:
        return f"in maintenance by {window.who}" + (f": {window.reason}" if window.reason else "")
    return None


def sole_accuser(blames: Sequence[NodeBlame]) -> str:
    """Return the subject whose launchers alone say what is wrong with a node; empty: others say so, too, or all users are one party.

    Slurm, Kubernetes and the node's agent say that a job is there, and not that the node is bad.
    """
    counted = [blame for blame in blames if blame.witness is not Witness.LAUNCHER] or blames
    subjects = {blame.subject for blame in counted}
    is_alone = all(blame.witness in _NO_FAULT for blame in counted)
    return subjects.pop() if is_alone and len(subjects) == 1 else ""


def quarantine(
    node: str,
    nodes_active: int,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
    accuser: str = "",
) -> NodeHeld | str | None:
    """Return the hold for a node that was blamed too often, why it is not held, or None.

    ``nodes_active`` is the number of nodes that ran ranks within the last day: the denominator. ``accuser``: of whose share of the held
    nodes it would be; empty: nobody's.
    """
    rules = policy.quarantine
    if ledger.hold_of(node, now_unix_s) is not None:
        return None
    blames = ledger.blames_since(node, now_unix_s - rules.window_s)
    if blames < rules.blames:
        return None
    held = len(ledger.held_by_policy(now_unix_s))
    most = _held_most(policy, nodes_active)
    if held >= most:
        return (
            f"{node} was blamed in {counted(blames, 'incident')} but is not held back: {counted(held, 'node')} already "
            f"{'is' if held == 1 else 'are'}, "
            f"the limit for {counted(nodes_active, 'node')} that ran ranks within a day is {most}"
        )
    if accuser:
        since_s = now_unix_s - rules.window_s
        own = sum(
            sole_accuser(ledger.blames_of(item, since_s)) == accuser
            for item in ledger.held_by_policy(now_unix_s)
        )
        share = share_of(most, held, own)
        if own >= share:
            return (
                f"{node} was blamed in {counted(blames, 'incident')} but is not held back: {counted(own, 'node')} already "
                f"{'is' if own == 1 else 'are'} for what launchers of {accuser} report, its share of the held nodes: {share} of {most}"
            )
    times = ledger.past(node).quarantines
    hold_s = Backoff(rules.hold_s, rules.hold_s_max).wait_s(times + 1)
    reason = f"blamed in {counted(blames, 'incident')} within {rules.window_s / DAY_S:g} days"
    return NodeHeld(node, Hold.QUARANTINE, "policy", reason, now_unix_s + hold_s)
