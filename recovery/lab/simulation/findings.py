"""How long a fault takes to be found, and what is found, by the detectors' rules and their measured scores."""

from random import Random
from typing import Final

from detectors.finding import (
    HOST_SILENT,
    Blame,
    Finding,
    Kind,
    Severity,
    Symptom,
    SymptomKind,
)
from detectors.hang.live import RankStand, detect_hung, hang_finding
from recovery.journal.limits import Policy
from recovery.lab.simulation.assumptions import Assumptions
from recovery.lab.simulation.faults import NodeFault
from recovery.lab.simulation.rate_table import Shows
from recovery.messages.outside import NodeEvidence

JOB_ID: Final = "00000000-0000-4000-8000-000000000018"
_LONG_S: Final = 1e8
_STEPS: Final = 100  # made in the attempt: more than a hang's limit asks for
_COLLECTIVE_TIMEOUT_S: Final = 600.0  # PyTorch's for NCCL


def find(
    fault: NodeFault,
    node: str,
    ranks: tuple[int, ...],
    attempt: int,
    policy: Policy,
    assumptions: Assumptions,
    random: Random,
) -> tuple[float, Finding]:
    """Return how many seconds after the fault an incident opens, and its finding."""
    after_s, finding = _find(fault, node, ranks, attempt, policy, assumptions, random)
    return min(after_s, assumptions.detect_max_s or after_s), finding


def _find(
    fault: NodeFault,
    node: str,
    ranks: tuple[int, ...],
    attempt: int,
    policy: Policy,
    assumptions: Assumptions,
    random: Random,
) -> tuple[float, Finding]:
    if fault.shows is Shows.HANG:
        if fault.is_told:
            still_s = max(policy.node_silent_s, policy.accused_steps * assumptions.step_s)
            reported = accuse(fault, node, ranks, attempt)
            return max(still_s, assumptions.alert_s + policy.evidence_wait_s), reported
        is_named = random.random() < assumptions.hang_named_ratio
        return _find_hang(node, ranks, attempt, policy, assumptions, is_named=is_named)
    if fault.shows is Shows.HOST:
        still_s = max(policy.node_silent_s, policy.accused_steps * assumptions.step_s)
        return still_s, _finding(Kind.HOST, Blame.RANK, HOST_SILENT, fault, node, ranks, attempt)
    after_s = assumptions.death_s + policy.settle_s
    if fault.shows is Shows.SOFTWARE:
        # Each error is another one: the same twice at the same step would end the job.
        symptom = Symptom(SymptomKind.EXCEPTION, f"{fault.cause} {fault.at_s:.3f}")
        return after_s, _finding(
            Kind.RANK_FAILED, Blame.PROGRAM, symptom, fault, node, ranks, attempt
        )
    symptom = Symptom(SymptomKind.DEVICE, fault.cause)
    return after_s, _finding(Kind.RANK_FAILED, Blame.RANK, symptom, fault, node, ranks, attempt)


def find_slow(fault: NodeFault, node: str, ranks: tuple[int, ...], attempt: int) -> Finding:
    symptom = Symptom(SymptomKind.SLOW, "compute")
    return _finding(Kind.RANK_SLOW, Blame.RANK, symptom, fault, node, ranks[:1], attempt)


def accuse(fault: NodeFault, node: str, ranks: tuple[int, ...], attempt: int) -> Finding:
    """Return the finding of an alert that ends the use of a node."""
    symptom = Symptom(SymptomKind.ALERT, fault.cause)
    return _finding(Kind.DEVICE, Blame.RANK, symptom, fault, node, ranks, attempt)


def alert_of(fault: NodeFault, node: str, age_s: float) -> NodeEvidence:
    """Return the alert that the node's agent sends."""
    return NodeEvidence(
        identity=f"{node} {fault.at_s:.3f}",
        alertname="RankmendDevice",
        node=node,
        ranks=(),
        device=fault.cause,
        severity=Severity.CRITICAL,
        action="drain",
        summary=fault.cause,
        since_age_s=age_s,
    )


def _find_hang(
    node: str,
    ranks: tuple[int, ...],
    attempt: int,
    policy: Policy,
    assumptions: Assumptions,
    *,
    is_named: bool,
) -> tuple[float, Finding]:
    others = max(ranks) + 1
    stands = [_stand(others + number, assumptions, entered=2) for number in range(2)]
    stands.append(_stand(ranks[0], assumptions, entered=1 if is_named else 2))
    hang = detect_hung(stands, policy.hung, attempt_age_s=_LONG_S, has_stepped_before=True)
    assert hang is not None, "nothing stands still for longer"
    finding = hang_finding(hang, job_id=JOB_ID, attempt=attempt, node=node if is_named else "")
    return hang.limit.limit_s, finding


def _stand(rank: int, assumptions: Assumptions, *, entered: int) -> RankStand:
    return RankStand(
        rank,
        "S",
        _LONG_S,
        is_done=False,
        steps_done=_STEPS,
        advanced_age_s=_LONG_S,
        section="communication" if entered > 1 else "compute",
        section_age_s=_LONG_S,
        sections_entered=entered,
        step_times_s=(assumptions.step_s,) * 3,
        collective_timeout_s=_COLLECTIVE_TIMEOUT_S,
    )


def _finding(
    kind: Kind,
    blame: Blame,
    symptom: Symptom,
    fault: NodeFault,
    node: str,
    ranks: tuple[int, ...],
    attempt: int,
) -> Finding:
    return Finding(
        kind=kind,
        severity=Severity.CRITICAL,
        blame=blame,
        summary=f"{fault.cause} on {node}",
        job_id=JOB_ID,
        attempt=attempt,
        node=node,
        ranks=ranks,
        victims=(),
        since_age_s=0.0,
        symptom=symptom,
    )
