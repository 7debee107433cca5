"""What a job's controller asks of the cluster before it acts, and what it tells it.

Values and protocols only. One job on one machine has `OpenGate` and `OpenPool`; the service has
policy, budgets and people behind them.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from detectors.finding import Evidence, Finding, Severity
from recovery.records import PlanStep


class Judgement(Enum):
    ALLOWED = "allowed"
    WAIT = "wait"  # for an approval, the end of a pause or of a maintenance window
    REFUSED = "refused"  # by a budget or a rule: the incident is escalated


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan that is ready to be carried out."""

    job_id: str
    incident_id: str
    try_number: int
    step: PlanStep
    finding: Finding
    without: tuple[str, ...]  # nodes that would be left
    job_nodes: int  # nodes of the job's newest attempt
    is_standing: bool = True  # False: the job trains, and the plan would stop it
    approved_by: str | None = None  # who has approved this plan


@dataclass(frozen=True, slots=True)
class Answer:
    judgement: Judgement
    reason: str  # one sentence for `rankmend why`


class Gate(Protocol):
    def judge(self, request: PlanRequest, /) -> Answer:
        """Return whether the plan may be carried out now. Asked again while the answer is WAIT."""
        ...


class Pool(Protocol):
    def unusable(self, node: str, /) -> str | None:
        """Return why the node must get no ranks (drained, quarantined ...), or None."""
        ...

    def note_blame(self, node: str, job_id: str, incident_id: str, finding: Finding, /) -> None:
        """Hear that a node was blamed, once for each incident; must not raise."""
        ...


class OpenGate:
    """Everything is allowed."""

    def judge(self, _request: PlanRequest, /) -> Answer:
        return Answer(Judgement.ALLOWED, "nothing stands against it")


class OpenPool:
    """Every node is usable."""

    def unusable(self, _node: str, /) -> str | None:
        return None

    def note_blame(self, _node: str, _job_id: str, _incident_id: str, _finding: Finding, /) -> None:
        return


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """An alert about a device or a host, as far as it concerns one job.

    ``ranks`` are those of the job that stand on what is accused, by the newest reports; empty
    where that is the whole node. The same ``identity`` is the same fault, told again.
    """

    identity: str  # hash of the alert's routing labels
    alertname: str
    node: str
    ranks: tuple[int, ...]
    device: str  # GPU UUID, NIC ...; empty for the host
    severity: Severity
    action: (
        str  # of the node's policy table: none, watch, restart_app, reset_gpu, reboot, drain ...
    )
    summary: str
    since_age_s: float
    evidence: tuple[Evidence, ...] = ()
    is_active: bool = True  # False: it has ended, which proves nothing about the node


class PersonAct(Enum):
    """What a person can ask of one job. Always journaled with who asked."""

    APPROVE = "approve"  # the plan of an incident that waits for it
    REJECT = "reject"  # that plan: the incident is escalated
    CANCEL = "cancel"  # what is under way: the ranks stay as they are, rankmend stands back
    PAUSE = "pause"  # decide nothing until resumed; ranks run on
    RESUME = "resume"
    RESTART = "restart"  # the ranks, where they are
    LEAVE_NODE = "leave_node"  # move the job off a node
    CONFIRM_GONE = "confirm_gone"  # a person's word that no process is left on a node
    STOP = "stop"  # the job, as planned
    RESET_BUDGETS = "reset_budgets"


@dataclass(frozen=True, slots=True)
class PersonCommand:
    act: PersonAct
    who: str  # subject of the token, or "uid N"
    reason: str = ""
    incident_id: str | None = None
    node: str | None = None
    key: str = ""  # idempotency: the same key is the same command
