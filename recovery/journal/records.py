"""What the journal holds: one frozen dataclass for each kind of record.

The stored form is JSON with the record's kind and the schema version beside it. Within a
major version fields and kinds are only added: an older rankmend ignores fields it does not
know, and keeps and skips kinds it does not know. docs/reference/journal.md lists the kinds.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from detectors.finding import Blame, Evidence, Finding
from rankmend.errors import JournalError
from recovery.journal.cluster_records import CLUSTER_KINDS, ClusterRecord
from recovery.journal.incident_machine import Event
from recovery.journal.leaving import LeaveCause
from recovery.journal.limits import PlanStep as PlanStep  # noqa: PLC0414 - a part of what is stored
from recovery.journal.limits import Policy
from recovery.messages.exchange import Endpoint, RankError, Restore, Stop, StopReason
from recovery.messages.outside import NodeEvidence, PersonCommand, Refusal

MAJOR: Final = 1
# 1: several nodes; 2: progress of steps that count from a checkpoint; 3: causes and symptoms as fields
MINOR: Final = 3
# Of a verdict that is held against a node: what flight recorders say where hardly a dump is missing
# (0.8 and 0.95, detectors/hang/dump_diagnosis.py); Python stacks (0.6) are a hint to people.
SURE_MIN: Final = 0.8
BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # a finding that names 16,384 ranks takes 0.2 MiB


class Cause(Enum):
    """Why an attempt was started."""

    FIRST = "first"
    RESUMED = "resumed"  # the job had ended (planned stop, done, escalated) and was started again
    TAKEOVER = "takeover"  # rankmend itself had ended while ranks ran
    INCIDENT = "incident"


class AttemptResult(Enum):
    DONE = "done"
    STOPPED = "stopped"  # planned
    FAILED = "failed"  # stopped by recovery
    LOST = "lost"  # gone together with rankmend


class OutcomeKind(Enum):
    DONE = "done"
    STOPPED = "stopped"
    TIME_LIMIT = "time_limit"
    ESCALATED = "escalated"


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of one node, in the order of their local ranks."""

    node: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PassedOver:
    path: str
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Where to restore from, and why not from elsewhere."""

    is_possible: bool  # False: starting would lose what an earlier attempt had restored
    restore: Restore | None  # None: from the beginning
    reason: str
    passed_over: tuple[PassedOver, ...] = ()
    modified_unix_s: float | None = None  # of the checkpoint: a file can be written over
    # A person started the job again and what earlier attempts had saved is gone: steps, budgets
    # and checkpoints of before count no more.
    is_new_run: bool = False

    @property
    def identity(self) -> str:
        """Tell this checkpoint from another one that was at the same path."""
        return "" if self.restore is None else f"{self.restore.path}@{self.modified_unix_s}"


@dataclass(frozen=True, slots=True)
class Plan:
    step: PlanStep
    reason: str
    evidence: tuple[Evidence, ...]
    choice: Choice | None = None  # made after the fence, and journaled with the attempt
    without: tuple[str, ...] = ()  # nodes that are left


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended, and with what the launcher exits."""

    kind: OutcomeKind
    exit_code: int
    reason: str
    incident_id: str | None = None
    rank: int | None = None  # the first that failed
    error: RankError | None = None  # and what it said


@dataclass(frozen=True, slots=True)
class JobOpened:
    job_id: str
    name: str


@dataclass(frozen=True, slots=True)
class LauncherStarted:
    """rankmend took the job up: the first time, after an end, or after its own death."""

    nodes: tuple[str, ...]
    world_size: int
    pid: int
    rankmend_version: str
    epoch: int = 0  # of this start, above all before; 0 from a version that did not count
    controller_id: str = ""


class ClaimProof(Enum):
    """Why a checkpoint folder may be taken from an owner that has not released it."""

    PROCESSES = "processes"  # same boot, and its launcher is gone
    BOOT = "boot"  # its machine is this one, and was booted anew
    PERSON = "person"  # --take-over


@dataclass(frozen=True, slots=True)
class ClaimTaken:
    """The checkpoint folder was taken from an owner that had not released it."""

    owner: str  # job, process, host, since when
    proof: ClaimProof
    by: str


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """Durable before the order that starts the ranks."""

    attempt: int
    cause: Cause
    choice: Choice
    incident_id: str | None = None
    try_number: int | None = None
    is_progress: bool = False  # its checkpoint is newer than any that an attempt began from before
    placement: tuple[Placement, ...] = ()  # in the order of group ranks; (): that of the settings
    rendezvous: Endpoint | None = None  # where its ranks meet; None: the launcher chooses


@dataclass(frozen=True, slots=True)
class AttemptVerified:
    """Every rank of the attempt has made its steps. Ages are those of the slowest rank."""

    attempt: int
    is_comparable: bool  # its steps can be compared with those of other attempts
    telling_ranks: tuple[int, ...]  # ranks that tell their steps
    attached_age_s: float | None = None
    resumed_age_s: float | None = None
    first_section_age_s: float | None = None
    first_step_age_s: float | None = None
    first_step: int | None = None  # lowest number that a rank began with


@dataclass(frozen=True, slots=True)
class Milestone:
    """The highest step that any rank has told in this attempt."""

    attempt: int
    step: int
    # Every rank has made this one, too: where ranks do not wait for each other, the highest step
    # is that of the rank that nothing has stopped. None from a version that did not tell.
    floor_step: int | None = None


@dataclass(frozen=True, slots=True)
class RelativeMilestone:
    """How many steps an attempt has made whose ranks count from the start of the process."""

    attempt: int
    steps: int  # the most of any rank
    floor_steps: int | None  # the fewest; None where not every rank has told


@dataclass(frozen=True, slots=True)
class RanksDone:
    """Every rank ended with exit code 0."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptAbandoned:
    """rankmend came back and did not find the attempt's ranks: what is left of it is stopped."""

    attempt: int
    reason: str


class Proof(Enum):
    """How a node without its launcher's word is known to be empty (docs/operate/fencing.md)."""

    BOOT = "boot"  # it was booted anew
    LEASE = "lease"  # its launcher was alone for so long that it has stopped its ranks
    PERSON = "person"  # a person has said so
    LAST_WORD = "last_word"  # its launcher has ended, and what that had started was seen to be gone


@dataclass(frozen=True, slots=True)
class GoneProof:
    node: str
    proof: Proof
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """No process of the attempt is left on any node: the proof that allows the next."""

    attempt: int
    result: AttemptResult
    proofs: tuple[GoneProof, ...] = ()  # of nodes whose launcher has not said it


@dataclass(frozen=True, slots=True)
class Joined:
    """A node as its launcher tells of itself."""

    node: str
    launcher_id: str
    boot_id: str
    slots: int
    peer_endpoint: Endpoint | None = None
    launcher_started_s: float = 0.0  # compares within one boot


@dataclass(frozen=True, slots=True)
class NodesJoined:
    """Nodes that joined the job, came back to it, or whose launcher or boot is another now."""

    nodes: tuple[Joined, ...]


@dataclass(frozen=True, slots=True)
class EndedLauncher:
    """A launcher that carries out no further order, and left no process behind."""

    node: str
    launcher_id: str
    empty_through: int  # also of every attempt that was ordered from it


@dataclass(frozen=True, slots=True)
class LaunchersEnded:
    """Launchers ended and said so, or their guardians for them: their nodes are empty."""

    launchers: tuple[EndedLauncher, ...]


@dataclass(frozen=True, slots=True)
class AttemptHeard:
    """Nodes run an attempt that this journal knows nothing of: it is a copy, or was lost in part."""

    attempt: int
    nodes: tuple[str, ...]  # all that joined: any of them may run it


@dataclass(frozen=True, slots=True)
class Adopted:
    """A running attempt that this journal did not know goes on under this controller."""

    attempt: int
    epoch: int  # of this controller from now on, above all that its launchers have heard of
    followed_epoch: int  # the highest that they had heard of
    placement: tuple[Placement, ...]  # a node that is not known by name is "?" and its group rank
    nodes: tuple[Joined, ...]  # the launchers of the placement
    heard: tuple[str, ...]  # nodes that were there; others get no ranks until a person confirms
    restarts: int
    is_history_lost: bool  # this journal knew no attempt: budgets count as spent until confirmed
    restore: Restore | None = None
    rendezvous: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The job gives the node no ranks any more."""

    node: str
    reason: str
    is_lost: bool  # silent or cut off, it may come back by speaking; else only by a person's word
    incident_id: str | None = None
    cause: LeaveCause = LeaveCause.UNKNOWN
    cut_off_from: tuple[str, ...] = ()  # nodes it does not reach; it may return once they have left


@dataclass(frozen=True, slots=True)
class FinderChosen:
    """The node whose launcher is to look for checkpoints now."""

    node: str
    attempt: int  # which is gone, with all before
    reason: str


class WaitsFor(Enum):
    """What a plan waits for."""

    LEAVE = "leave"  # an approval, or the end of a pause or a dry run: a person can give it
    NODES = "nodes"  # that may be used: no approval replaces them


class WaitCause(Enum):
    """What keeps a plan from being carried out."""

    UNKNOWN = "unknown"  # of a version that did not say
    UNCONFIRMED = "unconfirmed"  # the journal was lost, and no person has confirmed the budgets
    PAUSED = "paused"  # the job, a node or the cluster
    DRY_RUN = "dry_run"
    APPROVAL = "approval"
    CLUSTER = "cluster"  # the cluster says no for another reason
    NODES = "nodes"  # too few may be used


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a plan waits. What waits for the same cause about the same is journaled once."""

    cause: WaitCause
    text: str
    about: str = ""  # names and counts: who paused which scope, how many nodes are there


@dataclass(frozen=True, slots=True)
class PlanWaits:
    """A plan is ready and must not, or can't, be carried out yet."""

    incident_id: str
    try_number: int
    plan: Plan
    reason: str
    waits_for: WaitsFor = WaitsFor.LEAVE
    cause: WaitCause = WaitCause.UNKNOWN
    about: str = ""


@dataclass(frozen=True, slots=True)
class FenceWaits:
    """Nodes are silent and nothing proves that their ranks are gone: a person may know."""

    attempt: int
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class EvidenceTaken:
    """Alerts about nodes of the job, each once an attempt, and what was made of them."""

    evidence: tuple[NodeEvidence, ...]
    attempt: int
    incident_id: str | None  # that they join
    reason: str


@dataclass(frozen=True, slots=True)
class PersonActed:
    """A person's command, and what was made of it."""

    command: PersonCommand
    result: str
    is_refused: bool = False
    refusal: Refusal | None = None  # None: obeyed, or refused by a rankmend that did not say it


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of an attempt: what was found, and how far the attempt had come."""

    attempt: int
    finding: Finding
    exit_code: int  # with which the launcher would end if this were the last word
    rank: int | None  # the first culprit
    error: RankError | None
    step: int | None  # the culprit's newest step, else the attempt's
    is_relative: bool  # steps count from the start of the process
    telling_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IncidentOpened:
    incident_id: str
    failure: Failure
    fault_age_s: float  # how long before this record the fault happened
    highest_step: int | None  # ever, over all attempts
    policy: Policy  # the limits in force


@dataclass(frozen=True, slots=True)
class TryFailed:
    """An incident's try failed. Durable before the event that says so."""

    incident_id: str
    try_number: int
    reason: str
    failure: Failure | None  # None where the ranks never ran


@dataclass(frozen=True, slots=True)
class Decided:
    incident_id: str
    try_number: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class IncidentEvent:
    event: Event


@dataclass(frozen=True, slots=True)
class SavedEvidence:
    """What one node's launcher has saved."""

    node: str
    folder: str
    files: int
    size_bytes: int
    took_s: float
    notes: tuple[str, ...]  # what could not be had, and why


@dataclass(frozen=True, slots=True)
class EvidenceCollected:
    """Evidence of an incident lies on its nodes, and what it says of a hang."""

    incident_id: str
    attempt: int
    saved: tuple[SavedEvidence, ...]
    finding: Finding | None = None  # the incident's, after the evidence; None: as it was
    cause: str = ""  # class of the verdict; empty: it adds nothing
    reason: str = ""  # in one sentence
    confidence: float = 0.0

    @property
    def is_sure(self) -> bool:
        """Whether it names ranks of one node, surely enough to hold that against the node."""
        accused = self.finding
        names_one = accused is not None and accused.blame is Blame.RANK and bool(accused.node)
        return names_one and self.confidence >= SURE_MIN


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The highest step from before the incident was passed."""

    incident_id: str
    attempt: int
    step: int  # the first beyond it
    age_s: float = 0.0  # how long before this record a rank made it


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody asked for the job to end; never an incident."""

    reason: str  # in words
    stop: Stop
    grace_s: float
    cause: StopReason = StopReason.PERSON


@dataclass(frozen=True, slots=True)
class SlowFound:
    """A rank is slower than its peers. It is named; training goes on."""

    attempt: int
    rank: int
    section: str  # what grew: compute, communication, io
    factor: float  # own work, against the peers'
    onset_step: int
    finding: Finding
    step_factor: float = 1.0  # every step of the job takes so many times as long
    is_always: bool = False  # since the attempt's start


@dataclass(frozen=True, slots=True)
class SlowExplained:
    """What hardware shows of why a rank is slow."""

    attempt: int
    rank: int
    cause: str  # of detectors.slow.cause_table; empty: hardware shows nothing, or was not measured
    reason: str  # one sentence
    confidence: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class SlowEnded:
    attempt: int
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    outcome: JobOutcome
    is_empty: bool  # every rank was proved gone


@dataclass(frozen=True, slots=True)
class BudgetsReset:
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class TailCut:
    """Opening the journal found an unfinished end and removed it."""

    first_number: int
    rows: int
    wal_frames: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordsLost:
    """The copy of the budgets knows more than the journal: the stricter of both goes on."""

    journal_number: int
    copy_number: int
    attempt: int
    restarts: int
    restarts_without_progress: int
    highest_step: int | None
    nodes: tuple[str, ...] = ()  # of that attempt, by group rank
    has_lease: bool = False  # its launchers keep one


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A record of a newer rankmend: kept in the journal, skipped here."""

    kind: str
    body: bytes


KnownRecord: TypeAlias = (
    JobOpened
    | LauncherStarted
    | ClaimTaken
    | AttemptStarted
    | AttemptVerified
    | Milestone
    | RelativeMilestone
    | RanksDone
    | AttemptAbandoned
    | AttemptEnded
    | IncidentOpened
    | TryFailed
    | Decided
    | IncidentEvent
    | EvidenceCollected
    | CaughtUp
    | SlowFound
    | SlowExplained
    | SlowEnded
    | StopRequested
    | JobEnded
    | BudgetsReset
    | TailCut
    | RecordsLost
    | NodesJoined
    | LaunchersEnded
    | AttemptHeard
    | Adopted
    | NodeLeft
    | FinderChosen
    | PlanWaits
    | FenceWaits
    | EvidenceTaken
    | PersonActed
    | ClusterRecord
)
Record: TypeAlias = KnownRecord | UnknownRecord

KINDS: Final[dict[str, type[KnownRecord]]] = {
    "job_opened": JobOpened,
    "launcher_started": LauncherStarted,
    "claim_taken": ClaimTaken,
    "attempt_started": AttemptStarted,
    "attempt_verified": AttemptVerified,
    "milestone": Milestone,
    "relative_milestone": RelativeMilestone,
    "ranks_done": RanksDone,
    "attempt_abandoned": AttemptAbandoned,
    "attempt_ended": AttemptEnded,
    "incident_opened": IncidentOpened,
    "try_failed": TryFailed,
    "decided": Decided,
    "incident_event": IncidentEvent,
    "evidence_collected": EvidenceCollected,
    "caught_up": CaughtUp,
    "slow_found": SlowFound,
    "slow_explained": SlowExplained,
    "slow_ended": SlowEnded,
    "stop_requested": StopRequested,
    "job_ended": JobEnded,
    "budgets_reset": BudgetsReset,
    "tail_cut": TailCut,
    "records_lost": RecordsLost,
    "nodes_joined": NodesJoined,
    "launchers_ended": LaunchersEnded,
    "attempt_heard": AttemptHeard,
    "adopted": Adopted,
    "node_left": NodeLeft,
    "finder_chosen": FinderChosen,
    "plan_waits": PlanWaits,
    "fence_waits": FenceWaits,
    "evidence_taken": EvidenceTaken,
    "person_acted": PersonActed,
    **CLUSTER_KINDS,
}
_NAMES: Final = {record: name for name, record in KINDS.items()}
_DECODERS: Final = {
    name: msgspec.json.Decoder(record, strict=True) for name, record in KINDS.items()
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in its place: number, and when it was written by which clock."""

    number: int  # 1 for the first, without gaps
    unix_s: float
    monotonic_s: float  # compares only within one boot
    boot_id: str
    record: Record


def kind_of(record: Record) -> str:
    return record.kind if isinstance(record, UnknownRecord) else _NAMES[type(record)]


def encode_record(record: Record) -> bytes:
    """Return the stored form of a record."""
    body = record.body if isinstance(record, UnknownRecord) else msgspec.json.encode(record)
    if len(body) > BODY_BYTES_MAX:
        raise JournalError(
            f"a {kind_of(record)} record of {len(body)} bytes is over the limit of {BODY_BYTES_MAX}"
        )
    return body


def decode_record(kind: str, major: int, minor: int, body: bytes) -> Record:
    """Return the record of a stored form, or an UnknownRecord for a newer version's kind."""
    if major != MAJOR:
        raise JournalError(f"a {kind} record of version {major}.{minor}, this reads {MAJOR}.x")
    decoder = _DECODERS.get(kind)
    if decoder is None:
        if minor <= MINOR:
            raise JournalError(f"kind {kind!r} does not exist in version {major}.{minor}")
        return UnknownRecord(kind, body)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JournalError(f"a {kind} record can't be read: {error}") from error
