"""What findings are made of: answers at the limits of checks, verdicts on parts, and findings themselves."""

from agent.assembly.families import FAMILIES
from agent.metrics import Metric
from detectors.fabric.fabric_verdict import (
    Direction,
    FabricOutcome,
    FabricVerdict,
    PartKind,
    SlowPart,
)
from detectors.finding import Blame, Finding, Kind, Severity
from detectors.node.checks import Check, Combine, Comparison, Measure
from detectors.node.findings import judge, list_findings
from detectors.node.looks import observe
from detectors.node.node_state import MetricAnswer, NodeFinding, NodeState, Snapshot
from recovery.messages.codec import symptom_of

SAMPLES = {  # what a pattern of `where` that is more than a list of words matches
    "(?i).*(failure detected|ac lost|input lost|predictive failure|redundancy lost).*": "AC lost",
    "(?i)(uncorrectable ecc|memory device disabled|parity).*": "Uncorrectable ECC",
    "ext[234]|xfs|btrfs": "ext4",
}
PARTNER = 1000.0  # value of the metric that a row divides by, subtracts or takes as its limit


def labels_of(check: Check, metric: str) -> tuple[tuple[str, str], ...]:
    where = {label: pattern.pattern for label, pattern in check.where}
    found = []
    for label in FAMILIES[metric].labels:
        pattern = where.get(label, "7")
        found.append((label, SAMPLES.get(pattern) or pattern.partition("|")[0]))
    return tuple(found)


def values_for(check: Check) -> tuple[float, float]:
    """Return a bad and a good answer, as near to the limit as they can be told apart."""
    condition = check.condition
    limit = PARTNER if isinstance(condition.limit, str) else condition.limit
    near = max(abs(limit) * 0.01, 0.001)
    if condition.measure is Measure.INCREASE:
        near = 1.0
    bad, good = {
        Comparison.ABOVE: (limit + near, limit),
        Comparison.AT_LEAST: (limit, limit - near),
        Comparison.BELOW: (limit - near, limit),
        Comparison.AT_MOST: (limit, limit + near),
        Comparison.EQUAL: (limit, limit + 1),
        Comparison.UNEQUAL: (limit + 1, limit),
    }[condition.comparison]
    if condition.combine is Combine.RATIO:
        return bad * PARTNER, good * PARTNER
    if condition.combine is Combine.DIFFERENCE:
        return bad + PARTNER, good + PARTNER
    if condition.measure is Measure.RATE:
        return bad * check.window_s, good * check.window_s
    return bad, good


class Node:
    def __init__(self, check: Check) -> None:
        self.check = check
        self.state = NodeState()
        self.now_s = 1_000.0
        self.counted = 5e6

    def answer(self, value: float, after_s: float = 1.0) -> tuple[NodeFinding, ...]:
        check = self.check
        self.now_s += after_s
        if check.condition.measure is not Measure.VALUE:
            self.counted += value
            value = self.counted
        metrics = {check.metric: Metric(check.metric, value, labels_of(check, check.metric))}
        partners = [check.condition.other, check.condition.limit]
        for name in (name for name in partners if isinstance(name, str)):
            metrics[name] = Metric(name, PARTNER, labels_of(check, name))
        for guard in check.guards:
            if guard.metric not in metrics:
                value = {Comparison.EQUAL: guard.limit}.get(guard.comparison, guard.limit + 1)
                metrics[guard.metric] = Metric(guard.metric, value, labels_of(check, guard.metric))
        snapshot = Snapshot(
            {name: MetricAnswer("x", self.now_s, [metric]) for name, metric in metrics.items()}
        )
        self.state, looks = observe(self.state, [check], snapshot)
        self.state = judge(self.state, looks, snapshot, self.now_s, 1.7e9 + self.now_s)
        return list_findings(self.state, snapshot, self.now_s)


LIMIT = 1e9  # bytes/s: what a part of the fabric usually moves


def slow_part(kind: PartKind, name: str, *nodes: str) -> SlowPart:
    return SlowPart(kind, name, Direction.BOTH, 4.0, nodes, None, 6, None)


def verdict(
    *parts: SlowPart, outcome: FabricOutcome = FabricOutcome.FOUND, usual: float = LIMIT
) -> FabricVerdict:
    return FabricVerdict(outcome, parts, 4, usual, 0.1 if parts else 0.0, 0.0, ())


HUNG = Finding(
    kind=Kind.RANK_HUNG,
    severity=Severity.CRITICAL,
    blame=Blame.NOBODY,
    summary="no rank advances",
    job_id="job",
    attempt=1,
    node="n1",
    ranks=(),
    victims=(0, 1, 2, 3),
    since_age_s=300.0,
    symptom=symptom_of("hung:nobody"),
)
