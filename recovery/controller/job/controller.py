"""Runs one job: takes in reports, decides, journals, orders.

Refuse, journal, act: every decision is a record that is durable before the order that follows
from it is sent. What one tick decides is one commit, and where that takes long, the next ticks only listen. The state is the fold of the records (`recovery.journal.fold`). Its `wish` is what
the nodes should be running, and orders are derived from the wish alone, so that any of them can be
sent again at any time. Mere observations (where each rank is, since when) are kept in
`recovery.controller.job.observation` and may be lost: after a crash, new reports restore them.

This module takes in reports and dispatches. `recovery.controller.job.situation` is what is known, `attempt_health`
examines the attempt, `attempts` starts and ends attempts, `incidents` runs the open incident and
`plan_progress` gets its plans allowed; none of them imports this module.

For one thread; only `request_stop` may be called from another.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from detectors.finding import Finding
from detectors.node.charges import ChargeKind, NodeCharge
from detectors.node.job_libraries import LibraryShare
from rankmend.clock import Clock
from rankmend.errors import JournalError
from rankmend.milestones import ProcessMilestone, name_milestone
from recovery.checkpoints.snapshots.memory import NodeMemory
from recovery.controller.cluster.gate import Gate, OpenGate, OpenPool, Pool
from recovery.controller.job import shared_reasons
from recovery.controller.job.adoption import Waits
from recovery.controller.job.alert_intake import AlertIntake, doubts_due, fatal
from recovery.controller.job.attempt_diagnosis import first_failure
from recovery.controller.job.attempt_health import AttemptHealth
from recovery.controller.job.attempts import AttemptFence, Attempts, Checkpoints
from recovery.controller.job.incidents import IncidentRunner
from recovery.controller.job.node_power import NoSwitch, PowerReader, PowerSwitch, PowerWatch
from recovery.controller.job.nodes import Orders, refuses
from recovery.controller.job.person_commands import Floor, Reply, reply_to
from recovery.controller.job.plan_progress import PlanProgress, event_of
from recovery.controller.job.restore.copy_rounds import CopyRounds
from recovery.controller.job.restore.put_backs import PutBackIntake
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.situation import BudgetStore, Situation
from recovery.controller.job.watch.hang_verdict import HangInquiry
from recovery.controller.job.watch.number_watch import NumberWatch
from recovery.controller.job.watch.probe_watch import ProbeWatch
from recovery.controller.job.watch.rank_picture import RankPicture, take_picture
from recovery.controller.job.watch.replica_watch import ReplicaWatch
from recovery.journal.attempt_records import Adopted, AttemptAbandoned, RanksDone
from recovery.journal.incident_machine import Outcome, Phase
from recovery.journal.incident_records import ChargedNode, EvidenceCollected, NodesCharged
from recovery.journal.job_records import (
    BudgetsReset,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    OutcomeKind,
    PersonActed,
    StopRequested,
)
from recovery.journal.ledger import Ledger, Wish, is_set_aside
from recovery.journal.node_records import NodesJoined
from recovery.journal.observation_records import ParallelDeclared
from recovery.journal.pen import AheadPen, DirectJournal
from recovery.journal.records import Entry, Record
from recovery.messages.copying import CopyRequest
from recovery.messages.exchange import RankStart, Report, Stop, StopReason
from recovery.messages.outside import NodeEvidence, PersonAct, PersonCommand
from recovery.messages.probing import ProbeRequest

log = logging.getLogger(__name__)

# How long a job with no rank alive waits for its journal: a moment if its outcome is known; if it
# has failed, as long as a person or a log rotation may take to free disk space.
JOURNAL_PATIENCE_KNOWN_S: Final = 5.0
JOURNAL_PATIENCE_S: Final = 300.0
TICK_BUSY_S: Final = 0.05  # between two ticks: an incident is decided without waiting
TICK_S: Final = 0.25  # the same while all is well: ages and timeouts are seconds
STOPPED_S: Final = 10.0  # a pause between two ticks this long means that this process was stopped
COPIES_S: Final = 1.0  # between two looks at copies of snapshots
COPIES_NODES_PER_S: Final = 500  # looked at: 16,000 ranks take 0.1 s
_NAMED_MAX: Final = 8  # nodes in one log line
# Commands that judge or make a plan, and commands that change which nodes the next attempt can use.
_ON_PLANS: Final = frozenset(
    {PersonAct.APPROVE, PersonAct.REJECT, PersonAct.CANCEL, PersonAct.RESTART}
)
_ON_NODES: Final = frozenset(
    {
        PersonAct.RESUME,
        PersonAct.LEAVE_NODE,
        PersonAct.CONFIRM_GONE,
        PersonAct.RESET_BUDGETS,
    }
)
_ADVANCES_MAX: Final = 32  # decisions per tick; more would be a loop, and the next tick continues


class Controller:
    def __init__(
        self,
        journal: DirectJournal | AheadPen,
        orders: Orders,
        checkpoints: Checkpoints | None,
        fence: AttemptFence | None,
        budget_copy: BudgetStore | None,
        clock: Clock,
        settings: JobSettings,
        on_entry: Callable[[Entry], None] | None = None,
        gate: Gate | None = None,
        pool: Pool | None = None,
        hearing: Clock | None = None,
        power: PowerReader | None = None,
        switch: PowerSwitch | None = None,
    ) -> None:
        """``power`` reads whether nodes have power, ``switch`` may switch them off; None: nothing does.

        ``hearing`` counts only time in which the controller listened (`recovery.service.jobs.listening_clock`).
        """
        self._settings = settings
        self._policy = settings.policy
        self._pool = pool = pool or OpenPool()
        self._situation = Situation(
            journal, orders, budget_copy, clock, settings, on_entry, hearing, pool
        )
        self._book, self._nodes = self._situation.book, self._situation.nodes
        self._watch = AttemptHealth(self._situation)
        self._replicas = ReplicaWatch(settings.layout)
        self._numbers = NumberWatch()
        self._attempts = Attempts(
            self._situation, self._watch, pool, checkpoints, fence, self._replicas.why_not
        )
        self._planning = PlanProgress(self._situation, self._attempts, gate or OpenGate(), pool)
        self._incidents = IncidentRunner(
            self._situation, self._watch, self._attempts, self._planning
        )
        self._power = PowerWatch(power, switch or NoSwitch(), self._nodes, self._policy)
        self._evidence = HangInquiry()
        self._last_finding: Finding | None = None  # the newest incident's
        self._intake = AlertIntake()
        self._put_backs = PutBackIntake()
        self._stop_wanted: StopRequested | None = None
        # the nodes last logged as following another controller
        self._strangers: frozenset[str] = frozenset()
        self._waits: str | None = None  # why it waits for launchers that follow another controller
        self._waits_topic = ""  # the same without its changing figures
        self._ticked_at_s: float | None = None
        self.outcome: JobOutcome | None = None
        self._probes = ProbeWatch(self._situation)
        self._copying = CopyRounds(0, 0)
        self._copied_at_s = float("-inf")
        self._copy_requests: Mapping[str, CopyRequest] = {}  # by node; replaced as a whole

    @property
    def ledger(self) -> Ledger:
        """The job's current state by the journal."""
        return self._situation.ledger

    @property
    def journal_error(self) -> str | None:
        """The reason why the journal can't be written now, or None."""
        return self._book.error

    @property
    def journal_trouble(self) -> str | None:
        """The same for people, with what follows and since when."""
        return self._book.trouble

    @property
    def is_calm(self) -> bool:
        """Return whether ranks run and nothing is being done about them: ticks may be rarer."""
        ledger = self.ledger
        return ledger.wish is Wish.RANKS and ledger.incident is None and ledger.closing is None

    @property
    def waits(self) -> str | None:
        """The reason why nothing is decided: launchers know more than the journal. None: the job is managed."""
        return self._waits

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user."""
        return self._book.warnings

    # From outside.

    def start(self) -> None:
        """Resume the job from its journal. Nothing is ordered before its nodes have reported."""
        settings, job_id = self._settings, self.ledger.job_id
        if job_id not in (None, settings.job_id):
            raise JournalError(f"the journal belongs to job {job_id}, not to {settings.job_id}")
        self._nodes.start(self._situation.now_s())
        epoch = max(self.ledger.epoch + 1, settings.epoch_min)
        records: list[Record] = []
        if job_id is None:
            records.append(JobOpened(settings.job_id, settings.name))
        records += self._book.lost_records(settings.job_id)
        records.append(
            LauncherStarted(
                (settings.own_node,) if settings.own_node else (),
                settings.slots if settings.own_node else 0,
                settings.pid,
                settings.rankmend_version,
                epoch,
                settings.controller_id,
                None if job_id is None else settings.alive_age_s,
                settings.checkpoint_names,
            )
        )
        if settings.budgets_reset_by is not None:
            records.append(
                BudgetsReset(settings.budgets_reset_by, "requested at the start (--reset-budgets)")
            )
        if settings.claim_taken is not None:
            records.append(settings.claim_taken)
        if settings.layout != self.ledger.layout:
            records.append(ParallelDeclared(settings.layout))
        self._situation.record(*records)
        self._situation.observe_anew()

    def handle_report(self, report: Report) -> None:
        """Take in a node's report. The next `tick` acts on it."""
        if report.job_id != self._settings.job_id:
            log.warning(
                "report refused", extra={"node": report.node, "reported_job_id": report.job_id}
            )
            return
        now_s = self._situation.now_s()
        if not self._nodes.hear(report, self.ledger, now_s):
            return
        self._hear(report, now_s)

    def _hear(self, report: Report, now_s: float) -> None:
        before = self._situation.observation.newest_step
        self._situation.hear(report, now_s)
        newest = self._situation.observation.newest_step
        if newest is not None and newest != before:
            name_milestone("controller", ProcessMilestone.STEP_SEEN, newest)
        self._evidence.note_saved(report, now_s, self.ledger.collected)
        self._put_backs.receive(report)
        self._replicas.receive(report)
        self._numbers.receive(report, self.ledger, now_s)
        self._probes.receive(report, self.ledger)
        if report.stop_requested is not None:
            self.request_stop(report.stop_requested, self._settings.grace_s)

    def refuses(self, node: str, launcher_id: str) -> str | None:
        """Return why a launcher is refused permanently, or None. May be called from any thread."""
        return refuses(self.ledger, node, launcher_id)

    @property
    def highest_step(self) -> int | None:
        """Return the highest step of the job, with what the journal does not have yet. For any thread."""
        known, seen = self.ledger.highest_step, self._situation.observation.highest_step
        return seen if known is None else max(known, seen or 0)

    def picture(self) -> RankPicture:
        """Return where the ranks of the newest attempt stand. For any thread."""
        seen, slow = self._situation.observation, self._situation.slow
        # list() of a dict's values is one step for the interpreter: no rank can be added meanwhile.
        return take_picture(
            seen.attempt,
            list(seen.ranks.values()),
            slow.pace,
            self._situation.now_s(),
            self._numbers.losses.points(),
        )

    def starts(self) -> dict[str, dict[RankStart, list[int]]]:
        """Return the newest attempt's ranks of each node by how their processes came to be."""
        return self._situation.observation.starts()

    def nccl_shares(self) -> tuple[LibraryShare, ...]:
        """Return who has loaded which NCCL, where the ranks differ. For any thread."""
        return self._situation.observation.nccl_shares()

    def memories(self) -> list[NodeMemory]:
        """Return what the ranks of each node have in memory, by its newest report."""
        return self._nodes.memories(self._situation.now_s())

    @property
    def copy_requests(self) -> Mapping[str, CopyRequest]:
        """Return what each node is queried about copies of snapshots. May be called from any thread."""
        return self._copy_requests

    @property
    def probe_requests(self) -> Mapping[str, ProbeRequest]:
        """Return each node's part in a probe of the network. May be called from any thread."""
        return self._probes.requests

    def request_stop(self, cause: StopReason, grace_s: float, reason: str = "") -> None:
        """Request a planned stop of the job; takes effect at the next tick."""
        if self._stop_wanted is None:
            text = reason or cause.value
            self._stop_wanted = StopRequested(text, Stop.GRACE, grace_s, cause)

    def take_evidence(self, evidence: NodeEvidence) -> None:
        """Take in an alert about a device or a host. The next `tick` acts on it."""
        self._intake.receive(evidence, self.ledger)

    @property
    def has_recorded_evidence(self) -> bool:
        """Return whether the alerts that it has received are durable, as far as they concern it."""
        return self._intake.is_empty and self._situation.is_settled

    @property
    def is_behind_disk(self) -> bool:
        """Return whether a decision waits for the disk."""
        return not self._situation.is_settled or self.journal_error is not None

    def take_command(self, command: PersonCommand) -> PersonActed:
        """Obey a person's command, or return why not; raise if it can't be journaled.

        A command with a known key does nothing.
        """
        known = self.ledger.commands.get(command.key) if command.key else None
        if known is not None:
            return replace(known, command=command)
        now_s = self._situation.now_s()
        silent_s = self._policy.node_silent_s
        floor = Floor(
            shortage=lambda without: self._planning.shortage(without, now_s),
            is_accused=lambda node: any(
                retained.evidence.node == node for retained in fatal(self.ledger)
            ),
            is_heard=lambda node: (
                self._nodes.is_heard(node) and now_s - self._nodes.reported_at_s(node) < silent_s
            ),
            failure=self._watch.name_failure,
            waits=self._waits,
            claimed=self._nodes.claimed,
        )
        reply = reply_to(command, self.ledger, floor)
        records = list(reply.records)
        if reply.opens is not None:
            records.append(self._incidents.opened(reply.opens, self._book.foresee(records)))
        self._situation.record_now(*records)
        is_obeyed = not reply.acted.is_refused
        if command.node is not None and command.act is PersonAct.CONFIRM_GONE and is_obeyed:
            self._nodes.note_confirmed(command.node, now_s)
        if reply.stops is not None:
            self.request_stop(StopReason.PERSON, self._settings.grace_s, reply.stops)
        if self._changes_waiting(reply):
            self._situation.forget_times()  # time before the person's command counts against nothing
        return reply.acted

    def _changes_waiting(self, reply: Reply) -> bool:
        """Return whether an obeyed command changes what the job waits for.

        No other command restarts the clocks: repeated commands would otherwise hide a failure.
        """
        command, ledger = reply.acted.command, self.ledger
        if reply.acted.is_refused:
            return False
        if reply.opens is not None or command.act in _ON_PLANS:
            return True
        if command.act is PersonAct.RESUME and command.node is None:
            return True
        is_waiting = ledger.incident is not None or ledger.wish is not Wish.RANKS
        return is_waiting and command.act in _ON_NODES

    def take_slow(self, finding: Finding, factor: float) -> str:
        """Take note of a rank that makes every step ``factor`` times as long; return the outcome."""
        return self._incidents.take_slow(finding, factor)

    def tick(self) -> None:
        """Do everything that is due. Call it several times a second."""
        if self.outcome is not None:
            return
        now_s = self._situation.now_s()
        self._forgive_pause(now_s)
        try:
            if self._situation.settle() and self._book.is_writable(now_s):
                self._decide(now_s)
        except JournalError as error:
            self._book.note_failure(error, now_s, self._situation.now_unix_s())
        if self._book.error is not None:
            self._do_without_journal(now_s)
        self._situation.resend(now_s)
        if not self._situation.is_settled:
            return
        self._ask_for_copies(now_s)
        self._probes.ask(self.ledger)

    def _decide(self, now_s: float) -> None:
        """Make the decisions that are due; what they have in common is one commit."""
        try:
            for _turn in range(_ADVANCES_MAX):
                if not self._advance(now_s):
                    break
        finally:
            is_durable = self._situation.commit()
        if is_durable and self.ledger.ended is not None:
            self.outcome = self.ledger.ended

    def _ask_for_copies(self, now_s: float) -> None:
        """Look which copies of snapshots are there, and what the launchers are to do next."""
        fetches = self._attempts.fetches()
        ledger, copies = self.ledger, {}
        pause_s = max(COPIES_S, len(ledger.placement) / COPIES_NODES_PER_S)
        if now_s - self._copied_at_s < pause_s and not fetches:
            return
        self._copied_at_s = now_s
        if ledger.wish is Wish.RANKS:
            if self._copying.attempt != ledger.attempt:
                self._copying = self._copying.of_next_attempt(
                    ledger.attempt, self._policy.snapshot_copies
                )
            received = self._nodes.heard(ledger, now_s)
            self._copying = self._copying.observe(
                ledger.placement, received, now_s, self._pool.parts
            )
            copies = self._copying.orders(ledger.placement, received)
        self._copy_requests = {
            node: CopyRequest(copies.get(node), fetches.get(node, ()))
            for node in copies.keys() | fetches.keys()
        }

    def _forgive_pause(self, now_s: float) -> None:
        """Disregard time in which this process itself was stopped (SIGSTOP, a debugger)."""
        paused_s = now_s - (now_s if self._ticked_at_s is None else self._ticked_at_s)
        self._ticked_at_s = now_s
        if paused_s >= STOPPED_S:
            self._situation.forgive(paused_s, now_s)

    def _do_without_journal(self, now_s: float) -> None:
        """Obey a planned stop even without the journal, and end once nothing runs any longer.

        The stop's records will be the next ones written, so its revision is known in advance.
        """
        if self._stop_wanted is not None and self.ledger.closing is None:
            self._situation.obey_unwritten(self._stop_records())
        seen = self._situation.observation
        closing = self._situation.obeyed.closing
        is_over = closing is not None and not self.ledger.is_attempt_open
        if not (is_over or self._nodes.are_empty(self.ledger) or seen.has_ended):
            return
        is_known = closing is not None or seen.is_done
        patience_s = JOURNAL_PATIENCE_KNOWN_S if is_known else JOURNAL_PATIENCE_S
        if self._situation.since(now_s, "unwritten", self.ledger.number) < patience_s:
            return
        if closing is not None:
            outcome = closing.outcome
        elif seen.is_done:
            outcome = JobOutcome(OutcomeKind.DONE, 0, "every rank ended with exit code 0")
        else:
            exit_code, rank, error = first_failure(seen)
            reason = "the ranks have ended"
            outcome = JobOutcome(OutcomeKind.ESCALATED, exit_code, reason, None, rank, error)
        reason = f"{outcome.reason}; not in the journal: {self._book.error}"
        self.outcome = replace(outcome, reason=reason)

    # Whose turn it is.

    def _advance(self, now_s: float) -> bool:
        """Make the next decision that is due; return whether one was due."""
        ledger = self.ledger
        if ledger.ended is not None:
            if self._situation.is_settled:
                self.outcome = ledger.ended
            return False
        if self._take_ends(now_s) or self._test_network(ledger, now_s):
            return True
        if (has_adopted := self._take_claims(ledger, now_s)) is not None:
            return has_adopted
        if self._take_news(ledger, now_s) or self._switch_off_lost(ledger, now_s):
            return True
        if self._stop_wanted is not None and ledger.closing is None:
            self._situation.record(*self._stop_records())
            return True
        return self._duty(ledger)(now_s) or self._note_standstill(now_s)

    def _note_standstill(self, now_s: float) -> bool:
        """Journal that ranks stand still and may go on, or have; the order to go on follows."""
        if self.ledger.wish is not Wish.RANKS or not self._situation.is_taken_up:
            return False
        standing = self._watch.standing(now_s)
        if standing is not None:
            self._situation.record(standing)
        return standing is not None

    def _take_ends(self, now_s: float) -> bool:
        """Journal the launchers that have ended, or whose nodes have no power; return whether there were any."""
        if ended := self._nodes.ending():
            self._situation.record(ended)
            self._nodes.take_ended(ended)
        if off := self._power.due(self.ledger, now_s):
            self._situation.record(off)
            self._nodes.take_off(off, now_s)
        return bool(ended or off)

    def _switch_off_lost(self, ledger: Ledger, now_s: float) -> bool:
        """Have a lost node switched off if policy and cluster allow it; return whether one was."""
        if not self._situation.is_taken_up:
            return False
        lost = self._power.lost(ledger, self._settings.job_id, now_s)
        if lost is None:
            return False
        self._situation.record(lost)
        self._situation.follow(lambda: self._power.switch_off(lost))
        return True

    def _test_network(self, ledger: Ledger, now_s: float) -> bool:
        """Journal that a probe of the network begins, or has ended; return whether one did."""
        probed = self._probes.due(ledger, now_s)
        if probed:
            self._situation.record(*probed)
            self._probes.act(probed, now_s)
        return bool(probed)

    def _take_news(self, ledger: Ledger, now_s: float) -> bool:
        """Journal news that no later report repeats; return whether there was any."""
        if (evidence := self._judged_evidence(ledger, now_s)) is not None:
            self._situation.record(evidence)
            self._evidence.forget()
            self._charge_proved(evidence)
            return True
        if taken := self._intake.due(ledger):
            self._situation.record(taken)
            self._intake.forget(taken)
            return True
        doubted = (
            doubts_due(ledger, self._pool.doubts(self._settings.job_id)) if ledger.evidence else ()
        )
        news: list[Record] = [*doubted, *self._put_backs.due(ledger)]
        if news:
            self._situation.record(*news)
            return True
        wrong: list[Record] = [*self._replicas.due(ledger), *self._numbers.due(ledger, now_s)]
        if wrong:
            self._situation.record(*wrong)
            return True
        if joined := self._nodes.joining(ledger, now_s):
            self._situation.record(NodesJoined(joined))
            for report in self._nodes.take_joined(joined):
                self._hear(report, now_s)
            if self._situation.is_taken_up:
                self._situation.send_to({item.node for item in joined})
            return True
        return False

    def _take_claims(self, ledger: Ledger, now_s: float) -> bool | None:
        """Adopt the attempt that launchers claim and the journal lacks, or wait; None: nothing is claimed."""
        judged = self._nodes.adoption(ledger, now_s)
        if judged is None:
            self._warn_of_strangers()
            if self._waits is not None:
                log.warning("the job is managed again", extra={"waited_for": self._waits})
                self._waits = None
            return None
        if isinstance(judged, Waits):
            topic = judged.topic or judged.reason
            if self._waits is None or topic != self._waits_topic:
                log.warning("job not adopted", extra={"reason": judged.reason})
            self._waits_topic = topic
            # Training continues by the orders of the controller that the launchers follow.
            self._waits, self._situation.is_taken_up = judged.reason, False
            return False
        self._adopt(judged)
        return True

    def _warn_of_strangers(self) -> None:
        """Log the few nodes that follow another controller while most follow this one."""
        strange, known = self._nodes.strange, self._strangers
        if strange - known:
            fields = {"nodes": sorted(strange - known)[:_NAMED_MAX]}
            log.warning("nodes claim an unknown attempt or controller", extra=fields)
        self._strangers = strange

    def _adopt(self, adopted: Adopted) -> None:
        records: list[Record] = []
        reason = f"attempt {adopted.attempt}, which this journal did not know, is adopted"
        is_same = adopted.attempt == self.ledger.attempt
        if self.ledger.incident is not None and not is_same:
            records.append(event_of(self.ledger.incident, Outcome.CANCEL, reason))
        self._situation.record(*records, adopted)
        log.warning("attempt adopted", extra={"attempt": adopted.attempt, "epoch": adopted.epoch})
        self._waits = None
        self._nodes.take_adopted(adopted)
        self._situation.observe_anew()
        self._situation.forget_times()
        self._situation.is_taken_up = True
        self._situation.send_to(None)

    def _judged_evidence(self, ledger: Ledger, now_s: float) -> EvidenceCollected | None:
        """Return the record of an incident's evidence, once the launchers have reported it."""
        if not self._situation.is_taken_up:
            return None
        if ledger.incident is not None:
            self._last_finding = ledger.incident.last_failure.finding
        if not self._evidence.is_open:
            return None
        nodes = {place.node for place in ledger.placement}
        return self._evidence.due(nodes, self._last_finding, now_s)

    def _charge_proved(self, evidence: EvidenceCollected) -> None:
        """Count a hang that dumps or stacks prove against its node, once."""
        accused, incident = evidence.finding, self.ledger.incident
        if accused is None or not evidence.is_sure:
            return
        if incident is not None and incident.state.incident_id == evidence.incident_id:
            self._planning.charge(incident, {}, accused)
            return
        job_id, summary = self._settings.job_id, accused.summary
        said = self._situation.pool.note_charge(
            NodeCharge(
                accused.node,
                ChargeKind.HANG_PROVED,
                job_id,
                evidence.incident_id,
                summary,
                accused.kind.value,
            )
        )
        charged = ChargedNode(accused.node, said.kind, said.counts, said.reason)
        self._situation.record(NodesCharged(evidence.incident_id, (charged,)))

    def _duty(self, ledger: Ledger) -> Callable[[float], bool]:
        """Return the function for the job's current phase."""
        duty: Callable[[float], bool] = self._watch_attempt
        if not self._situation.is_taken_up:
            duty = self._take_up
        elif ledger.closing is not None:
            duty = self._attempts.close
        elif ledger.incident is not None:
            duty = self._incidents.run  # during a pause its plans wait
        elif ledger.paused_by is not None and not self._is_watched(ledger):
            duty = self._stand_back
        elif not ledger.is_attempt_open:
            duty = self._attempts.start
        elif ledger.wish is not Wish.RANKS:
            duty = self._attempts.fence_leftover
        return duty

    def _stop_records(self) -> list[Record]:
        assert self._stop_wanted is not None, "called when a stop is wanted"
        wanted = self._stop_wanted
        records: list[Record] = []
        if self.ledger.incident is not None:
            records.append(event_of(self.ledger.incident, Outcome.CANCEL, f"stop: {wanted.reason}"))
        return [*records, wanted]

    def _take_up(self, now_s: float) -> bool:
        """Look before acting: keep what still runs, and give up what ended with the previous process."""
        # Launchers outlive a controller elsewhere: running ranks continue, and a silent node is judged
        # later, by its peers' reports. A restored journal may know less than the launchers, so
        # their reports come first.
        wait_s = min(
            self._policy.lease_s + self._policy.node_silent_s, self._policy.start_timeout_s
        )
        if self._nodes.missing(self.ledger) and self._situation.since(now_s, "take up") < wait_s:
            return False
        self._situation.is_taken_up = True
        if self._has_ended_with_us(self.ledger):
            self._give_up(self.ledger)
        return True

    def _has_ended_with_us(self, ledger: Ledger) -> bool:
        """Return whether the attempt ran on this process's node and ended with the previous process."""
        if not ledger.is_attempt_open or ledger.wish is not Wish.RANKS or ledger.closing:
            return False
        if {place.node for place in ledger.placement} != {self._settings.own_node}:
            return False
        # Otherwise it still runs, or its launchers report its exits.
        return all(report.attempt != ledger.attempt for report in self._nodes.reports)

    def _give_up(self, ledger: Ledger) -> None:
        reason = f"rankmend came back and attempt {ledger.attempt} is not running"
        if ledger.incident is None:
            self._situation.record(AttemptAbandoned(ledger.attempt, reason))
        elif (
            ledger.incident.state.phase is not Phase.OPENED
        ):  # an opened incident fences the attempt anyway
            self._incidents.fail_try(ledger.incident, reason, None)

    def _watch_attempt(self, now_s: float) -> bool:
        """Watch a running attempt while no incident is open."""
        found = self._watch.find_failure(now_s, self._policy)
        if found is not None:
            self._incidents.open(found, now_s)
            return True
        if self._incidents.go_back(now_s) or self._incidents.leave_damaged(now_s):
            return True
        if self._incidents.grow(now_s):
            return True
        return self._note_progress(now_s) or self._attempts.watch_silence(now_s)

    @staticmethod
    def _is_watched(ledger: Ledger) -> bool:
        """Return whether a paused job runs an attempt whose failures to detect."""
        return ledger.is_attempt_open and ledger.wish is Wish.RANKS and not is_set_aside(ledger)

    def _stand_back(self, now_s: float) -> bool:
        """Leave the job as it is, by a person's command, and only record the ranks' progress."""
        is_running = self.ledger.wish is Wish.RANKS
        return is_running and not self._situation.observation.failed and self._note_progress(now_s)

    def _note_progress(self, now_s: float) -> bool:
        seen, ledger = self._situation.observation, self.ledger
        if seen.is_done:
            self._situation.record(
                *self._watch.milestone(now_s, is_due=True), RanksDone(ledger.attempt)
            )
            return True
        if self._nodes.are_empty(ledger) and not seen.has_ended:
            reason = shared_reasons.gone_unseen(ledger.attempt)
            self._situation.record(AttemptAbandoned(ledger.attempt, reason))
            return True
        if not self._book.may_note:
            return self._incidents.weigh_slow(now_s)
        records = [*self._watch.progress(now_s), *self._attempts.restorable(now_s)]
        if not records:
            return self._incidents.weigh_slow(now_s)
        self._situation.record(*records)
        self._situation.slow.forget()
        return True
