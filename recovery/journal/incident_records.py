"""Records of incidents: failures, plans and what they wait for, evidence."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.finding import Blame, Evidence, Finding
from detectors.node.charges import ChargeKind
from recovery.journal.attempt_records import Choice
from recovery.journal.incident_machine import Event
from recovery.journal.limits import PlanStep, Policy
from recovery.messages.exchange import RankError

# Of a verdict that is held against a node: what flight recorders say where hardly a dump is missing
# (0.8 and 0.95, detectors/hang/from_dumps.py); Python stacks (0.6) are a hint to people.
SURE_MIN: Final = 0.8


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of an attempt: the finding, and how far the attempt had come."""

    attempt: int
    finding: Finding
    exit_code: int  # the launcher's exit code if the job ended now
    rank: int | None  # the first culprit
    error: RankError | None
    step: int | None  # the culprit's newest step, else the attempt's
    is_relative: bool  # steps count from the start of the process
    telling_ranks: tuple[int, ...]
    crash_library: str = ""  # in which the culprit crashed, by the kernel's line; empty: not known


class Conclusion(Enum):
    """What a plan that gives up concludes."""

    NOTHING = ""
    PROGRAM_FAILS = "program_fails"  # the same error again and again
    PROGRAM_FAILS_AT_START = (
        "program_fails_at_start"  # on all ranks, before any step of a first attempt
    )

    @classmethod
    def _missing_(cls, _value: object) -> "Conclusion":
        return cls.NOTHING


@dataclass(frozen=True, slots=True)
class Plan:
    step: PlanStep
    reason: str
    evidence: tuple[Evidence, ...]
    choice: Choice | None = None  # made after the fence, and journaled with the attempt
    without: tuple[str, ...] = ()  # nodes that the job leaves
    concludes: Conclusion = Conclusion.NOTHING


@dataclass(frozen=True, slots=True)
class IncidentOpened:
    incident_id: str
    failure: Failure
    fault_age_s: float  # how long before this record the fault happened
    highest_step: int | None  # over all attempts
    policy: Policy  # the limits in force
    # How long before this record a rank last ended a step; None: not known.
    step_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class TryFailed:
    """An incident's try failed. Durable before the event that says so."""

    incident_id: str
    try_number: int
    reason: str
    failure: Failure | None  # None if the ranks never ran


@dataclass(frozen=True, slots=True)
class Decided:
    incident_id: str
    try_number: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class IncidentEvent:
    event: Event


@dataclass(frozen=True, slots=True)
class ChargedNode:
    """One node, and whether an incident counts against it."""

    node: str
    kind: ChargeKind
    counts: bool
    reason: str


@dataclass(frozen=True, slots=True)
class NodesCharged:
    """What an incident counts against nodes, and what it doesn't; the newest record of an incident holds."""

    incident_id: str
    nodes: tuple[ChargedNode, ...]


@dataclass(frozen=True, slots=True)
class BlameCorrected:
    """The program itself fails: it is to blame for these incidents, and nothing of them counts against nodes."""

    incident_ids: tuple[str, ...]
    blame: Blame
    reason: str


class WaitsFor(Enum):
    """What a plan waits for."""

    LEAVE = "leave"  # for an approval, or the end of a pause or dry run: a person can give it
    NODES = "nodes"  # for usable nodes: no approval replaces them
    STORAGE = "storage"  # for a checkpoint folder that can be written: neither replaces that


class WaitCause(Enum):
    """Why a plan waits."""

    UNKNOWN = "unknown"  # from a version that did not record it
    UNCONFIRMED = "unconfirmed"  # the journal was lost, and no person has confirmed the budgets yet
    PAUSED = "paused"  # the job, a node or the cluster is paused
    DRY_RUN = "dry_run"
    APPROVAL = "approval"
    CLUSTER = "cluster"  # the cluster refuses it for another reason
    NODES = "nodes"  # too few usable nodes
    OBSERVE = "observe"  # observe mode: it is not taken, unless a person approves it
    CHECKPOINT = "checkpoint"  # none can be restored; an approval starts from zero
    STORAGE = "storage"  # the checkpoint folder can't be written


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a plan waits, with details. The same cause and details are journaled once."""

    cause: WaitCause
    text: str
    about: str = ""  # names and counts: who paused which scope, how many nodes are available


@dataclass(frozen=True, slots=True)
class PlanWaits:
    """A plan is ready but may not, or can't, be carried out yet."""

    incident_id: str
    try_number: int
    plan: Plan
    reason: str
    waits_for: WaitsFor = WaitsFor.LEAVE
    cause: WaitCause = WaitCause.UNKNOWN
    about: str = ""


@dataclass(frozen=True, slots=True)
class SavedEvidence:
    """The evidence that one node's launcher saved."""

    node: str
    folder: str
    files: int
    size_bytes: int
    took_s: float
    notes: tuple[str, ...]  # what is missing and why
    output_says: str = ""  # what its ranks' output says, where none has an error that is known


@dataclass(frozen=True, slots=True)
class EvidenceCollected:
    """Where an incident's evidence is, and what it shows about a hang."""

    incident_id: str
    attempt: int
    saved: tuple[SavedEvidence, ...]
    finding: Finding | None = None  # the incident's, after the evidence; None: as it was
    cause: str = ""  # class of the verdict; empty: the evidence adds nothing
    reason: str = ""  # in one sentence
    confidence: float = 0.0

    @property
    def is_sure(self) -> bool:
        """Whether it names ranks of one node with enough confidence to blame the node."""
        accused = self.finding
        names_one = accused is not None and accused.blame is Blame.RANK and bool(accused.node)
        return names_one and self.confidence >= SURE_MIN


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The job passed its highest step from before the incident."""

    incident_id: str
    attempt: int
    step: int  # the first step beyond it
    age_s: float = 0.0  # how long before this record a rank made it
