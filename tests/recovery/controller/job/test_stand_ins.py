"""Another rank's snapshot is restored where the two are equal as a whole, and where that is worth a fetch."""

from dataclasses import replace

import pytest

from recovery.controller.job.restore.snapshot_choice import STAND_IN_S_MIN, stand_ins, with_snapshot
from recovery.controller.job.watch.replica_watch import ReplicaWatch
from recovery.journal.attempt_records import Choice, FetchedPart, Placement
from recovery.journal.ledger import Ledger
from recovery.journal.observation_records import ReplicasDiffer, ReplicasKnown
from recovery.messages.exchange import (
    Endpoint,
    HeldSnapshot,
    PartDigest,
    Report,
    Restore,
    SnapshotPoint,
)
from tests.support.job_ledgers import POLICY, ledger

PLACEMENT = (Placement("n1", (0, 1)), Placement("n3", (2, 3)))  # n2 was lost
KNOWN = ReplicasKnown(1, ((0, 2), (1, 3)))  # two halves of a model, each twice


def part(rank: int, step: int, age_s: float = 1.0, digest: str = "") -> HeldSnapshot:
    digest = digest or f"{1000 * step + rank % 2:032x}"
    return HeldSnapshot(rank, 1, step, 4, 100, digest, age_s)


def report(node: str, *held: HeldSnapshot, through: int = 1) -> Report:
    address = Endpoint("10.0.0.1", 4000)
    return Report(
        1, node, "boot", "job", 1, 1, (), 1, copier=address, snapshots=held,
        snapshots_through=through,
    )  # fmt: skip


def choose(
    *held: HeldSnapshot,
    known: ReplicasKnown = KNOWN,
    checkpoint: int | None = None,
    failed: frozenset[tuple[int, int, int, str]] = frozenset(),
    through: int = 1,
) -> Choice:
    there = {"n1": report("n1", *held, through=through), "n3": report("n3")}
    state = replace(ledger(), attempt=1, replicas=known)
    restore = None if checkpoint is None else Restore(f"/c/{checkpoint}", checkpoint)
    return with_snapshot(
        Choice(True, restore, "newest"),
        state,
        POLICY,
        PLACEMENT,
        {node: one.snapshots for node, one in there.items()},
        stand_ins=stand_ins(state, there, failed),
    )


def test_each_lost_rank_begins_from_its_replica() -> None:
    chosen = choose(part(0, 40), part(1, 40))

    assert chosen.snapshot == SnapshotPoint(1, 40)
    assert chosen.fetched == (FetchedPart(2, "n1", 0), FetchedPart(3, "n1", 1))


def test_damaged_part_is_replaced_by_its_replicas() -> None:
    bad = replace(part(0, 40), is_damaged=True)
    equal = ReplicasKnown(1, ((0, 1, 2, 3),))
    held = (bad, part(1, 40))

    chosen = choose(*held, known=equal)

    assert chosen.fetched == tuple(FetchedPart(rank, "n1", 1) for rank in (0, 2, 3))


@pytest.mark.parametrize(
    "known",
    [ReplicasKnown(1, ((0, 1), (2, 3))), ReplicasKnown(1, ()), ReplicasKnown(2, KNOWN.groups)],
)
def test_rank_without_a_replica_that_is_left_has_none_to_stand_in(known: ReplicasKnown) -> None:
    assert choose(part(0, 40), part(1, 40), known=known).snapshot is None


def test_replicas_that_differ_at_this_step_stand_in_for_nobody() -> None:
    equal = ReplicasKnown(1, ((0, 1, 2, 3),))

    assert choose(part(0, 40, digest="a"), part(1, 40, digest="b"), known=equal).snapshot is None


def test_what_was_not_read_after_the_attempt_or_could_not_be_given_is_left_out() -> None:
    both = part(0, 40), part(1, 40)

    assert choose(*both, through=0).snapshot is None
    assert choose(*both, failed=frozenset({(1, 1, 40, "n1")})).snapshot is None


def test_newer_checkpoint_wins_and_an_older_one_does_not() -> None:
    both = part(0, 40), part(1, 40)

    assert choose(*both, checkpoint=41).snapshot is None
    assert choose(*both, checkpoint=39).snapshot == SnapshotPoint(1, 40)


@pytest.mark.parametrize(("age_s", "step"), [(STAND_IN_S_MIN, 30), (STAND_IN_S_MIN + 2, 40)])
def test_steps_of_less_than_some_seconds_are_repeated_rather_than_fetched(
    age_s: float, step: int
) -> None:
    """As where a rank died in mid-write: its node has the snapshot before."""
    there = (part(0, 40), part(1, 40), part(2, 40))
    before = tuple(part(rank, 30, age_s) for rank in range(4))
    state = replace(ledger(), attempt=1, replicas=ReplicasKnown(1, ((1, 3), (0, 2))))
    reports = {
        "n1": report("n1", *there[:2], *before[:2]),
        "n3": report("n3", there[2], *before[2:]),
    }

    chosen = with_snapshot(
        Choice(True, None, "newest"),
        state,
        POLICY,
        PLACEMENT,
        {node: one.snapshots for node, one in reports.items()},
        stand_ins=stand_ins(state, reports, ()),
    )

    assert chosen.snapshot == SnapshotPoint(1, step)


def told(watch: ReplicaWatch, step: int, *digests: str, attempt: int = 1) -> None:
    parts = (PartDigest("model", f"m{step}"),)
    held = tuple(
        HeldSnapshot(rank, attempt, step, len(digests), 10, one, 1.0, parts=parts)
        for rank, one in enumerate(digests)
    )
    watch.receive(report("n1", *held))


def test_ranks_that_are_equal_as_a_whole_at_several_steps_are_journaled_once() -> None:
    watch, state = ReplicaWatch(), replace(Ledger(), attempt=1)
    for step in range(2):
        told(watch, step, f"a{step}", f"b{step}", f"a{step}")
        assert watch.due(state) == ()

    for step in range(2, 6):
        told(watch, step, f"a{step}", f"b{step}", f"a{step}")

    (record,) = watch.due(state)
    assert record == ReplicasKnown(1, ((0, 2),))
    assert watch.due(replace(state, replicas=record)) == ()


def test_ranks_that_differ_from_some_step_on_are_no_longer_known() -> None:
    watch = ReplicaWatch()
    for step in range(5):
        told(watch, step, f"a{step}", f"a{step}")
    told(watch, 5, "a", "b")
    state = replace(Ledger(), attempt=1, replicas=ReplicasKnown(1, ((0, 1),)))

    assert watch.due(state) == (ReplicasKnown(1, ()),)


def test_another_controller_believes_the_journal_until_it_knows_better() -> None:
    watch = ReplicaWatch()
    state = replace(Ledger(), attempt=1, replicas=ReplicasKnown(1, ((0, 1),)))
    told(watch, 5, "a", "a")

    assert watch.due(state) == ()


def test_ranks_that_are_now_equal_and_now_not_are_no_replicas() -> None:
    watch, state = ReplicaWatch(), replace(Ledger(), attempt=1)
    for step in range(400):
        is_equal = step % 20 < 10
        told(watch, step, f"a{step}", f"a{step}" if is_equal else f"b{step}")
        for record in watch.due(state):
            assert isinstance(record, ReplicasKnown)
            state = replace(state, replicas=record)

    told(watch, 401, *("a",) * 2)
    assert state.replicas == ReplicasKnown(1, ())


# A rank that differs from the majority.

ALL = ReplicasKnown(1, ((0, 1, 2, 3),))
ODD_3 = ReplicasDiffer(1, 40, "model", (0, 1, 2, 3), (3,))


def vote(
    *held: HeldSnapshot, differing: ReplicasDiffer = ODD_3, checkpoint: int | None = None
) -> Choice:
    there = {"n1": report("n1", *held[:2]), "n3": report("n3", *held[2:])}
    state = replace(ledger(), attempt=1, replicas=ALL, differing=(differing,))
    restore = None if checkpoint is None else Restore(f"/c/{checkpoint}", checkpoint)
    return with_snapshot(
        Choice(True, restore, "newest"),
        state,
        POLICY,
        PLACEMENT,
        {node: one.snapshots for node, one in there.items()},
        stand_ins=stand_ins(state, there, ()),
    )


def equal(step: int, *odd: int, ranks: int = 4) -> tuple[HeldSnapshot, ...]:
    return tuple(
        part(rank, step, digest=f"{'b' if rank in odd else 'a'}{step}") for rank in range(ranks)
    )


def test_majority_is_restored_on_the_odd_rank_too() -> None:
    chosen = vote(*equal(50, 3), checkpoint=30)

    assert chosen.snapshot == SnapshotPoint(1, 50)
    (fetched,) = chosen.fetched
    assert (fetched.rank, fetched.of_rank) == (3, 0)


def test_majority_that_has_been_fetched_is_restored() -> None:
    chosen = vote(*equal(50), checkpoint=30)

    assert (chosen.snapshot, chosen.fetched) == (SnapshotPoint(1, 50), ())


@pytest.mark.parametrize(("age_s", "step"), [(STAND_IN_S_MIN, 39), (STAND_IN_S_MIN + 2, 50)])
def test_majority_must_save_some_seconds_as_for_a_lost_rank(age_s: float, step: int) -> None:
    newer, older = equal(50, 3), tuple(replace(one, age_s=age_s) for one in equal(39))
    there = {
        "n1": report("n1", *newer[:2], *older[:2]),
        "n3": report("n3", *newer[2:], *older[2:]),
    }
    state = replace(ledger(), attempt=1, replicas=ALL, differing=(ODD_3,))

    chosen = with_snapshot(
        Choice(True, None, "newest"),
        state,
        POLICY,
        PLACEMENT,
        {node: one.snapshots for node, one in there.items()},
        stand_ins=stand_ins(state, there, ()),
    )

    assert chosen.snapshot == SnapshotPoint(1, step)


def test_newer_checkpoint_comes_before_a_majority() -> None:
    assert vote(*equal(50, 3), checkpoint=51).snapshot is None


@pytest.mark.parametrize(
    "held",
    [
        equal(50, 2, 3),  # two and two
        equal(50, 1),  # another one than the one that is known to differ
        equal(50, 3)[:1] + equal(50, 3)[2:],  # two of four are left
    ],
)
def test_without_a_majority_nothing_is_restored(held: tuple[HeldSnapshot, ...]) -> None:
    assert vote(*held, checkpoint=30).snapshot is None


def test_replicas_of_which_no_majority_is_equal_are_not_restored() -> None:
    nobody = ReplicasDiffer(1, 40, "model", (0, 1, 2, 3), ())

    assert vote(*equal(50), differing=nobody, checkpoint=30).snapshot is None


def test_lost_rank_begins_from_the_majority_and_never_from_the_odd_one() -> None:
    held = equal(50, 0)
    there = {"n1": report("n1", *held[:2]), "n3": report("n3", held[3])}
    odd = replace(ODD_3, odd=(0,))
    state = replace(ledger(), attempt=1, replicas=ALL, differing=(odd,))
    found = stand_ins(state, there, ()).find(2, SnapshotPoint(1, 50))

    assert found is None  # two of four
    there["n3"] = report("n3", held[2], held[3])
    found = stand_ins(state, there, ()).find(2, SnapshotPoint(1, 50))
    assert found is not None
    assert found.held.rank != 0


def told_parts(watch: ReplicaWatch, step: int, *digests: str) -> None:
    held = tuple(
        HeldSnapshot(
            *(rank, 1, step, len(digests), 10, f"w{one}", 1.0),
            parts=(PartDigest("model", one),),
        )
        for rank, one in enumerate(digests)
    )
    watch.receive(report("n1", *held))


def test_rank_whose_parameters_went_wrong_is_still_known_as_a_replica() -> None:
    watch, state = ReplicaWatch(), replace(Ledger(), attempt=1)
    for step in range(5):
        told_parts(watch, step, f"a{step}", f"a{step}", f"a{step}")
    known = next(one for one in watch.due(state) if isinstance(one, ReplicasKnown))
    state = replace(state, replicas=known)

    told_parts(watch, 5, "a5", "b5", "a5")
    records = [*watch.due(state)]
    for step in range(6, 12):
        told_parts(watch, step, f"a{step}", f"b{step}", f"a{step}")
        records += watch.due(state)

    assert records == [ReplicasDiffer(1, 5, "model", (0, 1, 2), (1,), "n1")]
