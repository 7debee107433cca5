"""Where a rank stands in its model: by real process groups, and by what the script tells."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from rankmend.hook.writer import Writer
from rankmend.rank_values import ToldPlace
from tests.support.hook import RUN_S_MAX, Rank

pytestmark = pytest.mark.process

JOB = """
import json, os, sys, torch, torch.distributed as dist
from rankmend.hook.model_place import find_place
children = []
rank = 0
for number in range(1, 4):
    if (child := os.fork()) == 0:
        rank = number
        break
    children.append(child)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=4)
before = find_place()
dist.device_mesh.init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("pp", "dp_shard", "tp"))
places = [None] * 4
dist.all_gather_object(places, (before, find_place()))
if rank:
    os._exit(0)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
print(json.dumps(places))
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
def test_a_device_mesh_tells_each_rank_its_stage(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )

    assert said.returncode == 0, said.stderr
    none = [-1] * 5
    assert said.stdout.strip() == str([[none, [-1, -1, rank // 2, -1, -1]] for rank in range(4)])


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_what_the_script_tells_wins_over_the_names_of_groups(rank: Rank) -> None:
    writer = Writer(str(rank.path))
    assert rank.read().place is None

    writer.mark_place((-1, 1, -1, -1, -1))
    seen = rank.read().place
    writer.groups(dp=7, pp=2)
    writer.mark_place((-1, 1, -1, -1, -1))

    assert seen == ToldPlace(tp=1)
    assert rank.read().place == ToldPlace(dp=7, pp=2)


@pytest.mark.parametrize("index", [-1, 2**24, 2**80, 1.0, "0", [], float("nan")])
def test_an_index_that_is_none_is_refused_once_and_never_raises(
    rank: Rank, index: object, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(str(rank.path))
    writer.groups(tp=3)

    writer.groups(dp=0, tp=index)
    writer.groups(dp=0, tp=index)

    assert rank.read().place == ToldPlace(tp=3)
    assert capfd.readouterr().err.count("groups() takes this rank's index") == 1
