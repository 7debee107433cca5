"""A job's spares test the network by themselves when a rank's communication is slow: the slow cable is named, and a spare that is needed is let go.

The tests go through one story of one job in the order of this file; each can run alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from recovery.journal.observation_records import ProbeEnd
from recovery.messages.outside import PersonAct
from tests.support.eventually import eventually
from tests.support.fabric import LINK_BYTES_PER_S, SLOW_BYTES_PER_S
from tests.support.hosts import Fleet, why_not
from tests.system.cluster.bed import Cluster, Training
from tests.system.faults.harness import JOBS

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
NODES = 5  # two train, three are spares
POLICY = """
[policy]
join_wait_s = 100
[hang]
floor_s = 60
ceil_s = 120
[fabric_probe]
dry_run = false
seconds_max = 300
bytes_per_node_max = 4.8e7
bytes_per_s_max = 2e7
training_bytes_per_s_max = 2e7
per_hour_max = 20
again_after_s = 0
through_training_nics = true
training_nodes_max = 2
"""


@dataclass(frozen=True)
class Story:
    """A job of two nodes, one of them behind a slow cable, with three spares."""

    training: Training
    faults: Path
    slow_node: str
    other_node: str

    def slow_down(self, rank: int) -> None:
        (self.faults / str(rank)).write_text("communication 0.3")

    def wait_record(self, kind: str, after: int = 0) -> tuple[int, dict[str, object]]:
        """Return the first record of a kind with a number above ``after``, and its number."""
        training = self.training
        number = training.wait_told(kind, after)
        lines = training.cluster.ask(lambda client: client.story(training.job_id).lines, "a story")
        record = next(one.record for one in lines if one.number == number)
        return number, json.loads(bytes(record))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with Fleet(NODES + 1, tmp_path_factory.mktemp("probe")) as fleet:
        cluster = Cluster(fleet)
        try:
            (cluster.folder / "policy.toml").write_text(POLICY)
            cluster.start_controller()
            faults = fleet.shared / "faults"
            faults.mkdir()
            script, arguments = JOBS / "uneven.py", [f"--faults={faults}"]
            training = Training(cluster, f"{NODES}", script, arguments, spares=NODES - 2)
            training.start(*cluster.nodes)
            ranks = {node: one.ranks for node, one in training.placed(0).items()}
            (slow_node,) = (node for node, own in ranks.items() if 0 in own)
            (other_node,) = ranks.keys() - {slow_node}
            good = [host for host in cluster.nodes if host.name != slow_node]
            with (
                fleet.slow(*good, bytes_per_s=LINK_BYTES_PER_S),
                fleet.slow(fleet[slow_node], bytes_per_s=SLOW_BYTES_PER_S),
            ):
                yield Story(training, faults, slow_node, other_node)
        finally:
            cluster.close()


def test_slow_communication_has_spares_test_the_network_and_the_slow_cable_is_named(
    story: Story,
) -> None:
    story.slow_down(0)
    _number, ended = story.wait_record("fabric_probe_ended")
    _number, asked = story.wait_record("fabric_probe_asked")

    training = story.training
    nodes = {host.name for host in training.cluster.nodes}
    assert asked["nodes"][-2:] == [story.slow_node, story.other_node]  # type: ignore[index]
    assert set(asked["nodes"]) == nodes, "the spares first"  # type: ignore[arg-type]
    assert ended["end"] == ProbeEnd.JUDGED.value, training.account
    assert ended["part"] == f"node {story.slow_node}", training.account
    assert f"node {story.slow_node} slow" in training.story_text()


def test_a_spare_that_is_needed_is_taken_in_the_middle_of_a_probe(story: Story) -> None:
    training, job_id = story.training, story.training.job_id
    attempt, cluster = training.attempt, training.cluster
    before = training.last_number
    (story.faults / "0").unlink(missing_ok=True)  # of four ranks, two alike are no outliers
    story.slow_down(1)
    number, asked = story.wait_record("fabric_probe_asked", before)

    def act(what: PersonAct, node: str | None = None) -> None:
        cluster.ask(lambda client: client.command(job_id, what, node=node, reason="test"), "it")

    act(PersonAct.LEAVE_NODE, story.other_node)
    act(PersonAct.RESTART)
    _number, ended = story.wait_record("fabric_probe_ended", number)
    placed = set(training.placed(attempt))

    assert (ended["probe_id"], ended["end"]) == (asked["probe_id"], ProbeEnd.YIELDED.value)
    assert story.other_node not in placed
    assert placed < set(asked["nodes"]), "a node that was testing"  # type: ignore[arg-type]
    eventually(
        lambda: not any(host.processes("probe_child") for host in cluster.nodes),
        "nothing tests the network any more",
    )
