"""Records of the cluster's journal. Same form, file and rules as a job's (`recovery.journal.records`)."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from detectors.node.charges import ChargeKind
from recovery.journal.observation_records import FabricProbeAsked, FabricProbeEnded
from recovery.journal.witnesses import Witness


class Hold(Enum):
    """Why a node gets no ranks."""

    DRAIN = "drain"  # by a person, until a person takes it back
    QUARANTINE = "quarantine"  # blamed repeatedly; the time doubles each time


@dataclass(frozen=True, slots=True)
class NodeBlamed:
    """An incident of a job counts against a node."""

    node: str
    job_id: str
    incident_id: str
    summary: str
    kind: str = ""  # value of the finding's Kind; empty from an older controller
    evidence: ChargeKind = ChargeKind.UNKNOWN  # why it counts
    subject: str = ""  # the job's owner; empty: of an older controller, or nobody but the operator
    witness: Witness = Witness.LAUNCHER  # who else says so
    was_there: bool = (
        False  # the nodes' manager or the node's agent has confirmed the subject on the node
    )


@dataclass(frozen=True, slots=True)
class NodeErrorNoted:
    """A rank on the node had an error that counts nothing, unless a job of another script has it there, too."""

    node: str
    job_id: str
    incident_id: str
    evidence: ChargeKind
    error: str  # its class
    program: str  # the job's script
    is_here_alone: bool
    subject: str = ""  # as of NodeBlamed
    was_there: bool = False


@dataclass(frozen=True, slots=True)
class BlameConfirmed:
    """What incidents count against a node rests on more than launchers: the node's agent has reported the job there since."""

    node: str
    job_id: str
    incident_ids: tuple[str, ...]
    witness: Witness = Witness.AGENT


@dataclass(frozen=True, slots=True)
class BlameTakenBack:
    """What incidents had counted against nodes counts no more: the program itself fails."""

    job_id: str
    incident_ids: tuple[str, ...]
    nodes: tuple[str, ...]  # against which they counted
    released: tuple[str, ...]  # nodes that the policy held back for it, and holds no more
    reason: str


@dataclass(frozen=True, slots=True)
class LemonFound:
    """A node failed so often that the policy keeps it out of use, or (dry) would."""

    node: str
    kind: str  # of the limit: value of a Kind, or "any"
    faults: int
    limit: int
    days: float
    is_dry: bool
    reason: str


@dataclass(frozen=True, slots=True)
class NodeHeld:
    node: str
    hold: Hold
    who: str  # "policy", or the person
    reason: str
    until_unix_s: float | None  # None: until it is released


@dataclass(frozen=True, slots=True)
class NodeReleased:
    """A person released the node: jobs may use it again, and its past is forgotten."""

    node: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """Automation is paused within the scope: ``cluster``, ``job:UUID`` or ``node:NAME``."""

    scope: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unpaused:
    scope: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Spent:
    """An allowed plan that counts against the cluster's budgets."""

    job_id: str
    incident_id: str
    try_number: int
    step: str
    nodes: tuple[str, ...]  # nodes that the job leaves
    stops_training: bool  # the job was still training
    subject: str = ""  # the job's owner; empty: of an older controller
    by_person: bool = (
        False  # a person wants or has approved it: the stops of others don't wait for that
    )


@dataclass(frozen=True, slots=True)
class WindowAdded:
    """Maintenance of the nodes: they get no ranks, and their alerts have no effect."""

    window_id: str
    nodes: tuple[str, ...]  # names or shell patterns
    from_unix_s: float
    until_unix_s: float
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class WindowRemoved:
    window_id: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A person acknowledged an incident that was given up: its notices stop."""

    incident_id: str
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class PowerOffAsked:
    """A lost node's BMC is about to get the request to switch its power off. In the job's journal, too."""

    node: str
    job_id: str
    incident_id: str
    sharer: str = ""  # in the cluster's journal: the subject to whose share of the bounds it counts; empty: nobody's
    witnesses: tuple[
        Witness, ...
    ] = ()  # in the cluster's journal: who says so beside the job's launchers


@dataclass(frozen=True, slots=True)
class WatchedAsked:
    """The scheduler is about to get the request to act on a job of another launcher, or (dry) would get it."""

    key: str  # one hang of the job
    job_id: str
    job: str
    slurm_job: str
    action: str  # value of recovery.controller.cluster.cluster_limits.WatchedAction
    nodes: tuple[str, ...]
    reason: str
    is_dry: bool
    user: str = ""  # whose job it is; empty: of an older controller, or not known


class NotDoneAct(Enum):
    """What rankmend would have done to a node."""

    QUARANTINE = "quarantine"
    POWER_OFF = "power_off"
    KEEP_OUT = "keep_out"


@dataclass(frozen=True, slots=True)
class NotDone:
    """What would have been done to a node, and was not: observe mode, or only launchers' word for it."""

    act: NotDoneAct
    node: str
    job_id: str
    incident_id: str
    reason: str
    is_observed: bool = True  # False: nobody but the job's launchers accuses the node


@dataclass(frozen=True, slots=True)
class CauseTold:
    """A cause of which people are notified in one message, as of now: the newest record of a cause counts."""

    cause_id: str  # the first incident's id, or the key of another trouble
    since_unix_s: float
    job_id: str  # of the first trouble; these are labels of the message and stay as they are
    job: str
    node: str
    severity: str  # the worst so far
    what: str
    members: tuple[str, ...] = ()  # keys of troubles
    incident_ids: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    job_ids: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    about: str = ""  # of findings without an incident: the alert's name, on however many nodes
    blames_node: bool = False  # a fault of its nodes, and not only something that happened there
    is_loss: bool = False  # nodes or links are lost: others may be lost with them
    gpus_idle: int = 0
    gpu_s_lost: float = 0.0  # GPU-seconds until this record
    paged_unix_s: float | None = (
        None  # since when people have a message of it; None: they have none
    )
    is_ended: bool = False  # its jobs have ended: their GPUs are no longer counted as lost
    is_over: bool = False
    end: str = ""  # how it ended, in words
    stage: str = ""  # the latest so far, as in recovery.service.paging.trouble
    part: str = ""  # that its nodes share and that explains them, in words; empty: none is known
    owner: str = ""  # the subject of the first job; empty: of none, of an older controller, or all users are one party


ClusterRecord: TypeAlias = (
    NodeBlamed
    | NodeErrorNoted
    | BlameConfirmed
    | BlameTakenBack
    | NodeHeld
    | NodeReleased
    | Paused
    | Unpaused
    | Spent
    | WindowAdded
    | WindowRemoved
    | Acknowledged
    | PowerOffAsked
    | WatchedAsked
    | CauseTold
    | NotDone
    | LemonFound
    | FabricProbeAsked
    | FabricProbeEnded
)

CLUSTER_KINDS: Final[dict[str, type[ClusterRecord]]] = {
    "node_blamed": NodeBlamed,
    "node_error_noted": NodeErrorNoted,
    "blame_confirmed": BlameConfirmed,
    "blame_taken_back": BlameTakenBack,
    "node_held": NodeHeld,
    "node_released": NodeReleased,
    "paused": Paused,
    "unpaused": Unpaused,
    "spent": Spent,
    "window_added": WindowAdded,
    "window_removed": WindowRemoved,
    "acknowledged": Acknowledged,
    "power_off_asked": PowerOffAsked,
    "watched_asked": WatchedAsked,
    "cause_told": CauseTold,
    "not_done": NotDone,
    "lemon_found": LemonFound,
    "fabric_probe_asked": FabricProbeAsked,
    "fabric_probe_ended": FabricProbeEnded,
}
