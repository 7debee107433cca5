"""What is shown of the state that ranks keep in memory."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from recovery.api.wire import SnapshotView
from recovery.checkpoints.snapshots.memory import NodeMemory
from recovery.console.views.snapshot_view import WITHOUT_MAX, view_snapshots
from recovery.journal.attempt_records import Placement
from recovery.journal.checkpoint_cost import PRIOR_RANK_S, Costs, best_interval_s, cost_of
from recovery.journal.ledger import Ledger, Member, SaveHistory
from recovery.messages.exchange import HeldSnapshot, KeptSnapshots

LEDGER = Ledger(
    job_id="job-1",
    world_size=4,
    highest_step=45,
    placement=(Placement("n1", (0, 1)), Placement("n2", (2, 3))),
)
KEPT = KeptSnapshots(count=10, refused=0, stalled_s=0.5, files=2)


def part(rank: int, step: int, sequence: int, age_s: float, **changes: Any) -> HeldSnapshot:
    return replace(HeldSnapshot(rank, 2, step, 4, 100, "", age_s, sequence=sequence), **changes)


def two(rank: int) -> tuple[HeldSnapshot, HeldSnapshot]:
    """Return the two snapshots of a rank that keeps one every 10 steps, 5 s apart."""
    return part(rank, 30, 3, 6.0), part(rank, 40, 4, 1.0)


def memory(node: str, *held: HeldSnapshot, **fields: Any) -> NodeMemory:
    ranks = {"n1": (0, 1), "n2": (2, 3)}[node]
    return NodeMemory(node, held, **{"kept": dict.fromkeys(ranks, KEPT), **fields})


N1 = memory("n1", *two(0), *two(1))
N2 = memory("n2", *two(2), *two(3), told_age_s=0.25)


def view(*nodes: NodeMemory, ledger: Ledger = LEDGER, **options: Any) -> SnapshotView:
    found = view_snapshots(nodes, ledger, **options)
    assert found is not None
    return found


def test_view_tells_the_newest_step_that_all_ranks_hold_and_what_it_costs() -> None:
    seen = view(N1, N2)

    costs = Costs(0.05, 0.05, PRIOR_RANK_S / 4, 0.0)
    best = best_interval_s(costs)
    assert msgspec.structs.replace(seen, present=None, best=None) == SnapshotView(
        step=40,
        attempt=2,
        steps_since=5,
        age_s=1.25,
        size_bytes=400,
        held_bytes=800,
        node_bytes=400,
        ranks=4,
        without_count=0,
        without=[],
        damaged=0,
        refused=0,
        files=2,
        stall_s=0.05,
        interval_s=5.0,
        stayed_ratio=1.0,
        failure_interval_s=PRIOR_RANK_S / 4,
        present=None,
        best=None,
        formula="Young/Daly",
        missing="",
    )
    assert seen.present is not None
    assert seen.best is not None
    assert (seen.present.interval_s, seen.best.interval_s) == (5.0, best)
    assert seen.best.total == pytest.approx(cost_of(best, costs).total)
    assert seen.best.total < seen.present.total


def test_job_that_keeps_nothing_in_memory_has_no_view() -> None:
    assert view_snapshots([NodeMemory("n1"), NodeMemory("n2")], LEDGER) is None


def test_step_that_one_rank_lacks_gives_way_to_the_one_before() -> None:
    behind = memory("n2", *two(2), part(3, 20, 2, 11.0), part(3, 30, 3, 6.0))

    seen = view(N1, behind)

    assert (seen.step, seen.age_s, seen.without_count) == (30, 6.0, 0)


def test_ranks_without_any_are_counted_and_the_first_named() -> None:
    ledger = replace(LEDGER, world_size=100, placement=())
    held = tuple(replace(one, world_size=100) for one in two(0))

    seen = view(memory("n1", *held), ledger=ledger)

    assert (seen.step, seen.age_s, seen.size_bytes) == (None, None, None)
    assert (seen.ranks, seen.without_count) == (100, 99)
    assert seen.without == list(range(1, 1 + WITHOUT_MAX))


@pytest.mark.parametrize(
    "changes",
    [{"is_damaged": True}, {"world_size": 8}, {"attempt": 1}],
    ids=lambda one: next(iter(one)),
)
def test_part_that_no_restart_would_use_makes_its_step_incomplete(changes: dict[str, Any]) -> None:
    spoilt = memory("n2", *two(2), two(3)[0], replace(two(3)[1], **changes))

    seen = view(N1, spoilt)

    assert seen.step == 30
    assert seen.damaged == int("is_damaged" in changes)


def test_what_lies_on_another_node_than_its_rank_or_on_a_lost_one_does_not_count() -> None:
    moved = memory("n2", *two(0), *two(1))
    member = Member("n2", "l", "b", 2, None, 0.0, 1, 1, 0, is_lost=True)
    lost = replace(LEDGER, members={"n2": member})

    assert view(memory("n1"), moved).without == [0, 1, 2, 3]
    assert view(N1, N2, ledger=lost).without == [2, 3]


def test_interval_is_that_between_snapshots_though_one_was_overwritten_unread() -> None:
    skipped = (part(0, 30, 3, 16.0), part(0, 60, 6, 1.0))

    assert view(memory("n1", *skipped)).interval_s == 5.0


def test_steps_since_count_to_the_newest_that_ranks_tell() -> None:
    assert view(replace(N1, newest_step=52), replace(N2, newest_step=51)).steps_since == 12
    assert view(N1, N2, ledger=replace(LEDGER, is_comparable=False)).steps_since is None


def test_failures_that_moved_ranks_count_less_for_snapshots() -> None:
    history = SaveHistory(ran_s=36_000.0, failures=3.0, stayed=1.0)
    all_stay = view(N1, N2, ledger=replace(LEDGER, history=replace(history, stayed=3.0)))

    half_stay = view(N1, N2, ledger=replace(LEDGER, history=history))

    assert (all_stay.stayed_ratio, half_stay.stayed_ratio) == (1.0, 0.5)
    assert half_stay.failure_interval_s == 2 * all_stay.failure_interval_s
    assert half_stay.best is not None
    assert all_stay.best is not None
    assert half_stay.best.interval_s > all_stay.best.interval_s


def test_what_is_missing_for_the_costs_is_said() -> None:
    unmeasured = view(replace(N1, kept={}), replace(N2, kept={}))
    once = view(memory("n1", two(0)[1], two(1)[1]), memory("n2", two(2)[1], two(3)[1]))

    assert (unmeasured.best, unmeasured.missing) == (
        None,
        "the running ranks have kept no snapshot yet",
    )
    assert (once.present, once.best is None) == (None, False)
    assert once.missing.startswith("no rank has two snapshots")


def test_ranks_that_asked_and_got_none_are_shown_although_nothing_is_held() -> None:
    refused = KeptSnapshots(0, 7, 0.0, 0)

    seen = view(memory("n1", kept={0: refused, 1: refused}))

    assert (seen.step, seen.refused, seen.files, seen.held_bytes) == (None, 14, 0, 0)


def test_one_machine_of_several_tells_of_its_own_ranks() -> None:
    seen = view(N1, ranks=(0, 1))

    assert (seen.step, seen.ranks, seen.without_count) == (40, 2, 0)
