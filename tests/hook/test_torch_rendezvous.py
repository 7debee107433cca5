"""The first rendezvous of a script is dated: with a stand-in for PyTorch on every Python, and with PyTorch itself."""

import importlib.util
import sys
import time
from pathlib import Path

import pytest

from rankmend.hook import layout
from tests.support.hook import Rank, each_python, with_torch_stand_in

pytestmark = pytest.mark.process
C10D = """\
def init_process_group(backend, *, world_size=1):
    '''Form the default group.'''
    if world_size > 1:
        raise RuntimeError("nobody came")
    return backend
"""
MEET = """
import rankmend
rankmend.attach()
from torch.distributed import init_process_group
print(init_process_group("gloo"), init_process_group.__doc__)
"""
FORKED = """
import rankmend, torch.distributed.device_mesh as mesh
rankmend.attach()
from rankmend.hook import torch_rendezvous
torch_rendezvous.watch()
print(mesh.init_process_group("gloo"))
"""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path, environment={layout.ENV_AUTO: "1"})


@pytest.fixture
def stand_in(rank: Rank) -> Rank:
    mesh = "from .distributed_c10d import init_process_group"
    return with_torch_stand_in(rank, distributed_c10d=C10D, device_mesh=mesh)


def assert_dated(rank: Rank, before_s: float) -> tuple[float, float]:
    told = rank.read()
    assert told.rendezvous_began_at_s is not None
    assert told.rendezvous_ended_at_s is not None
    times = [before_s, told.rendezvous_began_at_s, told.rendezvous_ended_at_s]
    times.append(time.monotonic())
    assert times == sorted(times)
    return told.rendezvous_began_at_s, told.rendezvous_ended_at_s


@each_python
def test_the_first_process_group_is_dated_and_works_as_before(stand_in: Rank, python: str) -> None:
    before_s = time.monotonic()

    said = stand_in.run(python, MEET)

    assert said.strip() == "gloo Form the default group."
    assert_dated(stand_in, before_s)


def test_a_forked_rank_dates_it_although_other_modules_have_imported_the_function(
    stand_in: Rank,
) -> None:
    stand_in.environment[layout.ENV_AUTO] = "0"  # the server, too, imports without the hook's watch
    before_s = time.monotonic()

    assert stand_in.run(sys.executable, FORKED).strip() == "gloo"

    assert_dated(stand_in, before_s)


def test_a_rendezvous_that_fails_is_not_dated_and_the_one_that_follows_is(stand_in: Rank) -> None:
    failing = """
    import rankmend, time
    rankmend.attach()
    import torch.distributed as dist
    try:
        dist.init_process_group("gloo", world_size=2)
    except RuntimeError as error:
        print(error, time.monotonic())
    """
    again = """
    dist.init_process_group("gloo")
    print(time.monotonic())
    dist.init_process_group("again")
    """

    stand_in.run(sys.executable, failing)
    assert stand_in.read().rendezvous_ended_at_s is None
    said = stand_in.run(sys.executable, failing + again)

    failed, first = said.splitlines()
    assert failed.startswith("nobody came")
    assert assert_dated(stand_in, float(failed.split()[2]))[1] <= float(first), "not the second"


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
def test_the_process_group_of_pytorch_is_dated(rank: Rank) -> None:
    before_s = time.monotonic()

    said = rank.run(
        sys.executable,
        """
        import inspect, os
        import torch.distributed as dist
        store = "file://" + os.path.abspath("store")
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        print(dist.is_initialized(), "timeout" in inspect.signature(dist.init_process_group).parameters)
        dist.destroy_process_group()
        """,
    )

    assert said.split() == ["True", "True"]
    assert_dated(rank, before_s)
