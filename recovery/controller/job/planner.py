"""What to do about a failure: the cheapest step that the evidence allows. Pure.

The plan says its reason and evidence as data, for `rankmend why`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detectors.failed.error_text import ErrorText
from detectors.failed.failed_ranks import DO_NOT_RETRY
from detectors.failed.lasting_errors import comes_again
from detectors.finding import Blame, Finding, Kind, SymptomKind
from detectors.hang.evidence import ENDING, FINISHED
from detectors.wording import counted, reasons_in_words
from recovery.controller.job import shared_reasons
from recovery.controller.job.restore.restore_choice import (
    choose_checkpoint,
    is_progress,
    may_begin_elsewhere,
    refuse_same_start,
    say_same_error,
)
from recovery.journal.attempt_records import Choice
from recovery.journal.faults import OF_CODE, OWN_ENDS
from recovery.journal.fold.budget_fold import RESTARTS
from recovery.journal.incident_records import Conclusion, Failure, Plan
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep, Policy, out_of_patience, out_of_restarts
from recovery.journal.node_records import LeaveCause, LeaveReason
from recovery.messages.candidates import CheckpointVerdict

_AT_START: Final = (
    "the first attempt ended before any step, with an error of the program on every rank"
)

_ON_NODES: Final = (PlanStep.RESTART_IN_PLACE, PlanStep.MOVE, PlanStep.SHRINK)


@dataclass(frozen=True, slots=True)
class Scene:
    """A job's nodes as a plan finds them. One machine: none to choose from."""

    nodes: tuple[str, ...] = ()  # the newest attempt's
    spares: int = 0  # usable nodes beside them
    sizes: tuple[int, ...] = ()  # numbers of nodes that the job can run on, the largest first
    # Nodes that can't be used, and suspects, which are left for a spare only.
    must_leave: Mapping[str, LeaveReason] = field(default_factory=dict)
    may_leave: Mapping[str, LeaveReason] = field(default_factory=dict)
    # Of those that can't be used: alerts accuse them and nothing else does. The job leaves them only where it can go on without them.
    accused_alone: frozenset[str] = frozenset()
    spares_accused: int = 0  # of the spares: an alert rules them out, so no suspect is left for one


_ONE_MACHINE: Final = Scene()


def plan(
    finding: Finding,
    ledger: Ledger,
    policy: Policy,
    candidates: Sequence[CheckpointVerdict] | None,
    scene: Scene = _ONE_MACHINE,
) -> Plan:
    """Return the step to take about ``finding``, which the ledger holds already.

    ``candidates``, newest first, are known only once nobody writes any more; None leaves the
    choice of a checkpoint open.
    """
    cheapest = _plan(finding, ledger, policy, candidates, scene)
    return cheapest if finding.is_persons else _allowed(cheapest, finding, ledger, policy, scene)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why a job is given up."""

    reason: str
    concludes: Conclusion = Conclusion.NOTHING


def _plan(
    finding: Finding,
    ledger: Ledger,
    policy: Policy,
    candidates: Sequence[CheckpointVerdict] | None,
    scene: Scene,
) -> Plan:
    """Return the cheapest step that the evidence allows."""
    if finding.symptom in (FINISHED, ENDING):  # the incident ends the job, or looks at the budget
        return Plan(PlanStep.RESTART_IN_PLACE, _restart_reason(finding), finding.evidence)
    refusal = None if finding.is_planned else _refuse_restart(finding, ledger, policy)
    if refusal is not None:
        text = f"{refusal.reason}: {_first_words(ledger, finding)}"
        return Plan(PlanStep.ESCALATE, text, finding.evidence, concludes=refusal.concludes)
    if (moved := _leave(finding, scene)) is not None:
        return moved
    reason = f"{_restart_reason(finding)}{_needed_text(scene, _needed_accused(scene))}"
    failure = ledger.incident.last_failure if ledger.incident else None
    if failure is not None and _fails_at_start(finding, failure, ledger):
        reason = f"{finding.summary}, before any step: give up, unless it has saved something"
    if candidates is None:
        return Plan(PlanStep.RESTART_IN_PLACE, reason, finding.evidence)
    choice = choose_checkpoint(ledger, policy, candidates)
    if (refused := judge_choice(finding, ledger, policy, choice)) is not None:
        text, concludes = refused.reason, refused.concludes
        return Plan(PlanStep.ESCALATE, text, finding.evidence, choice, concludes=concludes)
    return Plan(PlanStep.RESTART_IN_PLACE, reason, finding.evidence, choice)


def _leave(finding: Finding, scene: Scene) -> Plan | None:
    """Return the plan that leaves nodes, or None where all can be used on."""
    leave = dict(scene.must_leave)
    if len(leave) + len(scene.may_leave) <= scene.spares - scene.spares_accused:
        leave = {**scene.may_leave, **leave}
    needed = _needed_accused(scene)
    leave = {node: reason for node, reason in leave.items() if node not in needed}
    if not leave:
        return None
    without = tuple(node for node in scene.nodes if node in leave)
    why = reasons_in_words([f"{node}: {leave[node].text}" for node in without])
    left = len(scene.nodes) - len(without) + scene.spares
    size = next((size for size in scene.sizes if size <= left), None)
    step = PlanStep.MOVE
    if size is None:
        how = f"wait for a node: {left} are usable, {scene.sizes[-1]} needed"
    elif size < len(scene.nodes):
        step, how = (
            PlanStep.SHRINK,
            f"continue on {counted(size, 'node')} instead of {len(scene.nodes)}",
        )
    else:
        how = "spares take their places"
    reason = f"{finding.summary}: leave {why}; {how}{_needed_text(scene, needed)}"
    return Plan(step, reason, finding.evidence, without=without)


def _needed_accused(scene: Scene) -> tuple[str, ...]:
    """Return the nodes that alerts alone accuse and without which no attempt could start: as few as possible."""
    left = len(scene.nodes) - len(scene.must_leave) + scene.spares
    missing = scene.sizes[-1] - left if scene.sizes else 0
    accused = [node for node in scene.nodes if node in scene.accused_alone]
    return tuple(accused[:missing]) if 0 < missing <= len(accused) else ()


def _needed_text(scene: Scene, needed: Sequence[str]) -> str:
    """Return why nodes stay although alerts accuse them, or nothing."""
    if not needed:
        return ""
    why = reasons_in_words([f"{node}: {scene.must_leave[node].text}" for node in needed])
    return f"; without these the job could not run, so they stay: {why}"


def _allowed(made: Plan, finding: Finding, ledger: Ledger, policy: Policy, scene: Scene) -> Plan:
    """Return the plan, or the next one that the policy allows for such a finding.

    The next plan is cheaper if only suspects would be left, dearer if the accused node can be left;
    otherwise the incident is escalated.
    """
    kind = finding.kind
    if policy.allows(kind, made.step):
        return made
    are_nodes_open = bool(ledger.members) and not scene.nodes
    if are_nodes_open and any(policy.allows(kind, step) for step in _ON_NODES):
        return made  # a further try: its step is chosen once the nodes are known
    if made.step is PlanStep.RESTART_IN_PLACE:
        if finding.blame is Blame.RANK and finding.node in scene.nodes:
            accused = {finding.node: LeaveReason(LeaveCause.ACCUSED)}
            other = _leave(finding, replace(scene, must_leave={**scene.must_leave, **accused}))
            if other is not None and policy.allows(kind, other.step):
                return other
    elif not scene.must_leave and policy.allows(kind, PlanStep.RESTART_IN_PLACE):
        return Plan(PlanStep.RESTART_IN_PLACE, _restart_reason(finding), finding.evidence)
    reason = f"the policy does not allow to {made.step.in_words} for {kind.value}: {made.reason}"
    return Plan(PlanStep.ESCALATE, reason, finding.evidence, without=made.without)


def is_worth_moving(factor: float, ledger: Ledger, policy: Policy) -> tuple[bool, str]:
    """Return whether to move a rank that makes every step ``factor`` times as long, and why.

    Compares the time saved until the policy's horizon with the cost of the last restart, from the
    fault to catching up. Until a restart has been measured, no rank is moved.
    """
    if not policy.allows(Kind.RANK_SLOW, PlanStep.MOVE):
        return False, "the policy does not allow moving a slow rank"
    won_s = policy.slow_horizon_s * (1.0 - 1.0 / factor) if factor > 1.0 else 0.0
    cost_s = ledger.restart_cost_s
    if cost_s is None:
        return False, "the cost of restarting this job has never been measured"
    text = f"moving it saves {won_s:.0f} s within {policy.slow_horizon_s:.0f} s; a restart cost {cost_s:.0f} s"
    return won_s > cost_s, text


def _refuse_restart(finding: Finding, ledger: Ledger, policy: Policy) -> GivenUp | None:
    """Return why another restart is pointless whatever has been saved meanwhile, or None."""
    failure = ledger.incident.last_failure if ledger.incident else None
    if failure is not None and failure.exit_code == DO_NOT_RETRY:
        return GivenUp(
            f"a rank ended with exit code {DO_NOT_RETRY}, which asks not to be restarted"
        )
    # Ranks that tell no steps may have saved: that is known once nobody writes any more.
    has_folder = ledger.started is not None and ledger.started.choice.has_folder
    is_known = bool(ledger.telling_ranks) or not has_folder
    if failure is not None and is_known and _fails_at_start(finding, failure, ledger):
        return GivenUp(_AT_START, Conclusion.PROGRAM_FAILS_AT_START)
    if _is_own_error(finding) and (refusal := _refuse_same_error(finding, ledger, policy)):
        return GivenUp(refusal, Conclusion.PROGRAM_FAILS)
    spent = out_of_restarts(ledger.spent, policy)
    return None if spent is None else GivenUp(shared_reasons.budget_spent(spent))


def _fails_at_start(finding: Finding, failure: Failure, ledger: Ledger) -> bool:
    """Return whether the job's first attempt ended before any step by an error that each start repeats.

    One of the program's text or arguments, on all ranks. Where the ranks tell no steps, it is known until the attempt
    counts as running (`Policy.verify_alive_s`), and where nothing was saved. A checkpoint that can't be loaded goes the way
    back to an older one, `recovery.controller.job.restore.restore_choice`.
    """
    started, error = ledger.started, failure.error
    if started is None or error is None or started.cause in RESTARTS:
        return False
    is_first = failure.attempt == started.attempt and finding.symptom.kind in OF_CODE
    is_every = len(finding.ranks) in (0, ledger.world_size) and not finding.victims
    if not is_first or not is_every or finding.kind is not Kind.RANK_FAILED:
        return False
    tells = bool(ledger.telling_ranks)
    is_early = failure.step is None and (tells or not ledger.is_verified)
    if not is_early or ledger.saved_number > ledger.started_number:
        return False
    if ledger.start_failures and ledger.start_failures[-1].is_loading:
        return False
    choice = started.choice
    has_state = choice.restored_path is not None or choice.snapshot is not None
    text = ErrorText(error.type_name, error.message, error.traceback)
    return comes_again(text, has_state=has_state)


def _refuse_same_error(finding: Finding, ledger: Ledger, policy: Policy) -> str | None:
    """Return why the same error would come again whatever the next attempt begins from, or None."""
    run = ledger.errors
    # A state in memory may be what is wrong: the checkpoint gets its try before the program is blamed.
    tries = policy.same_error_max + (ledger.restored_step is not None)
    if run is None or run.count < tries:
        return None
    if finding.symptom.kind is SymptomKind.MIXED_NCCL:
        return say_same_error(ledger, "its ranks have loaded two versions of NCCL")
    is_end = finding.symptom.kind in OWN_ENDS  # not a start that failed before any rank ran
    is_open = is_end and run.step is None and may_begin_elsewhere(ledger)
    return None if is_open else say_same_error(ledger)


def refuse_choice(finding: Finding, ledger: Ledger, policy: Policy, choice: Choice) -> str | None:
    """Return why a restart from this checkpoint makes no sense, in words, or None."""
    refused = judge_choice(finding, ledger, policy, choice)
    return None if refused is None else refused.reason


def judge_choice(
    finding: Finding, ledger: Ledger, policy: Policy, choice: Choice
) -> GivenUp | None:
    """Return why a restart from this checkpoint makes no sense, or None.

    Only now, with nobody left who could write, is it known whether the last attempt has saved
    anything newer.
    """
    is_newer = choice.is_new_run or is_progress(ledger, choice)
    failure = ledger.incident.last_failure if ledger.incident else None
    if not is_newer and failure is not None and _fails_at_start(finding, failure, ledger):
        text = f"{_AT_START}: {_first_words(ledger, finding)}"
        return GivenUp(text, Conclusion.PROGRAM_FAILS_AT_START)
    if not finding.is_planned and not is_newer and _is_own_error(finding):
        same = refuse_same_start(ledger, policy, choice)
        if same is not None:
            text = f"{same}: {_first_words(ledger, finding)}"
            return GivenUp(text, Conclusion.PROGRAM_FAILS)
    if not choice.is_possible:
        return GivenUp(choice.reason)
    if finding.is_planned or is_newer:
        return None
    spent = out_of_patience(ledger.spent, policy)
    if spent is None:
        return None
    return GivenUp(f"{shared_reasons.budget_spent(spent)}: {_first_words(ledger, finding)}")


def _is_own_error(finding: Finding) -> bool:
    """Return whether the program ended itself, without a communication or device fault.

    If one rank fails alone, its machine is the suspect at first, but not if the same error comes
    again at the same step.
    """
    if finding.kind is not Kind.RANK_FAILED:
        return False
    return finding.blame is Blame.PROGRAM or finding.symptom.kind in OWN_ENDS


def _first_words(ledger: Ledger, finding: Finding) -> str:
    """Return the error that the first rank printed, else the finding's summary."""
    failure = ledger.incident.last_failure if ledger.incident else None
    if failure is None or failure.error is None:
        return finding.summary
    error = failure.error
    text = f"{error.type_name}: {error.message}" if error.type_name else error.message
    return text if failure.rank is None else f"rank {failure.rank}: {text}"


def _restart_reason(finding: Finding) -> str:
    if finding.symptom == FINISHED:
        return f"{finding.summary}: end what still runs, and the job with it"
    if finding.symptom == ENDING:
        return f"{finding.summary}: end it; if its stack shows no training, the job is done, else restart the ranks in place"
    if finding.symptom.kind is SymptomKind.GROWTH:
        return f"{finding.summary}: restart the ranks with them"
    if finding.kind is Kind.RANK_HUNG and finding.blame is Blame.NOBODY and not finding.ranks:
        return "the ranks have stalled, and nothing points at one of them: restart them in place"
    return f"{finding.summary}: restart the ranks in place"
