"""A job's spares test the network by themselves when a rank's communication is slow: the slow cable is named."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from recovery.journal.probe_records import ProbeEnd
from tests.support.hosts import Fleet, why_not
from tests.system.cluster.bed import Cluster, Training
from tests.system.faults.harness import JOBS

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
NODES = 5  # two train, three are spares
LINK_BYTES_PER_S = 4e6  # far below what a busy processor moves, so that the cables decide
SLOW_BYTES_PER_S = 1e6
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
through_training_nics = true
training_nodes_max = 2
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Fleet(NODES + 1, tmp_path) as fleet:
        cluster = Cluster(fleet)
        try:
            policy = cluster.folder / "policy.toml"
            policy.write_text(POLICY)
            cluster.start_controller()
            yield cluster
        finally:
            cluster.close()


def record_of(training: Training, kind: str) -> dict[str, object]:
    """Wait for the first record of a kind, and return it."""
    number = training.wait_told(kind, 0)
    lines = training.cluster.ask(
        lambda client: client.story(training.job_id).lines, "the job's story"
    )
    return json.loads(bytes(next(one.record for one in lines if one.number == number)))  # type: ignore[no-any-return]


def test_slow_communication_has_spares_test_the_network_and_the_slow_cable_is_named(
    cluster: Cluster,
) -> None:
    faults = cluster.fleet.shared / "faults"
    faults.mkdir()
    arguments = [f"--faults={faults}"]
    training = Training(cluster, f"2:{NODES}", JOBS / "uneven.py", arguments, slots=2)
    training.start(*cluster.nodes)
    slow_node = next(node for node, one in training.placed(0).items() if 0 in one.ranks)

    with ExitStack() as stack:
        good = [host for host in cluster.nodes if host.name != slow_node]
        bad = cluster.fleet[slow_node]
        stack.enter_context(cluster.fleet.slow(*good, bytes_per_s=LINK_BYTES_PER_S))
        stack.enter_context(cluster.fleet.slow(bad, bytes_per_s=SLOW_BYTES_PER_S))
        (faults / "0").write_text("communication 0.3")
        ended = record_of(training, "fabric_probe_ended")

    asked = record_of(training, "fabric_probe_asked")
    spares = {host.name for host in cluster.nodes} - set(training.placed(0))
    assert spares <= set(asked["nodes"]), "all that are idle"  # type: ignore[arg-type]
    assert ended["end"] == ProbeEnd.JUDGED.value, training.account
    assert ended["part"] == f"node {slow_node}", training.account
    assert f"node {slow_node} slow" in training.story_text()
