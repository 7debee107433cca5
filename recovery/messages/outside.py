"""Input from outside the job: alerts about its nodes and people's commands.

Values only; both are journaled as they came.
"""

from dataclasses import dataclass
from enum import Enum

from detectors.finding import Evidence, Finding, Kind, Severity


def trains(finding: Finding) -> bool:
    """Return whether the finding is about ranks that keep training."""
    return finding.kind in (Kind.RANK_SLOW, Kind.NUMBERS_WRONG) or finding.is_planned


class NameMatch(Enum):
    """How the name of a node in an alert was matched to the launcher's name of it."""

    EXACT = "exact"  # they are the same
    CASE = "case"  # apart from upper and lower case
    SHORT = "short"  # one is the other without its domain, and only one node has this short name
    ADDRESS = "address"  # at which only this node's launcher is reached


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
        str  # as in the node's policy table: none, watch, restart_app, reset_gpu, reboot, drain ...
    )
    summary: str
    since_age_s: float
    evidence: tuple[Evidence, ...] = ()
    is_active: bool = True  # False: it has ended; that proves nothing about the node
    told_node: str = (
        ""  # what the alert calls the node, where that is not the launcher's name of it
    )
    match: NameMatch = NameMatch.EXACT


class PersonAct(Enum):
    """A person's commands to one job. The journal records who gave them."""

    APPROVE = "approve"  # the plan of an incident that waits for it
    REJECT = "reject"  # that plan: the incident is escalated
    CANCEL = "cancel"  # the recovery in progress: ranks stay as they are
    PAUSE = "pause"  # decide nothing until resumed; ranks keep running
    RESUME = "resume"  # decide again; with a node: let that node get ranks again
    RESTART = "restart"  # the ranks, where they are
    LEAVE_NODE = "leave_node"  # move the job off a node
    CONFIRM_GONE = "confirm_gone"  # a person confirms that no process is left on a node
    STOP = "stop"  # the job, as planned
    RESET_BUDGETS = "reset_budgets"


class Refusal(Enum):
    """Why a person's command was refused, for programs; the text beside it is for people."""

    ENDED = "ended"  # the job has ended or is ending
    NOT_OPEN = "not_open"  # the incident is not open
    NO_PLAN_WAITS = "no_plan_waits"  # the incident has no plan that waits
    NEEDS_NODES = "needs_nodes"  # too few usable nodes: no command can replace them
    NEEDS_STORAGE = (
        "needs_storage"  # the checkpoint folder can't be written: no command can replace that
    )
    NO_ATTEMPT = "no_attempt"  # nothing is running that could restart
    NOT_PAUSED = "not_paused"
    UNKNOWN_NODE = "unknown_node"  # the job has no such node
    NOT_HELD = "not_held"  # the job holds nothing against the node
    LAUNCHER_ENDED = "launcher_ended"  # the node's launcher has ended: start it again
    LEFT_ALREADY = "left_already"  # the job has left the node
    NO_RANKS = "no_ranks"  # the node has no ranks to move
    NODE_SPEAKS = "node_speaks"  # the node reports by itself, and its report counts
    NOT_TAKEN_OVER = "not_taken_over"  # the job's launchers still follow another controller


@dataclass(frozen=True, slots=True)
class PersonCommand:
    act: PersonAct
    who: str  # subject of the token, or "uid N"
    reason: str = ""
    incident_id: str | None = None
    node: str | None = None
    key: str = ""  # idempotency: the same key is the same command
    is_of_jobs: bool = False  # the token is limited to jobs: it speaks for no node
