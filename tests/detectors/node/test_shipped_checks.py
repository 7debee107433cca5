"""Every row of the shipped table: it begins at its limit and not below, and it ends."""

import pytest

from agent.assembly.families import FAMILIES
from agent.findings.policy_files import load_checks
from agent.metrics import Metric
from detectors.node.checks import Check, Combine, Comparison, Measure
from detectors.node.findings import judge, list_findings, release, restore
from detectors.node.looks import observe
from detectors.node.node_state import MetricAnswer, NodeFinding, NodeState, Snapshot
from detectors.persistence import Latch

PARTNER = 1000.0  # value of the metric that a row divides by, subtracts or takes as its limit
SAMPLES = {  # what a pattern of `where` that is more than a list of words matches
    "(?i).*(failure detected|ac lost|input lost|predictive failure|redundancy lost).*": "AC lost",
    "(?i)(uncorrectable ecc|memory device disabled|parity).*": "Uncorrectable ECC",
    "ext[234]|xfs|btrfs": "ext4",
}


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


CHECKS = [check for check in load_checks(FAMILIES) if not check.counts_from_zero]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_shipped_row_begins_at_its_limit_and_after_its_looks(check: Check) -> None:
    bad, good = values_for(check)
    is_growth = check.condition.measure is not Measure.VALUE
    node = Node(check)
    if is_growth:
        node.answer(0.0)

    for _ in range(check.persistence.bad_looks + 1):
        assert node.answer(good, after_s=check.window_s * 1.2 if is_growth else 1.0) == ()
    found: tuple[NodeFinding, ...] = ()
    for look in range(check.persistence.bad_looks):
        assert found == (), f"raised after {look} looks"
        found = node.answer(bad, after_s=check.window_s * 1.2 if is_growth else 1.0)

    assert [(each.check, each.severity, each.action) for each in found] == [
        (check.name, check.severity, check.action)
    ]
    assert "{" not in found[0].summary
    assert found[0].evidence


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_shipped_row_ends_with_good_answers_and_its_latch(check: Check) -> None:
    bad, good = values_for(check)
    if check.condition.measure is not Measure.VALUE:
        good = 0.0
    node = Node(check)
    node.answer(0.0 if check.condition.measure is not Measure.VALUE else good)
    for _ in range(check.persistence.bad_looks):
        node.answer(bad)
    quiet_s = max(check.window_s, check.persistence.sticky_s) * 1.1 + 1
    for look in range(check.persistence.clear_looks):
        found = node.answer(good, after_s=quiet_s if look == 0 else 1.0)
    if check.persistence.latch is Latch.NONE:
        assert found == ()
        return

    assert len(found) == 1
    if check.persistence.latch is Latch.BOOT:
        node.state = restore(node.state, 0.0, is_new_boot=True)
    else:
        released = release(node.state, found[0].id)
        assert released is not None
        node.state = released
    for _ in range(check.persistence.clear_looks + 1):
        found = node.answer(good)

    assert found == ()
