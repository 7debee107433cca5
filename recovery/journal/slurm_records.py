"""Records of what was requested of Slurm or Kubernetes, and what came of it. Same form and rules as a job's (`recovery.journal.records`).

Each of the two has a journal of its own, in the controller's state folder.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias


class SlurmAct(Enum):
    """What is done to Slurm, or to Kubernetes: durable before the command runs."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    REBOOT = "reboot"
    CANCEL = "cancel"
    HOLD = "hold"
    REQUEUE = "requeue"  # by the job itself, which can let go nothing afterwards
    REQUEUE_HOLD = "requeue_hold"
    EXCLUDE = "exclude"
    START = "start"
    REQUEUE_AGAIN = "requeue_again"  # a job that ended in place of starting
    EVICT = "evict"  # a pod of Kubernetes, within its budgets
    DELETE_POD = "delete_pod"  # at once: nothing of it runs any longer
    SUBMIT = "submit"  # its saved script, where it can't be requeued again


class SlurmOutcome(Enum):
    DONE = "done"  # and read back
    DRY = "dry"  # it would have been done
    LEFT = "left"  # nothing of ours: a person's drain or hold, a job that ended by itself
    REFUSED = "refused"  # by a bound
    FAILED = "failed"


class ReturnStep(Enum):
    """What a drained node has to pass before it returns."""

    CHECK = "return_check"
    BURN_IN = "burn_in"


@dataclass(frozen=True, slots=True)
class SlurmAsked:
    key: str
    action: str  # value of recovery.schedulers.slurm.requests.SchedulerAction
    nodes: tuple[str, ...]
    slurm_job: str
    reason: str
    owner: str = ""
    seen_on: tuple[str, ...] = ()
    slurm_step: str = ""
    shared_by: tuple[str, ...] = ()
    pods_of: str = ""
    subject: str = ""  # who must have an allocation or pods on a node; empty: it needs no such word
    vouched: tuple[str, ...] = ()  # nodes that need no such word
    pods: tuple[
        str, ...
    ] = ()  # namespace/name/uid of the pods that are meant; none: by name and namespace
    job_id: str = (
        ""  # DRAIN: the job of ours that leaves the nodes; empty: none, or of an older controller
    )
    sharer: str = ""  # the subject to whose share of the bounds it counts; empty: nobody's


@dataclass(frozen=True, slots=True)
class SlurmJobSeen:
    """The job as it was before we touched it."""

    key: str
    state: str
    restarts: int
    nodes: tuple[str, ...]
    output: str
    script: str  # file with its batch script; empty: it could not be saved
    options: tuple[str, ...]  # with which the script would be submitted


@dataclass(frozen=True, slots=True)
class SlurmActs:
    """A command is about to run."""

    key: str
    act: SlurmAct
    about: str  # the node or job
    output_mark: str = ""  # of the job's output at this time; empty: it can't be read from here


@dataclass(frozen=True, slots=True)
class SlurmNodeEnded:
    """What came of a request for one of its nodes."""

    key: str
    node: str
    outcome: SlurmOutcome
    text: str
    subject: str = (
        ""  # whom the manager has on the node; empty: it was not queried, or has nothing of theirs
    )


@dataclass(frozen=True, slots=True)
class SlurmSubmitted:
    """The job goes on under another number."""

    key: str
    slurm_job: str


@dataclass(frozen=True, slots=True)
class SlurmEnded:
    key: str
    outcome: SlurmOutcome
    text: str


@dataclass(frozen=True, slots=True)
class SlurmDrainOver:
    """A node that we had drained is not drained by us any more: by a person, or by our own resume."""

    node: str
    text: str


@dataclass(frozen=True, slots=True)
class SlurmNodeChecked:
    """A check before a drained node's return has ended."""

    node: str
    is_passed: bool
    text: str  # the last line of its output
    step: ReturnStep = ReturnStep.CHECK
    exit_code: int | None = None  # None: it could not be run, or did not end in time


@dataclass(frozen=True, slots=True)
class SlurmNodeEmpty:
    """A node that we have drained is seen drained and empty, or not any more: from then on its check waits."""

    node: str
    is_empty: bool


@dataclass(frozen=True, slots=True)
class SlurmReturnAllowed:
    """A person lets a node return whose past keeps it out."""

    node: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class SlurmDrainSeen:
    """Somebody else has drained a node that an incident is about."""

    node: str
    who: str  # as Slurm has it: a user, with the time
    reason: str


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """The pods that a request is about: those that were there when it was begun, and no later ones."""

    key: str
    pods: tuple[str, ...]  # namespace/name/uid


@dataclass(frozen=True, slots=True)
class PodEnded:
    """What came of a request for one of its pods."""

    key: str
    pod: str
    outcome: SlurmOutcome
    text: str


@dataclass(frozen=True, slots=True)
class PodProved:
    """A launcher that has joined a job runs in this pod: Kubernetes has reviewed the token of the pod, and has the pod on this node."""

    job_id: str
    node: str
    launcher_id: str
    pod: str  # namespace/name/uid
    subject: str = ""  # the job's owner


@dataclass(frozen=True, slots=True)
class SlurmVouched:
    """After a drain was requested, the node's agent has reported that the job runs there: the request needs no other word."""

    key: str
    node: str


SlurmRecord: TypeAlias = (
    SlurmAsked
    | SlurmJobSeen
    | SlurmActs
    | SlurmNodeEnded
    | SlurmSubmitted
    | SlurmEnded
    | SlurmDrainOver
    | SlurmNodeChecked
    | SlurmNodeEmpty
    | SlurmReturnAllowed
    | SlurmDrainSeen
    | PodsSeen
    | PodEnded
    | PodProved
    | SlurmVouched
)

SLURM_KINDS: Final[dict[str, type[SlurmRecord]]] = {
    "slurm_asked": SlurmAsked,
    "slurm_job_seen": SlurmJobSeen,
    "slurm_acts": SlurmActs,
    "slurm_node_ended": SlurmNodeEnded,
    "slurm_submitted": SlurmSubmitted,
    "slurm_ended": SlurmEnded,
    "slurm_drain_over": SlurmDrainOver,
    "slurm_node_checked": SlurmNodeChecked,
    "slurm_node_empty": SlurmNodeEmpty,
    "slurm_return_allowed": SlurmReturnAllowed,
    "slurm_drain_seen": SlurmDrainSeen,
    "pods_seen": PodsSeen,
    "pod_ended": PodEnded,
    "pod_proved": PodProved,
    "slurm_vouched": SlurmVouched,
}
