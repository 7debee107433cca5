"""Runs one job: hears reports, decides, remembers, orders.

Refuse, remember, act: every decision is a record that is durable before the order that follows
from it is sent. The state is the fold of the records (`recovery.journal.fold`), the wish in it is
what the nodes ought to be running, and orders are derived from the wish alone, so that any of
them can be sent again at any time. What is only observed (which rank stands where, since when)
is kept in `recovery.job.observation` and may be lost: after a crash it is heard again.

This module hears, and says whose turn it is. `recovery.job.situation` is what is known, `attempt_health`
looks at the attempt, `attempts` starts and ends them, `incidents` runs the open incident and
`plan_progress` has its plans allowed; none of them knows this one.

For one thread; `request_stop` alone may be called from another.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from detectors.finding import Blame, Finding
from rankmend.clock import Clock
from rankmend.errors import JournalError
from recovery.cluster.gate import Gate, OpenGate, OpenPool, Pool
from recovery.job import shared_reasons
from recovery.job.adoption import Waits
from recovery.job.alert_intake import AlertIntake, fatal
from recovery.job.attempt_diagnosis import first_failure
from recovery.job.attempt_health import AttemptHealth
from recovery.job.attempts import AttemptFence, Attempts, Checkpoints
from recovery.job.hang_verdict import HangInquiry
from recovery.job.incidents import IncidentRunner
from recovery.job.job_memory import BudgetStore, JournalWriter
from recovery.job.nodes import Orders, refuses
from recovery.job.person_commands import Reply, reply_to
from recovery.job.plan_progress import PlanProgress, event_of
from recovery.job.refusals import Floor
from recovery.job.settings import JobSettings
from recovery.job.situation import Situation
from recovery.journal.attempt_records import Adopted, AttemptAbandoned, RanksDone
from recovery.journal.incident_machine import Outcome, Phase
from recovery.journal.incident_records import EvidenceCollected
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
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import Report, Stop, StopReason
from recovery.messages.outside import NodeEvidence, PersonAct, PersonCommand

log = logging.getLogger(__name__)

# How long a job with no rank alive waits for its journal: where its outcome is known, a moment;
# where it has failed, as long as a person or a log rotation may take to free a disk.
JOURNAL_PATIENCE_KNOWN_S: Final = 5.0
JOURNAL_PATIENCE_S: Final = 300.0
STOPPED_S: Final = 10.0  # a pause between two ticks that says that this process stood still
_NAMED_MAX: Final = 8  # nodes in a line of the log
# Commands that judge or make a plan, and those that change with what the next attempt can start.
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
_ADVANCES_MAX: Final = 32  # decisions in one go; more is a loop, and goes on at the next tick


class Controller:
    def __init__(
        self,
        journal: JournalWriter,
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
    ) -> None:
        """``hearing`` counts only time in which nodes could be heard (`recovery.service.listening_clock`)."""
        self._settings = settings
        self._policy = settings.policy
        self._situation = Situation(
            journal, orders, budget_copy, clock, settings, on_entry, hearing
        )
        self._book, self._nodes = self._situation.book, self._situation.nodes
        self._pool = pool = pool or OpenPool()
        self._watch = AttemptHealth(self._situation)
        self._attempts = Attempts(self._situation, self._watch, pool, checkpoints, fence)
        self._planning = PlanProgress(self._situation, self._attempts, gate or OpenGate(), pool)
        self._incidents = IncidentRunner(
            self._situation, self._watch, self._attempts, self._planning
        )
        self._evidence = HangInquiry()
        self._last_finding: Finding | None = None  # of the newest incident
        self._intake = AlertIntake()
        self._stop_wanted: StopRequested | None = None
        self._strangers: frozenset[str] = frozenset()  # of whom the log was told
        self._waits: str | None = None  # for launchers that follow another controller, and why
        self._waits_topic = ""  # the same without what changes by itself
        self._ticked_at_s: float | None = None
        self.outcome: JobOutcome | None = None

    @property
    def ledger(self) -> Ledger:
        """What the journal says of the job now."""
        return self._situation.ledger

    @property
    def journal_error(self) -> str | None:
        """Why the journal can't be written now, or None."""
        return self._book.error

    @property
    def waits(self) -> str | None:
        """Why nothing is decided: launchers know what the journal does not. None: it is looked after."""
        return self._waits

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user must hear of."""
        return self._book.warnings

    # From outside.

    def start(self) -> None:
        """Take the job up from its journal. Nothing is ordered before its nodes were heard."""
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
            )
        )
        if settings.budgets_reset_by is not None:
            records.append(BudgetsReset(settings.budgets_reset_by, "asked for at the start"))
        if settings.claim_taken is not None:
            records.append(settings.claim_taken)
        self._situation.record(*records)
        self._situation.observe_anew()

    def handle_report(self, report: Report) -> None:
        """Take in what a node says. What follows from it is done at the next `tick`."""
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
        self._situation.hear(report, now_s)
        self._evidence.note_saved(report, now_s)
        if report.stop_requested is not None:
            self.request_stop(report.stop_requested, self._settings.grace_s)

    def refuses(self, node: str, launcher_id: str) -> str | None:
        """Return why a launcher is refused for ever, or None. May be called from any thread."""
        return refuses(self.ledger, node, launcher_id)

    def request_stop(self, cause: StopReason, grace_s: float, reason: str = "") -> None:
        """Have the job end as planned; takes effect at the next tick."""
        if self._stop_wanted is None:
            text = reason or cause.value
            self._stop_wanted = StopRequested(text, Stop.GRACE, grace_s, cause)

    def take_evidence(self, evidence: NodeEvidence) -> None:
        """Hear of a device or a host. What follows from it is done at the next `tick`."""
        self._intake.receive(evidence, self.ledger)

    def take_command(self, command: PersonCommand) -> PersonActed:
        """Obey a person, or say why not; raise where it can't be journaled.

        A command whose key was heard before does nothing again.
        """
        known = self.ledger.commands.get(command.key) if command.key else None
        if known is not None:
            return replace(known, command=command)
        now_s = self._situation.now_s()
        silent_s = self._policy.node_silent_s
        floor = Floor(
            shortage=lambda without: self._planning.shortage(without, now_s),
            is_accused=lambda node: any(kept.evidence.node == node for kept in fatal(self.ledger)),
            is_heard=lambda node: (
                self._nodes.is_heard(node) and now_s - self._nodes.heard_at_s(node) < silent_s
            ),
            failure=self._watch.name_failure,
            waits=self._waits,
            claimed=self._nodes.claimed,
        )
        reply = reply_to(command, self.ledger, floor)
        records = list(reply.records)
        if reply.opens is not None:
            records.append(self._incidents.opened(reply.opens, self._book.foresee(records)))
        self._situation.record(*records)
        is_obeyed = not reply.acted.is_refused
        if command.node is not None and command.act is PersonAct.CONFIRM_GONE and is_obeyed:
            self._nodes.note_confirmed(command.node, now_s)
        if reply.stops is not None:
            self.request_stop(StopReason.PERSON, self._settings.grace_s, reply.stops)
        if self._changes_waiting(reply):
            self._situation.forget_times()  # nobody is held to time before a person spoke
        return reply.acted

    def _changes_waiting(self, reply: Reply) -> bool:
        """Return whether a command that was obeyed changes what is waited for.

        No other restarts a clock: a person who asks again and again would keep a failure from being found.
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
        """Hear that a rank makes every step ``factor`` times as long; return what comes of it."""
        return self._incidents.take_slow(finding, factor)

    def tick(self) -> None:
        """Do whatever is due. Call it several times a second."""
        if self.outcome is not None:
            return
        now_s = self._situation.now_s()
        self._forgive_pause(now_s)
        if self._book.is_writable(now_s):
            try:
                for _turn in range(_ADVANCES_MAX):
                    if not self._advance(now_s):
                        break
            except JournalError as error:
                self._book.note_failure(error, now_s)
        if self._book.error is not None:
            self._do_without_journal(now_s)
        self._situation.resend(now_s)

    def _forgive_pause(self, now_s: float) -> None:
        """Count no time in which this process itself stood still (SIGSTOP, a debugger)."""
        paused_s = now_s - (now_s if self._ticked_at_s is None else self._ticked_at_s)
        self._ticked_at_s = now_s
        if paused_s >= STOPPED_S:
            self._situation.forgive(paused_s, now_s)

    def _do_without_journal(self, now_s: float) -> None:
        """Obey a planned stop all the same, and end once there is nothing left to keep running.

        The stop's records will be the next that are written, so its revision is known before.
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
        """Make the next decision that is due; return whether there was one."""
        ledger = self.ledger
        if ledger.ended is not None:
            self.outcome = ledger.ended
            return False
        if self._take_ends():
            return True
        if (has_adopted := self._take_claims(ledger, now_s)) is not None:
            return has_adopted
        if self._take_news(ledger, now_s):
            return True
        if self._stop_wanted is not None and ledger.closing is None:
            self._situation.record(*self._stop_records())
            return True
        return self._duty(ledger)(now_s)

    def _take_ends(self) -> bool:
        """Journal which launchers have ended; return whether any had."""
        if ended := self._nodes.ending():
            self._situation.record(ended)
            self._nodes.take_ended(ended)
        return bool(ended)

    def _take_news(self, ledger: Ledger, now_s: float) -> bool:
        """Journal what was heard and can't be heard again; return whether there was any."""
        if (evidence := self._judged_evidence(ledger, now_s)) is not None:
            self._situation.record(evidence)
            self._evidence.forget()
            self._tell_pool(evidence)
            return True
        if taken := self._intake.due(ledger):
            self._situation.record(taken)
            self._intake.forget(taken)
            return True
        if joined := self._nodes.joining(ledger, now_s):
            self._situation.record(NodesJoined(joined))
            for report in self._nodes.take_joined(joined):
                self._hear(report, now_s)
            if self._situation.is_taken_up:
                self._nodes.send_to(self.ledger, {one.node for one in joined})
            return True
        return False

    def _take_claims(self, ledger: Ledger, now_s: float) -> bool | None:
        """Adopt what launchers claim and the journal does not know, or wait; None: it knows all."""
        judged = self._nodes.adoption(ledger, now_s)
        if judged is None:
            self._warn_of_strangers()
            if self._waits is not None:
                log.warning("the job is looked after again", extra={"waited_for": self._waits})
                self._waits = None
            return None
        if isinstance(judged, Waits):
            topic = judged.topic or judged.reason
            if self._waits is None or topic != self._waits_topic:
                log.warning("job not adopted", extra={"reason": judged.reason})
            self._waits_topic = topic
            # Training goes on by the orders of the controller that the launchers follow.
            self._waits, self._situation.is_taken_up = judged.reason, False
            return False
        self._adopt(judged)
        return True

    def _warn_of_strangers(self) -> None:
        """Say of a few nodes that they follow another controller, while most follow this one."""
        strange, known = self._nodes.strange, self._strangers
        if strange - known:
            fields = {"nodes": sorted(strange - known)[:_NAMED_MAX]}
            log.warning("nodes claim an attempt or a controller that is not known", extra=fields)
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
        self._nodes.send(self.ledger, self._situation.now_s())

    def _judged_evidence(self, ledger: Ledger, now_s: float) -> EvidenceCollected | None:
        """Return the record of an incident's evidence, once the launchers have told of it."""
        if not self._situation.is_taken_up:
            return None
        if ledger.incident is not None:
            self._last_finding = ledger.incident.last_failure.finding
        nodes = {place.node for place in ledger.placement}
        return self._evidence.due(nodes, self._last_finding, now_s)

    def _tell_pool(self, evidence: EvidenceCollected) -> None:
        """Have the pool hear of the node that the evidence accuses, where it was not told yet."""
        accused, told = evidence.finding, self._last_finding
        if accused is None or told is None or not evidence.is_sure:
            return
        if (told.blame, told.node) != (Blame.RANK, accused.node):
            job_id = self._settings.job_id
            self._pool.note_blame(accused.node, job_id, evidence.incident_id, accused)

    def _duty(self, ledger: Ledger) -> Callable[[float], bool]:
        """Return what the controller is at."""
        duty: Callable[[float], bool] = self._watch_attempt
        if not self._situation.is_taken_up:
            duty = self._take_up
        elif ledger.closing is not None:
            duty = self._attempts.close
        elif ledger.incident is not None:
            duty = self._incidents.run  # a pause lets its plans wait
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
        """Look before acting: go on with what runs, give up what ended with the process before."""
        # Launchers outlive a controller elsewhere: what runs goes on, and the silence of a node is
        # judged later, by what its peers say. A journal that was restored can know less than they:
        # they are heard first.
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
        """Return whether the attempt ran where this process did, and ended with the one before."""
        if not ledger.is_attempt_open or ledger.wish is not Wish.RANKS or ledger.closing:
            return False
        if {place.node for place in ledger.placement} != {self._settings.own_node}:
            return False
        # Else it ran on, or it ended and its exits are told.
        return all(report.attempt != ledger.attempt for report in self._nodes.reports)

    def _give_up(self, ledger: Ledger) -> None:
        reason = f"rankmend came back and attempt {ledger.attempt} is not running"
        if ledger.incident is None:
            self._situation.record(AttemptAbandoned(ledger.attempt, reason))
        elif ledger.incident.state.phase is not Phase.OPENED:  # which fences it anyway
            self._incidents.fail_try(ledger.incident, reason, None)

    def _watch_attempt(self, now_s: float) -> bool:
        """Watch an attempt that runs, with no incident under way."""
        found = self._watch.find_failure(now_s, self._policy)
        if found is not None:
            self._incidents.open(found, now_s)
            return True
        return self._note_progress(now_s) or self._attempts.watch_silence(now_s)

    @staticmethod
    def _is_watched(ledger: Ledger) -> bool:
        """Return whether a paused job runs an attempt whose failures are to be seen."""
        return ledger.is_attempt_open and ledger.wish is Wish.RANKS and not is_set_aside(ledger)

    def _stand_back(self, now_s: float) -> bool:
        """A person has it left as it is: only note how far the ranks are."""
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
        records = [*self._watch.progress(now_s), *self._attempts.restorable(now_s)]
        if not records:
            return self._incidents.weigh_slow(now_s)
        self._situation.record(*records)
        self._situation.slow.forget()
        return True
