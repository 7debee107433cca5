"""Whether a bound forbids what is requested of the nodes' manager, or of Slurm alone. Pure."""

import re
from collections.abc import Collection
from typing import Final

from recovery.journal.witnesses import OutsideAct, Witness, allows, share_of
from recovery.schedulers.slurm.answers import JobInSlurm
from recovery.schedulers.slurm.ledger import SlurmLedger
from recovery.schedulers.slurm.limits import DAY_S, HOUR_S, NodeLimits, SlurmLimits
from recovery.schedulers.slurm.requests import SchedulerRequest

_NAMED_MAX: Final = 4
_USER: Final = re.compile(r"(.+)\(([0-9]+)\)")  # UserId of `scontrol show job`


def refuse_drain(
    ledger: SlurmLedger,
    limits: NodeLimits,
    node_count: int,
    now_unix_s: float,
    sharer: str = "",
) -> str | None:
    """Return why one more node must not be drained, or None. ``sharer``: of whose share it would be; empty: nobody's."""
    ours = len(ledger.ours)
    if ours >= limits.nodes_drained_max:
        return f"{ours} nodes are drained by rankmend: {limits.table}.nodes_drained_max is {limits.nodes_drained_max}"
    # One node may always go: a share of a small cluster would be none.
    if ours and 100.0 * (ours + 1) > limits.nodes_drained_percent * node_count:
        return (
            f"{ours} of {node_count} nodes are drained by rankmend: "
            f"{limits.table}.nodes_drained_percent is {limits.nodes_drained_percent:g}"
        )
    lately = sum(unix_s > now_unix_s - HOUR_S for unix_s in ledger.drained_unix_s)
    if lately >= limits.drains_per_hour_max:
        return (
            f"{lately} nodes were drained by rankmend within an hour: "
            f"{limits.table}.drains_per_hour_max is {limits.drains_per_hour_max}"
        )
    return _refuse_share(ledger, limits, lately, now_unix_s, sharer) if sharer else None


def _refuse_share(
    ledger: SlurmLedger, limits: NodeLimits, lately: int, now_unix_s: float, sharer: str
) -> str | None:
    """Return which bound the subject has used its share of: what its launchers report must leave room for the faults of others."""
    bounds = (
        ("drains_per_hour_max", limits.drains_per_hour_max, lately, ledger.drains_of(sharer, now_unix_s - HOUR_S)),
        ("nodes_drained_max", limits.nodes_drained_max, len(ledger.ours), ledger.held_of(sharer)),
    )  # fmt: skip
    for name, most, used, own in bounds:
        share = share_of(most, used, own)
        if own >= share:
            return (
                f"{own} nodes were drained for what launchers of {sharer} report, their share of {limits.table}.{name}: "
                f"{share} of {most}"
            )
    return None


def refuse_requeue(
    ledger: SlurmLedger,
    limits: SlurmLimits,
    slurm_job: str,
    now_unix_s: float,
    sharer: str = "",
) -> str | None:
    """Return why the job must not be requeued, or None. ``sharer``: of whose share it would be; empty: nobody's."""
    lately = sum(unix_s > now_unix_s - HOUR_S for unix_s, _job in ledger.requeued)
    if lately >= limits.requeues_per_hour_max:
        return (
            f"{lately} jobs were requeued by rankmend within an hour: "
            f"slurm.requeues_per_hour_max is {limits.requeues_per_hour_max}"
        )
    own = ledger.requeues_of(sharer, now_unix_s - HOUR_S) if sharer else 0
    share = share_of(limits.requeues_per_hour_max, lately, own)
    if sharer and own >= share:
        return (
            f"{own} jobs of {sharer} were requeued by rankmend within an hour, its share of slurm.requeues_per_hour_max: "
            f"{share} of {limits.requeues_per_hour_max}"
        )
    of_job = sum(
        unix_s > now_unix_s - DAY_S and job == slurm_job for unix_s, job in ledger.requeued
    )
    if of_job >= limits.requeues_per_job_day_max:
        return (
            f"job {slurm_job} was requeued by rankmend {of_job} times within a day: "
            f"slurm.requeues_per_job_day_max is {limits.requeues_per_job_day_max}"
        )
    return None


def refuse_foreign_job(
    request: SchedulerRequest, job: JobInSlurm, nodes: Collection[str]
) -> str | None:
    """Return why a job is not the one whose ranks are meant, or None.

    Its number comes from the ranks' user. Who names another's job, by mistake or on purpose, must not
    have it ended by us: its user and one of ``nodes``, where it runs, must be those of the ranks. Without an owner all users are one
    party, and only a slip is to be feared: another job's number.
    """
    if not request.owner and not request.seen_on:
        return None
    user = _USER.fullmatch(job.fields.get("UserId", ""))
    if request.owner and user is None:
        return f"Slurm does not tell whose job {job.number} is"
    if not allows(OutsideAct.REQUEUE, {_witness_of(request.owner, user)}):
        return f"job {job.number} is {user[1] if user else 'unknown'}'s, and the ranks are {request.owner}'s"
    if not set(nodes) & set(request.seen_on):
        return f"job {job.number} runs on {job.nodes or 'no node'}, and the ranks on {', '.join(request.seen_on[:8])}"
    return None


def _witness_of(owner: str, user: re.Match[str] | None) -> Witness:
    """Return whose word says that the job is its ranks' own. ``user``: name and number, as Slurm has them."""
    if not owner:
        return Witness.SINGLE_TENANT
    return Witness.SCHEDULER if user is not None and owner in user.groups() else Witness.LAUNCHER


def refuse_shared_job(request: SchedulerRequest, steps: Collection[str]) -> str | None:
    """Return why a requeue would end what others run in the same allocation, or None. ``steps`` run now."""
    if not request.slurm_step:
        return None
    number = request.slurm_job
    if request.shared_by:
        names = ", ".join(sorted(request.shared_by)[:_NAMED_MAX])
        return f"job {number} is shared: a requeue would also end {names}"
    others = sorted(set(steps) - {request.slurm_step}, key=int)
    if others:
        named = ", ".join(f"{number}.{step}" for step in others[:_NAMED_MAX])
        return f"job {number} is shared: a requeue would also end {named}"
    return None
