"""The interface between a job's controller and the cluster: it asks before it acts, and reports blames.

Values and protocols only. One job on one machine has `OpenGate` and `OpenPool`; the service has
policy, budgets and people behind them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from detectors.finding import Finding
from detectors.node.charges import ChargeVerdict, NodeCharge, judge_charge
from detectors.parts.fleet_parts import NO_PARTS, FleetPart, FleetParts
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.journal.incident_records import WaitCause
from recovery.journal.limits import PlanStep
from recovery.journal.observation_records import FabricProbeAsked, FabricProbeEnded


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
    is_approved_within: bool = False  # by a person who speaks for the job alone
    suspect: tuple[str, ...] | None = (
        None  # of `without`: those that evidence counts against; None: not known
    )


@dataclass(frozen=True, slots=True)
class Answer:
    judgement: Judgement
    reason: str  # one sentence for `rankmend why`
    cause: WaitCause = WaitCause.CLUSTER  # the cause of a WAIT
    about: str = ""  # names and counts of a WAIT; an equal one is journaled once


class Gate(Protocol):
    def judge(self, request: PlanRequest, /) -> Answer:
        """Return whether the plan may be carried out now. Asked again while the answer is WAIT."""
        ...


class Pool(Protocol):
    @property
    def parts(self) -> FleetParts:
        """Return which switches, racks and supplies nodes hang on; NO_PARTS where that is not known."""
        ...

    @property
    def broken_parts(self) -> Mapping[FleetPart, str]:
        """Return the shared parts that are known to be broken, each with its proof, as "is ...\"."""
        ...

    def doubts(self, job_id: str, /) -> Mapping[str, str]:
        """Return the alerts that this job must not believe alone, since they accuse too much: why, by identity."""
        ...

    def accused(self, job_id: str, /) -> Collection[str]:
        """Return the nodes that an active alert rules out for this job, whether they run ranks or not."""
        ...

    def unusable(self, node: str, /) -> str | None:
        """Return why the node must get no ranks (drained, quarantined ...), or None."""
        ...

    def note_charge(self, charge: NodeCharge, /) -> ChargeVerdict:
        """Note what an incident shows of a node, and return whether it counts against it; must not raise."""
        ...

    def take_back(self, job_id: str, incident_ids: Sequence[str], reason: str, /) -> None:
        """Take back what these incidents have counted against nodes; must not raise."""
        ...

    def is_dry_for(self, job_id: str, /) -> bool:
        """Return whether nothing may be done to this job without a plan: a dry run, or observe mode."""
        ...

    def probe_rules(self, job_id: str, /) -> ProbeRules:
        """Return the rules by which idle nodes test the network of this job."""
        ...

    def refuse_probe(self, requested: FabricProbeAsked, /) -> str | None:
        """Return why such a probe must not run now; None: it counts as under way from now on."""
        ...

    def note_probe_ended(self, ended: FabricProbeEnded, /) -> None:
        """Note that a probe is no longer under way; must not raise."""
        ...


class OpenGate:
    """Everything is allowed."""

    def judge(self, _request: PlanRequest, /) -> Answer:
        return Answer(Judgement.ALLOWED, "no rule forbids it")


class OpenPool:
    """Every node is usable, and nothing is known of what they share."""

    parts: FleetParts = NO_PARTS
    broken_parts: Mapping[FleetPart, str] = MappingProxyType({})

    def doubts(self, _job_id: str, /) -> Mapping[str, str]:
        return {}

    def accused(self, _job_id: str, /) -> Collection[str]:
        return ()

    def unusable(self, _node: str, /) -> str | None:
        return None

    def note_charge(self, charge: NodeCharge, /) -> ChargeVerdict:
        return judge_charge(charge, (), (), 0.0, 0.0)

    def take_back(self, _job_id: str, _incident_ids: Sequence[str], _reason: str, /) -> None:
        return

    def is_dry_for(self, _job_id: str, /) -> bool:
        return False

    def probe_rules(self, _job_id: str, /) -> ProbeRules:
        return ProbeRules()

    def refuse_probe(self, _asked: FabricProbeAsked, /) -> str | None:
        return None

    def note_probe_ended(self, _ended: FabricProbeEnded, /) -> None:
        return
