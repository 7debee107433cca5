"""A job of ours whose allocation has too few usable nodes: what is requested of Slurm about it. Pure.

The launcher's variables name the Slurm job, so they are its user's word: Slurm has to confirm the owner. Several jobs
may share one allocation, and a requeue ends all of them: the request names the step and the others.
"""

from collections.abc import Collection, Mapping

from recovery.journal.incident_machine import Phase
from recovery.journal.incident_records import WaitsFor
from recovery.journal.ledger import Ledger, OpenIncident
from recovery.journal.node_records import LeaveCause
from recovery.schedulers.slurm.requests import SchedulerAction, SchedulerRequest

_REASON_MAX = 300
_BATCH = "batch"  # a launcher that the batch script started without srun


def waiting_incident(ledger: Ledger) -> OpenIncident | None:
    """Return the incident whose next attempt waits for a usable node: no rank of the job is left anywhere."""
    incident = ledger.incident
    if incident is None or incident.state.phase is not Phase.RESTORING or incident.waits is None:
        return None
    is_paused = ledger.paused_by is not None
    return incident if incident.waits_for is WaitsFor.NODES and not is_paused else None


def unusable_nodes(ledger: Ledger, barred: Collection[str] = ()) -> tuple[str, ...]:
    """Return the nodes that the job has left.

    A node whose launcher has ended is one of them only where more speaks against it: ``barred`` (by an alert, or held in the
    cluster), or charged with the incident. Its end alone says nothing of the machine, and Slurm may have no other for the job. Nor is a
    node one of them that an older plan left and whose launcher has joined again since.
    """
    against = {charge.node for charge in ledger.charged if charge.counts}.union(barred)
    left = {
        node
        for node, member in ledger.members.items()
        if member.left is not None
        and (member.left_cause is not LeaveCause.ENDED or node in against)
    }
    return tuple(sorted(left - ledger.taken_back))


def requeue_request(
    incident: OpenIncident,
    ledger: Ledger,
    attributes: Mapping[str, str],
    owner: str,
    shared_by: tuple[str, ...],
    sharer: str = "",
    barred: Collection[str] = (),
) -> SchedulerRequest | None:
    """Return the request to requeue the job without its bad nodes; None where it is not a Slurm job.

    ``barred``: as in `unusable_nodes`; ``sharer``: to whose share of the requeues it counts; empty: nobody's.
    """
    number = attributes.get("SLURM_JOB_ID", "")
    if not (number.isascii() and number.isdecimal()):
        return None
    incident_id = incident.state.incident_id
    restart = attributes.get("SLURM_RESTART_COUNT", "0")
    reason = f"{incident.last_failure.finding.summary}; no usable node is left ({incident_id})"
    return SchedulerRequest(
        f"requeue/{incident_id}/{number}/{restart}",
        SchedulerAction.REQUEUE,
        unusable_nodes(ledger, barred),
        number,
        reason[:_REASON_MAX],
        owner,
        tuple(sorted(ledger.members)),
        attributes.get("SLURM_STEP_ID") or _BATCH,
        shared_by,
        sharer=sharer,
    )
