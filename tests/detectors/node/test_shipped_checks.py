"""Every row of the shipped table: it begins at its limit and not below, and it ends."""

import pytest

from agent.assembly.families import FAMILIES
from agent.findings.policy_files import load_checks
from detectors.node.checks import Check, Measure
from detectors.node.findings import release, restore
from detectors.node.node_state import NodeFinding
from detectors.persistence import Latch
from tests.support.findings import Node, values_for

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
