"""gloo's threads finish before a process group is destroyed and before the process ends."""

import importlib.util
import sys
from pathlib import Path

import pytest

from rankmend.hook import layout
from tests.support.hook import Rank, each_python, with_torch_stand_in

pytestmark = pytest.mark.process
# A thread under the name of gloo's that runs without the GIL for a while.
BUSY = """
import ctypes, hashlib, threading, time
begun, ended = threading.Event(), threading.Event()
def run():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)
    begun.set()
    data, until_s = bytes(1 << 20), time.monotonic() + 0.3
    while time.monotonic() < until_s:
        hashlib.sha256(data)
    ended.set()
threading.Thread(target=run, daemon=True).start()
begun.wait()
"""
LET_GO = """
import rankmend
from rankmend.hook import gloo_threads
gloo_threads.let_go()
print(ended.is_set())
"""
C10D = """
def init_process_group(backend): pass
def destroy_process_group(): print("destroyed")
"""
AT_THE_END = """
import atexit
import rankmend
rankmend.attach()
import torch.distributed as dist
atexit.register(lambda: print("ended", ended.is_set()))  # runs after what was registered later
dist.init_process_group("gloo")
dist.init_process_group("gloo")
"""
DESTROYED = """
import rankmend
rankmend.attach()
import torch.distributed as dist
dist.init_process_group("gloo")
dist.destroy_process_group()
print(ended.is_set())
"""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path, environment={layout.ENV_AUTO: "1"})


@pytest.fixture
def stand_in(rank: Rank) -> Rank:
    return with_torch_stand_in(rank, distributed_c10d=C10D)


@each_python
def test_a_running_thread_of_gloos_is_given_the_time_to_finish(rank: Rank, python: str) -> None:
    assert rank.run(python, BUSY + LET_GO).strip() == "True"


def test_a_thread_that_runs_on_and_on_is_not_waited_for(rank: Rank) -> None:
    endless = BUSY.replace("+ 0.3", "+ 3600")

    assert rank.run(sys.executable, endless + LET_GO).strip() == "False"


def test_a_group_is_destroyed_only_then(stand_in: Rank) -> None:
    assert stand_in.run(sys.executable, BUSY + DESTROYED).split() == ["destroyed", "True"]


def test_a_process_that_destroys_no_group_ends_only_then(stand_in: Rank) -> None:
    assert stand_in.run(sys.executable, BUSY + AT_THE_END).split() == ["ended", "True"]


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
def test_pytorchs_threads_have_the_name_that_is_looked_for(rank: Rank) -> None:
    said = rank.run(
        sys.executable,
        """
        import os, time
        import torch.distributed as dist
        from rankmend.hook import gloo_threads
        store = "file://" + os.path.abspath("store")
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        until_s = time.monotonic() + 200  # a thread names itself once it runs
        while not gloo_threads._find() and time.monotonic() < until_s:
            time.sleep(0.01)
        print(len(gloo_threads._find()) > 0)
        dist.destroy_process_group()
        print(gloo_threads._find())
        """,
    )

    assert said.split() == ["True", "[]"]
