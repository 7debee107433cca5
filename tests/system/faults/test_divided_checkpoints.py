"""A checkpoint on shared storage of which each launcher reads its share."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.journal.attempt_records import AttemptStarted
from recovery.journal.folder.job_folder import list_folders
from recovery.journal.node_records import FinderChosen
from recovery.journal.records import Record
from recovery.local.report.overview import read_entries
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.system.faults.harness import JOBS
from tests.system.faults.nodes import PATIENT, Nodes

pytestmark = pytest.mark.process


@pytest.fixture
def make() -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make_nodes(folder: Path, nnodes: str, layout: str, *arguments: str, **fields: Any) -> Nodes:
        (folder / "policy.toml").write_text(PATIENT)
        own = [
            f"--checkpoint-dir={folder / 'checkpoints'}",
            f"--layout={layout}",
            f"--result={folder / 'result.json'}",
            f"--until={folder / 'enough'}",
            *arguments,
        ]
        flags = [f"--config={folder}/policy.toml", *fields.pop("flags", [])]
        script = JOBS / "sharded.py"
        made.append(Nodes(folder, nnodes, own, flags=flags, script=script, **fields))
        return made[-1]

    yield make_nodes
    for nodes in made:
        nodes.close()


def records(state: Path) -> list[Record]:
    """Return the journal of the one job in a state folder."""
    (folder,) = list_folders(state)
    return [entry.record for entry in read_entries(folder)]


def attempts(state: Path) -> list[AttemptStarted]:
    return [one for one in records(state) if isinstance(one, AttemptStarted)]


def wait_attempt(nodes: Nodes, state: Path, number: int) -> AttemptStarted:
    eventually(lambda: len(attempts(state)) >= number, f"attempt {number}:\n{nodes.output}")
    return attempts(state)[number - 1]


def test_a_flipped_byte_in_one_nodes_share_is_found_there_and_the_save_before_is_restored(
    make: Callable[..., Nodes], tmp_path: Path
) -> None:
    flags = [f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    nodes = make(tmp_path, "4", "dcp", "--last-save=60", flags=flags)
    nodes.start("a")
    nodes.wait_said("a", "hosts the controller")
    nodes.start("b", "c", "d")
    marker = nodes.checkpoints / "step-60" / ".metadata"
    eventually(marker.exists, f"the last save:\n{nodes.output}")
    state = tmp_path / "state-a"
    (first,) = attempts(state)
    shard = nodes.checkpoints / "step-60" / "__6_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1  # of a tensor
    shard.write_bytes(content)

    os.kill(nodes.rank_pids("b")[0], signal.SIGKILL)
    second = wait_attempt(nodes, state, 2)
    (tmp_path / "enough").touch()

    assert nodes.wait_ends("a", "b", "c", "d") == [0] * 4, nodes.output
    # Nine files in four shares: the last one has those of ranks 5 to 7.
    last = first.placement[3].node
    assert second.choice.restore is not None
    assert Path(second.choice.restore.path).name == "step-40"
    ((damaged, reason),) = [(Path(one.path).name, one.reason) for one in second.choice.passed_over]
    assert damaged == "step-60"
    assert reason.startswith(f"{last}: __6_0.distcp: ")
    looks = [one for one in records(state) if isinstance(one, FinderChosen)]
    assert [reader.share.count for reader in looks[-1].readers] == [4] * 4
