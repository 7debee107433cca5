"""A running agent names a card that vanished."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.agent import ROOT, AgentProcess, running_agent
from tests.support.eventually import eventually
from tests.support.inventory import make_bed, make_tree

pytestmark = pytest.mark.process


@contextmanager
def watched(
    folder: Path, tree: Path
) -> Iterator[tuple[AgentProcess, Callable[[], dict[str, str]]]]:
    """Run an agent on the tree, which is no virtual machine; yield it with its findings: id to severity."""
    config = folder / "agent.toml"
    config.write_text(
        f'sysfs = "{tree}"\nprocfs = "{folder / "proc"}"\nstate_dir = "{folder / "state"}"\nsocket = "{folder / "agent.sock"}"\n'
        'disabled = ["gpu", "gpu_state", "kernel_log", "thermal", "mounts"]\n'
        "[intervals_s]\ninventory = 0.2\nfindings = 0.2\n"
        '[nic]\nexclude = ["mlx5_3"]\n[nic.planes]\ncompute = ["mlx5_[01]"]\n'
        "[expect]\nnics = { compute = 2 }\n"
    )
    with running_agent("--config", str(config)) as (agent, port):

        def find() -> dict[str, str]:
            page = json.loads(agent.get(port, "/api/v1/findings")[1])
            return {found["id"]: found["severity"] for found in page["findings"]}

        yield agent, find


def test_agent_names_a_card_that_vanished_until_a_person_has_it_forgotten(
    tmp_path: Path,
) -> None:
    bed = make_bed(make_tree(tmp_path), tmp_path)
    vanished = "nic_vanished/mlx5_0/0000:1a:00.0/946d:ae03:00f4:0001"
    short = "expected_nics_missing/nic/compute"
    folder = bed.tree.parent
    with watched(folder, bed.tree) as (agent, find):
        eventually((bed.state / "inventory.json").exists, "the first look")
        before = find()
        bed.pull("mlx5_0")
        eventually(lambda: find().get(vanished) == "critical", "the finding")
        eventually(lambda: find().get(short) == "critical", "the finding of what is expected")
        agent.stop()
    with watched(folder, bed.tree) as (agent, find):
        eventually(lambda: vanished in find(), "the finding after a restart")
        forgotten = subprocess.run(
            [
                *(sys.executable, "-m", "rankmend.cli", "agent", "forget", "0000:1a:00.0"),
                *("--socket", str(folder / "agent.sock")),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        eventually(lambda: vanished not in find(), "the end of the finding")
        # [expect] still states two
        eventually(lambda: find().get(short) == "critical", "the finding of what is expected")

    assert not [name for name in before if name.startswith(("nic_vanished", "expected"))]
    assert forgotten.stdout == "forgotten: mlx5_0 (0000:1a:00.0, 946d:ae03:00f4:0001)\n"
