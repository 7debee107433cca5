"""A plan's way from what there is to run on to where it may be carried out.

Sees what nodes there are, asks the gate (policy, budgets, people), says which nodes are left and
reports to the pool who is blamed. `recovery.controller.job.planner` plans, and is pure.
"""

from collections.abc import Mapping
from typing import Final

from detectors.finding import HOST_SILENT, Blame, Finding, Kind, SymptomKind
from detectors.node.charges import CHARGES, NodeCharge, Weight
from recovery.controller.cluster.gate import Gate, Judgement, PlanRequest, Pool
from recovery.controller.job.alert_intake import confirmed, fatal, in_words
from recovery.controller.job.attempts import Attempts
from recovery.controller.job.membership import size_for
from recovery.controller.job.node_charges import (
    ChargedJob,
    accused_alone,
    charges_of,
    counting,
    find_nodes_to_leave,
)
from recovery.controller.job.planner import Scene
from recovery.controller.job.situation import Situation
from recovery.journal.incident_machine import Outcome, Phase, answer
from recovery.journal.incident_records import (
    BlameCorrected,
    ChargedNode,
    Decided,
    IncidentEvent,
    NodesCharged,
    Plan,
    PlanWaits,
    WaitCause,
    WaitReason,
    WaitsFor,
)
from recovery.journal.ledger import Ledger, OpenIncident, Wish
from recovery.journal.node_records import GONE, LOST, LeaveCause, LeaveReason, NodeLeft
from recovery.journal.records import Record
from recovery.messages.outside import trains

CONFIRM_BY: Final = "`rankmend approve` allows this plan, `rankmend reset-budgets` all further ones"
OBSERVED: Final = WaitReason(
    WaitCause.OBSERVE,
    "observe mode (the job's own): rankmend would do this, and does nothing",
    "job",
)
_QUERY_S: Final = 1.0  # between two questions to the gate about a pending plan


class PlanProgress:
    def __init__(self, situation: Situation, attempts: Attempts, gate: Gate, pool: Pool) -> None:
        self._situation = situation
        self._settings = situation.settings
        self._nodes = situation.nodes
        self._attempts = attempts
        self._gate = gate
        self._pool = pool
        self._asked_at_s = 0.0  # the gate, about a plan that waits

    @property
    def _ledger(self) -> Ledger:
        return self._situation.ledger

    def scene(self, incident: OpenIncident, now_s: float) -> Scene:
        """Return what there is to run on, as of now."""
        ledger, policy, finding = self._ledger, incident.policy, incident.last_failure.finding
        # Who is silent may come back while the others are stopped.
        counts_silence = finding.symptom == HOST_SILENT or incident.state.phase is Phase.RESTORING
        torn = self._nodes.torn(ledger, now_s) if _may_be_link(finding) else {}

        def is_silent(node: str) -> bool:
            return now_s - self._nodes.reported_at_s(node) >= policy.node_silent_s

        must, may = find_nodes_to_leave(
            finding,
            ledger,
            policy,
            accused={retained.evidence.node: in_words(retained) for retained in fatal(ledger)},
            suspected=confirmed(ledger, finding),
            is_silent=lambda node: counts_silence and is_silent(node),
            unusable=self._pool.unusable,
            torn=torn,
        )
        alone = accused_alone(
            finding, ledger, must, is_silent=is_silent, unusable=self._pool.unusable, torn=torn
        )
        nodes = tuple(place.node for place in ledger.placement)
        accused = [node for node, reason in must.items() if reason.cause in GONE]
        preparation = self._attempts.preparation(policy, now_s)
        spares = preparation.usable(accused).keys() - set(nodes)
        ill = len(spares) - len(preparation.healthy(spares))
        return Scene(nodes, len(spares), self._settings.sizes, must, may, alone, ill)

    def is_torn_or_dead(self, incident: OpenIncident, now_s: float) -> bool:
        """Return whether a node that others miss may still prove to be alive, or to be silent."""
        is_link = _may_be_link(incident.last_failure.finding)
        return is_link and self._nodes.is_torn_or_dead(self._ledger, now_s)

    def ask(self, incident: OpenIncident, made: Plan, scene: Scene, now_s: float) -> Judgement:
        """Ask whether the plan may be carried out; journal why it must wait or must not be."""
        state, finding = incident.state, incident.last_failure.finding
        if self._is_early(incident, made, now_s):
            return Judgement.WAIT
        is_standing = not (trains(finding) and self._ledger.wish is Wish.RANKS)
        # A person's word wins, about the plan that was shown and about no other.
        approved_by = incident.approved_by if _is_shown(made, incident.waits) else None
        unconfirmed = self._ledger.unconfirmed
        is_persons = finding.is_persons
        if unconfirmed is not None and approved_by is None and not is_persons:
            text = f"{unconfirmed}; {CONFIRM_BY}"
            return self._wait(incident, made, WaitReason(WaitCause.UNCONFIRMED, text))
        request = PlanRequest(
            self._settings.job_id,
            state.incident_id,
            state.try_number,
            made.step,
            finding,
            made.without,
            len(self._ledger.placement),
            is_standing=is_standing,
            approved_by=approved_by,
            is_approved_within=approved_by is not None and incident.is_approved_within,
            suspect=self.suspects(incident, made, scene),
        )
        held = None if approved_by is not None else self._held(incident)
        if held is not None:
            return self._hold(incident, made, held)
        said = self._gate.judge(request)
        if said.judgement is Judgement.ALLOWED or approved_by is not None:
            return Judgement.ALLOWED
        if said.judgement is Judgement.REFUSED:
            # What trains is left alone: to give it up would be worse than what was refused.
            outcome = Outcome.ESCALATE if is_standing else Outcome.CANCEL
            event = event_of(incident, outcome, f"not allowed: {said.reason}")
            self._situation.record(decided(incident, made), event)
            return said.judgement
        return self._hold(incident, made, WaitReason(said.cause, said.reason, said.about))

    def _is_early(self, incident: OpenIncident, made: Plan, now_s: float) -> bool:
        """Return whether it is too early to ask: others wait a moment, and a drain's reason is on record before."""
        if incident.waits is not None and incident.approved_by is None:
            if now_s - self._asked_at_s < _QUERY_S:
                return True
            self._asked_at_s = now_s
        return bool(made.without) and not self._situation.is_settled

    def _held(self, incident: OpenIncident) -> WaitReason | None:
        """Return what of the job itself holds its plans, or None."""
        finding = incident.last_failure.finding
        if incident.policy.observe and not finding.is_persons:
            return OBSERVED
        return self.pause()

    def _hold(self, incident: OpenIncident, made: Plan, why: WaitReason) -> Judgement:
        if why.cause is WaitCause.OBSERVE:
            return self._observe(incident, made, why)
        return self._wait(incident, made, why)

    def _observe(self, incident: OpenIncident, made: Plan, why: WaitReason) -> Judgement:
        """Journal the plan as not taken, and end a job that would have ended without rankmend.

        A rank that failed ends a job of torchrun's. What stands still is left standing: it may go on by itself, or fail.
        """
        self.note_wait(incident, made, why, WaitsFor.LEAVE)
        finding = incident.last_failure.finding
        has_failed = finding.kind is Kind.RANK_FAILED or bool(self._situation.observation.failed)
        if not has_failed:
            return Judgement.WAIT
        text = f"observe mode: it would {made.step.in_words}; the job ends, as it would without rankmend"
        self._situation.record(event_of(incident, Outcome.ESCALATE, text))
        return Judgement.REFUSED

    def pause(self) -> WaitReason | None:
        """Return why the job needs no step now, or None."""
        who = self._ledger.paused_by
        if who is None:
            return None
        return WaitReason(WaitCause.PAUSED, f"the job is paused by {who}", who)

    def shortage(self, without: frozenset[str], now_s: float) -> str | None:
        """Return why no attempt could be started without these nodes, or None.

        A node that an alert accuses takes no other's place: ranks that train aren't moved there.
        """
        preparation = self._attempts.preparation(self._settings.policy, now_s)
        retained = fatal(self._ledger) if without else ()
        accused = {evidence.evidence.node: in_words(evidence) for evidence in retained}
        usable = preparation.usable().keys() - without - accused.keys()
        if size_for(self._settings, len(usable)) is not None:
            return None
        return preparation.say_shortage(len(usable), self._settings.sizes[-1], accused, without)

    def _wait(self, incident: OpenIncident, made: Plan, why: WaitReason) -> Judgement:
        """Journal once why the plan waits."""
        self.note_wait(incident, made, why, WaitsFor.LEAVE)
        return Judgement.WAIT

    def note_wait(
        self, incident: OpenIncident, made: Plan, why: WaitReason, waits_for: WaitsFor
    ) -> bool:
        """Journal why a plan waits, once for each reason; return whether it was news."""
        if incident.is_known_to_wait(made, why, waits_for):
            return False
        state = incident.state
        waits = PlanWaits(
            state.incident_id, state.try_number, made, why.text, waits_for, why.cause, why.about
        )
        self._situation.record(waits)
        return True

    def left(self, incident: OpenIncident, made: Plan, scene: Scene) -> list[Record]:
        """Return the records of the nodes that the plan leaves."""
        reasons = {**scene.may_leave, **scene.must_leave}
        other = LeaveReason(LeaveCause.UNKNOWN, made.reason)
        incident_id = incident.state.incident_id
        return [
            NodeLeft(
                node, reason.text, reason.cause in LOST, incident_id, reason.cause, reason.others
            )
            for node in made.without
            if (reason := reasons.get(node, other))
            if (member := self._ledger.members.get(node)) is not None and member.left is None
        ]

    def charge(
        self, incident: OpenIncident, left: Mapping[str, LeaveReason], proved: Finding | None = None
    ) -> bool:
        """Journal what the incident counts against nodes, if that is news; return whether it was."""
        charged = self.charged(incident, self._ledger, left, proved)
        if charged is not None:
            self._situation.record(charged)
        return charged is not None

    def charged(
        self,
        incident: OpenIncident,
        ledger: Ledger,
        left: Mapping[str, LeaveReason],
        proved: Finding | None = None,
    ) -> NodesCharged | None:
        """Have the pool note what the incident shows of nodes; return the record of what counts, None where that is known."""
        incident_id = incident.state.incident_id
        known = {node.node: node for node in ledger.charged}
        charges = charges_of(incident_id, incident.last_failure, self._job, ledger, left, proved)
        news = [item for item in charges if not _is_known(item, known.get(item.node))]
        for charge in news:
            said = self._pool.note_charge(charge)
            known[charge.node] = ChargedNode(charge.node, said.kind, said.counts, said.reason)
        return NodesCharged(incident_id, tuple(known.values())) if news else None

    def suspects(self, incident: OpenIncident, made: Plan, scene: Scene) -> tuple[str, ...]:
        """Return the nodes that the plan leaves for what evidence counts against them."""
        reasons = {**scene.may_leave, **scene.must_leave}
        left = {node: reasons[node] for node in made.without if node in reasons}
        incident_id = incident.state.incident_id
        charges = charges_of(incident_id, incident.last_failure, self._job, self._ledger, left)
        found = {charge.node for charge in charges if CHARGES[charge.kind].weight is Weight.ONE}
        return tuple(
            node for node in made.without if node in found | counting(self._ledger.charged)
        )

    def take_back(self, corrected: BlameCorrected) -> None:
        """Have the pool take back what the incidents of the program's own error have counted."""
        self._pool.take_back(self._settings.job_id, corrected.incident_ids, corrected.reason)

    @property
    def _job(self) -> ChargedJob:
        return ChargedJob(self._settings.job_id, self._settings.program)


def _is_known(charge: NodeCharge, known: ChargedNode | None) -> bool:
    """Return whether a charge says no more than what is on record: what counts once, counts."""
    return known is not None and (known.counts or known.kind is charge.kind)


def _may_be_link(finding: Finding) -> bool:
    """Return whether a torn link between two nodes may be the cause.

    Ranks that wait for each other over one may look as if some were behind.
    """
    if finding.kind is Kind.NUMBERS_WRONG:
        return False
    if finding.symptom.kind in (SymptomKind.STORAGE, SymptomKind.SERVICE):
        return False  # nobody is to blame, and no link between nodes either
    lost_peers = finding.blame in (Blame.COMMUNICATION, Blame.NOBODY)
    return lost_peers or finding.kind is Kind.RANK_HUNG


def event_of(incident: OpenIncident, outcome: Outcome, reason: str) -> IncidentEvent:
    """Return the record that something has come of what the incident owes."""
    return IncidentEvent(answer(incident.state, outcome, reason))


def decided(incident: OpenIncident, made: Plan) -> Decided:
    return Decided(incident.state.incident_id, incident.state.try_number, made)


def _is_shown(made: Plan, waits: tuple[Plan, str] | None) -> bool:
    """Return whether the plan that a person was shown does the same, in whatever words."""
    return waits is not None and (waits[0].step, waits[0].without) == (made.step, made.without)
