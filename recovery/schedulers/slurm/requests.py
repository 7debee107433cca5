"""What is requested of Slurm, or of another manager of nodes: one request is one intent, named by its key, however often it is asked."""

import enum
from dataclasses import dataclass
from typing import Protocol


class SchedulerAction(str, enum.Enum):
    DRAIN = "drain"  # the nodes take no new jobs
    RESUME = "resume"  # undo our own drain of the nodes
    REBOOT = "reboot"  # the nodes restart as soon as they are empty
    CANCEL = "cancel"  # the job ends
    REQUEUE = "requeue"  # the job waits for nodes again, without the named ones
    EVICT = "evict"  # pods of a job of ours leave the nodes (Kubernetes)


@dataclass(frozen=True, slots=True)
class SchedulerRequest:
    key: str  # the same intent has the same key: it is carried out once
    action: SchedulerAction
    nodes: tuple[
        str, ...
    ] = ()  # names as Slurm has them; for CANCEL and REQUEUE those to do without
    slurm_job: str = ""  # its number, for CANCEL and REQUEUE
    reason: str = ""  # one line for people; Slurm shows it with a drained node
    owner: str = ""  # whose job it is said to be, by name or uid: Slurm must confirm it
    seen_on: tuple[
        str, ...
    ] = ()  # with an owner: where the ranks were seen, one of which must be the job's
    slurm_step: str = (
        ""  # REQUEUE only if no other step of the Slurm job runs; empty: whatever runs
    )
    shared_by: tuple[
        str, ...
    ] = ()  # other jobs of ours in the same Slurm job, which a requeue would end
    pods_of: str = ""  # EVICT: the job, as its pods' label has it
    # DRAIN, EVICT: the job's owner. The manager must have something of theirs on the node: launchers alone accuse it.
    subject: str = ""
    vouched: tuple[str, ...] = ()  # DRAIN: nodes for which another witness speaks
    # Pods (namespace/name/uid) whose own tokens have proved that they are the owner's. EVICT: these are meant, and no others. DRAIN: one
    # that is on the node is the owner's part there.
    pods: tuple[str, ...] = ()
    job_id: str = ""  # DRAIN: the job of ours that leaves the nodes: their agents may confirm that it runs there
    # DRAIN, REQUEUE, EVICT: the subject whose launchers alone say that something is wrong: it has a share of the bounds.
    sharer: str = ""


class Scheduler(Protocol):
    def ask(self, request: SchedulerRequest, /) -> None:
        """Have the request carried out, once for each key. Returns at once, with the request durable.

        Raises ConfigError for a request that makes no sense, and JournalError where it can't be kept.
        """
        ...
