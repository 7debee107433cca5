"""The run of a simulated job, and its incidents. The rules are the real ones; only what they act on is simulated.

Real are the ledger and its fold, the incident's state machine, the planner, the choice of nodes and of checkpoints, the
proof that an attempt is gone, and the cluster's gate: policy, budgets, quarantine. The order of the steps is that of
`recovery.controller.job.incidents`, which waits for reports where this spends the time that they take.
"""

from dataclasses import replace

from detectors.finding import HOST_SILENT, Blame, Finding
from recovery.controller.cluster.gate import Judgement, PlanRequest
from recovery.controller.job.alert_intake import fatal
from recovery.controller.job.membership import Word, judge_gone, size_for
from recovery.controller.job.node_charges import (
    ChargedJob,
    Reasons,
    charges_of,
    find_nodes_to_leave,
)
from recovery.controller.job.planner import Scene, is_worth_moving, refuse_choice
from recovery.controller.job.restore.restore_choice import choose_checkpoint
from recovery.journal.attempt_records import (
    AttemptEnded,
    AttemptResult,
    AttemptVerified,
    Cause,
    Choice,
    Milestone,
    identity_of,
)
from recovery.journal.incident_machine import Outcome, Phase, answer
from recovery.journal.incident_records import (
    CaughtUp,
    Decided,
    IncidentEvent,
    IncidentOpened,
    Plan,
    TryFailed,
)
from recovery.journal.job_records import BudgetsReset, JobEnded, LauncherStarted
from recovery.journal.ledger import Ledger, OpenIncident
from recovery.journal.limits import PlanStep
from recovery.journal.node_records import LOST, EvidenceTaken, LeaveCause, LeaveReason, NodeLeft
from recovery.lab.simulation.faults import NodeFault
from recovery.lab.simulation.findings import JOB_ID, accuse, alert_of, find, find_slow
from recovery.lab.simulation.job import NOT_FAILED, SimulatedJob
from recovery.lab.simulation.machines import PERSON, node_name
from recovery.lab.simulation.outcome import PHASES, RunOutcome, RunPart, outcome_of
from recovery.lab.simulation.rate_table import Shows
from recovery.messages.candidates import Candidate, CheckpointFormat, CheckpointVerdict
from recovery.messages.exchange import SnapshotPoint
from recovery.messages.outside import trains

_EVIDENT = (Blame.RANK, Blame.COMMUNICATION, Blame.NOBODY)


def run_job(job: SimulatedJob) -> RunOutcome:
    """Train until the horizon, with an incident for each fault that hits the ranks."""
    job.open()
    horizon_s = job.setup.horizon_s
    while job.clock.time_s < horizon_s:
        fault = job.train(horizon_s)
        if fault is None:
            continue
        if fault.shows in NOT_FAILED:
            SimulatedIncident(job).move_slow(fault)
        else:
            job.training.stop(fault.cause)
            SimulatedIncident(job).recover(fault)
    return outcome_of(job.account, job.seed, horizon_s, job.setup.gpus)


class SimulatedIncident:
    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self._policy = job.rules.policy
        self._snapshot: SnapshotPoint | None = None  # what memory held when the ranks stopped
        self._fenced_from_s = 0.0

    @property
    def _ledger(self) -> Ledger:
        return self._job.book.ledger

    @property
    def _open_incident(self) -> OpenIncident:
        incident = self._ledger.incident
        assert incident is not None, "an incident is open"
        return incident

    def _event(self, outcome: Outcome, reason: str) -> IncidentEvent:
        return IncidentEvent(answer(self._open_incident.state, outcome, reason))

    # From the fault to training again.

    def recover(self, fault: NodeFault) -> None:
        """Find the failure, and go on from the newest state that can be restored."""
        job = self._job
        began_s, node = job.clock.time_s, _node(fault)
        job.cause = fault.cause
        job.account.failures[fault.cause] += 1
        self._note_progress()
        after_s, finding = find(
            fault,
            node,
            job.ranks_of(node),
            self._ledger.attempt,
            self._policy,
            job.assumptions,
            job.random_of(fault),
        )
        job.spend(RunPart.DETECT, after_s, is_alive=False)
        self._open(finding, after_s)
        self._go_through(finding)
        if job.clock.time_s < job.setup.horizon_s:
            job.account.mttr_s.append(job.clock.time_s - began_s)

    def move_slow(self, fault: NodeFault) -> None:
        """Leave a node that is called slow, if that is worth a restart and allowed."""
        job, node = self._job, _node(fault)
        self._note_progress()
        is_worth, _why = is_worth_moving(job.assumptions.slow_factor, self._ledger, self._policy)
        if not is_worth or len(job.usable()) <= len(self._ledger.placement):
            if fault.shows is Shows.SLOW:
                job.ask_again(fault)
            return
        finding = find_slow(fault, node, job.ranks_of(node), self._ledger.attempt)
        self._open(finding, 0.0)
        made = self._plan(finding)
        verdict = self._judge(made, finding) if made.step is PlanStep.MOVE else Judgement.REFUSED
        if verdict is not Judgement.ALLOWED:
            job.account.refusals += 1
            job.book.record(self._event(Outcome.CANCEL, "not allowed"))
            if fault.shows is Shows.SLOW:
                job.ask_again(fault)
            return
        began_s = job.clock.time_s
        job.cause = fault.cause
        job.account.failures[fault.cause] += 1
        job.training.stop(fault.cause)
        self._go_through(finding)
        job.account.mttr_s.append(job.clock.time_s - began_s)

    def _note_progress(self) -> None:
        """Journal how far the attempt has come, and whether it has caught up."""
        job, ledger = self._job, self._ledger
        step = job.training.step
        if ledger.highest_step is None or step > ledger.highest_step:
            job.book.record(Milestone(ledger.attempt, step, step))
        behind = self._ledger.behind
        if behind is not None and step > (behind.highest_before or 0):
            past_s = (step - (behind.highest_before or 0)) * job.assumptions.step_s
            job.book.record(CaughtUp(behind.state.incident_id, ledger.attempt, step, past_s))

    def _open(self, finding: Finding, age_s: float) -> None:
        job = self._job
        job.incidents += 1
        incident_id = job.settings.incident_id(job.incidents)
        highest = self._ledger.highest_step
        failure = job.failure_of(finding)
        job.book.record(IncidentOpened(incident_id, failure, age_s, highest, self._policy))

    def _go_through(self, finding: Finding) -> None:
        if self._decide(finding) and self._restart():
            return
        self._begin_by_person()

    # Decide.

    def _decide(self, finding: Finding) -> bool:
        """Accept the cheapest plan; return False where the job is given up."""
        job = self._job
        self._take_alerts()
        scene, reasons = self._scene(finding)
        made = job.rules.plan(finding, self._ledger, self._policy, None, scene)
        if made.step is PlanStep.ESCALATE or self._policy.observe:
            return self._give_up(made)
        verdict = self._judge(made, finding)
        if verdict is Judgement.REFUSED:
            return self._give_up(made)
        if verdict is Judgement.WAIT:
            job.spend(RunPart.WAIT_PERSON, job.assumptions.person_s, is_alive=False)
        self._accept(made, reasons)
        job.book.record(self._event(Outcome.ACCEPTED, made.reason))
        return True

    def _plan(self, finding: Finding) -> Plan:
        scene, _reasons = self._scene(finding)
        made: Plan = self._job.rules.plan(finding, self._ledger, self._policy, None, scene)
        return made

    def _scene(self, finding: Finding) -> tuple[Scene, Reasons]:
        job, ledger = self._job, self._ledger
        phase = self._open_incident.state.phase
        counts_silence = finding.symptom == HOST_SILENT or phase is Phase.RESTORING
        must, may = find_nodes_to_leave(
            finding,
            ledger,
            self._policy,
            accused={
                retained.evidence.node: retained.evidence.summary for retained in fatal(ledger)
            },
            is_silent=lambda node: counts_silence and node in job.machines.silent,
            unusable=job.held().get,
            torn={},
        )
        nodes = tuple(place.node for place in ledger.placement)
        spares = len(job.usable().keys() - set(nodes))
        return Scene(nodes, spares, job.settings.sizes, must, may), {**may, **must}

    def _judge(self, made: Plan, finding: Finding) -> Judgement:
        state = self._open_incident.state
        request = PlanRequest(
            JOB_ID,
            state.incident_id,
            state.try_number,
            made.step,
            finding,
            made.without,
            len(self._ledger.placement),
            is_standing=not trains(finding),
        )
        return self._job.cluster.judge(request).judgement

    def _accept(self, made: Plan, reasons: Reasons) -> None:
        """Journal the plan, leave its nodes, and tell the cluster who is blamed."""
        job, ledger, state = self._job, self._ledger, self._open_incident.state
        job.book.record(Decided(state.incident_id, state.try_number, made))
        left = {node: reasons.get(node, LeaveReason(LeaveCause.UNKNOWN)) for node in made.without}
        for node, reason in left.items():
            if ledger.members[node].left is None:
                self._leave(node, reason)
        failure = self._open_incident.last_failure
        whose = ChargedJob(JOB_ID, "")
        for charge in charges_of(state.incident_id, failure, whose, ledger, left):
            job.cluster.note_charge(charge)

    def _leave(self, node: str, reason: LeaveReason) -> None:
        is_lost = reason.cause in LOST
        incident = self._ledger.incident
        incident_id = None if incident is None else incident.state.incident_id
        self._job.book.record(NodeLeft(node, reason.text, is_lost, incident_id, reason.cause))
        self._job.send_away(node)

    def _take_alerts(self) -> None:
        """Journal the alerts that have arrived."""
        job, ledger = self._job, self._ledger
        for node, fault in job.machines.take_alerts(job.clock.time_s):
            age_s = job.clock.time_s - fault.at_s
            taken = (alert_of(fault, node, age_s),)
            incident = ledger.incident
            incident_id = None if incident is None else incident.state.incident_id
            if job.is_placed(node):
                job.book.record(EvidenceTaken(taken, ledger.attempt, incident_id, "about a node"))

    # Fence, prepare, start.

    def _restart(self) -> bool:
        """Fence and start until the ranks train; return False where the job is given up."""
        account = self._job.account
        while True:
            self._fence()
            before = {part: account.parts[part] for part in PHASES}
            choice = self._prepare()
            if choice is None:
                return False
            finding = self._start(choice)
            if finding is None:
                return True
            for part in PHASES[PHASES.index(RunPart.PREPARE) :]:
                account.parts[RunPart.RETRIES] += account.parts[part] - before[part]
                account.parts[part] = before[part]
            if not self._fail_try(finding):
                return False

    def _fence(self) -> None:
        job, ledger, policy = self._job, self._ledger, self._policy
        self._fenced_from_s = job.clock.time_s
        if job.training.snapshot_work_s() is not None and self._snapshot is None:
            work_s = job.training.snapshot_work_s() or 0.0
            self._snapshot = SnapshotPoint(ledger.attempt, int(work_s / job.assumptions.step_s))
        seconds = job.assumptions.stop_order_s * job.orders + job.assumptions.kill_s
        job.spend(RunPart.FENCE, seconds, is_alive=False)
        if any(place.node in job.machines.silent for place in ledger.placement):
            empty_at_s = job.clock.time_s
            bound_s = policy.lease_s + policy.kill_bound_s + policy.lease_margin_s
            job.spend(RunPart.FENCE, bound_s, is_alive=False)
            if not self._is_gone(
                empty_at_s, empty_at_s + bound_s
            ):  # a person looks, and confirms it
                job.spend(RunPart.WAIT_PERSON, job.assumptions.person_s, is_alive=False)
        job.book.record(
            AttemptEnded(self._ledger.attempt, AttemptResult.FAILED),
            self._event(Outcome.SUCCEEDED, "no process is left"),
        )

    def _is_gone(self, empty_at_s: float, now_s: float) -> bool:
        """Return whether the silent nodes are proved to be empty, while the others say that they are."""
        job, ledger = self._job, self._ledger
        words = {
            place.node: Word(now_s, ledger.attempt, empty_at_s, 0.0)
            for place in ledger.placement
            if place.node not in job.machines.silent
        }
        gone = judge_gone(
            ledger,
            ledger.placement,
            words,
            self._policy,
            now_s,
            started_at_s=0.0,
            confirmed_at_s={},
        )
        return gone.is_proved

    def _prepare(self) -> Choice | None:
        """Return what the next attempt restores, once there are nodes for it; None: the job is given up."""
        job, policy, incident = self._job, self._policy, self._open_incident
        finding = incident.last_failure.finding
        ready_s = job.clock.time_s + policy.pause_before_s(incident.state.try_number)
        if finding.blame in _EVIDENT:
            ready_s = max(ready_s, self._fenced_from_s + policy.evidence_wait_s)
        job.spend(RunPart.PREPARE, max(0.0, ready_s - job.clock.time_s), is_alive=False)
        if not self._plan_again(finding) or not self._has_nodes():
            return None
        choice = self._choose()
        refusal = refuse_choice(finding, self._ledger, policy, choice)
        if refusal is not None:
            self._give_up(Plan(PlanStep.ESCALATE, refusal, (), choice))
            return None
        return choice

    def _plan_again(self, finding: Finding) -> bool:
        """Leave the nodes that evidence accuses by now; return False where the job is given up."""
        self._take_alerts()
        scene, reasons = self._scene(finding)
        made = self._job.rules.plan(finding, self._ledger, self._policy, None, scene)
        if made.step is PlanStep.ESCALATE:
            return self._give_up(made) if made.without else True
        news = [node for node in made.without if self._ledger.members[node].left is None]
        if news and self._judge(made, finding) is Judgement.ALLOWED:
            self._accept(made, reasons)
        return True

    def _has_nodes(self) -> bool:
        job, waited_from_s = self._job, self._job.clock.time_s
        while size_for(job.settings, len(job.usable())) is None:
            left_s = self._policy.spare_wait_s - (job.clock.time_s - waited_from_s)
            if left_s <= 0 or not job.wait_for_return(RunPart.WAIT_NODES, left_s):
                if job.clock.time_s >= job.setup.horizon_s:
                    return True  # nobody decides any more
                return self._give_up(Plan(PlanStep.ESCALATE, "too few nodes", ()))
        return True

    def _choose(self) -> Choice:
        """Return the newest state of all: a snapshot in memory, or a checkpoint."""
        job, step_s = self._job, self._job.assumptions.step_s
        verdicts = [
            _verdict(int(saved.work_s / step_s + 1e-6), saved.durable_at_s)
            for saved in job.training.durable(self._fenced_from_s)
        ]
        choice = choose_checkpoint(self._ledger, self._policy, verdicts, may_begin=not verdicts)
        snapshot, begins_at = self._snapshot, choice.begins_at or 0
        if snapshot is None or snapshot.step <= begins_at or not self._is_in_memory(snapshot):
            return choice
        return replace(choice, snapshot=snapshot)

    def _is_in_memory(self, snapshot: SnapshotPoint) -> bool:
        """Return whether every rank's part is on a node that can be queried, and it has not failed too often."""
        lost = sum(p.node in self._job.machines.silent for p in self._ledger.placement)
        has_failed = self._ledger.restores_of(identity_of(snapshot))
        is_there = lost <= self._policy.snapshot_copies
        return is_there and has_failed < self._policy.restore_failures_max

    def _start(self, choice: Choice) -> Finding | None:
        """Order the attempt; return what made it fail before it trained, or None."""
        job, state = self._job, self._open_incident.state
        if job.clock.time_s >= job.setup.horizon_s:
            return None
        tries = (state.incident_id, state.try_number)
        job.order(Cause.INCIDENT, choice, job.usable(), incident=tries)
        job.book.record(self._event(Outcome.SUCCEEDED, "every rank has a process"))
        for part, seconds in self._phases(choice):
            finding = self._wait(part, seconds)
            if finding is not None:
                return finding
        attempt = self._ledger.attempt
        job.book.record(
            AttemptVerified(attempt, is_comparable=True, telling_ranks=(0,)),
            self._event(Outcome.SUCCEEDED, "every rank trains"),
        )
        job.resume_training((choice.begins_at or 0) * job.assumptions.step_s)
        return None

    def _phases(self, choice: Choice) -> tuple[tuple[RunPart, float], ...]:
        job, assumed = self._job, self._job.assumptions
        in_memory = choice.snapshot is not None
        return (
            (RunPart.START, assumed.start_order_s * job.orders + assumed.start_s),
            (RunPart.RENDEZVOUS, assumed.rendezvous_s * job.rendezvous),
            (RunPart.RESTORE, assumed.memory_restore_s if in_memory else assumed.restore_s),
            (RunPart.FIRST_STEP, assumed.first_step_s),
        )

    def _wait(self, part: RunPart, seconds: float) -> Finding | None:
        """Let the ranks start; return what hits them, or what an alert says of a node that can be left."""
        job = self._job
        until_s = job.clock.time_s + seconds
        late = [(at_s, node) for at_s, node, _fault in job.machines.alerts if job.is_placed(node)]
        at_s, node = min(late, default=(until_s, ""))
        if node and at_s < until_s and size_for(job.settings, len(job.usable()) - 1) is not None:
            fault = next(item for _at_s, name, item in job.machines.alerts if name == node)
            hit = job.spend(part, max(0.0, at_s - job.clock.time_s), is_alive=True)
            if hit is None:
                self._take_alerts()
                return accuse(fault, node, job.ranks_of(node), self._ledger.attempt)
        else:
            hit = job.spend(part, max(0.0, until_s - job.clock.time_s), is_alive=True)
        if hit is None:
            return None
        name = _node(hit)
        after_s, finding = find(
            hit,
            name,
            job.ranks_of(name),
            self._ledger.attempt,
            self._policy,
            job.assumptions,
            job.random_of(hit),
        )
        job.spend(part, after_s, is_alive=False)
        return finding

    def _fail_try(self, finding: Finding) -> bool:
        """Journal the failed try; return False where that was the last."""
        job, state = self._job, self._open_incident.state
        failure = job.failure_of(finding)
        job.book.record(TryFailed(state.incident_id, state.try_number, finding.summary, failure))
        made = job.rules.plan(finding, self._ledger, self._policy, None)
        if made.step is PlanStep.ESCALATE or state.try_number >= state.tries_max:
            return self._give_up(made)
        job.book.record(
            Decided(state.incident_id, state.try_number, made),
            self._event(Outcome.FAILED, made.reason),
        )
        return True

    # Given up: a person starts the job again.

    def _give_up(self, made: Plan) -> bool:
        job, state = self._job, self._open_incident.state
        job.book.record(
            Decided(state.incident_id, state.try_number, replace(made, step=PlanStep.ESCALATE)),
            self._event(Outcome.ESCALATE, made.reason),
        )
        return False

    def _begin_by_person(self) -> None:
        """Have a person find the faulty nodes and start the job again, until it trains."""
        job = self._job
        job.account.escalations += 1
        if job.training.snapshot_work_s() is None:
            self._snapshot = None
        self._fenced_from_s = job.clock.time_s
        while job.clock.time_s < job.setup.horizon_s:
            job.spend(RunPart.WAIT_PERSON, job.assumptions.person_s, is_alive=False)
            self._start_anew()
            for node in [*job.machines.bad, *job.machines.silent]:
                if node not in job.machines.away:
                    self._leave(node, LeaveReason(LeaveCause.PERSON, "faulty"))
            while size_for(job.settings, len(job.usable())) is None:
                if not job.wait_for_return(RunPart.WAIT_NODES, job.setup.horizon_s):
                    return
            self._snapshot = None  # it ended with its launchers
            choice = self._choose()
            job.order(Cause.RESUMED, choice, job.usable())
            hits = [
                job.spend(part, seconds, is_alive=True) for part, seconds in self._phases(choice)
            ]
            if all(hit is None for hit in hits):
                job.begin_training((choice.begins_at or 0) * job.assumptions.step_s)
                return

    def _start_anew(self) -> None:
        job, ledger = self._job, self._ledger
        if ledger.closing is not None:
            job.book.record(JobEnded(ledger.closing.outcome, is_empty=True))
        job.book.record(
            LauncherStarted(ledger.nodes, ledger.world_size, 1, "simulated"),
            BudgetsReset(PERSON, "found what is faulty"),
        )


def _node(fault: NodeFault) -> str:
    return node_name(fault.node)


def _verdict(step: int, modified_s: float) -> CheckpointVerdict:
    path = f"/checkpoints/step-{step}"
    candidate = Candidate(path, step, CheckpointFormat.DCP, 1, 1.7e9 + modified_s, True)
    return CheckpointVerdict(candidate, True, "whole")
