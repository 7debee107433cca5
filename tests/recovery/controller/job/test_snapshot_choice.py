"""The next attempt begins from the newest step that every rank has in memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.controller.job.restore.restore_choice import is_progress
from recovery.controller.job.restore.snapshot_choice import SETTLE_S_MAX
from recovery.journal.attempt_records import (
    AttemptStarted,
    AttemptVerified,
    CheckpointSeen,
    Choice,
)
from recovery.journal.faults import Fault
from recovery.journal.observation_records import ReplicasDiffer
from recovery.messages.exchange import Restore, SnapshotPoint
from tests.support.controller_bench import Bench
from tests.support.job_ledgers import FROM_30, HELD, POLICY, choose, held, ledger, part, verdict


def test_newest_step_that_every_rank_has_is_restored() -> None:
    chosen = choose(held((40, 41), (40, 41), (40, 41), (39, 40)))

    assert chosen.snapshot == SnapshotPoint(1, 40)
    assert chosen.begins_at == 40
    assert chosen.restore == FROM_30.restore
    assert [one.reason for one in chosen.passed_over] == ["not there of rank 3"]


def test_newer_checkpoint_wins() -> None:
    assert choose(held((29,), (29,), (29,), (29,))) == FROM_30


def test_snapshot_of_the_checkpoints_step_wins() -> None:
    assert choose(held((30,), (30,), (30,), (30,))).snapshot == SnapshotPoint(1, 30)


def test_snapshot_saves_a_job_whose_checkpoints_are_gone() -> None:
    chosen = choose(held((20,), (20,), (20,), (20,)), HELD)

    assert chosen.is_possible
    assert chosen.snapshot == SnapshotPoint(1, 20)


def test_part_on_another_node_than_its_rank_does_not_count() -> None:
    there = held((40,), (40,), (40,), (40,))
    moved = {"n1": there["n2"], "n2": there["n1"]}

    assert choose(moved).snapshot is None


def test_damaged_part_is_never_restored() -> None:
    there = held((40,), (40,), (40,), (40,))
    there["n2"] = (replace(there["n2"][0], is_damaged=True), there["n2"][1])

    chosen = choose(there)

    assert chosen.snapshot is None
    assert [one.reason for one in chosen.passed_over] == [
        "changed in memory since it was written, of rank 2"
    ]


def test_snapshot_of_another_world_size_is_passed_over() -> None:
    there = {
        node: tuple(replace(one, world_size=8) for one in parts)
        for node, parts in held((40,), (40,), (40,), (40,)).items()
    }

    assert choose(there).passed_over[0].reason == "of 8 ranks, and there are 4"


def test_parts_of_two_attempts_are_never_mixed() -> None:
    first, second = held((40,), (40,), (), ()), held((), (), (40,), (40,), attempt=2)

    assert choose({node: first[node] + second[node] for node in first}).snapshot is None


def test_snapshot_that_led_nowhere_twice_is_passed_over_for_an_older_one() -> None:
    fault = Fault("killed", None)
    known = ledger(restores=(("snapshot 1:41", (fault,) * POLICY.restore_failures_max),))

    chosen = choose(held((40, 41), (40, 41), (40, 41), (40, 41)), known=known)

    assert chosen.snapshot == SnapshotPoint(1, 40)
    assert "times without progress" in chosen.passed_over[0].reason


def test_new_run_begins_without_the_memory_of_the_one_before() -> None:
    choice = replace(FROM_30, is_new_run=True)

    assert choose(held((40,), (40,), (40,), (40,)), choice) == choice


@pytest.mark.parametrize(
    ("base_step", "step", "expected"), [(None, 0, True), (0, 0, False), (40, 41, True)]
)
def test_progress_is_a_later_step_than_any_attempt_began_from(
    base_step: int | None, step: int, *, expected: bool
) -> None:
    choice = Choice(True, None, "", snapshot=SnapshotPoint(1, step))

    assert is_progress(replace(ledger(), base_step=base_step), choice) is expected


@given(
    st.lists(st.lists(st.integers(25, 50), max_size=2).map(tuple), min_size=4, max_size=4),
    st.sets(st.integers(0, 3)),
)
def test_whatever_is_chosen_is_whole_on_every_rank_and_the_newest_such(
    steps: list[tuple[int, ...]], damaged: set[int]
) -> None:
    there = {
        node: tuple(replace(one, is_damaged=one.rank in damaged) for one in parts)
        for node, parts in held(*steps).items()
    }

    chosen = choose(there)

    common = set.intersection(*(set(one) for one in steps)) if not damaged else set()
    best = max((step for step in common if step >= 30), default=None)
    assert chosen.begins_at == (30 if best is None else best)


def test_same_error_at_the_same_step_sends_the_job_back_to_the_checkpoint() -> None:
    there = held((40,), (40,), (40,), (40,))

    assert choose(there, known=ledger(run=2)) == FROM_30
    assert choose(there, known=ledger(run=1)).snapshot == SnapshotPoint(1, 40)
    assert choose(there, known=ledger(run=2, step=None)).snapshot == SnapshotPoint(1, 40)
    assert choose(there, HELD, ledger(run=2)).snapshot == SnapshotPoint(1, 40)


def test_same_error_a_third_time_a_few_steps_on_sends_the_job_back_to_the_checkpoint() -> None:
    there = held((40,), (40,), (40,), (40,))

    assert choose(there, known=replace(ledger(), memory_errors=2)).snapshot is not None
    assert choose(there, known=replace(ledger(), memory_errors=3)) == FROM_30
    assert choose(there, HELD, replace(ledger(), memory_errors=3)).snapshot is not None


def test_snapshots_of_attempts_before_one_that_began_without_are_left() -> None:
    there = held((40,), (40,), (40,), (40,))

    assert choose(there, known=ledger(memory_since=2)) == FROM_30
    assert choose(there, known=ledger(memory_since=1)).snapshot == SnapshotPoint(1, 40)


def test_steps_after_one_at_which_replicas_differed_are_left() -> None:
    there = held((30, 50), (30, 50), (30, 50), (30, 50))
    known = ledger(differing=(ReplicasDiffer(1, 40, "model", (0, 1), ()),))

    assert choose(there, known=known).snapshot == SnapshotPoint(1, 30)


def test_start_after_checkpoints_were_removed_begins_without_snapshots() -> None:
    there = held((40,), (40,), (40,), (40,))
    seen = CheckpointSeen("/c/50", 50, "npz", "npz file", 1000.0, "whole")
    started = replace(ledger(), incident=None, restorable=seen)

    assert choose(there, known=started) == FROM_30
    assert choose(there, HELD, started) == HELD
    assert choose(there, HELD, replace(ledger(), restorable=seen)).snapshot is not None


# With the controller.


def snapshots(*steps: int, attempt: int = 1) -> dict[str, object]:
    parts = [
        replace(part(rank, step, attempt=attempt), world_size=2)
        for rank in (0, 1)
        for step in steps
    ]
    return {"snapshots": tuple(parts)}


def test_recovery_waits_until_the_snapshots_are_read_and_restores_them(
    training: Bench,
) -> None:
    training.storage.verdicts = [verdict(5)]
    training.end(1, signal=9)
    training.empty_through, training.attempt, training.ranks = 1, 0, {}

    training.tell(snapshots_through=0)
    assert len(training.records(AttemptStarted)) == 1

    training.tell(snapshots_through=1, **snapshots(9, 10))
    order = training.orders[-1]
    assert (order.attempt, order.snapshot) == (2, SnapshotPoint(1, 10))
    assert order.restore == Restore("/c/5", 5)


def test_node_that_never_reads_its_snapshots_does_not_stop_the_job_for_ever(
    training: Bench,
) -> None:
    training.end(1, signal=9)
    training.empty_through, training.attempt, training.ranks = 1, 0, {}

    for _second in range(int(SETTLE_S_MAX) + 2):
        training.tell(1.0, snapshots_through=0, **snapshots(10))

    assert training.orders[-1].attempt == 2
    assert training.orders[-1].snapshot is None


def test_repeated_failure_at_the_restored_step_falls_back_to_the_checkpoint(
    training: Bench,
) -> None:
    training.storage.verdicts = [verdict(5)]
    training.extra = {"snapshots_through": 9, **snapshots(10)}
    chosen = []

    for attempt in (2, 3, 4):
        training.end(1, signal=11)
        training.empty()
        for _second in range(60):
            training.tell(1.0)
        training.run_attempt(attempt)
        chosen.append(training.orders[-1].snapshot)

    assert chosen == [SnapshotPoint(1, 10), SnapshotPoint(1, 10), None]
    assert not training.records(AttemptVerified)[1:]
