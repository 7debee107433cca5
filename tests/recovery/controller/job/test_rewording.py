"""Decisions rest on data: with every text for people replaced, a job goes the same way.

The simulations run a scenario as it is, and again with each reason, summary, note and alert text replaced, by its
length and by other words, wherever it is journaled, reported, asked or ordered.
"""

from typing import Any

import pytest

from recovery.journal.journal_rows import verify_rows
from recovery.journal.records import Entry
from tests.support.rewording import as_length, in_other_words, without_words
from tests.support.simulation import Scenario, SimWorld, draw_scenario
from tests.support.simulation_nodes import Cluster, Setting, Trouble

pytestmark = pytest.mark.thorough

ONE_NODE = {
    "a rank is killed": Scenario(2),
    "one bug ends each attempt": Scenario(5, faults=(), bug_at_step=23),
    "ranks hang": Scenario(6, faults=("hang", "hang")),
    "ranks can't be started": Scenario(8, faults=("launch",) * 8),
    "ranks exit at the start": Scenario(7, faults=("early", "early")),
    "a process can't be killed": Scenario(11, faults=("unkillable",)),
    "ranks never start": Scenario(12, faults=("never",), steps=200, is_telling=False),
    "a person stops the job": Scenario(15, faults=(), stop_at_s=20.0),
    "checkpoints are torn": Scenario(19, faults=("kill", "kill"), torn_ratio=1.0),
    "rankmend dies": Scenario(22, faults=("kill", "exit"), crashes=(15, 31, 47), tears_tail=True),
    "storage is away": Scenario(25, faults=("kill",), storage_fails=(20.0, 60.0)),
    **{f"seed {seed}": draw_scenario(seed) for seed in (3, 4, 9, 14)},
}


def _setting(seed: int, *troubles: Trouble, **more: Any) -> Setting:
    return Setting(seed, steps=150, troubles=troubles, **more)


SEVERAL_NODES = {
    "a rank is killed": _setting(1, Trouble("kill_rank", 40.0, 1)),
    "a node fails again and again": _setting(
        3, *(Trouble("kill_rank", at_s, 1) for at_s in (40.0, 90.0, 150.0))
    ),
    "a node falls silent": _setting(4, Trouble("kill_host", 40.0, 1)),
    "nodes fall silent for good": _setting(
        7, *(Trouble("kill_host_for_good", 40.0, node) for node in (0, 1)), nodes_min=2,
        shrink_multiple=2,
    ),
    "a launcher ends": _setting(10, Trouble("kill_launcher", 40.0, 0, 20.0)),
    "a launcher is restarted": _setting(9, Trouble("restart_launcher", 40.0, 0)),
    "two nodes are cut off from each other": _setting(
        15, Trouble("tear", 40.0, 0, 200.0), Trouble("tear", 41.0, 1, 200.0), hosts=5,
        tells_unreachable=True,
    ),
    "a node is isolated": _setting(14, Trouble("isolate", 40.0, 1, 200.0)),
    "an alert names a dead device": _setting(19, Trouble("alert", 40.0, 0)),
    "an alert is false": _setting(20, Trouble("false_alert", 40.0, 1)),
    "an alert waits for an approval while a rank fails": _setting(
        24, Trouble("gate_waits", 35.0, 0, 200.0), Trouble("false_alert", 40.0, 1),
        Trouble("kill_rank", 70.0, 0),
    ),
    "a person restarts, cancels and leaves nodes": _setting(
        27, Trouble("restart", 40.0), Trouble("kill_rank", 80.0, 1),
        Trouble("cancel", 84.0, 0, 20.0), Trouble("leave_node", 160.0, 1),
    ),
    "a person asks while the gate waits": _setting(
        31, Trouble("gate_waits", 35.0, 0, 200.0), Trouble("restart", 40.0),
        Trouble("approve", 60.0),
    ),
    "the controller's state is lost": _setting(33, Trouble("lose_state", 60.0, 0, 20.0)),
}  # fmt: skip


def course(world: SimWorld | Cluster) -> list[object]:
    """Return all that was decided: records, orders and the end, without words."""
    disk = world.disk if isinstance(world, SimWorld) else world.control.disk
    entries: list[Entry] = list(verify_rows(disk.rows, "the simulated journal")[0])
    records = [(entry.monotonic_s, without_words(entry.record)) for entry in entries]
    return [*records, *map(without_words, world.ordered), without_words(world.outcome)]


def first_difference(one: list[object], other: list[object]) -> str | None:
    for before, after in zip(one, other, strict=False):
        if before != after:
            return f"{before}\nbecame\n{after}"
    return None if len(one) == len(other) else f"{len(one)} decisions became {len(other)}"


@pytest.mark.parametrize("name", ONE_NODE)
def test_a_job_on_one_node_goes_the_same_way_whatever_its_texts_say(name: str) -> None:
    told = course(SimWorld(ONE_NODE[name]).run())

    for words in (as_length, in_other_words):
        assert first_difference(told, course(SimWorld(ONE_NODE[name], words).run())) is None


@pytest.mark.parametrize("name", SEVERAL_NODES)
def test_a_job_on_several_nodes_goes_the_same_way_whatever_its_texts_say(name: str) -> None:
    told = course(Cluster(SEVERAL_NODES[name]).run())

    assert first_difference(told, course(Cluster(SEVERAL_NODES[name], as_length).run())) is None
