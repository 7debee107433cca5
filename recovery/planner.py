"""What to do about a failure: the cheapest step that the evidence allows. Pure.

The plan says its reason and evidence as data, for `rankmend why`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detectors.errors_text import Cause
from detectors.failed import DO_NOT_RETRY
from detectors.finding import Blame, Finding, Kind
from recovery.checkpoints.model import Verdict
from recovery.ledger import Ledger
from recovery.messages import Restore
from recovery.outside import PERSON
from recovery.policy import Policy, exhausted
from recovery.records import Choice, PassedOver, Plan, PlanStep

_REASONS_MAX: Final = 8  # nodes named in a sentence; all of them are in the plan
_PASSED_OVER_MAX: Final = 20  # in one plan; a folder can hold thousands


@dataclass(frozen=True, slots=True)
class Scene:
    """A job's nodes as a plan finds them. One machine: none to choose from."""

    nodes: tuple[str, ...] = ()  # of the newest attempt
    spares: int = 0  # usable nodes beside them
    sizes: tuple[int, ...] = ()  # numbers of nodes that the job can run on, the largest first
    must_leave: Mapping[str, str] = field(default_factory=dict)  # can't be used, and why
    may_leave: Mapping[str, str] = field(default_factory=dict)  # suspects: left for a spare only


_ONE_MACHINE: Final = Scene()


def plan(
    finding: Finding,
    ledger: Ledger,
    policy: Policy,
    candidates: Sequence[Verdict] | None,
    scene: Scene = _ONE_MACHINE,
) -> Plan:
    """Return the step to take about ``finding``, which the ledger holds already.

    ``candidates``, newest first, are known only once nobody writes any more; None leaves the
    choice of a checkpoint open.
    """
    is_persons = finding.signature.startswith(PERSON)
    cheapest = _plan(finding, ledger, policy, candidates, scene, is_persons=is_persons)
    return cheapest if is_persons else _allowed(cheapest, finding, ledger, policy, scene)


def _plan(
    finding: Finding,
    ledger: Ledger,
    policy: Policy,
    candidates: Sequence[Verdict] | None,
    scene: Scene,
    *,
    is_persons: bool,
) -> Plan:
    """Return the cheapest step that the evidence allows."""
    refusal = None if is_persons else _refuse_restart(finding, ledger, policy)
    if refusal is not None:
        return Plan(
            PlanStep.ESCALATE, f"{refusal}: {_first_words(ledger, finding)}", finding.evidence
        )
    if (moved := _leave(finding, scene)) is not None:
        return moved
    reason = _restart_reason(finding)
    if candidates is None:
        return Plan(PlanStep.RESTART_IN_PLACE, reason, finding.evidence)
    choice = choose_checkpoint(ledger, policy, candidates)
    if not choice.is_possible:
        return Plan(PlanStep.ESCALATE, choice.reason, finding.evidence, choice)
    return Plan(PlanStep.RESTART_IN_PLACE, reason, finding.evidence, choice)


def _leave(finding: Finding, scene: Scene) -> Plan | None:
    """Return the plan that leaves nodes, or None where all can be used on."""
    leave = dict(scene.must_leave)
    if len(leave) + len(scene.may_leave) <= scene.spares:
        leave = {**scene.may_leave, **leave}
    if not leave:
        return None
    without = tuple(node for node in scene.nodes if node in leave)
    why = "; ".join(f"{node}: {leave[node]}" for node in without[:_REASONS_MAX])
    if len(without) > _REASONS_MAX:
        why += f"; and {len(without) - _REASONS_MAX} more"
    left = len(scene.nodes) - len(without) + scene.spares
    size = next((size for size in scene.sizes if size <= left), None)
    step = PlanStep.MOVE
    if size is None:
        how = f"wait for a node: {left} are usable, {scene.sizes[-1]} are needed"
    elif size < len(scene.nodes):
        step, how = PlanStep.SHRINK, f"go on with {size} nodes in the place of {len(scene.nodes)}"
    else:
        how = "spares take their places"
    reason = f"{finding.summary}: leave {why}; {how}"
    return Plan(step, reason, finding.evidence, without=without)


def _allowed(made: Plan, finding: Finding, ledger: Ledger, policy: Policy, scene: Scene) -> Plan:
    """Return the plan, or the next one that the policy allows for such a finding.

    Cheaper where only suspects would be left, dearer where the accused node can be left, else a
    person is told.
    """
    kind = finding.kind
    if policy.allows(kind, made.step):
        return made
    are_nodes_open = bool(ledger.members) and not scene.nodes
    if are_nodes_open and any(policy.allows(kind, step) for step in _ON_NODES):
        return made  # a further try: its step is chosen once the nodes are known
    if made.step is PlanStep.RESTART_IN_PLACE:
        if finding.blame is Blame.RANK and finding.node in scene.nodes:
            accused = {finding.node: "accused, and the policy allows no restart in place"}
            other = _leave(finding, replace(scene, must_leave={**scene.must_leave, **accused}))
            if other is not None and policy.allows(kind, other.step):
                return other
    elif not scene.must_leave and policy.allows(kind, PlanStep.RESTART_IN_PLACE):
        return Plan(PlanStep.RESTART_IN_PLACE, _restart_reason(finding), finding.evidence)
    reason = f"the policy does not allow {made.step.value} for {kind.value}: {made.reason}"
    return Plan(PlanStep.ESCALATE, reason, finding.evidence, without=made.without)


_ON_NODES: Final = (PlanStep.RESTART_IN_PLACE, PlanStep.MOVE, PlanStep.SHRINK)


def is_worth_moving(factor: float, ledger: Ledger, policy: Policy) -> tuple[bool, str]:
    """Return whether to move a rank that makes every step ``factor`` times as long, and why.

    The time won until the policy's horizon is held against what the last restart cost, from the
    fault to catching up. As long as none was measured, nobody is moved.
    """
    if not policy.allows(Kind.RANK_SLOW, PlanStep.MOVE):
        return False, "the policy does not allow to move a slow rank"
    won_s = policy.slow_horizon_s * (1.0 - 1.0 / factor) if factor > 1.0 else 0.0
    cost_s = ledger.restart_cost_s
    if cost_s is None:
        return False, "what a restart of this job costs was never measured"
    text = f"{won_s:.0f} s would be won within {policy.slow_horizon_s:.0f} s, a restart cost {cost_s:.0f} s"
    return won_s > cost_s, text


def _refuse_restart(finding: Finding, ledger: Ledger, policy: Policy) -> str | None:
    """Return why another restart makes no sense, or None."""
    failure = ledger.incident.last_failure if ledger.incident else None
    if failure is not None and failure.exit_code == DO_NOT_RETRY:
        return f"a rank ended with exit code {DO_NOT_RETRY}, which asks for no further try"
    run = ledger.errors
    if _is_own_error(finding) and run is not None and run.count >= policy.same_error_max:
        silent = "before the first step" if ledger.telling_ranks else "at no known step"
        where = silent if run.step is None else f"at step {run.step}"
        return f"the same error {where} in {run.count} attempts in a row is the program's own"
    spent = exhausted(ledger.spent, policy)
    return None if spent is None else f"the budget is spent ({spent})"


_OWN_CAUSES: Final = frozenset({Cause.PROGRAM, Cause.EXCEPTION, Cause.EXIT, Cause.DEVICE_MEMORY})


def _is_own_error(finding: Finding) -> bool:
    """Return whether the program ended itself, for neither communication nor a device.

    One rank that fails alone is a suspect machine at first, but not when it says the same
    at the same step again.
    """
    if finding.kind is not Kind.RANK_FAILED:
        return False
    cause = finding.signature.partition(":")[0]
    return finding.blame is Blame.PROGRAM or cause in {own.value for own in _OWN_CAUSES}


def _first_words(ledger: Ledger, finding: Finding) -> str:
    """Return what the first rank said of its end, else what was found."""
    failure = ledger.incident.last_failure if ledger.incident else None
    if failure is None or failure.error is None:
        return finding.summary
    error = failure.error
    text = f"{error.type_name}: {error.message}" if error.type_name else error.message
    return text if failure.rank is None else f"rank {failure.rank}: {text}"


def _restart_reason(finding: Finding) -> str:
    if finding.kind is Kind.RANK_HUNG and finding.blame is Blame.NOBODY:
        return "the ranks stand still and nothing accuses one of them: restart them where they are"
    return f"{finding.summary}: restart the ranks where they are"


def choose_checkpoint(ledger: Ledger, policy: Policy, candidates: Sequence[Verdict]) -> Choice:
    """Return the newest valid checkpoint that has not failed too often, and who was passed over."""
    passed_over: list[PassedOver] = []
    valid_passed_over = 0
    for verdict in candidates:
        candidate = verdict.candidate
        choice = Choice(
            True,
            Restore(candidate.path, candidate.step),
            verdict.reason,
            tuple(passed_over[:_PASSED_OVER_MAX]),
            candidate.modified_unix_s,
        )
        restores = ledger.restores_of(choice.identity)
        if verdict.is_valid and restores < policy.restore_failures_max:
            return choice
        reason = verdict.reason
        if verdict.is_valid:
            reason = f"restored {restores} times without progress"
            valid_passed_over += 1
        passed_over.append(PassedOver(candidate.path, candidate.step, reason))
    first = tuple(passed_over[:_PASSED_OVER_MAX])
    if valid_passed_over:
        reason = f"all {valid_passed_over} valid checkpoints were restored without progress before"
        return Choice(False, None, reason, first)
    if ledger.last_restore_path is not None:
        # To begin at zero would train for days what is already there, and write over it.
        reason = (
            f"no valid checkpoint is left of {len(candidates)} found, and an earlier attempt "
            f"had begun from {ledger.last_restore_path}: bring it back, or start under another "
            f"job name to begin from nothing"
        )
        return Choice(False, None, reason, first)
    if passed_over:
        reason = f"none of the {len(passed_over)} checkpoints found is valid: from the beginning"
        return Choice(True, None, reason, first)
    return Choice(True, None, "no checkpoint found: from the beginning")


def is_progress(ledger: Ledger, choice: Choice) -> bool:
    """Return whether ``choice`` shows progress of a job whose steps can't be compared.

    Such a job has moved when a checkpoint is there that is newer than the one before.
    """
    if ledger.is_comparable or choice.modified_unix_s is None or ledger.started is None:
        return False
    before = ledger.started.choice.modified_unix_s
    is_newer = before is None or choice.modified_unix_s > before
    return is_newer and ledger.restores_of(choice.identity) == 0
