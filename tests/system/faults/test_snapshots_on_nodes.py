"""Snapshots of a job on several nodes: each node keeps those of its own ranks."""

import os
import signal
from collections.abc import Callable

import pytest

from recovery.journal.attempt_records import AttemptStarted
from recovery.report.overview import list_folders, read_entries
from tests.system.faults.test_nodes import Nodes, make, make_meeting  # noqa: F401 - fixtures

pytestmark = [pytest.mark.real, pytest.mark.long]


def with_snapshots(nodes: Nodes) -> Nodes:
    nodes.arguments += ["--snapshot-every=1", "--every=50", "--step-s=0.02"]
    return nodes


def started(nodes: Nodes) -> list[AttemptStarted]:
    (hosted,) = list_folders(nodes.folder / "state-a")
    records = [entry.record for entry in read_entries(hosted)]
    return [one for one in records if isinstance(one, AttemptStarted)]


def test_rank_and_launcher_of_a_node_die_and_both_nodes_go_on_from_memory(
    make_meeting: Callable[..., Nodes],  # noqa: F811
    undisturbed_long: dict[str, object],
) -> None:
    nodes = with_snapshots(make_meeting("2"))
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b")
    nodes.wait_step(50)

    os.kill(nodes.rank_pids("b")[0], signal.SIGKILL)
    nodes.wait_said("a", "attempt 2 makes progress on 4 ranks")
    nodes.kill("b")
    nodes.start("b")

    assert nodes.wait_ends("a", "b") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long
    first, second = [one.choice for one in started(nodes)[1:]]
    assert first.snapshot is not None
    assert second.snapshot is not None
    assert 50 <= first.snapshot.step <= second.snapshot.step


def test_spare_that_takes_a_lost_nodes_place_begins_with_all_from_the_checkpoint(
    make_meeting: Callable[..., Nodes],  # noqa: F811
    undisturbed_long: dict[str, object],
) -> None:
    nodes = with_snapshots(make_meeting("2:3"))
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b", "c")
    nodes.wait_step(50)
    lost = next(place.node for place in started(nodes)[0].placement if place.node != "a")
    spare = next(name for name in "bc" if name != lost)

    nodes.kill(lost)

    assert nodes.wait_ends("a", spare) == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long
    choice = started(nodes)[1].choice
    assert choice.snapshot is None
    assert choice.begins_at is not None
    assert choice.begins_at >= 50
    assert "not there of ranks 2 and 3" in {one.reason for one in choice.passed_over}
