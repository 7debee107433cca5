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

from detectors.finding import Finding
from rankmend.clock import Clock
from rankmend.errors import JournalError, RankmendError, SourceError
from recovery.book import Book, BudgetStore, Journal
from recovery.checkpoints.model import Verdict
from recovery.diagnosis import EXIT_UNKNOWN, Doctor, first_failure
from recovery.evidence_desk import EvidenceDesk
from recovery.ledger import Ledger, OpenIncident, Wish
from recovery.machine import Event, Outcome, Phase, expected_answer
from recovery.messages import Report, Stop
from recovery.nodes import Nodes, Orders
from recovery.observation import Observation
from recovery.planner import choose_checkpoint, is_progress, plan
from recovery.policy import Policy, exhausted
from recovery.records import (
    AttemptAbandoned,
    AttemptEnded,
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
    IncidentEvent,
    IncidentOpened,
    JobEnded,
    JobOpened,
    JobOutcome,
    LauncherStarted,
    Milestone,
    OutcomeKind,
    Plan,
    PlanStep,
    RanksDone,
    Record,
    StopRequested,
    TryFailed,
)
from recovery.settings import JobSettings

log = logging.getLogger(__name__)

# How long a job with no rank alive waits for its journal: where its outcome is known, a moment;
# where it has failed, as long as a person or a log rotation may take to free a disk.
JOURNAL_PATIENCE_KNOWN_S: Final = 5.0
JOURNAL_PATIENCE_S: Final = 300.0
STOPPED_S: Final = 10.0  # a pause between two ticks that says that this process stood still
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
    ) -> None:
        self._book = Book(journal, budget_copy)
        self._nodes = Nodes(settings, orders)
        self._checkpoints = checkpoints
        self._fence = fence
        self._clock = clock
        self._settings = settings
        self._policy = settings.policy
        self._on_entry = on_entry  # told of every record once it is durable and acted on
        self._unwritten: Ledger | None = None  # a stop that is obeyed before it can be journaled
        self._observation = Observation(0, settings.world_size)
        self._evidence = EvidenceDesk()
        self._last_finding: Finding | None = None  # of the newest incident
        self._is_taken_up = False
        self._stop_wanted: tuple[str, float] | None = None
        self._since_s: dict[tuple[object, ...], float] = {}
        self._ticked_at_s: float | None = None
        self._milestone_at_s = 0.0
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
        names, size = self._nodes.names, settings.world_size
        records: list[Record] = []
        if job_id is None:
            records.append(JobOpened(settings.job_id, settings.name))
        records += self._book.lost_records(settings.job_id)
        records.append(LauncherStarted(names, size, settings.pid, settings.rankmend_version))
        if settings.budgets_reset_by is not None:
            records.append(BudgetsReset(settings.budgets_reset_by, "asked for at the start"))
        self._append(*records)
        self._observe_anew()

    def handle_report(self, report: Report) -> None:
        """Take in what a node says and act on it."""
        if report.job_id != self._settings.job_id or report.node not in self._nodes.names:
            log.warning(
                "report refused", extra={"node": report.node, "reported_job_id": report.job_id}
            )
            return
        now_s = self._clock.now_s()
        self._nodes.take(report, now_s)
        self._observation.take(report, now_s)
        self._evidence.take(report, now_s)
        if report.stop_requested is not None:
            self.request_stop(report.stop_requested, self._settings.grace_s)
        self.tick()

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
        if not (self._nodes.are_empty(self.ledger.attempt) or seen.has_ended):
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
        if (evidence := self._judged_evidence(ledger, now_s)) is not None:
            self._append(evidence)
            return True
        if self._stop_wanted is not None and ledger.closing is None:
            self._append(*self._stop_records())
            return True
        return self._duty(ledger)(now_s)

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
        seen = Observation(self.ledger.attempt, self._settings.world_size, gap_s)
        now_s = self._clock.now_s()
        for report in self._nodes.reports:
            seen.take(report, now_s)
        self._observation = seen

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
        if silent := self._nodes.silent:
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
        if self._nodes.are_empty(attempt):
            self._append(AttemptEnded(attempt, AttemptResult.LOST))
            return True
        if self._since(now_s, "leftover", attempt) < self._policy.fence_timeout_s:
            return False
        self._append(
            self._ended_unstarted(
                f"processes of attempt {attempt} are still there after "
                f"{self._policy.fence_timeout_s:g} s: nothing is started beside them"
            )
        )
        return True

    def _close(self, now_s: float) -> bool:
        ledger = self.ledger
        closing = ledger.closing
        assert closing is not None, "called while closing"
        is_empty = self._nodes.are_empty(ledger.attempt)
        bound_s = closing.grace_s + self._policy.fence_timeout_s
        if not is_empty and self._since(now_s, "closing", ledger.revision) < bound_s:
            return False
        outcome = closing.outcome
        if not is_empty:
            reason = f"{outcome.reason}; not proved gone after {bound_s:g} s"
            outcome = replace(outcome, reason=reason)
        records = self._milestone(now_s, is_due=True)
        if is_empty and ledger.is_attempt_open:
            records.append(AttemptEnded(ledger.attempt, _RESULTS[outcome.kind]))
        self._append(*records, JobEnded(outcome, is_empty))
        return True

    # Attempts.

    def _start_attempt(self, _now_s: float) -> bool:
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
            choice = self._choose(self._policy)
            if choice.is_possible:
                attempt = self._advance_fence()
        except (OSError, RankmendError) as error:
            self._append(self._ended_unstarted(f"no attempt can be started: {error}"))
            return True
        if not choice.is_possible:
            self._append(self._ended_unstarted(choice.reason))
            return True
        has_moved = is_progress(ledger, choice)
        self._append(AttemptStarted(attempt, cause, choice, is_progress=has_moved))
        self._observe_anew()
        return True

    def _choose(self, policy: Policy) -> Choice:
        if self._checkpoints is None:
            return Choice(True, None, "no checkpoint folder is configured: from the beginning")
        return choose_checkpoint(self.ledger, policy, self._checkpoints.candidates(False))

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
        seen, ledger = self._observation, self.ledger
        found = self._find_failure(now_s, self._policy)
        if found is not None:
            self._open_incident(found, now_s)
            return True
        if seen.is_done:
            self._append(*self._milestone(now_s, is_due=True), RanksDone(ledger.attempt))
            return True
        if self._nodes.are_empty(ledger.attempt) and not seen.has_ended:
            reason = f"attempt {ledger.attempt} is gone, and nobody saw it end"
            self._append(AttemptAbandoned(ledger.attempt, reason))
            return True
        records: list[Record] = []
        if not ledger.is_verified and seen.is_verified(self._policy, ledger.telling_ranks, now_s):
            records.append(self._verified(now_s))
        records += self._milestone(now_s, is_due=False)
        records += self._caught_up()
        if not records:
            return False
        self._append(*records)
        return True

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
        return Doctor(self._settings, policy).find_failure(
            self._observation,
            now_s,
            waiting_s=self._since(now_s, "ordered", self.ledger.attempt),
            heard_through_s=self._nodes.heard_through_s,
            has_stepped_before=bool(self.ledger.telling_ranks),
        )

    def _open_incident(self, failure: Failure, now_s: float) -> None:
        records = self._milestone(now_s, is_due=True)
        number = self.ledger.incidents + 1
        opened = IncidentOpened(
            f"{self._settings.job_id[:8]}-{number}",
            failure,
            failure.finding.since_age_s,
            self._book.foresee(records).highest_step,
            self._policy,
        )
        self._append(*records, opened)

    # Incidents.

    def _run_incident(self, now_s: float) -> bool:
        incident = self.ledger.incident
        assert incident is not None, "called while an incident is open"
        phase = incident.state.phase
        if phase is Phase.OPENED:
            return self._decide(incident)
        if phase is Phase.FENCING:
            return self._fence_attempt(incident, now_s)
        if phase is Phase.RESTORING:
            return self._restore(incident, now_s)
        return self._verify(incident, now_s)

    def _decide(self, incident: OpenIncident) -> bool:
        made = plan(incident.failure.finding, self.ledger, incident.policy, None)
        outcome = Outcome.ESCALATE if made.step is PlanStep.ESCALATE else Outcome.ACCEPTED
        self._append(_decided(incident, made), _event(incident, outcome, made.reason))
        return True

    def _fence_attempt(self, incident: OpenIncident, now_s: float) -> bool:
        ledger, timeout_s = self.ledger, incident.policy.fence_timeout_s
        if self._nodes.are_empty(ledger.attempt):
            records: list[Record] = []
            if ledger.is_attempt_open:
                records.append(AttemptEnded(ledger.attempt, AttemptResult.FAILED))
            reason = f"no process of attempt {ledger.attempt} or an older one is left"
            self._append(*records, _event(incident, Outcome.SUCCEEDED, reason))
            return True
        if self._since(now_s, expected_answer(incident.state)) < timeout_s:
            return False
        reason = (
            f"processes of attempt {ledger.attempt} are still there after {timeout_s:g} s: "
            f"nothing is started beside them"
        )
        self._append(_event(incident, Outcome.FAILED, reason))
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
            if state.try_number > 1 and is_early:
                return False
            return self._order_attempt(incident)
        if self._observation.is_started and self._observation.launch_error is None:
            reason = f"every rank of attempt {ledger.attempt} has a process"
            self._append(_event(incident, Outcome.SUCCEEDED, reason))
            return True
        return self._fail_try_if_due(incident, now_s)

    def _order_attempt(self, incident: OpenIncident) -> bool:
        """Choose where to restore from and order the next attempt."""
        state, ledger = incident.state, self.ledger
        try:
            choice = self._choose(incident.policy)
            if choice.is_possible:
                attempt = self._advance_fence()
        except (OSError, RankmendError) as error:
            self._fail_try(incident, f"no attempt can be started: {error}", None)
            return True
        if not choice.is_possible:
            evidence = incident.last_failure.finding.evidence
            made = Plan(PlanStep.ESCALATE, choice.reason, evidence, choice)
            event = _event(incident, Outcome.ESCALATE, choice.reason)
            self._append(_decided(incident, made), event)
            return True
        self._append(
            AttemptStarted(
                attempt,
                Cause.INCIDENT,
                choice,
                state.incident_id,
                state.try_number,
                is_progress(ledger, choice),
            )
        )
        self._observe_anew()
        return True

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
        if failure is not None:
            self._fail_try(incident, failure.finding.summary, failure)
            return True
        if self._nodes.are_empty(attempt) and not self._observation.has_ended:
            self._fail_try(incident, f"attempt {attempt} is gone, and nobody saw it end", None)
            return True
        return False

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


_RESULTS: Final = {
    OutcomeKind.DONE: AttemptResult.DONE,
    OutcomeKind.STOPPED: AttemptResult.STOPPED,
    OutcomeKind.TIME_LIMIT: AttemptResult.STOPPED,
    OutcomeKind.ESCALATED: AttemptResult.FAILED,
}


def _event(incident: OpenIncident, outcome: Outcome, reason: str) -> IncidentEvent:
    state = incident.state
    return IncidentEvent(Event(state.incident_id, outcome, expected_answer(state), reason))


def _decided(incident: OpenIncident, made: Plan) -> Decided:
    return Decided(incident.state.incident_id, incident.state.try_number, made)
