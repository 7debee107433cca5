"""A lost node's ranks go on elsewhere from the step of which every rank has a snapshot or a copy."""

from dataclasses import replace

import pytest

from recovery.controller.job.restore.copy_rounds import PAUSE_S
from recovery.controller.job.restore.snapshot_choice import FETCH_S_MAX, PASSING_S_MAX
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import AttemptStarted, Choice, FetchedPart
from recovery.journal.observation_records import ReplicasKnown
from recovery.messages.copying import CopyRequest
from recovery.messages.exchange import (
    CopyFault,
    CopyFaultTold,
    Endpoint,
    HeldSnapshot,
    PartDigest,
    Report,
    SnapshotPoint,
)
from tests.support.controller_bench import POLICY
from tests.support.nodes_bench import SETTINGS, Bench, FakeNode, last_word


class MemoryNode(FakeNode):
    """A launcher whose ranks keep snapshots, with a copier. It has a bench's other nodes at hand."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: dict[tuple[int, int], HeldSnapshot] = {}  # by rank and step
        self.is_copying = True
        self.is_replica = False  # its ranks' snapshots are equal to all others'
        self.left: tuple[int | None, int | None] = None, None  # the steps that its ranks leave
        self.copies: dict[tuple[int, int], HeldSnapshot] = {}
        self.faults: tuple[CopyFaultTold, ...] = ()
        self.fault: CopyFault | None = None  # what another node gets instead of a snapshot

    def come_back(self) -> None:
        """Have another launcher start here after a boot."""
        self.launcher_id, self.boot_id, self.started_s = f"{self.name}-2", "boot-2", 2.0
        self.number = self.revision = self.attempt = 0
        self.is_silent, self.ranks, self.kept, self.copies = False, {}, {}, {}

    def keep(self, step: int) -> None:
        for rank in self.ranks:
            digest = f"{step if self.is_replica else rank:032x}"
            parts = (PartDigest("model", digest),)
            made = HeldSnapshot(rank, self.attempt, step, 2, 100, digest, 0.5, parts=parts)
            self.kept[rank, step] = made
            own = sorted(at for one, at in self.kept if one == rank)
            from_step, copied = self.left
            named = next((at for at in own if from_step is not None and at >= from_step), None)
            in_turns = [at for at in own if at not in (named, copied)]
            room = 2 if named is None or copied is None else 1  # of three files
            for old in in_turns[:-room]:
                del self.kept[rank, old]

    def report(self) -> Report:
        return replace(
            super().report(),
            copier=Endpoint(self.name, 6000),
            snapshots=tuple(self.kept.values()),
            snapshots_through=self.empty_through,
            copies=tuple(self.copies.values()),
            copy_faults=self.faults,
        )

    def carry_out(self, request: CopyRequest, nodes: "dict[str, MemoryNode]") -> None:
        if request.copy is not None:
            whole = request.copy.complete
            self.left = request.copy.from_step, None if whole is None else whole.step
        is_asked = request.copy is not None and request.copy.from_step is not None
        if is_asked and self.is_copying:
            for snapshot in self.kept.values():
                if snapshot.attempt == request.copy.attempt:
                    for peer in request.copy.holders:
                        if snapshot.step >= request.copy.from_step:
                            at = snapshot.rank, snapshot.step
                            nodes[peer.node].copies[at] = snapshot
        for fetch in request.fetches:
            source, one = nodes[fetch.source.node], fetch.snapshot
            at = one.rank, one.step
            if source.is_silent:
                continue
            if source.fault is None:
                given = {**source.kept, **source.copies}[at]
                self.kept[fetch.rank, one.step] = replace(given, rank=fetch.rank)
                self.faults = ()
            else:
                told = CopyFaultTold(one.rank, one.attempt, one.step, source.name, source.fault)
                self.faults = (*(one for one in self.faults if one != told), told)


class CopyBench(Bench):
    def __init__(self, settings: JobSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.nodes: dict[str, MemoryNode] = {name: MemoryNode(name) for name in "abc"}  # type: ignore[assignment]

    def beat(self, seconds: float = 1.0, step: int | None = None) -> None:
        for _part in range(max(1, round(seconds * 4))):
            super().beat(0.25, step)
            for name, request in self.control.copy_requests.items():
                if not self.nodes[name].is_silent:
                    self.nodes[name].carry_out(request, self.nodes)

    def keep(self, step: int) -> None:
        for node in self.nodes.values():
            node.keep(step)

    def lose(self, name: str) -> None:
        """Have a node's launcher end, and a spare take its place."""
        word = last_word(self.nodes[name])
        self.nodes[name].is_silent = True
        self.control.handle_report(word)

    @property
    def choice(self) -> Choice:
        return self.records(AttemptStarted)[-1].choice


@pytest.fixture
def training() -> CopyBench:
    bench = CopyBench()
    bench.beat(1.0)
    bench.beat(1.0, 1)
    assert bench.placed == ["a", "b"]
    return bench


def copied(training: CopyBench, *steps: int) -> None:
    for step in steps:
        training.keep(step)
        training.beat(PAUSE_S + 3.0, step)


def test_each_node_holds_the_other_ones_snapshots(training: CopyBench) -> None:
    copied(training, 10)

    assert {name: list(node.copies) for name, node in training.nodes.items()} == {
        "a": [(1, 10)],
        "b": [(0, 10)],
        "c": [],
    }


def test_spare_takes_a_lost_nodes_rank_over_from_its_copy(training: CopyBench) -> None:
    copied(training, 10)

    training.lose("b")
    training.beat(3.0)

    assert training.placed == ["a", "c"]
    assert training.choice.snapshot == SnapshotPoint(1, 10)
    assert training.choice.fetched == (FetchedPart(1, "a"),)
    assert (1, 10) in training.nodes["c"].kept


def test_step_that_is_not_copied_yet_is_passed_over_for_the_copied_one(training: CopyBench) -> None:
    copied(training, 10)
    training.keep(20)

    training.lose("b")
    training.beat(3.0)

    assert training.choice.snapshot == SnapshotPoint(1, 10)
    assert [one.reason for one in training.choice.passed_over] == ["not there of rank 1"]


@pytest.mark.parametrize("fault", [CopyFault.DAMAGED, CopyFault.FULL])
def test_damaged_copy_or_no_room_for_it_sends_the_job_back_to_the_checkpoint(
    training: CopyBench, fault: CopyFault
) -> None:
    copied(training, 10)
    training.nodes["a"].fault = fault

    training.lose("b")
    training.beat(3.0)

    assert training.placed == ["a", "c"]
    assert training.choice.snapshot is None
    assert training.choice.fetched == ()


def test_source_that_can_not_be_reached_for_a_moment_is_asked_again(training: CopyBench) -> None:
    copied(training, 10)
    training.nodes["a"].fault = CopyFault.UNREACHABLE
    training.lose("b")
    training.beat(PASSING_S_MAX / 2)
    assert training.placed == ["a", "b"]

    training.nodes["a"].fault = None
    training.beat(3.0)

    assert training.choice.snapshot == SnapshotPoint(1, 10)


def test_source_that_stays_unreachable_is_given_up(training: CopyBench) -> None:
    copied(training, 10)
    training.nodes["a"].fault = CopyFault.UNREACHABLE

    training.lose("b")
    training.beat(PASSING_S_MAX + 3.0)

    assert training.placed == ["a", "c"]
    assert training.choice.snapshot is None


def test_two_nodes_that_hold_each_others_copies_cost_the_steps_since_the_checkpoint(
    training: CopyBench,
) -> None:
    copied(training, 10)

    training.lose("a")
    training.lose("b")
    training.beat(3.0)
    training.nodes["a"].come_back()
    training.nodes["b"].come_back()
    training.beat(10.0)

    assert len(training.records(AttemptStarted)) > 1
    assert training.choice.snapshot is None


def test_fetch_that_never_ends_does_not_stop_the_job_for_ever(training: CopyBench) -> None:
    copied(training, 10)
    training.nodes["c"].carry_out = lambda _request, _nodes: None  # type: ignore[method-assign]

    training.lose("b")
    training.beat(FETCH_S_MAX - 10)
    assert training.placed == ["a", "b"]
    training.beat(20.0)

    assert training.placed == ["a", "c"]
    assert training.choice.snapshot is None


def test_copies_of_the_round_before_count_until_the_next_is_whole(training: CopyBench) -> None:
    copied(training, 10)
    training.nodes["b"].carry_out = lambda _request, _nodes: None  # type: ignore[method-assign]
    copied(training, 20)

    training.lose("b")
    training.beat(3.0)

    assert training.choice.snapshot == SnapshotPoint(1, 10)


def test_what_the_newest_copies_are_of_outlives_the_snapshots_after_it(
    training: CopyBench,
) -> None:
    copied(training, 10)
    training.nodes["b"].carry_out = lambda _request, _nodes: None  # type: ignore[method-assign]
    copied(training, 20, 30, 40, 50)

    training.lose("b")
    training.beat(3.0)

    assert training.choice.snapshot == SnapshotPoint(1, 10)


def test_what_the_newest_copies_are_of_outlives_a_restart(training: CopyBench) -> None:
    copied(training, 10)
    training.nodes["b"].carry_out = lambda _request, _nodes: None  # type: ignore[method-assign]
    training.keep(20)
    training.kill("a")
    training.beat(3.0)
    assert training.choice.snapshot == SnapshotPoint(1, 20)
    training.beat(1.0, 21)
    for step in (21, 22, 23, 24):
        training.keep(step)
        training.beat(3.0, step)
    assert training.placed == ["a", "b"]

    training.lose("b")
    training.beat(3.0)

    assert training.choice.snapshot == SnapshotPoint(1, 10)


def replicas(training: CopyBench) -> None:
    """Have the ranks keep equal snapshots at so many steps that this is known."""
    for node in training.nodes.values():
        node.is_replica, node.is_copying = True, False
    for step in range(10, 15):
        training.keep(step)
        training.beat(1.0, step)


def test_equal_rank_stands_in_for_a_lost_one_and_no_step_is_lost(training: CopyBench) -> None:
    replicas(training)

    assert training.control.ledger.replicas == ReplicasKnown(1, ((0, 1),))
    training.keep(40)
    training.beat(1.0, 40)
    training.lose("b")
    training.beat(3.0)

    assert training.choice.snapshot == SnapshotPoint(1, 40)
    assert training.choice.fetched == (FetchedPart(1, "a", of_rank=0),)
    assert training.nodes["c"].kept[1, 40].digest == f"{40:032x}"


def test_ranks_that_are_no_longer_equal_do_not_stand_in(training: CopyBench) -> None:
    replicas(training)
    for node in training.nodes.values():
        node.is_replica = False
    training.keep(40)
    training.beat(1.0, 40)

    training.lose("b")
    training.beat(3.0)

    assert training.control.ledger.replicas == ReplicasKnown(1, ())
    assert training.choice.begins_at != 40


def test_equal_rank_that_can_not_give_its_snapshot_is_left_out(training: CopyBench) -> None:
    replicas(training)
    training.keep(40)
    training.beat(1.0, 40)
    training.nodes["a"].fault = CopyFault.MISSING

    training.lose("b")
    training.beat(5.0)

    assert training.choice.begins_at != 40
    assert training.placed == ["a", "c"]


def test_no_copies_are_asked_for_where_the_policy_wants_none() -> None:
    bench = CopyBench(replace(SETTINGS, policy=replace(POLICY, snapshot_copies=0)))
    bench.beat(1.0)
    bench.keep(10)
    bench.beat(5.0, 10)

    assert bench.control.copy_requests == {}
