"""Snapshots of a job on several nodes: each node keeps those of its own ranks."""

import json
import os
import signal
from collections.abc import Callable

import pytest

from recovery.journal.attempt_records import AttemptStarted, FetchedPart
from recovery.journal.folder.job_folder import list_folders
from recovery.journal.incident_records import IncidentOpened
from recovery.journal.observation_records import ReplicasDiffer, ReplicasKnown
from recovery.local.report.overview import read_entries
from tests.support import forked_cli
from tests.support.eventually import eventually
from tests.system.faults.nodes import PATIENT, Nodes

pytestmark = pytest.mark.process
ASK_S = 0.5  # between two commands that ask the controller


def with_snapshots(
    nodes: Nodes,
    every: int = 1,
    saves_every: int = 50,
    *,
    is_apart: bool = True,
    step_s: float = 0.02,
) -> Nodes:
    """``is_apart``: no rank's snapshot equals another's, so none stands in for another."""
    nodes.arguments += [f"--snapshot-every={every}", f"--every={saves_every}", f"--step-s={step_s}"]
    if is_apart:
        nodes.arguments.append("--apart")
    return nodes


def started(nodes: Nodes) -> list[AttemptStarted]:
    (hosted,) = list_folders(nodes.folder / "state-a")
    records = [entry.record for entry in read_entries(hosted)]
    return [one for one in records if isinstance(one, AttemptStarted)]


def test_rank_and_launcher_of_a_node_die_and_both_nodes_go_on_from_memory(
    make_meeting: Callable[..., Nodes],
    undisturbed_long: dict[str, object],
) -> None:
    nodes = with_snapshots(make_meeting("2", policy=PATIENT))
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b")
    nodes.wait_step(50)
    eventually(lambda: (snapshots(nodes).get("step") or 0) >= 50, "snapshots", pause_s=ASK_S)

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


def snapshots(nodes: Nodes) -> dict[str, int]:
    """Return what the controller says of the job's snapshots; nothing before it has started."""
    told = forked_cli.run("status", "--json", f"--job-folder={nodes.checkpoints}")
    if told.returncode:
        return {}
    (job,) = json.loads(told.stdout)["jobs"]
    return job["snapshots"] or {}


def copied_step(nodes: Nodes) -> int | None:
    """Return the newest step of which every rank's copy is on another node."""
    return snapshots(nodes).get("copied_step")


def newest_step(nodes: Nodes) -> int:
    told = snapshots(nodes)
    return (told.get("copied_step") or 0) + (told.get("copied_steps_since") or 0)


def lose_a_node(nodes: Nodes, until: Callable[[], object]) -> tuple[str, str]:
    """Kill a node that does not host the controller, and return it and the spare."""
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b", "c")
    until()
    lost = next(place.node for place in started(nodes)[0].placement if place.node != "a")
    nodes.kill(lost)
    return lost, next(name for name in "bc" if name != lost)


def test_spare_that_takes_a_lost_nodes_place_begins_from_the_copies_of_its_snapshots(
    make_meeting: Callable[..., Nodes],
    undisturbed_long: dict[str, object],
) -> None:
    nodes = with_snapshots(make_meeting("3", spares=1), every=5, saves_every=1000, step_s=0.04)

    def copies_are_there() -> None:
        copied = eventually(lambda: copied_step(nodes), "copies", pause_s=ASK_S)
        # 15 snapshots later, while the next round is not over; the job waits in its last step, 600.
        later = min(copied + 75, 590)
        eventually(lambda: newest_step(nodes) >= later, "further snapshots", pause_s=ASK_S)

    _lost, spare = lose_a_node(nodes, copies_are_there)

    assert nodes.wait_ends("a", spare) == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long
    choice = started(nodes)[1].choice
    assert choice.snapshot is not None, choice.passed_over
    assert choice.fetched == (FetchedPart(2, "a"), FetchedPart(3, "a"))
    assert choice.snapshot.step >= 20


def test_without_copies_a_spare_begins_from_the_checkpoint(
    make_meeting: Callable[..., Nodes],
    undisturbed_100: dict[str, object],
) -> None:
    nodes = with_snapshots(make_meeting("3", steps=100, spares=1))
    nodes.flags += ["--snapshot-copies=0"]

    _lost, spare = lose_a_node(nodes, lambda: nodes.wait_step(50))

    assert nodes.wait_ends("a", spare) == [0, 0], nodes.output
    assert nodes.result() == undisturbed_100
    choice = started(nodes)[1].choice
    assert choice.snapshot is None
    assert choice.begins_at is not None
    assert choice.begins_at >= 50
    assert "not there of ranks 2 and 3" in {one.reason for one in choice.passed_over}


def test_equal_ranks_stand_in_for_those_of_a_lost_node(
    make_meeting: Callable[..., Nodes],
    undisturbed_long: dict[str, object],
) -> None:
    # The job must outlive the search for equal ranks, which a busy machine draws out.
    nodes = with_snapshots(
        make_meeting("3", spares=1), every=5, saves_every=1000, is_apart=False, step_s=0.08
    )

    def are_known() -> None:
        nodes.wait_said("a", "attempt 1 makes progress")
        (hosted,) = list_folders(nodes.folder / "state-a")
        eventually(
            lambda: any(isinstance(one.record, ReplicasKnown) for one in read_entries(hosted)),
            "equal ranks are known",
        )

    _lost, spare = lose_a_node(nodes, are_known)

    assert nodes.wait_ends("a", spare) == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long
    choice = started(nodes)[1].choice
    assert choice.snapshot is not None, choice.passed_over
    assert [(one.rank, one.node) for one in choice.fetched] == [(2, "a"), (3, "a")]
    assert {one.of_rank for one in choice.fetched} <= {0, 1}
    (opened,) = [
        entry.record
        for entry in read_entries(list_folders(nodes.folder / "state-a")[0])
        if isinstance(entry.record, IncidentOpened)
    ]
    assert opened.failure.step is not None
    assert choice.snapshot.step >= opened.failure.step - 5, "no more than the snapshots' interval"


def test_rank_whose_memory_went_wrong_begins_from_the_majority(
    make_meeting: Callable[..., Nodes],
    undisturbed_long: dict[str, object],
) -> None:
    nodes = with_snapshots(
        make_meeting("2", policy=PATIENT), every=20, saves_every=1000, is_apart=False
    )
    nodes.arguments += ["--snapshot-mb=1", "--flip-rank=3", "--flip-step=200", "--step-s=0.06"]

    def records(kind: type) -> list[object]:
        (hosted,) = list_folders(nodes.folder / "state-a")
        return [one.record for one in read_entries(hosted) if isinstance(one.record, kind)]

    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b")
    nodes.wait_said("a", "attempt 1 makes progress")
    eventually(lambda: records(ReplicasDiffer), "the difference is found")
    (found,) = records(ReplicasDiffer)
    assert isinstance(found, ReplicasDiffer)
    assert (found.group, found.odd) == ((0, 1, 2, 3), (3,))
    # By then no step from before is in memory any more.
    eventually(
        lambda: (copied_step(nodes) or 0) > found.step, "copies of a later step", pause_s=ASK_S
    )

    os.kill(nodes.rank_pids("a")[0], signal.SIGKILL)

    assert nodes.wait_ends("a", "b") == [0, 0], nodes.output
    assert nodes.result() == undisturbed_long
    choice = started(nodes)[1].choice
    assert choice.snapshot is not None, choice.passed_over
    assert choice.snapshot.step >= found.step
    (fetched,) = choice.fetched
    assert fetched.rank == 3
    assert fetched.of_rank in (0, 1, 2)
