"""Runs one job: hears reports, decides, remembers, orders.

Refuse, remember, act: every decision is a record that is durable before the order that follows
from it is sent. The state is the fold of the records (`recovery.ledger`), the wish in it is
what the nodes ought to be running, and orders are derived from the wish alone, so that any of
them can be sent again at any time. What is only observed (which rank stands where, since when)
is kept in `recovery.observation` and may be lost: after a crash it is heard again.

For one thread; `request_stop` alone may be called from another.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from detectors.finding import Blame, Finding, Kind
from rankmend.clock import Clock
from rankmend.errors import JournalError, RankmendError, SourceError
from recovery.book import Book, BudgetStore, Journal
from recovery.cause_desk import CauseDesk
from recovery.checkpoints.model import Verdict
from recovery.diagnosis import (
    EVIDENCE,
    EXIT_UNKNOWN,
    HOST_SILENT,
    Accused,
    Doctor,
    first_failure,
)
from recovery.evidence_desk import EvidenceDesk
from recovery.gate import Gate, Judgement, OpenGate, OpenPool, PlanRequest, Pool
from recovery.intake import Intake, fatal
from recovery.ledger import Ledger, OpenIncident, Wish
from recovery.machine import Event, Outcome, Phase, expected_answer
from recovery.membership import Gone, has_launcher_of_attempt, placement_of, size_for
from recovery.messages import Report, Stop
from recovery.nodes import Nodes, Orders, refuses
from recovery.observation import Observation
from recovery.outside import NodeEvidence, PersonAct, PersonCommand
from recovery.people import Floor, reply_to
from recovery.planner import (
    PERSON,
    Scene,
    choose_checkpoint,
    is_progress,
    is_worth_moving,
    plan,
)
from recovery.policy import Policy, exhausted
from recovery.preparation import Preparation, Ready, Waiting
from recovery.records import (
    AttemptAbandoned,
    AttemptEnded,
    AttemptHeard,
    AttemptResult,
    AttemptStarted,
    AttemptVerified,
    BudgetsReset,
    CaughtUp,
    Cause,
    Choice,
    Decided,
    Entry,
    EvidenceCollected,
    Failure,
    FenceWaits,
    FinderChosen,
    IncidentEvent,
    IncidentOpened,
    JobEnded,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    Milestone,
    NodeLeft,
    NodesJoined,
    OutcomeKind,
    PersonActed,
    Placement,
    Plan,
    PlanStep,
    PlanWaits,
    RanksDone,
    Record,
    StopRequested,
    TryFailed,
)
from recovery.settings import JobSettings
from recovery.slow_watch import SlowWatch

log = logging.getLogger(__name__)

# How long a job with no rank alive waits for its journal: where its outcome is known, a moment;
# where it has failed, as long as a person or a log rotation may take to free a disk.
JOURNAL_PATIENCE_KNOWN_S: Final = 5.0
JOURNAL_PATIENCE_S: Final = 300.0
STOPPED_S: Final = 10.0  # a pause between two ticks that says that this process stood still
_LOOK_S: Final = 1.0  # between two looks at all ranks: 16,000 cost 50 ms
_LOOK_RATIO: Final = 0.05  # of the time that nothing has moved
_WEIGH_S: Final = 60.0  # between two looks whether moving a slow rank pays: it costs minutes
_ADVANCES_MAX: Final = 32  # decisions in one go; more is a loop, and goes on at the next tick


class Checkpoints(Protocol):
    def candidates(self, is_training: bool) -> tuple[Verdict, ...]:
        """Return all checkpoints found, newest first, each with its verdict."""
        ...


class Fence(Protocol):
    def read(self) -> int | None:
        """Return the attempt that may publish checkpoints; None before the first."""
        ...

    def advance(self, attempt: int) -> None:
        """Return once only this attempt may publish, durably."""
        ...


class Controller:
    def __init__(
        self,
        journal: Journal,
        orders: Orders,
        checkpoints: Checkpoints | None,
        fence: Fence | None,
        budget_copy: BudgetStore | None,
        clock: Clock,
        settings: JobSettings,
        on_entry: Callable[[Entry], None] | None = None,
        gate: Gate | None = None,
        pool: Pool | None = None,
    ) -> None:
        self._book = Book(journal, budget_copy)
        self._nodes = Nodes(settings, orders)
        self._checkpoints = checkpoints
        self._fence = fence
        self._gate = gate or OpenGate()
        self._pool = pool or OpenPool()
        self._clock = clock
        self._settings = settings
        self._policy = settings.policy
        self._on_entry = on_entry  # told of every record once it is durable and acted on
        self._unwritten: Ledger | None = None  # a stop that is obeyed before it can be journaled
        self._observation = Observation(0, settings.world_size)
        self._slow = SlowWatch(settings.job_id)
        self._causes = CauseDesk()
        self._weighed_at_s = 0.0  # whether to move a slow rank
        self._evidence = EvidenceDesk()
        self._last_finding: Finding | None = None  # of the newest incident
        self._is_taken_up = False
        self._stop_wanted: tuple[str, float] | None = None
        self._since_s: dict[tuple[object, ...], float] = {}
        self._ticked_at_s: float | None = None
        self._milestone_at_s = 0.0
        self._looked_at_s = 0.0  # at every rank, for a stand-still
        self._asked_at_s = 0.0  # the gate, about a plan that waits
        self._intake = Intake()
        self.outcome: JobOutcome | None = None

    @property
    def ledger(self) -> Ledger:
        """What the journal says of the job now."""
        return self._book.ledger

    @property
    def journal_error(self) -> str | None:
        """Why the journal can't be written now, or None."""
        return self._book.error

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
        self._nodes.start(self._clock.now_s())
        names, size = self._nodes.names, settings.world_size
        epoch = max(self.ledger.epoch + 1, settings.epoch_min)
        records: list[Record] = []
        if job_id is None:
            records.append(JobOpened(settings.job_id, settings.name))
        records += self._book.lost_records(settings.job_id)
        records.append(
            LauncherStarted(
                names,
                size,
                settings.pid,
                settings.rankmend_version,
                epoch,
                settings.controller_id,
            )
        )
        if settings.budgets_reset_by is not None:
            records.append(BudgetsReset(settings.budgets_reset_by, "asked for at the start"))
        self._append(*records)
        self._observe_anew()

    def handle_report(self, report: Report) -> None:
        """Take in what a node says. What follows from it is done at the next `tick`."""
        if report.job_id != self._settings.job_id:
            log.warning(
                "report refused", extra={"node": report.node, "reported_job_id": report.job_id}
            )
            return
        now_s = self._clock.now_s()
        if not self._nodes.take(report, self.ledger, now_s):
            return
        self._hear(report, now_s)

    def _hear(self, report: Report, now_s: float) -> None:
        self._observation.take(report, now_s)
        self._slow.take(report)
        self._causes.take(report, now_s)
        self._evidence.take(report, now_s)
        if report.stop_requested is not None:
            self.request_stop(report.stop_requested, self._settings.grace_s)

    def refuses(self, node: str, launcher_id: str) -> str | None:
        """Return why a launcher is refused for ever, or None. May be called from any thread."""
        return refuses(self.ledger, node, launcher_id)

    def request_stop(self, reason: str, grace_s: float) -> None:
        """Have the job end as planned; takes effect at the next tick."""
        if self._stop_wanted is None:
            self._stop_wanted = (reason, grace_s)

    def tick(self) -> None:
        """Do whatever is due. Call it several times a second."""
        if self.outcome is not None:
            return
        now_s = self._clock.now_s()
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
        if self._unwritten is not None:
            self._nodes.resend(self._unwritten, now_s)
        elif self._is_taken_up:
            self._nodes.resend(self.ledger, now_s)

    def _forgive_pause(self, now_s: float) -> None:
        """Count no time in which this process itself stood still (SIGSTOP, a debugger)."""
        paused_s = now_s - (now_s if self._ticked_at_s is None else self._ticked_at_s)
        self._ticked_at_s = now_s
        if paused_s >= STOPPED_S:
            self._since_s = {key: at_s + paused_s for key, at_s in self._since_s.items()}
            self._nodes.start(now_s)  # nobody is silent who could not be heard

    def _append(self, *records: Record) -> None:
        """Remember the records, then do what follows from them."""
        for entry in self._book.write(records, self._act):
            if self._on_entry is not None:
                self._on_entry(entry)

    def _act(self, before: Ledger) -> None:
        self._unwritten = None
        if self._is_taken_up and self.ledger.revision != before.revision:
            self._nodes.send(self.ledger, self._clock.now_s())

    def _do_without_journal(self, now_s: float) -> None:
        """Obey a planned stop all the same, and end once there is nothing left to keep running.

        The stop's records will be the next that are written, so its revision is known before.
        """
        if self._stop_wanted is not None and self.ledger.closing is None:
            self._unwritten = self._book.foresee(self._stop_records())
        seen = self._observation
        if not (self._nodes.are_empty(self.ledger) or seen.has_ended):
            return
        closing = (self._unwritten or self.ledger).closing
        is_known = closing is not None or seen.is_done
        patience_s = JOURNAL_PATIENCE_KNOWN_S if is_known else JOURNAL_PATIENCE_S
        if self._since(now_s, "unwritten", self.ledger.number) < patience_s:
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

    # Decide.

    def _advance(self, now_s: float) -> bool:
        """Make the next decision that is due; return whether there was one."""
        ledger = self.ledger
        if ledger.ended is not None:
            self.outcome = ledger.ended
            return False
        if self._take_news(ledger, now_s):
            return True
        if self._stop_wanted is not None and ledger.closing is None:
            self._append(*self._stop_records())
            return True
        return self._duty(ledger)(now_s)

    def _take_news(self, ledger: Ledger, now_s: float) -> bool:
        """Journal what was heard and can't be heard again; return whether there was any."""
        if (evidence := self._judged_evidence(ledger, now_s)) is not None:
            self._append(evidence)
            return True
        if taken := self._intake.due(ledger):
            self._append(taken)
            self._intake.forget(taken)
            return True
        if joined := self._nodes.joining(ledger, now_s):
            self._append(NodesJoined(joined))
            for report in self._nodes.take_joined(joined):
                self._hear(report, now_s)
            if self._is_taken_up:
                self._nodes.send_to(self.ledger, {one.node for one in joined})
            return True
        unknown = self._nodes.unknown_attempt(ledger) if self._settings.is_joined else None
        if unknown is not None and ledger.closing is None:
            log.error("an attempt runs that the journal does not know", extra={"attempt": unknown})
            self._append(AttemptHeard(unknown, tuple(sorted(ledger.members))))
            self._observe_anew()
            return True
        return False

    def _judged_evidence(self, ledger: Ledger, now_s: float) -> EvidenceCollected | None:
        """Return the record of an incident's evidence, once the launchers have told of it."""
        if not self._is_taken_up:
            return None
        if ledger.incident is not None:
            self._last_finding = ledger.incident.last_failure.finding
        return self._evidence.due(ledger.nodes, self._last_finding, now_s)

    def _duty(self, ledger: Ledger) -> Callable[[float], bool]:
        """Return what the controller is at."""
        duty: Callable[[float], bool] = self._watch
        if not self._is_taken_up:
            duty = self._take_up
        elif ledger.closing is not None:
            duty = self._close
        elif ledger.paused_by is not None:
            duty = self._stand_back
        elif ledger.incident is not None:
            duty = self._run_incident
        elif not ledger.is_attempt_open:
            duty = self._start_attempt
        elif ledger.wish is not Wish.RANKS:
            duty = self._fence_leftover
        return duty

    def _since(self, now_s: float, *key: object) -> float:
        """Return for how many seconds the situation named by ``key`` has lasted."""
        return now_s - self._since_s.setdefault(key, now_s)

    def _observe_anew(self) -> None:
        gap_s = self._observation.longest_gap_s
        placement = placement_of(self.ledger, self._settings)
        size = sum(len(place.ranks) for place in placement)
        places = {place.node: frozenset(place.ranks) for place in placement}
        seen = Observation(self.ledger.attempt, size, gap_s, places)
        now_s = self._clock.now_s()
        for report in self._nodes.reports:
            seen.take(report, now_s)
        self._observation = seen
        self._slow.begin(self.ledger.attempt, size)

    def _stop_records(self) -> list[Record]:
        assert self._stop_wanted is not None, "called when a stop is wanted"
        reason, grace_s = self._stop_wanted
        records: list[Record] = []
        if self.ledger.incident is not None:
            records.append(_event(self.ledger.incident, Outcome.CANCEL, f"stop: {reason}"))
        return [*records, StopRequested(reason, Stop.GRACE, grace_s)]

    def _take_up(self, now_s: float) -> bool:
        """Look before acting: go on with what runs, give up what is not to be found."""
        ledger = self.ledger
        if self._settings.is_joined:
            # Launchers outlive their controller: what runs goes on, and who stays silent is
            # judged later, by what its peers say.
            missing = self._nodes.missing(ledger) if ledger.is_attempt_open else []
            wait_s = self._policy.lease_s + self._policy.node_silent_s
            self._is_taken_up = not missing or self._since(now_s, "take up") >= wait_s
            return self._is_taken_up
        if silent := self._nodes.missing(ledger):
            if self._since(now_s, "take up") < self._policy.start_timeout_s:
                return False
            if ledger.closing is not None:
                self._append(JobEnded(ledger.closing.outcome, is_empty=False))
            else:
                self._append(self._ended_unstarted(f"nodes never reported: {', '.join(silent)}"))
            return True
        self._is_taken_up = True
        if not ledger.is_attempt_open or ledger.wish is not Wish.RANKS or ledger.closing:
            return True
        if any(report.attempt == ledger.attempt for report in self._nodes.reports):
            return True  # it ran on, or it ended and its exits are told
        reason = f"rankmend came back and attempt {ledger.attempt} is not running"
        if ledger.incident is None:
            self._append(AttemptAbandoned(ledger.attempt, reason))
        elif ledger.incident.state.phase is not Phase.OPENED:  # which fences it anyway
            self._fail_try(ledger.incident, reason, None)
        return True

    @staticmethod
    def _ended_unstarted(reason: str) -> JobEnded:
        return JobEnded(JobOutcome(OutcomeKind.ESCALATED, EXIT_UNKNOWN, reason), is_empty=False)

    def _fence_leftover(self, now_s: float) -> bool:
        """Wait until an attempt that nobody looks after is gone."""
        attempt = self.ledger.attempt
        gone = self._nodes.gone(self.ledger, self._policy, now_s)
        if gone.is_proved:
            self._append(AttemptEnded(attempt, AttemptResult.LOST, gone.proofs))
            return True
        if self._waits_for_person(gone, now_s):
            return True
        if self._since(now_s, "leftover", attempt) < self._fence_bound_s(self._policy):
            return False
        self._append(
            self._ended_unstarted(
                f"processes of attempt {attempt} are still there after "
                f"{self._fence_bound_s(self._policy):g} s: nothing is started beside them"
            )
        )
        return True

    def _close(self, now_s: float) -> bool:
        ledger = self.ledger
        closing = ledger.closing
        assert closing is not None, "called while closing"
        gone = self._nodes.gone(ledger, self._policy, now_s)
        is_empty = gone.is_proved or not ledger.is_attempt_open
        bound_s = closing.grace_s + self._policy.fence_timeout_s
        if not is_empty and self._since(now_s, "closing", ledger.revision) < bound_s:
            return False
        outcome = closing.outcome
        if not is_empty:
            reason = f"{outcome.reason}; not proved gone after {bound_s:g} s"
            outcome = replace(outcome, reason=reason)
        records = self._milestone(now_s, is_due=True)
        if is_empty and ledger.is_attempt_open:
            records.append(AttemptEnded(ledger.attempt, _RESULTS[outcome.kind], gone.proofs))
        self._append(*records, JobEnded(outcome, is_empty))
        return True

    # Attempts.

    def _start_attempt(self, now_s: float) -> bool:
        """Start an attempt outside of an incident."""
        ledger = self.ledger
        cause = Cause.TAKEOVER
        if ledger.attempt == 0:
            cause = Cause.FIRST
        elif ledger.is_resumed:
            cause = Cause.RESUMED
        spent = exhausted(ledger.spent, self._policy)
        if cause is Cause.TAKEOVER and spent is not None:
            reason = f"rankmend ended while ranks ran, and the budget is spent ({spent})"
            self._append(self._ended_unstarted(reason))
            return True
        try:
            ready = self._prepare(self._policy, now_s)
            if isinstance(ready, Waiting) and ready.left_s > 0:
                return False
            if isinstance(ready, Ready) and ready.choice.is_possible:
                self._order(self._advance_fence(), cause, ready, None)
            else:
                self._append(self._unready(ready))
        except JournalError:
            raise
        except (OSError, RankmendError) as error:
            self._append(self._ended_unstarted(f"no attempt can be started: {error}"))
        return True

    def _unready(self, ready: Ready | FinderChosen | Waiting) -> Record:
        """Return the next record on the way to an attempt, or that there is no way."""
        if isinstance(ready, FinderChosen):
            return ready
        if isinstance(ready, Waiting):
            return self._ended_unstarted(f"no attempt can be started: {ready.reason}")
        return self._ended_unstarted(ready.choice.reason)

    def _order(
        self, attempt: int, cause: Cause, ready: Ready, incident: OpenIncident | None
    ) -> None:
        has_moved = is_progress(self.ledger, ready.choice)
        self._append(
            AttemptStarted(
                attempt,
                cause,
                ready.choice,
                None if incident is None else incident.state.incident_id,
                None if incident is None else incident.state.try_number,
                has_moved,
                ready.placement,
                ready.rendezvous,
            )
        )
        self._observe_anew()

    def _preparation(self, policy: Policy, now_s: float) -> Preparation:
        def since(*key: object) -> float:
            return self._since(now_s, *key)

        return Preparation(
            self._settings, policy, self.ledger, self._nodes, self._pool, now_s, since
        )

    def _prepare(self, policy: Policy, now_s: float) -> Ready | FinderChosen | Waiting:
        """Return all that the next attempt needs, or what is missing."""
        preparation = self._preparation(policy, now_s)
        placement = preparation.place()
        if isinstance(placement, Waiting):
            return placement
        choice = self._choose(preparation, placement, policy)
        if not isinstance(choice, Choice):
            return choice
        rendezvous = preparation.meet(placement)
        if isinstance(rendezvous, Waiting):
            return rendezvous
        return Ready(placement, rendezvous, choice)

    def _choose(
        self, preparation: Preparation, placement: tuple[Placement, ...], policy: Policy
    ) -> Choice | FinderChosen | Waiting:
        if self._checkpoints is not None:
            return choose_checkpoint(self.ledger, policy, self._checkpoints.candidates(False))
        return preparation.find(placement)

    def _advance_fence(self) -> int:
        """Let only the next attempt publish checkpoints, and return its number.

        It is above every number that anybody has heard of, so that no attempt ever repeats.
        """
        known = [self.ledger.attempt, self._nodes.highest_attempt]
        if self._fence is not None:
            try:
                known.append(self._fence.read() or 0)
            except SourceError as error:
                self._book.warn(f"the fence beside the checkpoints is written anew: {error}")
        attempt = max(known) + 1
        if self._fence is not None:
            self._fence.advance(attempt)
        return attempt

    def _watch(self, now_s: float) -> bool:
        """Watch an attempt that runs, with no incident under way."""
        found = self._find_failure(now_s, self._policy)
        if found is not None:
            self._open_incident(found, now_s)
            return True
        return self._note_progress(now_s) or self._watch_silence(now_s)

    def _watch_silence(self, now_s: float) -> bool:
        """Tell a person when the whole attempt is silent for long: nobody else can judge that.

        The ranks may train on behind a network that is cut. Only proofs end the attempt.
        """
        ledger, limit_s = self.ledger, self._policy.hung.ceil_s
        if not self._settings.is_joined or now_s - self._nodes.heard_last_s(ledger) < limit_s:
            return False
        gone = self._nodes.gone(ledger, self._policy, now_s)
        if gone.is_proved:
            reason = f"attempt {ledger.attempt} is gone: " + "; ".join(
                f"{proof.node} {proof.reason}" for proof in gone.proofs
            )
            self._append(AttemptAbandoned(ledger.attempt, reason))
            return True
        if set(gone.silent) <= set(ledger.fence_waits):
            return False
        reason = f"no node of attempt {ledger.attempt} was heard for {limit_s:g} s"
        self._append(FenceWaits(ledger.attempt, gone.silent, reason))
        return True

    def _stand_back(self, now_s: float) -> bool:
        """A person wants nothing to be decided: only note how far the ranks are."""
        ledger = self.ledger
        is_running = ledger.wish is Wish.RANKS and ledger.incident is None
        return is_running and not self._observation.failed and self._note_progress(now_s)

    def _note_progress(self, now_s: float) -> bool:
        seen, ledger = self._observation, self.ledger
        if seen.is_done:
            self._append(*self._milestone(now_s, is_due=True), RanksDone(ledger.attempt))
            return True
        if self._nodes.are_empty(ledger) and not seen.has_ended:
            reason = f"attempt {ledger.attempt} is gone, and nobody saw it end"
            self._append(AttemptAbandoned(ledger.attempt, reason))
            return True
        records: list[Record] = []
        if not ledger.is_verified and seen.is_verified(self._policy, ledger.telling_ranks, now_s):
            records.append(self._verified(now_s))
        records += self._milestone(now_s, is_due=False)
        records += self._caught_up()
        records += self._slow.due(now_s)
        records += self._causes.due(ledger, placement_of(ledger, self._settings), now_s)
        if not records:
            return self._weigh_slow(now_s)
        self._append(*records)
        return True

    def _weigh_slow(self, now_s: float) -> bool:
        """Move the rank that costs most where that pays; what it takes may come later than it."""
        if not self._settings.is_joined or now_s - self._weighed_at_s < _WEIGH_S:
            return False
        known = [one.found for one in self.ledger.slow.values() if one.why is not None]
        if not known:
            return False
        self._weighed_at_s = now_s
        costliest = max(known, key=lambda found: found.step_factor)
        said = self.take_slow(costliest.finding, costliest.step_factor)
        log.info("slow rank weighed", extra={"rank": costliest.rank, "result": said})
        return self.ledger.incident is not None

    def _verified(self, now_s: float) -> AttemptVerified:
        seen = self._observation
        marks = seen.marks(now_s)
        return AttemptVerified(
            seen.attempt,
            seen.highest_step is not None,
            seen.telling_ranks,
            marks.attached_age_s,
            marks.resumed_age_s,
            marks.first_section_age_s,
            marks.first_step_age_s,
            marks.first_step,
        )

    def _milestone(self, now_s: float, *, is_due: bool) -> list[Record]:
        """Return a record where the highest step was raised and it is time to say so."""
        seen, ledger = self._observation, self.ledger
        step = seen.highest_step
        if step is None or seen.attempt != ledger.attempt:
            return []
        if ledger.highest_step is not None and step <= ledger.highest_step:
            return []
        age_s = now_s - (now_s if seen.started_at_s is None else seen.started_at_s)
        pause_s = max(self._policy.milestone_s, self._policy.milestone_ratio * age_s)
        is_news = ledger.highest_step is None or ledger.restarts_without_progress > 0
        if not (is_due or is_news or now_s - self._milestone_at_s >= pause_s):
            return []
        self._milestone_at_s = now_s
        return [Milestone(ledger.attempt, step)]

    def _caught_up(self) -> list[Record]:
        behind, step = self.ledger.behind, self._observation.highest_step
        if behind is None or behind.highest_before is None or step is None:
            return []
        if step <= behind.highest_before:
            return []
        return [CaughtUp(behind.state.incident_id, self.ledger.attempt, step)]

    def _find_failure(self, now_s: float, policy: Policy) -> Failure | None:
        ledger, seen, nodes = self.ledger, self._observation, self._nodes
        doctor = Doctor(self._settings, policy, placement_of(ledger, self._settings))
        is_due = self._is_look_due(now_s, policy)
        waiting_s = self._since(now_s, "ordered", ledger.attempt)
        has_stepped_before = bool(ledger.telling_ranks)
        failure = doctor.find_failure(
            seen,
            now_s,
            waiting_s=waiting_s,
            heard_through_s=nodes.heard_through_s(ledger) if is_due else 0.0,
            has_stepped_before=has_stepped_before,
            looks_for_hang=is_due,
        )
        if failure is not None or not self._settings.is_joined or seen.failed:
            return failure
        if not (is_due or seen.stopped or ledger.replaced_number > ledger.started_number):
            return None
        return doctor.find_accused(
            seen,
            self._accused(now_s, policy),
            now_s,
            waiting_s=waiting_s,
            has_stepped_before=has_stepped_before,
        )

    def _is_look_due(self, now_s: float, policy: Policy) -> bool:
        """Return whether to look at every rank for a stand-still.

        Not before any limit can be over, at most once a second, and less often the longer nothing
        moves: a twentieth later is soon enough.
        """
        seen = self._observation
        moved_at_s = seen.advanced_at_s or seen.started_at_s
        if moved_at_s is None:
            return True  # cheap: ranks are not judged before they have started
        still_s = now_s - moved_at_s
        if still_s < min(policy.hung.stopped_floor_s, policy.node_silent_s):
            return False
        if now_s - self._looked_at_s < max(_LOOK_S, _LOOK_RATIO * still_s):
            return False
        self._looked_at_s = now_s
        return True

    def _accused(self, now_s: float, policy: Policy) -> Accused:
        ledger = self.ledger
        replaced = tuple(
            place.node
            for place in ledger.placement
            if (member := ledger.members.get(place.node)) is not None
            and not has_launcher_of_attempt(ledger, member)
        )
        silent = self._nodes.silent(ledger, now_s, policy.node_silent_s)
        told = fatal(ledger)
        fresh = tuple(
            kept.evidence
            for kept in told
            if policy.evidence_wait_s <= now_s - kept.at.monotonic_s
            and now_s - kept.at.monotonic_s + kept.evidence.since_age_s < policy.evidence_fresh_s
        )
        return Accused(tuple(silent), replaced, tuple(kept.evidence for kept in told), fresh)

    def _open_incident(self, failure: Failure, now_s: float) -> None:
        records = self._milestone(now_s, is_due=True)
        self._append(*records, self._opened(failure, self._book.foresee(records)))

    def _opened(self, failure: Failure, ledger: Ledger) -> IncidentOpened:
        return IncidentOpened(
            f"{self._settings.job_id[:8]}-{ledger.incidents + 1}",
            failure,
            failure.finding.since_age_s,
            ledger.highest_step,
            self._policy,
        )

    # Incidents.

    def _run_incident(self, now_s: float) -> bool:
        incident = self.ledger.incident
        assert incident is not None, "called while an incident is open"
        phase = incident.state.phase
        if phase is Phase.OPENED:
            return self._decide(incident, now_s)
        if phase is Phase.FENCING:
            return self._fence_attempt(incident, now_s)
        ledger = self.ledger
        is_foreign = ledger.started is None or ledger.started.attempt != ledger.attempt
        if ledger.is_attempt_open and is_foreign:
            reason = f"attempt {ledger.attempt} runs, which this journal knows nothing of"
            self._fail_try(incident, reason, None)
            return True
        if phase is Phase.RESTORING:
            return self._restore(incident, now_s)
        return self._verify(incident, now_s)

    def _decide(self, incident: OpenIncident, now_s: float) -> bool:
        finding = incident.failure.finding
        scene = self._scene(incident, now_s)
        made = plan(finding, self.ledger, incident.policy, None, scene)
        if made.step is PlanStep.ESCALATE:
            event = _event(incident, Outcome.ESCALATE, made.reason)
            self._append(_decided(incident, made), event)
            return True
        judgement = self._ask(incident, made, now_s)
        if judgement is Judgement.WAIT and (reason := self._overtaken(incident, now_s)):
            self._append(_event(self._open(), Outcome.CANCEL, reason))
            return True
        if judgement is not Judgement.ALLOWED:
            return judgement is Judgement.REFUSED
        event = _event(incident, Outcome.ACCEPTED, made.reason)
        self._append(_decided(incident, made), *self._left(incident, made, scene), event)
        self._tell_pool(incident, made)
        return True

    def _open(self) -> OpenIncident:
        assert self.ledger.incident is not None, "called while an incident is open"
        return self.ledger.incident

    def _overtaken(self, incident: OpenIncident, now_s: float) -> str | None:
        """Return why a plan that waits is of no use any more, or None.

        Hours may pass until somebody approves it, and the ranks do not stand still meanwhile.
        """
        seen, finding = self._observation, incident.failure.finding
        began_s = now_s - self._since(now_s, "waits", incident.state.incident_id)
        if seen.is_done:
            return "every rank has ended with exit code 0"
        if finding.kind is Kind.RANK_SLOW or finding.signature.startswith(PERSON):
            is_failed = self._find_failure(now_s, incident.policy) is not None
            return "the ranks have failed meanwhile" if is_failed else None
        stood_still = finding.kind is Kind.RANK_HUNG or finding.signature == HOST_SILENT
        stood_still |= finding.signature.startswith(EVIDENCE)
        moves = not seen.failed and (seen.advanced_at_s or 0.0) > began_s
        return "the ranks advance again" if stood_still and moves else None

    def _scene(self, incident: OpenIncident, now_s: float) -> Scene:
        """Return what there is to run on, as of now."""
        if not self._settings.is_joined:
            return Scene()
        ledger, policy, finding = self.ledger, incident.policy, incident.last_failure.finding
        usable = self._preparation(policy, now_s).usable()
        accused = {kept.evidence.node: kept.evidence for kept in fatal(ledger)}
        # Who is silent may come back while the others are stopped.
        counts_silence = finding.signature == HOST_SILENT or incident.state.phase is Phase.RESTORING
        must: dict[str, str] = {}
        may: dict[str, str] = {}
        for place in ledger.placement:
            node, member = place.node, ledger.members.get(place.node)
            silent_s = now_s - self._nodes.heard_at_s(node)
            if member is None:
                must[node] = "it has not joined"
            elif member.left is not None:
                must[node] = member.left
            elif node in accused:
                must[node] = f"{accused[node].alertname}: {accused[node].summary}"
            elif counts_silence and silent_s >= policy.node_silent_s:
                must[node] = "silent"
            elif (reason := self._pool.unusable(node)) is not None:
                must[node] = reason
            elif finding.kind is Kind.RANK_SLOW and node == finding.node:
                must[node] = "slow"
            elif ledger.node_run[0] == node and ledger.node_run[1] >= policy.node_failures_max:
                may[node] = f"blamed {ledger.node_run[1]} times in a row"
        nodes = tuple(place.node for place in ledger.placement)
        spares = len(usable.keys() - set(nodes))
        return Scene(nodes, spares, self._settings.sizes, must, may)

    def _ask(self, incident: OpenIncident, made: Plan, now_s: float) -> Judgement:
        """Ask whether the plan may be carried out; journal why it must wait or must not be."""
        state, finding = incident.state, incident.last_failure.finding
        if incident.waits is not None and incident.approved_by is None:
            if now_s - self._asked_at_s < _LOOK_S:
                return Judgement.WAIT
            self._asked_at_s = now_s
        trains = finding.kind is Kind.RANK_SLOW or finding.signature.startswith(PERSON)
        is_standing = not (trains and self.ledger.wish is Wish.RANKS)
        # A person's word wins, about the plan that was shown and about no other.
        approved_by = incident.approved_by if _is_shown(made, incident.waits) else None
        answer = self._gate.judge(
            PlanRequest(
                self._settings.job_id,
                state.incident_id,
                state.try_number,
                made.step,
                finding,
                made.without,
                len(self.ledger.placement),
                is_standing=is_standing,
                approved_by=approved_by,
            )
        )
        if answer.judgement is Judgement.ALLOWED or approved_by is not None:
            return Judgement.ALLOWED
        if answer.judgement is Judgement.REFUSED:
            # What trains is left alone: to give it up would be worse than what was refused.
            outcome = Outcome.ESCALATE if is_standing else Outcome.CANCEL
            event = _event(incident, outcome, f"not allowed: {answer.reason}")
            self._append(_decided(incident, made), event)
        elif incident.waits != (made, answer.reason):
            self._append(PlanWaits(state.incident_id, state.try_number, made, answer.reason))
        return answer.judgement

    def _left(self, incident: OpenIncident, made: Plan, scene: Scene) -> list[Record]:
        """Return the records of the nodes that the plan leaves."""
        reasons = {**scene.may_leave, **scene.must_leave}
        incident_id = incident.state.incident_id
        return [
            NodeLeft(node, reason, reason == "silent", incident_id)
            for node in made.without
            if (reason := reasons.get(node, made.reason))
            if (member := self.ledger.members.get(node)) is not None and member.left is None
        ]

    def _tell_pool(self, incident: OpenIncident, made: Plan) -> None:
        finding = incident.last_failure.finding
        blamed = set(made.without)
        if finding.blame is Blame.RANK and finding.node:
            blamed.add(finding.node)
        if finding.signature.startswith(PERSON):
            return
        for node in sorted(blamed):
            self._pool.note_blame(node, self._settings.job_id, incident.state.incident_id, finding)

    def _fence_attempt(self, incident: OpenIncident, now_s: float) -> bool:
        ledger, policy = self.ledger, incident.policy
        self._since(now_s, "evidence", incident.state)
        gone = self._nodes.gone(ledger, policy, now_s)
        if gone.is_proved:
            records: list[Record] = []
            if ledger.is_attempt_open:
                records.append(AttemptEnded(ledger.attempt, AttemptResult.FAILED, gone.proofs))
            reason = f"no process of attempt {ledger.attempt} or an older one is left"
            self._append(*records, _event(incident, Outcome.SUCCEEDED, reason))
            return True
        if self._waits_for_person(gone, now_s):
            return True
        timeout_s = self._fence_bound_s(policy)
        if self._since(now_s, expected_answer(incident.state)) < timeout_s:
            return False
        who = f" on {', '.join(gone.busy or gone.silent)}" if gone.busy or gone.silent else ""
        reason = (
            f"processes of attempt {ledger.attempt} are still there{who} after {timeout_s:g} s: "
            f"nothing is started beside them"
        )
        self._append(_event(incident, Outcome.FAILED, reason))
        return True

    def _fence_bound_s(self, policy: Policy) -> float:
        """Return for how long to wait for a proof: on several nodes a person may bring it."""
        patience_s = policy.spare_wait_s if self._settings.is_joined else 0.0
        return policy.fence_timeout_s + patience_s

    def _waits_for_person(self, gone: Gone, now_s: float) -> bool:
        """Say once of which nodes nothing is proved after a while."""
        ledger = self.ledger
        waits = (*gone.silent, *gone.busy)
        if set(waits) <= set(ledger.fence_waits):
            return False
        if self._since(now_s, "unproved", ledger.attempt) < self._policy.fence_timeout_s:
            return False
        told = f"silent: {', '.join(gone.silent) or 'none'}; busy: {', '.join(gone.busy) or 'none'}"
        reason = (
            f"nothing proves that attempt {ledger.attempt} is gone ({told}): reboot the node, or "
            f"`rankmend confirm-gone NODE` once it is switched off"
        )
        self._append(FenceWaits(ledger.attempt, waits, reason))
        return True

    def _restore(self, incident: OpenIncident, now_s: float) -> bool:
        state, ledger = incident.state, self.ledger
        started = ledger.started
        is_ordered = started is not None and (started.incident_id, started.try_number) == (
            state.incident_id,
            state.try_number,
        )
        if not is_ordered:
            pause_s = incident.policy.retry_pause_s * 2 ** (state.try_number - 2)
            is_early = self._since(now_s, expected_answer(state)) < pause_s
            if (state.try_number > 1 and is_early) or self._expects_evidence(incident, now_s):
                return False
            return self._plan_again(incident, now_s) or self._order_attempt(incident, now_s)
        if self._observation.is_started and self._observation.launch_error is None:
            reason = f"every rank of attempt {ledger.attempt} has a process"
            self._append(_event(incident, Outcome.SUCCEEDED, reason))
            return True
        return self._fail_try_if_due(incident, now_s)

    def _expects_evidence(self, incident: OpenIncident, now_s: float) -> bool:
        """Return whether the node's agent may still have a word about what has failed."""
        blames = (Blame.RANK, Blame.COMMUNICATION, Blame.NOBODY)
        if not self._settings.hears_evidence or incident.last_failure.finding.blame not in blames:
            return False
        fencing = replace(incident.state, phase=Phase.FENCING)
        return self._since(now_s, "evidence", fencing) < incident.policy.evidence_wait_s

    def _plan_again(self, incident: OpenIncident, now_s: float) -> bool:
        """Plan anew where nodes can't be used that could when the plan was made."""
        if not self._settings.is_joined:
            return False
        scene = self._scene(incident, now_s)
        finding = incident.last_failure.finding
        made = plan(finding, self.ledger, incident.policy, None, scene)
        left = self._left(incident, made, scene)
        if made.step is PlanStep.ESCALATE and made.without:  # what it would take is not allowed
            self._escalate(incident, made.reason, None)
            return True
        if not left or made.step is PlanStep.ESCALATE:
            return False
        if self._ask(incident, made, now_s) is Judgement.ALLOWED:
            self._append(_decided(incident, made), *left)
            self._tell_pool(incident, made)
        return True

    def _order_attempt(self, incident: OpenIncident, now_s: float) -> bool:
        """Choose nodes and where to restore from, and order the next attempt."""
        try:
            ready = self._prepare(incident.policy, now_s)
            if isinstance(ready, FinderChosen):
                self._append(ready)
                return True
            if isinstance(ready, Waiting):
                return self._wait_for(ready, incident)
            attempt = self._advance_fence() if ready.choice.is_possible else 0
        except JournalError:
            raise
        except (OSError, RankmendError) as error:
            self._fail_try(incident, f"no attempt can be started: {error}", None)
            return True
        if not ready.choice.is_possible:
            self._escalate(incident, ready.choice.reason, ready.choice)
            return True
        self._order(attempt, Cause.INCIDENT, ready, incident)
        return True

    def _wait_for(self, missing: Waiting, incident: OpenIncident) -> bool:
        """Say once what the attempt waits for, and give up in the end."""
        if missing.left_s <= 0 and missing.is_for_nodes:
            self._escalate(incident, f"no attempt can be started: {missing.reason}", None)
            return True
        if missing.left_s <= 0:
            self._fail_try(incident, f"no attempt can be started: {missing.reason}", None)
            return True
        made = incident.plan
        if missing.is_for_nodes and made is not None and incident.waits is None:
            state = incident.state
            self._append(PlanWaits(state.incident_id, state.try_number, made, missing.reason))
            return True
        return False

    def _escalate(self, incident: OpenIncident, reason: str, choice: Choice | None) -> None:
        evidence = incident.last_failure.finding.evidence
        made = Plan(PlanStep.ESCALATE, reason, evidence, choice)
        self._append(_decided(incident, made), _event(incident, Outcome.ESCALATE, reason))

    def _verify(self, incident: OpenIncident, now_s: float) -> bool:
        seen, ledger = self._observation, self.ledger
        if not seen.is_done and self._fail_try_if_due(incident, now_s):
            return True
        if seen.is_done or seen.is_verified(incident.policy, ledger.telling_ranks, now_s):
            reason = f"every rank of attempt {ledger.attempt} trains or has ended with 0"
            self._append(
                self._verified(now_s),
                *self._milestone(now_s, is_due=False),
                _event(incident, Outcome.SUCCEEDED, reason),
            )
            return True
        timeout_s = incident.policy.verify_timeout_s
        if self._since(now_s, expected_answer(incident.state)) < timeout_s:
            return False
        reason = f"not every rank has made its steps within {timeout_s:g} s"
        self._fail_try(incident, reason, None)
        return True

    def _fail_try_if_due(self, incident: OpenIncident, now_s: float) -> bool:
        attempt = self.ledger.attempt
        failure = self._find_failure(now_s, incident.policy)
        if failure is None:
            failure = self._find_late_evidence(incident, now_s)
        if failure is not None:
            self._fail_try(incident, failure.finding.summary, failure)
            return True
        if self._nodes.are_empty(self.ledger) and not self._observation.has_ended:
            self._fail_try(incident, f"attempt {attempt} is gone, and nobody saw it end", None)
            return True
        return False

    def _find_late_evidence(self, incident: OpenIncident, now_s: float) -> Failure | None:
        """Return what an alert says of a node that got ranks again, as long as they make no steps.

        Only where there is somewhere else to go: else the ranks may as well try.
        """
        seen, policy = self._observation, incident.policy
        for kept in fatal(self.ledger):
            ranks = kept.evidence.ranks or self._ranks_on(kept.evidence.node)
            views = [seen.ranks[rank] for rank in ranks if rank in seen.ranks]
            if views and all(view.steps_done >= policy.verify_steps for view in views):
                continue
            if self._can_leave(kept.evidence.node, now_s):
                doctor = Doctor(self._settings, policy, self.ledger.placement)
                return doctor.failure_of(seen, kept.evidence)
        return None

    def _ranks_on(self, node: str) -> tuple[int, ...]:
        return next((place.ranks for place in self.ledger.placement if place.node == node), ())

    def _can_leave(self, node: str, now_s: float) -> bool:
        usable = self._preparation(self._policy, now_s).usable().keys() - {node}
        return size_for(self._settings, len(usable)) is not None

    def _fail_try(self, incident: OpenIncident, reason: str, failure: Failure | None) -> None:
        """Journal that the try failed and what comes of it, as one."""
        state = incident.state
        records = self._milestone(self._clock.now_s(), is_due=True)
        records.append(TryFailed(state.incident_id, state.try_number, reason, failure))
        ledger = self._book.foresee(records)
        finding = incident.last_failure.finding if failure is None else failure.finding
        made = plan(finding, ledger, incident.policy, None)
        if made.step is not PlanStep.ESCALATE and state.try_number >= state.tries_max:
            text = f"{state.try_number} tries came to nothing, the last: {reason}"
            made = replace(made, step=PlanStep.ESCALATE, reason=text)
        is_last = made.step is PlanStep.ESCALATE
        event = _event(incident, Outcome.ESCALATE if is_last else Outcome.FAILED, made.reason)
        self._append(*records, _decided(incident, made), event)

    # What comes from outside the job.

    def take_evidence(self, evidence: NodeEvidence) -> None:
        """Hear of a device or a host. What follows from it is done at the next `tick`."""
        self._intake.take(evidence, self.ledger)

    def take_command(self, command: PersonCommand) -> PersonActed:
        """Obey a person, or say why not; raise where it can't be journaled.

        A command whose key was heard before does nothing again.
        """
        known = self.ledger.commands.get(command.key) if command.key else None
        if known is not None:
            return PersonActed(command, known)
        now_s = self._clock.now_s()
        silent_s = self._policy.node_silent_s
        floor = Floor(
            can_leave=lambda node: self._can_leave(node, now_s),
            is_heard=lambda node: (
                self._nodes.is_heard(node) and now_s - self._nodes.heard_at_s(node) < silent_s
            ),
            failure=self._named_failure,
        )
        reply = reply_to(command, self.ledger, floor)
        records = list(reply.records)
        if reply.opens is not None:
            records.append(self._opened(reply.opens, self._book.foresee(records)))
        self._append(*records)
        if command.node is not None and command.act is PersonAct.CONFIRM_GONE:
            self._nodes.note_confirmed(command.node, now_s)
        if reply.stops is not None:
            self.request_stop(reply.stops, self._settings.grace_s)
        self._since_s.clear()  # nobody is held to time that passed before a person spoke
        return reply.acted

    def _named_failure(self, finding: Finding) -> Failure:
        seen = self._observation
        return Failure(
            self.ledger.attempt,
            finding,
            EXIT_UNKNOWN,
            None,
            None,
            seen.newest_step,
            seen.is_relative,
            seen.telling_ranks,
        )

    def take_slow(self, finding: Finding, factor: float) -> str:
        """Hear that a rank makes every step ``factor`` times as long; return what comes of it.

        It is moved only where that wins more than a restart costs, both measured, and a spare is
        there; else it is only named.
        """
        ledger, now_s = self.ledger, self._clock.now_s()
        is_running = ledger.is_verified and ledger.wish is Wish.RANKS
        is_running &= ledger.incident is None and ledger.closing is None
        is_running &= ledger.paused_by is None
        if not (self._settings.is_joined and self._is_taken_up and is_running):
            return "only named: the job can't move a rank now"
        is_worth, reason = is_worth_moving(factor, ledger, self._policy)
        nodes = {place.node for place in ledger.placement}
        spares = self._preparation(self._policy, now_s).usable().keys() - nodes
        node = next((p.node for p in ledger.placement if set(p.ranks) & set(finding.ranks)), None)
        if not is_worth or not spares or node is None:
            return f"only named: {reason if not is_worth else 'no spare'}"
        self._open_incident(self._named_failure(replace(finding, node=node)), now_s)
        return f"moved: {reason}"


_RESULTS: Final = {
    OutcomeKind.DONE: AttemptResult.DONE,
    OutcomeKind.STOPPED: AttemptResult.STOPPED,
    OutcomeKind.TIME_LIMIT: AttemptResult.STOPPED,
    OutcomeKind.ESCALATED: AttemptResult.FAILED,
}


def _event(incident: OpenIncident, outcome: Outcome, reason: str) -> IncidentEvent:
    state = incident.state
    return IncidentEvent(Event(state.incident_id, outcome, expected_answer(state), reason))


def _is_shown(made: Plan, waits: tuple[Plan, str] | None) -> bool:
    """Return whether the plan that a person was shown does the same, in whatever words."""
    return waits is not None and (waits[0].step, waits[0].without) == (made.step, made.without)


def _decided(incident: OpenIncident, made: Plan) -> Decided:
    return Decided(incident.state.incident_id, incident.state.try_number, made)
