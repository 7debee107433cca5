"""Keeps the cluster's journal, and answers the jobs' controllers: gate and pool in one.

For the one thread that runs the controllers. What is decided here is durable before it is
answered; where the journal can't be written, a plan that counts waits, and a job that stands is started
all the same: that restores safety and is in the job's own journal.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from detectors.finding import SymptomKind
from detectors.node.charges import CHARGES, ChargeKind, ChargeVerdict, NodeCharge, Weight
from detectors.parts.fleet_parts import NO_PARTS, FleetPart, FleetParts
from rankmend.clock import Clock
from rankmend.errors import ConfigError, JournalError
from recovery.controller.cluster.active_alerts import (
    ActiveAlert,
    ActiveAlerts,
    JobNode,
    TakenAlerts,
)
from recovery.controller.cluster.alert_shares import NOBODY, Sender
from recovery.controller.cluster.broken_parts import AGENT_DOWN
from recovery.controller.cluster.charge_verdict import judge_lemon, take_back, weigh_charge
from recovery.controller.cluster.cluster_ledger import (
    ClusterLedger,
    NodeBlame,
    fold_cluster,
    fold_entry,
)
from recovery.controller.cluster.cluster_limits import DAY_S, AlertRules, ClusterPolicy
from recovery.controller.cluster.doubtful_alerts import NO_DOUBTS, find_doubtful
from recovery.controller.cluster.gate import Answer, Judgement, PlanRequest
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.cluster.node_names import NodeNames
from recovery.controller.cluster.plan_verdict import (
    budgets_left,
    counts_as_spent,
    judge,
    quarantine,
    refuse_power_off,
    refuse_share_of_power,
    sole_accuser,
    unusable,
)
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.controller.cluster.probe_verdict import refuse_probe
from recovery.controller.cluster.ran_nodes import RanNodes
from recovery.controller.cluster.unmatched_names import ToldNames, read_names
from recovery.journal.cluster_records import (
    Acknowledged,
    BlameConfirmed,
    CauseTold,
    ClusterRecord,
    Hold,
    LemonFound,
    NodeBlamed,
    NodeErrorNoted,
    NodeHeld,
    NodeReleased,
    NotDone,
    NotDoneAct,
    Paused,
    PowerOffAsked,
    Spent,
    Unpaused,
    WatchedAsked,
    WindowAdded,
    WindowRemoved,
)
from recovery.journal.observation_records import FabricProbeAsked, FabricProbeEnded
from recovery.journal.open_journal import JournalMovedError
from recovery.journal.records import Entry
from recovery.journal.witnesses import (
    PRESENCE,
    OutsideAct,
    Witness,
    agreeing,
    allows,
    refuse,
    strongest,
)
from recovery.messages.outside import NodeEvidence

log = logging.getLogger(__name__)

# Whose word about a lost node makes it nobody's share of the power-offs: they name it themselves.
_NAMED: Final = frozenset({Witness.ALERT, Witness.SUBJECTS, Witness.SINGLE_TENANT})

WINDOW_S_MAX: Final = 90 * DAY_S
WINDOW_AWAY_S_MAX: Final = 3653 * DAY_S  # ten years: further away is a slip
WINDOWS_MAX: Final = 1_000
NAMES_MAX: Final = 10_000
_TEXT_MAX: Final = 1_000
_REFUSAL_S: Final = 3600.0  # between two words about one sender
_REFUSED_MAX: Final = 1_000
_OWN_ALERTS_MAX: Final = 10_000
_LATE_S: Final = (
    600.0  # another subject's blame that is older says nothing of a node that is silent now
)
_DATABASE: Final = "database"  # what its note is about
_TRIES_MAX: Final = 10  # of one decision, while other controllers write

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterNote:
    """A message for people."""

    text: str
    about: str = ""  # the node or sender of alerts that it is about; empty: the cluster


@dataclass(frozen=True, slots=True)
class NodesElsewhere:
    """The nodes of other controllers' jobs, and when these reported."""

    nodes: frozenset[str]
    at_s: float


@dataclass(frozen=True, slots=True)
class _Blamed:
    """An incident that counts against a node."""

    node: str
    job_id: str
    incident_id: str


class ClusterJournal(Protocol):
    @property
    def opened(self) -> tuple[Entry, ...]: ...

    def append_many(self, records: Sequence[ClusterRecord], /) -> tuple[Entry, ...]:
        """Write all records or none; JournalMovedError: another controller was first."""
        ...

    def read_newer(self) -> tuple[Entry, ...]: ...


class ClusterController:
    def __init__(
        self,
        journal: ClusterJournal,
        policy: ClusterPolicy,
        clock: Clock,
        job_names: Callable[[str], str],
    ) -> None:
        """``job_names`` returns a job's name by its id."""
        self._journal = journal
        self.policy = policy
        self._clock = clock
        self._job_names = job_names
        self.parts: FleetParts = NO_PARTS  # of the fleet: replaced as a whole
        self.broken_parts: Mapping[FleetPart, str] = {}  # known now, with the proof: likewise
        self.ledger: ClusterLedger = fold_cluster(journal.opened)
        self.alerts = ActiveAlerts(policy.alerts)
        self._ran = RanNodes()
        self.unconfirmed: tuple[str, ...] = ()  # nodes that only launchers of one subject name
        self._began_unix_s = clock.unix_s() - clock.now_s()
        self._doubts = NO_DOUBTS  # replaced as a whole
        self._refused_at_s: dict[str, float] = {}  # sender -> when that was last reported
        self._own_alerts: dict[tuple[str, str], None] = {}  # job and node; the newest last
        self.on_leave: Callable[[PlanRequest], None] = lambda _request: None
        # Whose a job is; empty: nobody but the operator runs jobs here.
        self.owner_of: Callable[[str], str] = lambda _job_id: ""
        # Whether nobody else may launch jobs here.
        self.is_only_subject: Callable[[str], bool] = lambda _owner: False
        # Whether the manager of nodes has confirmed that a subject had an allocation or pods on a node about a time (Unix).
        self.is_on_node: Callable[[str, str, float], bool] = lambda _node, _subject, _at: False
        # Whether the node's agent has reported, with the node's certificate, that this job runs there.
        self.is_seen_by_agent: Callable[[str, str], bool] = lambda _node, _job_id: False
        # Whether the node's agent has reported lately, with the node's certificate, which jobs run there.
        self.has_agents_word: Callable[[str], bool] = lambda _node: False
        # Whether the manager of nodes gets no answer of the node, and whether its agent, which had reported, is silent.
        self.is_lost_by_manager: Callable[[str], bool] = lambda _node: False
        self.is_agent_silent: Callable[[str], bool] = lambda _node: False
        # Whether the manager of nodes, or the node's agent with the node's certificate, knows the node.
        self.is_confirmed: Callable[[str], bool] = lambda _node: False
        self.notes: tuple[ClusterNote, ...] = ()  # what people must hear of; the newest last
        self.listed: Mapping[
            str, str
        ] = {}  # nodes in the configuration, with their agents' addresses
        self.elsewhere: NodesElsewhere | None = None  # replaced as a whole, by any thread
        self.told_names = ToldNames()  # in alerts: replaced as a whole

    def now_unix_s(self) -> float:
        """Return the wall clock as of our start, plus what has passed: it never jumps."""
        return self._began_unix_s + self._clock.now_s()

    def take_policy(self, policy: ClusterPolicy) -> None:
        """Decide by another policy from now on."""
        has_other_lemons = policy.lemons != self.policy.lemons
        self.policy = policy
        self.alerts.take_rules(policy.alerts)
        if has_other_lemons:
            self.look_for_lemons()

    def look_for_lemons(self) -> None:
        """Judge all nodes by the policy on lemons: after a start or another policy; else a blame is the occasion."""
        for node, past in list(self.ledger.nodes.items()):
            try:
                if past.blames:
                    self._decide(lambda node=node: self._keep_out(node))  # type: ignore[misc]
            except JournalError as error:
                self._note(f"{node} was not judged, the journal can't be written: {error}", node)

    # Gate and pool.

    def catch_up(self) -> None:
        """Take in what other controllers have decided, or raise JournalError."""
        for entry in self._journal.read_newer():
            self.ledger = fold_entry(self.ledger, entry)

    def _decide(self, act: Callable[[], _T]) -> _T:
        """Decide, and decide anew each time that another controller was first to write."""
        for _try in range(_TRIES_MAX - 1):
            try:
                return act()
            except JournalMovedError:
                self.catch_up()
        return act()

    def judge(self, request: PlanRequest, /) -> Answer:
        try:
            return self._decide(lambda: self._judge(request))
        except JournalMovedError as error:
            return Answer(Judgement.WAIT, f"other controllers decide, too: {error}")

    def _judge(self, request: PlanRequest) -> Answer:
        now_s = self.now_unix_s()
        name, owner = self._job_names(request.job_id), self.owner_of(request.job_id)
        answer = judge(request, name, self.ledger, self.policy, now_s, self.shares_as(owner))
        if answer.judgement is not Judgement.ALLOWED or not counts_as_spent(request):
            return answer
        if self.ledger.is_spent(request.job_id, request.incident_id, request.try_number):
            return answer
        spent = Spent(
            request.job_id,
            request.incident_id,
            request.try_number,
            request.step.value,
            request.without,
            not request.is_standing,
            owner,
            request.finding.is_persons or request.approved_by is not None,
        )
        try:
            self._write(spent)
        except JournalMovedError:
            raise
        except JournalError as error:
            if request.is_standing:
                self._note(f"not in the cluster's journal: {error}")
                return answer
            return Answer(Judgement.WAIT, f"the cluster's journal can't be written: {error}")
        if request.without:
            self.on_leave(request)
        return answer

    def witnesses_of(self, node: str, job_id: str) -> frozenset[Witness]:
        """Return who, beside the launchers of this job, says that something is wrong with the node."""
        owner = self.owner_of(job_id)
        if self.policy.single_tenant or not owner:
            return frozenset({Witness.SINGLE_TENANT})
        found = set()
        doubts = self.doubts(job_id)
        if any(
            self._is_witness(alert, node, owner) and alert.target.key not in doubts
            for alert in self.alerts.active
        ):
            found.add(Witness.ALERT)
        blames = self._blames_of_late(node)
        if self._agree(owner, node, blames):
            found.add(Witness.SUBJECTS)
        if self.is_on_node(node, owner, self.now_unix_s()):
            found.add(Witness.SCHEDULER)
        if self.is_seen_by_agent(node, job_id):
            found.add(Witness.AGENT)
        return frozenset(found)

    def witnesses_of_loss(self, node: str, job_id: str) -> frozenset[Witness]:
        """Return who, beside the launchers of this job, says that it is on the node, and that the node is lost."""
        found = self.witnesses_of(node, job_id)
        if Witness.SINGLE_TENANT in found:
            return found
        owner = self.owner_of(job_id)
        late = self.ledger.blames_of(node, self.now_unix_s() - _LATE_S)
        if not self._agree(owner, node, late):
            found -= {Witness.SUBJECTS}
        if self._is_missed(node, owner):
            found |= {Witness.ALERT}
        if self.is_lost_by_manager(node):
            found |= {Witness.MANAGER_LOST}
        if self.is_agent_silent(node):
            found |= {Witness.SILENT_AGENT}
        return found

    def _is_missed(self, node: str, owner: str) -> bool:
        """Return whether another than the owner sends an alert that nothing answers on the node, and on few others."""
        missed = {
            alert.node
            for alert in self.alerts.active
            if alert.target.alertname == AGENT_DOWN and alert.is_firing and not alert.is_doubtful
            if alert.sender.name != owner and not alert.sender.is_of_jobs
        }
        # Where it accuses more, Prometheus may be cut off: its word counts within the bound of every other rule.
        most = self.nodes_active() * self.policy.budgets.nodes_held_percent / 100.0
        return node in missed and (len(missed) == 1 or len(missed) <= most)

    def _blames_of_late(self, node: str) -> list[NodeBlame]:
        since_s = self.now_unix_s() - self.policy.quarantine.window_s
        return self.ledger.blames_of(node, since_s)

    def _agree(self, owner: str, node: str, blames: Sequence[NodeBlame]) -> bool:
        return agreeing(owner, ((blame.subject, self._was_there(node, blame)) for blame in blames))

    def _witnesses_of_blame(
        self, node: str, blame: NodeBlame, late: Sequence[NodeBlame]
    ) -> frozenset[Witness]:
        """Return who beside its launchers stands for a blame: then, or by now. ``late``: the node's blames that count."""
        found = {blame.witness}
        if self._was_there(node, blame):
            found.add(Witness.SCHEDULER)
        if self._agree(blame.subject, node, late):
            found.add(Witness.SUBJECTS)
        return frozenset(found)

    def _was_there(self, node: str, blame: NodeBlame) -> bool:
        return blame.was_there or self.is_on_node(node, blame.subject, blame.unix_s)

    def is_vouched(self, request: PlanRequest, node: str) -> bool:
        """Return whether somebody beside the job's launchers speaks for a plan that leaves the node."""
        found = request.finding
        if _is_persons(request):
            return True
        is_alert = found.symptom.kind is SymptomKind.ALERT and found.node == node
        if is_alert and self._is_others_alert(node, request.job_id):
            return True
        return allows(
            OutsideAct.DRAIN, self.witnesses_of(node, request.job_id) - {Witness.SCHEDULER}
        )

    def sharer_of(self, request: PlanRequest) -> str:
        """Return to whose share of the bounds outside its job a plan counts: the owner's, where only its launchers say what is wrong.

        Slurm, Kubernetes and the agent say that the job is on a node, and not that the node is bad. Empty: to nobody's.
        """
        owner, found = self.shares_as(self.owner_of(request.job_id)), request.finding
        if not owner:
            return ""
        if _is_persons(request):
            return ""
        if found.symptom.kind is SymptomKind.ALERT and self._is_others_alert(
            found.node or "", request.job_id
        ):
            return ""
        reported = (self.witnesses_of(node, request.job_id) - PRESENCE for node in request.without)
        return "" if request.without and all(reported) else owner

    def shares_as(self, subject: str) -> str:
        """Return the subject if others have a share of the bounds, too; empty: it has all of them."""
        is_alone = self.policy.single_tenant or self.is_only_subject(subject)
        return "" if is_alone else subject

    def is_contested(self, node: str, job_id: str, jobs_there: Iterable[str]) -> bool:
        """Return whether others are on a node, or its agent says who is, and nobody but the job's launchers says that the job is there.

        Where somebody says so of jobs of two subjects, the node is contested for both: what is found of it is nobody's alone.
        ``jobs_there``: whose launchers say that they run there.
        """
        owner = self.shares_as(self.owner_of(job_id))
        if not owner:
            return False
        others = [other for other in jobs_there if self.owner_of(other) != owner]
        if any(self._is_confirmed_on(node, other) for other in others):
            return True
        if self._is_confirmed_on(node, job_id):
            return False
        return self.has_agents_word(node) or bool(others)

    def _is_confirmed_on(self, node: str, job_id: str) -> bool:
        """Return whether the node's agent, or the nodes' manager, says that the job or its owner is there."""
        now_s = self.now_unix_s()
        return self.is_seen_by_agent(node, job_id) or self.is_on_node(
            node, self.owner_of(job_id), now_s
        )

    def _is_others_alert(self, node: str, job_id: str) -> bool:
        """Return whether what alerts say of the node is another's word than that of the job's owner, and is not doubted.

        Nobody is his own witness, nor is a sender limited to jobs, and a rule gone mad is none. An alert that has ended since was
        another's, unless the owner or such a sender has sent one about the node.
        """
        if (job_id, node) in self._own_alerts:
            return Witness.ALERT in self.witnesses_of(node, job_id)
        doubts = self.doubts(job_id)
        reported = [alert.target.key for alert in self.alerts.active if alert.node == node]
        return not reported or any(key not in doubts for key in reported)

    def _note_own_alerts(self, received: Iterable[tuple[str, NodeEvidence]]) -> None:
        """Remember the nodes that a job's own owner reported to it, or a sender whose token is limited to jobs."""
        reported = [(job_id, evidence) for job_id, evidence in received if evidence.is_active]
        if not reported:
            return
        senders = {alert.target.key: alert.sender for alert in self.alerts.active}
        for job_id, evidence in reported:
            sender = senders.get(evidence.identity)
            name = "" if sender is None else sender.name
            if name == self.owner_of(job_id) or (sender is not None and sender.is_of_jobs):
                self._own_alerts.pop((job_id, evidence.node), None)
                self._own_alerts[job_id, evidence.node] = None
        for key in list(self._own_alerts)[:-_OWN_ALERTS_MAX]:
            del self._own_alerts[key]

    def _is_witness(self, alert: ActiveAlert, node: str, owner: str) -> bool:
        """Return whether an alert rules the node out by the word of another than the job's owner, who may speak for nodes."""
        is_sure = alert.is_firing and alert.ends_use and not alert.is_doubtful
        is_others = alert.sender.name != owner and not alert.sender.is_of_jobs
        return alert.node == node and is_sure and is_others

    def _vouched(self, node: str, act: OutsideAct) -> ClusterLedger:
        """Return the ledger in which only those blames count against the node that not only one subject's launchers vouch for."""
        late = self._blames_of_late(node)
        counts = tuple(
            blame
            for blame in self.ledger.past(node).blames
            if self.policy.single_tenant
            or not blame.subject
            or allows(act, self._witnesses_of_blame(node, blame, late))
        )
        return self.ledger.with_blames(node, counts)

    def unusable(self, node: str, /) -> str | None:
        return unusable(node, self.ledger, self.now_unix_s())

    def note_charge(self, charge: NodeCharge, /) -> ChargeVerdict:
        try:
            counted = self._decide(lambda: self._note_charge(charge))
            if counted.counts and counted.is_new:
                self._decide(lambda: self._quarantine(charge))
                self._decide(lambda: self._keep_out(charge.node, charge.job_id))
        except JournalError as error:
            what = f"{charge.incident_id} was not held against {charge.node}"
            self._note(f"{what}, the journal can't be written: {error}", charge.node)
            return ChargeVerdict(False, "the cluster's journal can't be written", charge.kind)
        return counted

    def _note_charge(self, charge: NodeCharge) -> ChargeVerdict:
        owner = self.owner_of(charge.job_id)
        party = "" if self.policy.single_tenant else owner
        counted = weigh_charge(charge, self.ledger, self.policy, self.now_unix_s(), party)
        known = self.ledger.past(charge.node).errors
        is_known = any(error.incident_id == charge.incident_id for error in known)
        is_compared = CHARGES[charge.kind].weight is Weight.COMPARED and bool(charge.error)
        if is_compared and not is_known:
            witnesses = self.witnesses_of(charge.node, charge.job_id)
            self._write(
                NodeErrorNoted(
                    charge.node,
                    charge.job_id,
                    charge.incident_id,
                    charge.kind,
                    charge.error,
                    charge.program,
                    charge.is_here_alone,
                    owner,
                    not PRESENCE.isdisjoint(witnesses),
                )
            )
        if counted.counts and counted.is_new:
            summary, ids = charge.summary[:_TEXT_MAX], (charge.job_id, charge.incident_id)
            witnesses = self.witnesses_of(charge.node, charge.job_id)
            is_alert = counted.kind in (ChargeKind.ALERT, ChargeKind.BESIDE)
            if is_alert and self._is_others_alert(charge.node, charge.job_id):
                witnesses |= {Witness.ALERT}
            self._write(
                NodeBlamed(
                    charge.node,
                    *ids,
                    summary,
                    charge.fault,
                    counted.kind,
                    owner,
                    strongest(OutsideAct.QUARANTINE, witnesses),
                    not PRESENCE.isdisjoint(witnesses),
                )
            )
        return counted

    def confirm_blames(self, node: str) -> None:
        """Record that the node's agent confirms jobs whose launchers blame the node, and decide again.

        For each report of an agent: the word may arrive after the blame, at a controller that has just taken over, or at another one than
        the job's. Never raises: what can't be written now follows with the agent's next report.
        """
        alone: dict[str, list[NodeBlame]] = {}
        for blame in self._blames_of_late(node):
            if blame.subject and blame.witness is Witness.LAUNCHER:
                alone.setdefault(blame.job_id, []).append(blame)
        for job_id, blames in alone.items():
            if self.is_seen_by_agent(node, job_id):
                ids = tuple(blame.incident_id for blame in blames)
                try:
                    self._decide(partial(self._confirm, node, job_id, ids))
                except JournalError as error:
                    self._note(
                        f"{node}: its agent's word is not in the cluster's journal: {error}", node
                    )

    def _confirm(self, node: str, job_id: str, incident_ids: tuple[str, ...]) -> None:
        self._write(BlameConfirmed(node, job_id, incident_ids))
        self._quarantine(_Blamed(node, job_id, incident_ids[-1]))
        self._keep_out(node, job_id)

    def take_back(self, job_id: str, incident_ids: Sequence[str], reason: str, /) -> None:
        try:
            self._decide(lambda: self._take_back(job_id, incident_ids, reason))
        except JournalError as error:
            what = f"what {', '.join(incident_ids)} counted is not taken back"
            self._note(f"{what}, the journal can't be written: {error}")

    def _take_back(self, job_id: str, incident_ids: Sequence[str], reason: str) -> None:
        taken = take_back(
            job_id, incident_ids, reason[:_TEXT_MAX], self.ledger, self.policy, self.now_unix_s()
        )
        if taken is None:
            return
        self._write(taken)
        for node in taken.released:
            self._note(f"{node} may be used again: {taken.reason}", node)

    def _quarantine(self, blamed: NodeCharge | _Blamed) -> None:
        node, now_s = blamed.node, self.now_unix_s()
        vouched = self._vouched(node, OutsideAct.QUARANTINE)
        late = vouched.blames_of(node, now_s - self.policy.quarantine.window_s)
        accuser = self.shares_as(sole_accuser(late))
        held = quarantine(node, self.nodes_active(), vouched, self.policy, now_s, accuser)
        if held is None:
            alone = quarantine(node, self.nodes_active(), self.ledger, self.policy, now_s)
            if isinstance(alone, NodeHeld):
                self._note_alone(NotDoneAct.QUARANTINE, OutsideAct.QUARANTINE, blamed)
            return
        observed = self.policy.why_observed(self._job_names(blamed.job_id), (node,))
        if isinstance(held, NodeHeld) and observed is not None:
            self._note_not_done(NotDoneAct.QUARANTINE, blamed, held.reason)
        elif isinstance(held, NodeHeld):
            self._write(held)
            self._note(f"{node} is held back: {held.reason}", node)
        elif held is not None:
            self._note(held, f"launchers of {accuser}" if accuser else node)

    def _keep_out(self, node: str, job_id: str = "") -> None:
        """Keep a node out of use that the policy calls a lemon, or journal that it would be."""
        observed = self.policy.why_observed(self._job_names(job_id) if job_id else "", (node,))
        vouched, now_s = self._vouched(node, OutsideAct.KEEP_OUT), self.now_unix_s()
        late = vouched.blames_of(node, now_s - self.policy.lemons.days * DAY_S)
        accuser = self.shares_as(sole_accuser(late))
        found = judge_lemon(
            node,
            self.nodes_active(),
            vouched,
            self.policy,
            now_s,
            accuser,
            is_observed=observed is not None,
        )
        if isinstance(found, LemonFound) and found.is_dry:
            self._write(found)
            self._note(f"dry run: {node} would be kept out: {found.reason}", node)
        elif isinstance(found, LemonFound):
            self._write(found, NodeHeld(node, Hold.DRAIN, "policy", found.reason, None))
            self._note(f"{node} is kept out until a person takes it back: {found.reason}", node)
        elif found is not None:
            self._note(found, f"launchers of {accuser}" if accuser else node)

    def _note_not_done(
        self, act: NotDoneAct, about: NodeCharge | PowerOffAsked | _Blamed, reason: str
    ) -> None:
        """Journal once what observe mode has kept from a node."""
        record = NotDone(act, about.node, about.job_id, about.incident_id, reason)
        known = [(item.act, item.node, item.incident_id) for _at_s, item in self.ledger.not_done]
        if (act, about.node, about.incident_id) not in known:
            self._write(record)
            self._note(f"observe mode: would {act.value} {about.node}: {reason}", about.node)

    def _note_alone(
        self, act: NotDoneAct, outside: OutsideAct, about: NodeCharge | PowerOffAsked | _Blamed
    ) -> None:
        """Journal once that an act rests on launchers of one subject alone, and so is not done."""
        reason = refuse(outside, about.node, self.owner_of(about.job_id))
        record = NotDone(act, about.node, about.job_id, about.incident_id, reason, False)
        known = [(item.act, item.node, item.incident_id) for _at_s, item in self.ledger.not_done]
        if (act, about.node, about.incident_id) not in known:
            self._write(record)
            # One note for each subject: a flood of them must not push out what people have to read.
            self._note(reason, f"launchers of {self.owner_of(about.job_id)}")

    def allow_power_off(self, requested: PowerOffAsked) -> bool:
        """Journal that a lost node is about to lose its power, and return True; False: it must not."""
        try:
            return self._decide(lambda: self._allow_power_off(requested))
        except JournalMovedError:
            return False

    def _allow_power_off(self, requested: PowerOffAsked) -> bool:
        name = self._job_names(requested.job_id)
        refusal = refuse_power_off(requested, name, self.ledger, self.policy, self.now_unix_s())
        if self.policy.why_observed(name, (requested.node,)) is not None:
            try:
                self._note_not_done(
                    NotDoneAct.POWER_OFF, requested, "it is lost, and its ranks may run"
                )
            except JournalMovedError:
                raise
            except JournalError as error:
                refusal = f"the cluster's journal can't be written: {error}"
        witnesses = self.witnesses_of_loss(requested.node, requested.job_id)
        is_alone = not allows(OutsideAct.POWER_OFF, witnesses)
        owner = self.owner_of(requested.job_id)
        sharer = "" if witnesses & _NAMED else self.shares_as(owner)
        if refusal is None and is_alone:
            try:
                self._note_alone(NotDoneAct.POWER_OFF, OutsideAct.POWER_OFF, requested)
            except JournalMovedError:
                raise
            except JournalError as error:
                log.warning("not in the cluster's journal", extra={"error": str(error)})
            return False
        if refusal is None and sharer:
            now_s = self.now_unix_s()
            refusal = refuse_share_of_power(self.ledger, self.policy, now_s, sharer)
            if refusal is not None:
                text = f"{requested.node} is lost, and is not switched off: {refusal}"
                self._note_once(text, f"launchers of {sharer}")
        if refusal is None:
            try:
                self._write(
                    replace(
                        requested,
                        sharer=sharer,
                        witnesses=tuple(item for item in Witness if item in witnesses),
                    )
                )
            except JournalMovedError:
                raise
            except JournalError as error:
                refusal = f"the cluster's journal can't be written: {error}"
        if refusal is None:
            self._note(
                f"{requested.node} is lost to {requested.incident_id}: switching it off",
                requested.node,
            )
        return refusal is None

    def is_dry_for(self, job_id: str, /) -> bool:
        name = self._job_names(job_id)
        return self.policy.is_dry_for(name) or self.policy.why_observed(name) is not None

    def probe_rules(self, job_id: str, /) -> ProbeRules:
        return self.policy.probe_rules_for(self._job_names(job_id))

    def refuse_probe(self, requested: FabricProbeAsked, /) -> str | None:
        def decide() -> str | None:
            name, now_s = self._job_names(requested.job_id), self.now_unix_s()
            sharer = self.shares_as(self.owner_of(requested.job_id))
            refusal = refuse_probe(
                requested, name, self.ledger, self.policy, now_s, self.owner_of, sharer
            )
            if refusal is None:
                self._write(requested)
            return refusal

        try:
            return self._decide(decide)
        except JournalError as error:
            return f"the cluster's journal can't be written: {error}"

    def note_probe_ended(self, ended: FabricProbeEnded, /) -> None:
        try:
            self._decide(lambda: self._write(ended))
        except JournalError as error:  # it counts as under way until its time is over
            self._note(f"probe {ended.probe_id} has ended, not in the journal: {error}")

    def note_watched(self, requested: WatchedAsked) -> None:
        """Journal the coming request to the scheduler about a watched job, or raise JournalError."""
        self._decide(lambda: self._write(requested))
        if not requested.is_dry:
            self._note(f"{requested.reason}: {requested.action}", f"job:{requested.job_id}")

    def note_causes(self, causes: Sequence[CauseTold]) -> None:
        """Journal a notice to people, or raise JournalError."""
        if causes:
            self._decide(lambda: self._write(*causes))

    def note_database(self, away_s: float | None) -> None:
        """Keep a note for people while the database of the journals does not answer."""
        is_noted = any(note.about == _DATABASE for note in self.notes)
        if away_s is not None and not is_noted:
            text = "PostgreSQL does not answer: nothing new is decided, and training continues"
            self._note(text, _DATABASE)
        elif away_s is None and is_noted:
            self._forget_notes(_DATABASE)

    def note_running(self, nodes: Iterable[str], subject: str = "") -> None:
        """Note which nodes run ranks now, by the word of this subject's launchers."""
        self._ran.note(nodes, subject, self._clock.now_s())

    def nodes_active(self) -> int:
        """Return how many nodes ran ranks within a day: the denominator of percentages."""
        counted = self._ran.count(
            self._clock.now_s(),
            self.policy.budgets.nodes_unconfirmed_max,
            lambda subject: bool(self.shares_as(subject)),
            lambda node: node in self.listed or node in self.parts.on or self.is_confirmed(node),
        )
        self.unconfirmed = counted.unconfirmed
        return counted.nodes

    def named_nodes(self) -> set[str]:
        """Return the nodes that launchers, people and settings have named; not those that alerts name."""
        return {*self._ran, *self.ledger.nodes, *self.listed, *self.parts.on}

    def known_nodes(self) -> set[str]:
        """Return the nodes that ran ranks within a day, that are or were held, or that alerts accuse."""
        accused = {alert.node for alert in self.alerts.active if alert.node}
        return {*self._ran, *self.ledger.nodes, *accused}

    def budgets_left(self) -> dict[str, int]:
        """Return what is left of the cluster's budgets, by name."""
        return budgets_left(self.nodes_active(), self.ledger, self.policy, self.now_unix_s())

    # Alerts.

    def take_alerts(
        self,
        alerts: Iterable[IncomingAlert],
        jobs_on: Mapping[str, tuple[JobNode, ...]],
        sender: Sender = NOBODY,
        rules: AlertRules | None = None,
        names: Callable[[], NodeNames] | None = None,
    ) -> tuple[TakenAlerts, list[tuple[str, NodeEvidence]]]:
        """Take in a message; return what came of it, and what each job is to hear. ``names``: of all nodes, also of other jobs.

        Alerts of a node in maintenance accuse nobody while the window is open; those that still fire when it
        closes are reported then.
        """
        now_s = self.now_unix_s()
        taken, received = self.alerts.receive(
            alerts,
            jobs_on,
            now_s,
            lambda node: self.ledger.window_of(node, now_s) is not None,
            sender,
            rules,
            names,
        )
        if taken.refused:
            self._note_refused(sender, taken.refusal)
        if received:
            self._note_own_alerts(received)
            self._doubt(jobs_on)
        return taken, received

    def _note_refused(self, sender: Sender, refusal: str) -> None:
        """Name a sender whose alerts find no room: once an hour, however many there are."""
        now_s = self._clock.now_s()
        told_s = self._refused_at_s.get(sender.name)
        if told_s is not None and now_s - told_s < _REFUSAL_S:
            return
        self._refused_at_s.pop(sender.name, None)
        self._refused_at_s[sender.name] = now_s
        if len(self._refused_at_s) > _REFUSED_MAX:
            del self._refused_at_s[next(iter(self._refused_at_s))]
        self._note(
            f"{sender.name} sends too many alerts; new ones are refused: {refusal}", sender.name
        )

    def retell(
        self,
        jobs_on: Mapping[str, tuple[JobNode, ...]],
        names: Callable[[], NodeNames] | None = None,
    ) -> list[tuple[str, NodeEvidence]]:
        """Return which active alerts on their nodes the jobs have not received, and forget those that are over."""
        now_s = self.now_unix_s()
        received = self.alerts.forget(now_s)
        self.alerts.locate(jobs_on, names)
        self._doubt(jobs_on)
        self.told_names = read_names(self.alerts.active)
        accused = {alert.node for alert in self.alerts.active}
        for node in accused & jobs_on.keys():
            if self.ledger.window_of(node, now_s) is None:
                received += self.alerts.retell(node, jobs_on[node], now_s)
        self._note_own_alerts(received)
        return received

    def doubts(self, job_id: str, /) -> Mapping[str, str]:
        """Return the alerts that this job must not believe alone, since they accuse too much of the fleet or of it: why, by identity."""
        return self._doubts.of(job_id)

    def _doubt(self, jobs_on: Mapping[str, tuple[JobNode, ...]]) -> None:
        """See anew which alerts are doubted, and tell people of each rule once."""
        nodes_of_jobs: dict[str, list[str]] = {}
        for node, jobs in jobs_on.items():
            for job in jobs:
                nodes_of_jobs.setdefault(job.job_id, []).append(node)
        active = self.nodes_active() or len(jobs_on)
        percent = self.policy.budgets.nodes_held_percent
        found = find_doubtful(self.alerts.active, nodes_of_jobs, active, percent, self.parts)
        before = self._doubts.reasons
        self._doubts = found
        for reason in sorted(found.reasons - before):
            self._note(f"doubted, moves nothing by itself: {reason}", found.alertnames[reason])

    def accused(self, job_id: str, /) -> frozenset[str]:
        """Return the nodes that an active alert rules out for this job, but for those in maintenance.

        A spare is judged as a node with ranks is: an alert about another job, one whose node is not certain and one that is
        doubted accuse nobody here.
        """
        now_s, doubted = self.now_unix_s(), self.doubts(job_id)
        found = {
            alert.node
            for alert in self.alerts.active
            if alert.ends_use and alert.node and not alert.is_doubtful
            if alert.target.job_id in ("", job_id) and alert.target.key not in doubted
        }
        return frozenset(node for node in found if self.ledger.window_of(node, now_s) is None)

    # People.

    def drain(self, node: str, who: str, reason: str) -> None:
        """Give the node no ranks until a person takes it back."""
        _check_name("node", node)
        self._command(NodeHeld(node, Hold.DRAIN, who, reason[:_TEXT_MAX], None))

    def release(self, node: str, who: str, reason: str) -> None:
        """Release the node from a drain or quarantine, and forget its past."""
        _check_name("node", node)
        self._command(NodeReleased(node, who, reason[:_TEXT_MAX]))
        self._forget_notes(node)

    def pause(self, scope: str, who: str, reason: str) -> None:
        self._command(Paused(_check_scope(scope), who, reason[:_TEXT_MAX]))

    def resume(self, scope: str, who: str, reason: str) -> None:
        if _check_scope(scope) not in self.ledger.paused:
            raise ConfigError(f"{scope} is not paused")
        self._command(Unpaused(scope, who, reason[:_TEXT_MAX]))

    def add_window(self, window: WindowAdded) -> None:
        if not window.nodes or len(window.nodes) > NAMES_MAX:
            raise ConfigError(f"a window names 1 to {NAMES_MAX} nodes, not {len(window.nodes)}")
        for node in window.nodes:
            _check_name("node", node)
        for name in ("from_unix_s", "until_unix_s"):
            _check_time(name, getattr(window, name), self.now_unix_s())
        lasts_s = window.until_unix_s - window.from_unix_s
        if not 0 < lasts_s <= WINDOW_S_MAX:
            raise ConfigError(
                f"a window lasts up to {WINDOW_S_MAX / DAY_S:g} days, not {lasts_s} s"
            )
        if len(self.ledger.windows) >= WINDOWS_MAX:
            raise ConfigError(f"there are {WINDOWS_MAX} maintenance windows: remove some")
        self._command(window)

    def remove_window(self, window_id: str, who: str, reason: str) -> None:
        if window_id not in self.ledger.windows:
            raise ConfigError(f"there is no maintenance window {window_id!r}")
        self._command(WindowRemoved(window_id, who, reason[:_TEXT_MAX]))

    def acknowledge(self, incident_id: str, who: str, reason: str) -> None:
        """Stop the incident's notices. Idempotent."""
        _check_name("incident", incident_id)
        if incident_id not in self.ledger.acknowledged:
            self._command(Acknowledged(incident_id, who, reason[:_TEXT_MAX]))

    def _command(self, record: ClusterRecord) -> None:
        """Write what a person wants, whatever others have decided meanwhile."""
        self._decide(lambda: self._write(record))

    def _write(self, *records: ClusterRecord) -> None:
        for entry in self._journal.append_many(records):
            self.ledger = fold_entry(self.ledger, entry)

    def _note(self, text: str, about: str = "") -> None:
        """Log the text, and keep it for people who ask: of each node or sender only the newest."""
        log.warning("cluster", extra={"note": text})
        if about:
            self._forget_notes(about)
        self.notes = (*self.notes, ClusterNote(text, about))[-100:]

    def _note_once(self, text: str, about: str) -> None:
        """Note what is found again at each look."""
        if ClusterNote(text, about) not in self.notes:
            self._note(text, about)

    def _forget_notes(self, about: str) -> None:
        self.notes = tuple(note for note in self.notes if note.about != about)


def _is_persons(request: PlanRequest) -> bool:
    """Return whether a plan has the word of a person who may speak for nodes, too."""
    is_approved = request.approved_by is not None and not request.is_approved_within
    return request.finding.is_persons or is_approved


def _check_name(what: str, name: str) -> None:
    if not name or len(name) > 253 or any(char.isspace() or char == "/" for char in name):
        raise ConfigError(f"{what} {name!r:.80} is not a name")


def _check_time(name: str, unix_s: float, now_unix_s: float) -> None:
    if abs(unix_s - now_unix_s) <= WINDOW_AWAY_S_MAX:
        return
    is_ms = abs(unix_s / 1000 - now_unix_s) <= WINDOW_AWAY_S_MAX
    hint = "the value seems to be milliseconds" if is_ms else "it must be seconds since 1970"
    raise ConfigError(
        f"{name} is {unix_s:.15g}, more than {WINDOW_AWAY_S_MAX / DAY_S:g} days from now: {hint}"
    )


def _check_scope(scope: str) -> str:
    kind, colon, name = scope.partition(":")
    if scope == "cluster":
        return scope
    if kind not in ("job", "node") or not colon:
        raise ConfigError(f"scope {scope!r:.80} is not cluster, job:ID or node:NAME")
    _check_name(kind, name)
    return scope
