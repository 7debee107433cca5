"""Runs the open incident: decide, fence, restore, verify (docs/operate/incidents.md).

Each call makes the next decision that is due, from the journal's state and the newest reports.
"""

import logging
from dataclasses import replace
from typing import Final

from detectors.finding import HOST_SILENT, Blame, Evidence, Finding, Kind, SymptomKind
from detectors.hang.evidence import ENDING, FINISHED
from rankmend.errors import JournalError, RankmendError
from recovery.checkpoints.unwritable import UnwritableError
from recovery.controller.cluster.gate import Judgement
from recovery.controller.job import shared_reasons
from recovery.controller.job.alert_intake import fatal
from recovery.controller.job.attempt_diagnosis import Doctor
from recovery.controller.job.attempt_health import AttemptHealth
from recovery.controller.job.attempt_needs import NeedsMissing
from recovery.controller.job.attempts import Attempts
from recovery.controller.job.growth import (
    JUST_SAVED_S,
    LOOK_S,
    FitNodes,
    GrowthTimes,
    JobGrowth,
    WaitingNode,
    decide_growth,
    growth_finding,
)
from recovery.controller.job.node_charges import corrects
from recovery.controller.job.observation import Observation
from recovery.controller.job.plan_progress import PlanProgress, decided, event_of
from recovery.controller.job.planner import Scene, is_worth_moving, judge_choice, plan
from recovery.controller.job.restore.restore_choice import damage_finding
from recovery.controller.job.restore.rollback import rollback_due, rollback_finding
from recovery.controller.job.situation import Situation
from recovery.journal.attempt_records import AttemptEnded, AttemptResult, Cause, Choice, RanksDone
from recovery.journal.faults import outages_in_a_row
from recovery.journal.incident_machine import Outcome, Phase, expected_answer
from recovery.journal.incident_records import (
    Conclusion,
    Failure,
    IncidentOpened,
    Plan,
    TryFailed,
    WaitCause,
    WaitReason,
    WaitsFor,
)
from recovery.journal.ledger import Ledger, OpenIncident, Wish
from recovery.journal.limits import PlanStep, out_of_restarts
from recovery.journal.node_records import FinderChosen, LeaveCause, LeaveReason
from recovery.journal.records import Record
from recovery.messages.outside import trains

log = logging.getLogger(__name__)

# A launcher collects for 5 s at most, and others' reports of it are awaited for 10 s (`hang_verdict`).
_STACKS_S_MAX: Final = 15.0
_WEIGH_S: Final = 60.0  # between two checks whether moving a slow rank pays; a move costs minutes


class IncidentRunner:
    def __init__(
        self, situation: Situation, watch: AttemptHealth, attempts: Attempts, planning: PlanProgress
    ) -> None:
        self._situation = situation
        self._settings = situation.settings
        self._policy = situation.settings.policy
        self._nodes = situation.nodes
        self._watch = watch
        self._attempts = attempts
        self._planning = planning
        self._warned_of = 0  # the attempt of which it is said that it can't go back
        self._weighed_at_s = 0.0  # the newest check whether to move a slow rank
        self._fit = FitNodes()
        self._grown_at_s = float("-inf")  # the newest check whether to take in nodes
        self._grown_number = 0  # the save at which it was requested last

    @property
    def _ledger(self) -> Ledger:
        return self._situation.ledger

    @property
    def _seen(self) -> Observation:
        return self._situation.observation

    # Open.

    def open(self, failure: Failure, now_s: float) -> None:
        """Open an incident about a failure."""
        records = [
            *self._watch.milestone(now_s, is_due=True),
            *self._watch.spent(now_s, is_due=True),
        ]
        self._situation.record(
            *records, self.opened(failure, self._situation.book.foresee(records))
        )

    def opened(self, failure: Failure, ledger: Ledger) -> IncidentOpened:
        """Return the record that opens an incident; ``ledger`` is the state before it."""
        return IncidentOpened(
            self._settings.incident_id(ledger.incident_base + ledger.incidents + 1),
            failure,
            failure.finding.since_age_s,
            ledger.highest_step,
            self._policy,
            self._seen.stepped_age_s(self._situation.now_s()),
        )

    def weigh_slow(self, now_s: float) -> bool:
        """Move the costliest slow rank if that pays, also if a spare or a measured cost came only later."""
        if now_s - self._weighed_at_s < _WEIGH_S:
            return False
        known = [
            item.found
            for item in self._ledger.slow.values()
            if item.why is not None and item.found.finding.node not in self._ledger.taken_back
        ]
        if not known:
            return False
        self._weighed_at_s = now_s
        costliest = max(known, key=lambda found: found.step_factor)
        said = self.take_slow(costliest.finding, costliest.step_factor)
        log.info("slow rank weighed", extra={"rank": costliest.rank, "result": said})
        return self._ledger.incident is not None

    def take_slow(self, finding: Finding, factor: float) -> str:
        """Take note of a rank that makes every step ``factor`` times as long; return the outcome.

        The rank is moved only if there is a spare and the move saves more than a restart costs, both
        measured; otherwise it is only reported.
        """
        ledger, now_s = self._ledger, self._situation.now_s()
        is_running = ledger.is_verified and ledger.wish is Wish.RANKS
        is_running &= ledger.incident is None and ledger.closing is None
        if not (self._situation.is_taken_up and is_running):
            return "only reported: the job can't move a rank now"
        is_worth, reason = is_worth_moving(factor, ledger, self._policy)
        nodes = {place.node for place in ledger.placement}
        preparation = self._attempts.preparation(self._policy, now_s)
        spares = preparation.healthy(preparation.usable().keys() - nodes)
        node = next((p.node for p in ledger.placement if set(p.ranks) & set(finding.ranks)), None)
        if not is_worth or not spares or node is None:
            return f"only reported: {reason if not is_worth else 'no spare'}"
        self.open(self._watch.name_failure(replace(finding, node=node)), now_s)
        return f"moved: {reason}"

    def go_back(self, now_s: float) -> bool:
        """Open an incident that takes the job back behind numbers that went wrong; return whether one is due."""
        ledger = self._ledger
        back = rollback_due(ledger, self._policy)
        if back is None or self._seen.has_ended or self._seen.is_done:
            return False
        if not self._attempts.can_go_behind(back.behind):
            if self._warned_of != ledger.attempt:
                self._warned_of = ledger.attempt
                log.warning("nothing to go back to", extra={"behind_step": back.behind})
            return False
        finding = rollback_finding(back, ledger, self._policy, self._settings.job_id)
        records = [*self._watch.milestone(now_s, is_due=True), back]
        failure = self._watch.name_failure(finding)
        self._situation.record(
            *records, self.opened(failure, self._situation.book.foresee(records))
        )
        return True

    def leave_damaged(self, now_s: float) -> bool:
        """Journal that what the ranks restored has a wrong sum, and open an incident that takes the job back if it can."""
        if self._seen.has_ended or self._seen.is_done:
            return False
        damage = self._attempts.damage_found(now_s)
        if damage is None:
            return False
        if not damage.goes_back:
            self._situation.record(damage)
            return True
        finding = damage_finding(damage, self._settings.job_id)
        records = [*self._watch.milestone(now_s, is_due=True), damage]
        failure = self._watch.name_failure(finding)
        self._situation.record(
            *records, self.opened(failure, self._situation.book.foresee(records))
        )
        return True

    def grow(self, now_s: float) -> bool:
        """Open an incident that takes in nodes which wait; return whether that is due."""
        ledger, policy, seen = self._ledger, self._policy, self._seen
        if not policy.grow_every_s or now_s - self._grown_at_s < LOOK_S:
            return False
        if seen.has_ended or seen.is_done or seen.failed:
            return False
        self._grown_at_s = now_s
        usable = self._attempts.preparation(policy, now_s).usable()
        fit = self._fit.look(
            usable.keys() - {place.node for place in ledger.placement} - self._accused(),
            now_s,
            policy.node_silent_s,
        )
        waiting = {
            node: WaitingNode(fit_s, report.passed_preflight)
            for node, fit_s in fit.items()
            if (report := self._nodes.report_of(node)) is not None
        }
        times = GrowthTimes(
            self._situation.since(now_s, "trains", ledger.started_number),
            self._situation.since(now_s, "saved", ledger.saved_number),
        )
        found = decide_growth(ledger, self._settings, usable, waiting, times, self._grown_number)
        if not isinstance(found, JobGrowth):
            return False
        self._grown_number = found.saved_number
        self._attempts.newcomers = frozenset(found.nodes)
        finding = growth_finding(found, ledger, self._settings.job_id)
        self.open(self._watch.name_failure(finding), now_s)
        return True

    def _accused(self) -> set[str]:
        """Return the nodes that an alert of this job's or of another's accuses."""
        retained = self._ledger.evidence.values()
        own = {evidence.evidence.node for evidence in retained if evidence.overruled_by is None}
        return own | set(self._situation.pool.accused(self._settings.job_id))

    # Run.

    def run(self, now_s: float) -> bool:
        """Make the open incident's next decision; return whether one was due."""
        incident = self._ledger.incident
        assert incident is not None, "called while an incident is open"
        phase = incident.state.phase
        if phase is Phase.OPENED:
            return self._decide(incident, now_s)
        if phase is Phase.FENCING:
            return self._fence_attempt(incident, now_s)
        ledger = self._ledger
        is_foreign = ledger.started is None or ledger.started.attempt != ledger.attempt
        if ledger.is_attempt_open and is_foreign:
            reason = f"attempt {ledger.attempt} runs, which this journal knows nothing of"
            return self.fail_try(incident, reason, None)
        if phase is Phase.RESTORING:
            is_over = self._end_finished(incident, now_s)
            return self._restore(incident, now_s) if is_over is None else is_over
        return self._verify(incident, now_s)

    def _decide(self, incident: OpenIncident, now_s: float) -> bool:
        finding = incident.failure.finding
        scene = self._planning.scene(incident, now_s)
        made = plan(finding, self._ledger, incident.policy, None, scene)
        judgement = self._planning.ask(incident, made, scene, now_s)
        if judgement is Judgement.WAIT and self._drop_waiting(incident, now_s):
            return True
        if judgement is not Judgement.ALLOWED:
            return judgement is Judgement.REFUSED
        if made.step is PlanStep.ESCALATE:
            self._give_up(incident, made, [])
            return True
        event = event_of(incident, Outcome.ACCEPTED, made.reason)
        self._situation.record(
            decided(incident, made), *self._planning.left(incident, made, scene), event
        )
        self._planning.charge(incident, _left(made, scene))
        return True

    def _drop_waiting(self, incident: OpenIncident, now_s: float) -> bool:
        """End an incident whose pending plan is no longer needed.

        Hours may pass before somebody approves it, and the ranks keep running meanwhile.
        """
        failure = self._failed_meanwhile(incident, now_s)
        if failure is not None:
            self._supersede(incident, failure, now_s)
        elif reason := self._overtaken(incident, now_s):
            self._situation.record(event_of(incident, Outcome.CANCEL, reason))
        else:
            return False
        return True

    def _failed_meanwhile(self, incident: OpenIncident, now_s: float) -> Failure | None:
        """Return a failure since the incident opened, if the incident is not itself about failed ranks."""
        finding = incident.failure.finding
        is_accused = finding.symptom.kind is SymptomKind.ALERT
        if self._seen.is_done or not (is_accused or trains(finding)):
            return None
        failure = self._watch.find_failure(now_s, incident.policy)
        if failure is None or not is_accused:
            return failure
        # The stall is no news: it turned the alert into an incident.
        is_same = failure.finding.symptom.kind is SymptomKind.ALERT
        is_same |= failure.finding.kind is Kind.RANK_HUNG
        return None if is_same else failure

    def _supersede(self, incident: OpenIncident, failure: Failure, now_s: float) -> None:
        """Journal that a failure ends the incident and opens its own, which keeps the evidence."""
        before, found = incident.failure.finding, failure.finding
        known = Evidence(f"incident {incident.state.incident_id}", before.summary)
        joined = replace(found, evidence=(*found.evidence, known, *before.evidence))
        cancelled = event_of(incident, Outcome.CANCEL, f"superseded by a failure: {found.summary}")
        records = [*self._watch.milestone(now_s, is_due=True), cancelled]
        ledger = self._situation.book.foresee(records)
        self._situation.record(*records, self.opened(replace(failure, finding=joined), ledger))

    def _overtaken(self, incident: OpenIncident, now_s: float) -> str | None:
        """Return why a pending plan is no longer needed although nothing new has failed, or None."""
        seen, finding = self._seen, incident.failure.finding
        began_s = now_s - self._situation.since(now_s, "waits", incident.state.incident_id)
        if seen.is_done:
            return "every rank has ended with exit code 0"
        if finding.symptom.kind is SymptomKind.GROWTH:
            is_late = self._situation.since(now_s, "grows", incident.state) >= JUST_SAVED_S
            return "the save that the job would grow after is no longer new" if is_late else None
        stood_still = finding.kind is Kind.RANK_HUNG or finding.symptom == HOST_SILENT
        stood_still |= finding.symptom.kind is SymptomKind.ALERT
        moves = not seen.failed and (seen.advanced_at_s or 0.0) > began_s
        return "the ranks are making progress again" if stood_still and moves else None

    def _fence_attempt(self, incident: OpenIncident, now_s: float) -> bool:
        ledger, policy = self._ledger, incident.policy
        self._situation.since(now_s, "evidence", incident.state)
        gone = self._attempts.gone(policy, now_s)
        if gone.is_proved:
            records: list[Record] = []
            if ledger.is_attempt_open:
                failed = AttemptResult.FAILED
                records.append(AttemptEnded(ledger.attempt, failed, gone.proofs, gone.off))
            reason = f"no process of attempt {ledger.attempt} or an older one is left"
            self._situation.record(*records, event_of(incident, Outcome.SUCCEEDED, reason))
            return True
        if self._attempts.tell_person(gone, now_s):
            return True
        if self._is_held(incident):
            return False  # never give up while a person has paused the job
        timeout_s = self._attempts.fence_bound_s(policy)
        if self._situation.since(now_s, expected_answer(incident.state)) < timeout_s:
            return False
        reason = shared_reasons.leftovers(ledger.attempt, timeout_s, gone.busy or gone.silent)
        self._situation.record(event_of(incident, Outcome.FAILED, reason))
        return True

    def _restore(self, incident: OpenIncident, now_s: float) -> bool:
        state, ledger = incident.state, self._ledger
        started = ledger.started
        is_ordered = started is not None and (started.incident_id, started.try_number) == (
            state.incident_id,
            state.try_number,
        )
        if not is_ordered:
            is_outage = incident.last_failure.finding.symptom.kind is SymptomKind.SERVICE
            outages = outages_in_a_row(ledger.barren) if is_outage else 0
            pause_s = incident.policy.pause_before_s(state.try_number, outages)
            is_early = self._situation.since(now_s, expected_answer(state)) < pause_s
            if is_early or self._expects_evidence(incident, now_s):
                return False
            if self._planning.is_torn_or_dead(incident, now_s):
                return False
            return self._restart(incident, now_s)
        if self._seen.is_started and self._seen.launch_error is None:
            reason = f"every rank of attempt {ledger.attempt} has a process"
            self._situation.record(event_of(incident, Outcome.SUCCEEDED, reason))
            return True
        return self._fail_try_if_due(incident, now_s)

    def _restart(self, incident: OpenIncident, now_s: float) -> bool:
        """Order the next attempt, as soon as nothing holds it."""
        if self._planning.charge(incident, {}):  # alerts may have come after the plan
            return True
        if self._is_held(incident):
            return self._say_held(incident, incident.plan)
        return self._plan_again(incident, now_s) or self._order_attempt(incident, now_s)

    def _end_finished(self, incident: OpenIncident, now_s: float) -> bool | None:
        """End the job if every rank had finished its training; None: it goes on. Return whether that was journaled.

        The stacks may prove it, and say in which call the rest stood: they come a moment after the ranks have ended.
        """
        failure = incident.last_failure
        is_at_end = failure.finding.symptom in (ENDING, FINISHED)
        if not is_at_end or failure.attempt != self._ledger.attempt:
            return None
        reported = (incident.state.incident_id, failure.attempt)
        waited_s = self._situation.since(now_s, "stacks", incident.state)
        if reported not in self._ledger.collected and waited_s < _STACKS_S_MAX:
            return False
        finding = incident.judged or failure.finding
        if finding.symptom != FINISHED:
            spent = out_of_restarts(self._ledger.spent, incident.policy)
            if spent is not None:
                reason = f"{shared_reasons.budget_spent(spent)}: {finding.summary}"
                self._escalate(incident, reason, None)
            return None if spent is None else True
        reason = f"{finding.summary}; it was ended after {failure.finding.since_age_s:.0f} s"
        cancelled = event_of(incident, Outcome.CANCEL, "the job is done")
        self._situation.record(cancelled, RanksDone(failure.attempt, reason))
        return True

    def _expects_evidence(self, incident: OpenIncident, now_s: float) -> bool:
        """Return whether the node's agent may still send evidence about the failure."""
        blames = (Blame.RANK, Blame.COMMUNICATION, Blame.NOBODY)
        finding = incident.last_failure.finding
        # An exception or an exit code alone blames nobody's node, and a node's agent may know better.
        is_open = finding.symptom.kind in (SymptomKind.EXCEPTION, SymptomKind.EXIT)
        if not self._settings.hears_evidence or not (finding.blame in blames or is_open):
            return False
        fencing = replace(incident.state, phase=Phase.FENCING)
        return self._situation.since(now_s, "evidence", fencing) < incident.policy.evidence_wait_s

    def _plan_again(self, incident: OpenIncident, now_s: float) -> bool:
        """Plan again if nodes have become unusable since the plan was made."""
        scene = self._planning.scene(incident, now_s)
        finding = incident.last_failure.finding
        made = plan(finding, self._ledger, incident.policy, None, scene)
        left = self._planning.left(incident, made, scene)
        if made.step is PlanStep.ESCALATE and made.without:  # the step that it needs is not allowed
            self._escalate(incident, made.reason, None)
            return True
        if not (left or self._has_lost_more(incident, made)) or made.step is PlanStep.ESCALATE:
            return False
        if self._planning.ask(incident, made, scene, now_s) is Judgement.ALLOWED:
            self._situation.record(decided(incident, made), *left)
            self._planning.charge(incident, _left(made, scene))
        return True

    def _has_lost_more(self, incident: OpenIncident, made: Plan) -> bool:
        """Return whether launchers have ended since the plan was made: the job has left their nodes already."""
        known = () if incident.plan is None else incident.plan.without
        ended = [self._ledger.members.get(node) for node in made.without if node not in known]
        return any(member is not None and member.ended_through is not None for member in ended)

    def _order_attempt(self, incident: OpenIncident, now_s: float) -> bool:
        """Choose nodes and a checkpoint, and order the next attempt."""
        try:
            is_held = incident.waits_cause is WaitCause.CHECKPOINT
            may_begin = is_held and incident.approved_by is not None
            ready = self._attempts.prepare(incident.policy, now_s, may_begin=may_begin)
            if isinstance(ready, FinderChosen):
                self._situation.record(ready)
                return True
            if isinstance(ready, NeedsMissing):
                return self._wait_for(ready, incident)
            if not ready.choice.is_possible:
                return self._wait_for_checkpoint(ready.choice, incident, now_s)
            finding = incident.last_failure.finding
            refusal = judge_choice(finding, self._ledger, incident.policy, ready.choice)
            attempt = self._attempts.advance_fence() if refusal is None else 0
        except JournalError:
            raise
        except (OSError, RankmendError) as error:
            return self._go_without(error, incident, now_s)
        if refusal is not None:
            self._escalate(incident, refusal.reason, ready.choice, refusal.concludes)
            return True
        if self._attempts.is_still_there(ready.choice):
            self._attempts.order(attempt, Cause.INCIDENT, ready, incident)
        return True

    def _wait_for(self, missing: NeedsMissing, incident: OpenIncident) -> bool:
        """Journal once what the attempt waits for, and give up in the end."""
        if missing.left_s <= 0 and missing.is_for_nodes:
            self._escalate(incident, shared_reasons.cannot_start(missing.reason), None)
            return True
        if missing.left_s <= 0:
            return self.fail_try(incident, shared_reasons.cannot_start(missing.reason), None)
        made = incident.plan
        if not missing.is_for_nodes or made is None:
            return False
        why = WaitReason(WaitCause.NODES, missing.reason, missing.about)
        return self._planning.note_wait(incident, made, why, WaitsFor.NODES)

    def _wait_for_checkpoint(self, choice: Choice, incident: OpenIncident, now_s: float) -> bool:
        """Hold the job rather than begin at step 0, and journal that once; give up in the end."""
        waited_s = self._situation.since(now_s, "held", expected_answer(incident.state))
        if waited_s >= incident.policy.checkpoint_wait_s:
            self._escalate(incident, f"{choice.reason}; held for {waited_s:.0f} s", choice)
            return True
        assert incident.plan is not None, "an attempt is ordered by a plan"
        text = shared_reasons.held(choice, incident.state.incident_id)
        why = WaitReason(WaitCause.CHECKPOINT, text, choice.held_about)
        made = replace(incident.plan, choice=choice)
        return self._planning.note_wait(incident, made, why, WaitsFor.LEAVE)

    def _go_without(self, error: Exception, incident: OpenIncident, now_s: float) -> bool:
        """Wait where room mends what kept the attempt from being ordered; else the try has failed."""
        if isinstance(error, UnwritableError):
            return self._wait_for_storage(error, incident, now_s)
        return self.fail_try(incident, shared_reasons.cannot_start(error), None)

    def _wait_for_storage(
        self, full: UnwritableError, incident: OpenIncident, now_s: float
    ) -> bool:
        """Hold the job until an attempt could publish checkpoints, and journal that once; give up in the end.

        Tries count for nothing here: each would fail for the same reason.
        """
        waited_s = self._situation.since(now_s, "unwritable", expected_answer(incident.state))
        if waited_s >= incident.policy.checkpoint_wait_s:
            reason = shared_reasons.cannot_start(f"{full}; held for {waited_s:.0f} s")
            self._escalate(incident, reason, None)
            return True
        assert incident.plan is not None, "an attempt is ordered by a plan"
        text = f"{full}. It goes on by itself then"
        why = WaitReason(WaitCause.STORAGE, text, full.why.value)
        return self._planning.note_wait(incident, incident.plan, why, WaitsFor.STORAGE)

    def _is_held(self, incident: OpenIncident) -> bool:
        """Return whether a pause holds the incident's next step."""
        return self._planning.pause() is not None and incident.approved_by is None

    def _say_held(self, incident: OpenIncident, made: Plan | None) -> bool:
        """Journal once that the plan waits for the end of a pause."""
        pause = self._planning.pause()
        if pause is None or made is None:
            return False
        return self._planning.note_wait(incident, made, pause, WaitsFor.LEAVE)

    def _escalate(
        self,
        incident: OpenIncident,
        reason: str,
        choice: Choice | None,
        concludes: Conclusion = Conclusion.NOTHING,
    ) -> None:
        evidence = incident.last_failure.finding.evidence
        made = Plan(PlanStep.ESCALATE, reason, evidence, choice, concludes=concludes)
        self._give_up(incident, made, [])

    def _give_up(self, incident: OpenIncident, made: Plan, records: list[Record]) -> None:
        """Journal in one write that the incident is escalated, and what it counts against nodes.

        Where the plan concludes that the program itself fails, what its incidents had counted is taken back.
        """
        incident_id = incident.state.incident_id
        event = event_of(incident, Outcome.ESCALATE, made.reason)
        ledger = self._situation.book.foresee(records)
        newest = ledger.incident or incident
        failure = newest.last_failure
        corrected = corrects(made.concludes, failure, ledger, incident_id, made.reason)
        shows = made.concludes is Conclusion.NOTHING
        charged = self._planning.charged(newest, ledger, {}) if shows else None
        said = [record for record in (corrected, charged) if record is not None]
        self._situation.record(*records, decided(incident, made), *said, event)
        if corrected is not None:
            self._situation.follow(lambda: self._planning.take_back(corrected))

    def _verify(self, incident: OpenIncident, now_s: float) -> bool:
        seen, ledger = self._seen, self._ledger
        if not seen.is_done and self._fail_try_if_due(incident, now_s):
            return True
        if seen.is_done or seen.is_verified(incident.policy, ledger.telling_ranks, now_s):
            reason = f"every rank of attempt {ledger.attempt} trains or has ended with exit code 0"
            self._situation.record(
                self._watch.verified(now_s),
                *self._watch.milestone(now_s, is_due=False),
                event_of(incident, Outcome.SUCCEEDED, reason),
            )
            return True
        timeout_s = incident.policy.verify_timeout_s
        if self._situation.since(now_s, expected_answer(incident.state)) < timeout_s:
            return False
        reason = f"some ranks did not complete their first steps within {timeout_s:g} s"
        return self.fail_try(incident, reason, None)

    def _fail_try_if_due(self, incident: OpenIncident, now_s: float) -> bool:
        attempt = self._ledger.attempt
        failure = self._watch.find_failure(now_s, incident.policy)
        if failure is None:
            failure = self._find_late_evidence(incident, now_s)
        if failure is not None:
            return self.fail_try(incident, failure.finding.summary, failure)
        if self._nodes.are_empty(self._ledger) and not self._seen.has_ended:
            return self.fail_try(incident, shared_reasons.gone_unseen(attempt), None)
        return False

    def _find_late_evidence(self, incident: OpenIncident, now_s: float) -> Failure | None:
        """Return the failure that an alert reports on a node that got ranks again, until they make steps.

        Only if the job can leave the node; otherwise the ranks may as well try.
        """
        seen, policy = self._seen, incident.policy
        for retained in fatal(self._ledger):
            ranks = retained.evidence.ranks or self._ranks_on(retained.evidence.node)
            views = [seen.ranks[rank] for rank in ranks if rank in seen.ranks]
            if views and all(view.steps_done >= policy.verify_steps for view in views):
                continue
            if self._attempts.can_leave(retained.evidence.node, now_s):
                doctor = Doctor(self._settings, policy, self._ledger.placement)
                return doctor.failure_of(seen, retained.evidence)
        return None

    def _ranks_on(self, node: str) -> tuple[int, ...]:
        return next((place.ranks for place in self._ledger.placement if place.node == node), ())

    def _tries_max(self, incident: OpenIncident) -> int:
        """Return how many tries the incident has: few if no rank of the job has ever trained."""
        ledger, policy = self._ledger, incident.policy
        has_trained = bool(ledger.telling_ranks) or ledger.last_restore_path is not None
        if self._seen.launch_error is None or has_trained:
            return incident.state.tries_max
        return min(incident.state.tries_max, policy.first_start_tries_max)

    def fail_try(self, incident: OpenIncident, reason: str, failure: Failure | None) -> bool:
        """Journal the failed try and its consequence in one write; return whether it was news.

        In a paused job, journal that the consequence waits, and leave the ranks alone.
        """
        state = incident.state
        if self._is_held(incident):
            finding = incident.last_failure.finding if failure is None else failure.finding
            made = plan(finding, self._ledger, incident.policy, None)
            return self._say_held(incident, made)
        records = self._watch.milestone(self._situation.now_s(), is_due=True)
        records.append(TryFailed(state.incident_id, state.try_number, reason, failure))
        ledger = self._situation.book.foresee(records)
        finding = incident.last_failure.finding if failure is None else failure.finding
        made = plan(finding, ledger, incident.policy, None)
        if made.step is not PlanStep.ESCALATE and state.try_number >= self._tries_max(incident):
            text = f"all {state.try_number} tries failed; last error: {reason}"
            made = replace(made, step=PlanStep.ESCALATE, reason=text)
        if made.step is PlanStep.ESCALATE:
            self._give_up(incident, made, records)
        else:
            event = event_of(incident, Outcome.FAILED, made.reason)
            self._situation.record(*records, decided(incident, made), event)
        return True


def _left(made: Plan, scene: Scene) -> dict[str, LeaveReason]:
    """Return why the plan leaves its nodes."""
    reasons = {**scene.may_leave, **scene.must_leave}
    other = LeaveReason(LeaveCause.UNKNOWN, made.reason)
    return {node: reasons.get(node, other) for node in made.without}
