"""When each of the three keepers of a lease acts: in their order, and all before the controller."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.controller.job.membership import Word, judge_gone
from recovery.journal.attempt_records import Placement
from recovery.journal.ledger import Ledger, Member
from recovery.journal.limits import Policy
from recovery.launcher.membership.node_membership import RankDeadline, prolong
from recovery.messages.exchange import Endpoint

pytestmark = pytest.mark.safety

seconds = st.floats(0.0, 1e4, allow_nan=False)
bounds = st.floats(0.001, 600.0)


@pytest.mark.parametrize(
    ("before", "kill_bound_s", "now_s", "deadline"),
    [
        (None, 10.0, 99.0, RankDeadline(115.0, 125.0)),
        (RankDeadline(110.0, 120.0), 10.0, 109.9, RankDeadline(115.0, 125.0)),
        (RankDeadline(110.0, 120.0), 10.0, 110.0, None),
        (RankDeadline(110.0, 120.0), 10.0, 500.0, None),
        (None, 0.0, 99.0, RankDeadline(115.0, None)),
        (RankDeadline(130.0, 140.0), 10.0, 99.0, RankDeadline(115.0, 125.0)),
    ],
    ids=["first", "in time", "just over", "long over", "older controller", "shorter lease"],
)
def test_a_lease_is_prolonged_until_it_is_over(
    before: RankDeadline | None, kill_bound_s: float, now_s: float, deadline: RankDeadline | None
) -> None:
    assert prolong(before, 115.0, kill_bound_s, now_s) == deadline


@given(bounds, bounds, bounds, st.lists(seconds, min_size=1, max_size=8), seconds)
def test_guardian_then_rank_then_controller(
    lease_s: float, kill_bound_s: float, margin_s: float, contacts_s: list[float], empty_s: float
) -> None:
    """Node c was heard at these times, whatever part of them its launcher lived to see; the peers are empty."""
    policy = Policy(
        lease_s=lease_s, kill_bound_s=kill_bound_s, lease_margin_s=margin_s, node_silent_s=0.0
    )
    deadline: RankDeadline | None = None
    for reached_s in sorted(contacts_s):
        deadline = prolong(deadline, reached_s + lease_s, kill_bound_s, reached_s) or deadline
    assert deadline is not None
    assert deadline.ends_s is not None
    words = {node: Word(1e6, 5, empty_s, 0.0) for node in "ab"}
    words["c"] = Word(max(contacts_s), 4, 0.0, 0.0)

    def is_proved(now_s: float) -> bool:
        return judge_gone(
            *(ledger(), ledger().placement, words, policy, now_s),
            started_at_s=0.0,
            confirmed_at_s={},
        ).is_proved

    assert deadline.until_s < deadline.ends_s
    assert not is_proved(deadline.ends_s)
    assert not is_proved(deadline.ends_s + margin_s * 0.99 - 1e-6)
    assert is_proved(max(*contacts_s, empty_s) + lease_s + kill_bound_s + margin_s + 1e-3)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=12), bounds, bounds)
def test_nothing_that_arrives_after_the_end_prolongs_a_lease(
    turns: list[tuple[float, float]], lease_s: float, kill_bound_s: float
) -> None:
    """Each turn: what was reached last, and how much later the launcher comes to write it."""
    deadline: RankDeadline | None = None
    for reached_s, late_s in sorted(turns):
        now_s = reached_s + late_s
        before = deadline
        found = prolong(before, reached_s + lease_s, kill_bound_s, now_s)
        if before is not None and now_s >= before.until_s:
            assert found is None
        deadline = found or before

    assert deadline is not None
    assert deadline.until_s <= max(reached_s for reached_s, _late_s in turns) + lease_s


def ledger() -> Ledger:
    nodes = ("a", "b", "c")
    members = {
        node: Member(node, f"{node}-l", f"{node}-b", 2, Endpoint(node, 7000), 1.0, 3, 3, 0)
        for node in nodes
    }
    placement = tuple(Placement(node, (at,)) for at, node in enumerate(nodes))
    return Ledger(attempt=5, placement=placement, members=members, started_number=10)
