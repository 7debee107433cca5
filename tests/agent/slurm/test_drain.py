"""A node that drains itself: once, with a reason, and never more than a share of its partition."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from agent.slurm.commands import NodeRecord
from agent.slurm.drain import DrainOutcome, allowed_drains, drain_node, drain_reason
from rankmend.errors import SourceError

CAUSES = ("gpu_vanished/GPU-1: GPU 1 is gone",)
REASON = "rankmend: gpu_vanished/GPU-1: GPU 1 is gone"


def idle(count: int) -> dict[str, NodeRecord]:
    names = [f"n{number}" for number in range(1, count + 1)]
    return {name: NodeRecord(name, "IDLE", partitions=("train",)) for name in names}


@dataclass
class FakeSlurm:
    """slurmctld with one partition. ``before_drain``: what others do between our look and our drain."""

    nodes: dict[str, NodeRecord]
    before_drain: Callable[["FakeSlurm"], None] = lambda _slurm: None
    silent: frozenset[str] = frozenset()
    calls: list[str] = field(default_factory=list)

    def node(self, name: str) -> NodeRecord:
        self._call("node")
        return self.nodes[name]

    def partition_nodes(self, _partition: str) -> list[NodeRecord]:
        self._call("partition_nodes")
        return list(self.nodes.values())

    def drain(self, name: str, reason: str) -> None:
        self._call("drain")
        self.before_drain(self)
        self.set(name, "IDLE+DRAIN", reason)

    def undrain(self, name: str) -> None:
        self._call("undrain")
        self.set(name, "IDLE", "")

    def set(self, name: str, state: str, reason: str) -> None:
        self.nodes[name] = replace(self.nodes[name], state=state, reason=reason)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.silent:
            raise SourceError(f"{name} did not answer in 1.0 s")


def test_an_unfit_node_is_drained_with_its_fault_as_the_reason() -> None:
    slurm = FakeSlurm(idle(10))

    result = drain_node(slurm, "n1", CAUSES, 0.1)

    assert result.outcome is DrainOutcome.DRAINED
    assert slurm.nodes["n1"].is_drained
    assert slurm.nodes["n1"].reason == result.reason == REASON


@pytest.mark.parametrize("reason", ["replace fan, alice", REASON, ""])
@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "draining", "drained*"])
def test_a_drained_node_is_left_as_it_is(state: str, reason: str) -> None:
    slurm = FakeSlurm(idle(10))
    slurm.set("n1", state, reason)

    result = drain_node(slurm, "n1", CAUSES, 0.1)

    assert (result.outcome, result.reason) == (DrainOutcome.ALREADY_DRAINED, reason)
    assert slurm.calls == ["node"]


def test_a_persons_note_on_a_node_in_service_stays_before_our_reason() -> None:
    slurm = FakeSlurm(idle(10))
    slurm.set("n1", "IDLE", "watch the fan, alice")

    drain_node(slurm, "n1", CAUSES, 0.1)

    assert slurm.nodes["n1"].reason == f"watch the fan, alice; {REASON}"


def test_the_brake_holds_at_the_share_and_says_how_many_there_are() -> None:
    slurm = FakeSlurm(idle(20))
    for name in ("n2", "n3"):
        slurm.set(name, "IDLE+DRAIN", REASON)

    result = drain_node(slurm, "n1", CAUSES, 0.1)

    assert result.outcome is DrainOutcome.BRAKED
    assert "2 of the 20 nodes of partition train" in result.note
    assert "drain" not in slurm.calls


def test_nodes_that_others_drained_do_not_count_for_the_brake() -> None:
    slurm = FakeSlurm(idle(20))
    for number in range(2, 15):
        slurm.set(f"n{number}", "DOWN+DRAIN", "cooling, alice")

    assert drain_node(slurm, "n1", CAUSES, 0.1).outcome is DrainOutcome.DRAINED


def test_a_node_takes_its_drain_back_where_others_drained_at_the_same_time() -> None:
    def others(slurm: FakeSlurm) -> None:
        for name in ("n2", "n3"):
            slurm.set(name, "IDLE+DRAIN", REASON)

    slurm = FakeSlurm(idle(20), before_drain=others)

    result = drain_node(slurm, "n1", CAUSES, 0.1)

    assert result.outcome is DrainOutcome.BRAKED
    assert not slurm.nodes["n1"].is_drained


def test_a_drain_is_not_taken_back_once_a_person_gave_it_another_reason() -> None:
    slurm = FakeSlurm(idle(20))

    def others(_slurm: FakeSlurm) -> None:
        for name in ("n2", "n3"):
            slurm.set(name, "IDLE+DRAIN", REASON)

    slurm.before_drain = others
    look = slurm.node
    looks = itertools.count()

    def node(name: str) -> NodeRecord:
        if next(looks) == 1:
            slurm.set("n1", "IDLE+DRAIN", "keep it out, alice")
        return look(name)

    slurm.node = node  # type: ignore[method-assign]

    drain_node(slurm, "n1", CAUSES, 0.1)

    assert slurm.nodes["n1"].reason == "keep it out, alice"
    assert slurm.nodes["n1"].is_drained


@pytest.mark.parametrize("silent", ["node", "partition_nodes", "drain"])
def test_nothing_is_drained_where_slurm_does_not_answer(silent: str) -> None:
    slurm = FakeSlurm(idle(10), silent=frozenset([silent]))

    result = drain_node(slurm, "n1", CAUSES, 0.1)

    assert result.outcome is DrainOutcome.NO_ANSWER
    assert "did not answer" in result.note
    assert not slurm.nodes["n1"].is_drained


@pytest.mark.parametrize(
    ("count", "share", "allowed"),
    [
        (1, 0.1, 1),
        (4, 0.1, 1),
        (19, 0.1, 1),
        (20, 0.1, 2),
        (1000, 0.1, 100),
        (8, 0.0, 1),
        (8, 1.0, 8),
    ],
)
def test_share_of_a_partition(count: int, share: float, allowed: int) -> None:
    assert allowed_drains(count, share) == allowed


def test_a_reason_is_one_line_of_bounded_length() -> None:
    reason = drain_reason(['x"\n\x1b[31m', *("y" * 50 for _cause in range(20))])

    assert reason.startswith("rankmend: x'")
    assert reason.isprintable()
    assert len(reason) == 240
