"""What is requested of Slurm, or of another manager of nodes: one request is one intent, named by its key, however often it is asked."""

import enum
import hashlib
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from rankmend.printable import printable
from recovery.journal.slurm_records import SlurmAct, SlurmOutcome


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


# How we know our own drains and jobs again: a mark in the reason or comment, made from the request's key. Pure.


OURS: Final = "rankmend: "
_REASON_MAX: Final = 200
_MARK_LENGTH: Final = 12


def mark_of(key: str) -> str:
    """Return the mark of a request."""
    return hashlib.sha256(key.encode()).hexdigest()[:_MARK_LENGTH]


def reason_of(key: str, reason: str) -> str:
    """Return what Slurm shows with a node that we drain."""
    text = " ".join(printable(reason).replace("[", "(").replace("]", ")").split())
    return f"{OURS}{text[:_REASON_MAX] or 'put out of service'} #{mark_of(key)}"


def mark_in(reason: str) -> str | None:
    """Return the mark in a node's reason, or None where the reason is not of our form."""
    head, _hash, mark = reason.rpartition(" #")
    if not head.startswith(OURS) or len(mark) != _MARK_LENGTH:
        return None
    return mark if all(char in "0123456789abcdef" for char in mark) else None


def comment_of(key: str) -> str:
    """Return the comment of a job that we submit, by which it is found again."""
    return f"rankmend-{mark_of(key)}"


# What a state machine of this package wants next. Values only.


@dataclass(frozen=True, slots=True)
class Do:
    """Journal the act, then run its command."""

    act: SlurmAct
    about: str  # the node or job
    nodes: tuple[str, ...] = ()  # of EXCLUDE


@dataclass(frozen=True, slots=True)
class MoveWait:
    """Look again later."""

    text: str


@dataclass(frozen=True, slots=True)
class See:
    """Journal the job as it is, before it is touched."""


@dataclass(frozen=True, slots=True)
class MoveEnd:
    outcome: SlurmOutcome
    text: str


Move: TypeAlias = Do | MoveWait | See | MoveEnd
