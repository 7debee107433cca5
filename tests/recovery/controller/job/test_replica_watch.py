"""Replicas whose snapshots differ are journaled, and neither is restored."""

from dataclasses import replace

import pytest

from detectors.replicas.layout import parse_parallel
from rankmend.errors import JournalError
from recovery.api.wire import ParallelSizes
from recovery.console.views.job_view import view_ledger
from recovery.controller.job.watch.replica_watch import ReplicaWatch
from recovery.journal.ledger import Ledger
from recovery.journal.narration.narrator import narrate
from recovery.journal.observation_records import ParallelDeclared, ReplicasDiffer, ReplicasKnown
from recovery.journal.records import decode_record, encode_record
from recovery.messages.exchange import HeldSnapshot, PartDigest, Report, SnapshotPoint
from tests.support.controller_bench import SETTINGS, Bench


def held(rank: int, step: int, digest: str, *, ranks: int = 3, attempt: int = 1) -> HeldSnapshot:
    parts = (PartDigest("model", digest), PartDigest("own", f"{rank}-{step}"))
    return HeldSnapshot(rank, attempt, step, ranks, 10, "0" * 32, 1.0, parts=parts)


def report(*snapshots: HeldSnapshot, node: str = "n1") -> Report:
    return Report(1, node, "boot", "job", 1, 1, (), 0, snapshots=snapshots)


def equal_until(step: int) -> ReplicaWatch:
    watch = ReplicaWatch()
    for number in range(step + 1):
        watch.receive(report(*(held(rank, number, f"s{number}") for rank in range(3))))
    return watch


def test_odd_replica_is_recorded_once() -> None:
    watch = equal_until(5)
    apart = [held(0, 6, "a"), held(1, 6, "a"), held(2, 6, "b")]

    watch.receive(report(*apart[:2]))
    assert watch.due(Ledger()) == ()
    watch.receive(report(apart[2], node="n2"))

    (record,) = watch.due(Ledger())
    assert record == ReplicasDiffer(1, 6, "model", (0, 1, 2), (2,), "n2")
    watch.receive(report(*apart))
    assert watch.due(Ledger()) == ()


def test_what_the_journal_has_is_not_recorded_again() -> None:
    watch = equal_until(5)
    watch.receive(report(held(0, 6, "a"), held(1, 6, "a"), held(2, 6, "b")))
    known = ReplicasDiffer(1, 6, "model", (0, 1, 2), (2,), "n1")

    assert watch.due(replace(Ledger(), differing=(known,))) == ()


def test_each_attempt_is_learned_anew_from_whatever_step_it_begins() -> None:
    watch = equal_until(9)

    for step in range(4, 9):
        watch.receive(report(*(held(rank, step, f"n{step}", attempt=2) for rank in range(3))))
    watch.receive(report(*(held(rank, 9, "ab"[rank == 1], attempt=2) for rank in range(3))))

    (record,) = watch.due(Ledger())
    assert (record.attempt, record.step, record.odd) == (2, 9, (1,))


def test_shards_of_a_later_attempt_are_not_accused_of_having_been_replicas() -> None:
    watch = equal_until(9)

    for step in range(10, 20):
        watch.receive(report(*(held(rank, step, f"{rank}", attempt=2) for rank in range(3))))

    assert watch.due(Ledger()) == ()


def test_steps_that_some_ranks_never_tell_are_forgotten() -> None:
    watch = ReplicaWatch()

    for step in range(1000):
        watch.receive(report(held(0, step, "a")))

    assert len(watch._waiting) <= 8


def declared(text: str, sharded_parts: str = "own") -> ReplicaWatch:
    return ReplicaWatch(parse_parallel(text, sharded_parts))


def test_declared_replicas_that_differ_in_the_first_snapshot_are_recorded_once() -> None:
    watch = declared("dp=3")
    for step in (1, 2):
        watch.receive(report(*(held(rank, step, "ab"[rank == 2]) for rank in range(3))))

    (record,) = watch.due(Ledger())

    assert record == ReplicasDiffer(1, 1, "model", (0, 1, 2), (2,), "n1", is_declared=True)
    another = declared("dp=3")
    another.receive(report(*(held(rank, 5, "ab"[rank == 2]) for rank in range(3))))
    assert another.due(replace(Ledger(), differing=(record,))) == ()


def test_ranks_that_are_not_declared_replicas_are_never_compared() -> None:
    watch = declared("tp=3")
    for step in range(9):
        watch.receive(report(*(held(rank, step, f"{step}") for rank in range(3))))

    watch.receive(report(*(held(rank, 9, f"{rank}") for rank in range(3))))

    assert watch.due(replace(Ledger(), attempt=1)) == ()


def test_step_at_which_declared_replicas_differ_is_not_restored_by_a_controller_that_knows_nothing() -> (
    None
):
    parts = {rank: held(rank, 5, "ab"[rank == 1], ranks=2) for rank in range(2)}

    assert declared("dp=2").why_not(SnapshotPoint(1, 5), parts)
    assert declared("tp=2").why_not(SnapshotPoint(1, 5), parts) is None
    assert ReplicaWatch().why_not(SnapshotPoint(1, 5), parts) is None


def test_declared_replicas_whose_whole_snapshots_are_equal_once_stand_in() -> None:
    def told(watch: ReplicaWatch, step: int, wholes: str) -> None:
        parts = (PartDigest("model", f"m{step}"),)
        for rank, whole in enumerate(wholes):
            watch.receive(report(HeldSnapshot(rank, 1, step, 4, 10, whole, 1.0, parts=parts)))

    watch, state = declared("tp=2,dp=2"), replace(Ledger(), attempt=1)
    told(watch, 1, "abac")

    assert watch.due(state) == (ReplicasKnown(1, ((0, 2),)),)
    told(watch, 2, "xxyx")
    assert watch.due(state) == (ReplicasKnown(1, ((1, 3),)),)
    told(watch, 3, "abcd")
    known = ReplicasKnown(1, ((1, 3),))
    assert watch.due(replace(state, replicas=known)) == (ReplicasKnown(1, ()),)


def test_what_is_declared_is_journaled_when_it_changes_and_shown() -> None:
    layout = parse_parallel("dp=2", "optimizer")
    first = Bench(replace(SETTINGS, layout=layout)).start()
    view = view_ledger(first.control.ledger, "job", "digits", state="running")
    assert view.parallel == ParallelSizes(dp=2, sharded_parts=["optimizer"])

    same = Bench(first.settings, first.journal.entries).start()
    other = Bench(SETTINGS, same.journal.entries).start()

    assert same.records(ParallelDeclared) == [ParallelDeclared(layout)]
    assert other.records(ParallelDeclared) == [ParallelDeclared(layout), ParallelDeclared(None)]
    stored = encode_record(ParallelDeclared(layout))
    assert decode_record("parallel_declared", 1, 8, stored) == ParallelDeclared(layout)
    with pytest.raises(JournalError, match="tp=0"):
        decode_record("parallel_declared", 1, 8, b'{"layout": {"tp": 0}}')


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            ReplicasDiffer(1, 6, "model", (0, 1, 2), (2,), "n7"),
            "silent corruption at step 6: model of rank 2 (n7) differs from that of ranks 0 and 1, "
            "though replicas are equal",
        ),
        (
            ReplicasDiffer(1, 6, "model", (0, 1), ()),
            "silent corruption at step 6: model of ranks 0 and 1 differs among them, and no "
            "majority is equal, though replicas are equal",
        ),
        (
            ReplicasDiffer(1, 6, "optimizer", (0, 1), (), is_declared=True),
            "silent corruption at step 6: optimizer of ranks 0 and 1 differs among them, and no "
            "majority is equal, though --parallel declares them replicas "
            "(if each holds a share of it: --sharded-parts optimizer)",
        ),
    ],
)
def test_difference_in_words(record: ReplicasDiffer, said: str) -> None:
    assert narrate(record) == said


def test_step_at_which_replicas_differ_is_passed_over(training: Bench) -> None:
    def told(*steps: int) -> tuple[HeldSnapshot, ...]:
        both = [(rank, step) for rank in (0, 1) for step in steps]
        return tuple(
            held(rank, step, f"{step}{rank if step == 10 else ''}", ranks=2) for rank, step in both
        )

    for step in range(4, 10):
        training.tell(snapshots=told(step, step + 1))
    training.end(1, signal=9)
    training.empty_through, training.attempt, training.ranks = 1, 0, {}
    training.tell(snapshots=told(9, 10), snapshots_through=1)

    assert training.orders[-1].snapshot == SnapshotPoint(1, 9)
    assert len(training.records(ReplicasDiffer)) == 1
