"""Communication and data loading of unchanged PyTorch scripts, timed without changing them.

One job for the whole module, once watched and once not, beside each other; it stands still after
each of its parts until its progress file was read.
"""

import importlib.util
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import rankmend
from rankmend.hook import layout
from rankmend.hook.writer import Writer
from rankmend.progress import RankProgress
from rankmend.rank_values import ToldPlace
from tests.support.hook import RUN_S_MAX, Rank

pytestmark = pytest.mark.process
needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed"),
]
PARTS = ("trained", "failed", "waited", "placed", "saved", "compiled")

LATE_S = 0.2  # by more than a busy machine holds the rank itself up
# Two processes, of which the first is the rank; the second is late at all that is shared.
JOB = """
import os, sys, threading, time, torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
LATE_S = 0.2
torch.set_num_threads(1)
other = os.fork()  # it has what was imported
is_rank = other != 0
if not is_rank:
    for name in [name for name in os.environ if name.startswith("RANKMEND_")]:
        del os.environ[name]
torch.manual_seed(0)
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=int(not is_rank), world_size=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

def tell(*words):
    if is_rank:
        print(*words, flush=True)

def part(name):
    tell(sum(p.double().sum().item() for p in model.parameters()).hex())
    tell("part", name)
    if is_rank:
        sys.stdin.readline()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, number):
        time.sleep(0.02 if is_rank else 0.0)
        return torch.full((8,), float(number)) / 7

def late():
    time.sleep(0.0 if is_rank else LATE_S)

def train(step=None):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4):
        optimizer.zero_grad()
        loss = (replica if step is None else step)(batch).square().sum()
        late()
        loss.backward()
        optimizer.step()

train(); train()
part("trained")

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor):
        return tensor * 2
    @staticmethod
    def backward(context, gradient):
        raise ValueError("its own error")
try:
    Fails.apply(model[0].weight).sum().backward()
except ValueError as error:
    tell(error)
inner = torch.nn.Linear(4, 4)
checkpoint(inner, torch.ones(1, 4, requires_grad=True), use_reentrant=True).sum().backward()
torch.autograd.backward([inner(torch.ones(1, 4)).sum(), inner(torch.ones(1, 4)).sum()])
optimizer.step()
part("failed")

one, two = torch.ones(2), [torch.ones(2), torch.ones(2)]
def use(call):
    late()
    call()
use(lambda: dist.all_reduce(one))
use(lambda: dist.all_gather(two, one))
use(lambda: dist.broadcast(one, 1))
work = dist.all_reduce(one, async_op=True) if is_rank else None
use(lambda: work.wait() if is_rank else dist.all_reduce(one))
use(lambda: dist.barrier())
use(lambda: dist.recv(one, 1) if is_rank else dist.send(one, 0))
optimizer.step()
part("waited")

stages = dist.new_group(group_desc="PIPELINE_MODEL_PARALLEL_GROUP")
dist.new_group(group_desc="mesh_tp")
dist.new_group([int(not is_rank)], group_desc="mesh_cp")
dist.all_reduce(one, group=stages)
part("placed")

group = dist.new_group()
def save():
    late(); late(); late()
    dist.all_reduce(one, group=group)
optimizer.step()
thread = threading.Thread(target=save)
thread.start()
time.sleep(0.3)
thread.join()
optimizer.step()
part("saved")

from torch._dynamo.utils import counters
compiled = torch.compile(replica, backend="eager")
train(compiled); train(compiled)
@torch.compile(fullgraph=True, backend="eager")
def reduced(tensor):
    dist.all_reduce(tensor)
    return tensor + 1
tell(reduced(torch.ones(2)).tolist(), counters["frames"]["total"])
part("compiled")
dist.barrier()
dist.destroy_process_group()
if is_rank:
    assert os.waitpid(other, 0)[1] == 0
"""


@dataclass
class Told:
    watched: list[str]  # lines of the watched job
    unwatched: list[str]
    progress: dict[str, RankProgress]  # of the watched one, at the end of each part


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    ranks = [
        Rank(tmp_path_factory.mktemp(name), environment={layout.ENV_AUTO: auto})
        for name, auto in (("watched", "1"), ("unwatched", "0"))
    ]
    (watched, unwatched) = jobs = [_start(rank) for rank in ranks]
    bound = threading.Timer(RUN_S_MAX, lambda: [job.kill() for job in jobs])
    bound.start()
    try:
        assert unwatched.stdin is not None
        unwatched.stdin.write("\n" * len(PARTS))
        unwatched.stdin.flush()
        lines, progress = _listen(watched, ranks[0])
        lines_unwatched = unwatched.communicate(timeout=RUN_S_MAX)[0].splitlines()
        assert (watched.wait(RUN_S_MAX), unwatched.wait(RUN_S_MAX)) == (0, 0), lines
    finally:
        bound.cancel()
        for job in jobs:
            job.kill()
            job.communicate(timeout=RUN_S_MAX)
    return Told(lines, lines_unwatched, progress)


def _start(rank: Rank) -> "subprocess.Popen[str]":
    script = rank.folder / "job.py"
    script.write_text(JOB)
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=rank.variables(),
        cwd=rank.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _listen(job: "subprocess.Popen[str]", rank: Rank) -> tuple[list[str], dict[str, RankProgress]]:
    assert job.stdin is not None
    assert job.stdout is not None
    lines: list[str] = []
    progress: dict[str, RankProgress] = {}
    for line in job.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("part "):
            progress[line.split()[1]] = rank.read()
            job.stdin.write("\n")
            job.stdin.flush()
    return lines, progress


class TestPyTorch:
    pytestmark = needs_torch

    def test_waiting_for_gradients_and_loading_are_told_apart(self, told: Told) -> None:
        progress = told.progress["trained"]

        first, last = progress.records[1], progress.records[-1]
        assert progress.step_count == 6
        assert last.waited_s - first.waited_s > 0.8 * 4 * LATE_S, "for the late one"
        assert last.io_s - first.io_s > 0.8 * 4 * 4 * 0.02
        assert last.communication_s == last.waited_s
        assert progress.collectives_entered >= 5
        assert progress.collective_timeout_s == 1800.0, "the default of gloo"
        assert progress.first_section_at_s is None, "only what the script tells marks its start"
        assert not progress.has_pairs

    def test_calls_that_wait_are_counted_and_timed_also_when_asynchronous(self, told: Told) -> None:
        progress = told.progress["waited"]

        before, after = progress.records[-2:]
        assert after.waited_s - before.waited_s > 0.8 * 6 * LATE_S
        assert progress.collectives_entered == progress.collectives_completed
        assert progress.has_pairs

    def test_names_of_process_groups_tell_where_the_rank_stands_in_the_model(
        self, told: Told
    ) -> None:
        assert told.progress["waited"].place is None
        assert told.progress["placed"].place == ToldPlace(tp=0, pp=0)

    def test_results_are_the_same_to_the_last_bit_as_without_also_when_compiled(
        self, told: Told
    ) -> None:
        assert list(told.progress) == list(PARTS)
        assert told.watched == told.unwatched, "nor is code of ours compiled: it counts the frames"

    def test_collective_of_a_background_thread_is_not_the_waiting_of_the_one_that_trains(
        self, told: Told
    ) -> None:
        before, after = told.progress["saved"].records[-2:]

        assert after.waited_s - before.waited_s < LATE_S / 2

    def test_backward_that_fails_or_runs_inside_another_leaves_no_section_open(
        self, told: Told
    ) -> None:
        assert "its own error" in told.watched
        assert told.progress["failed"].section.name == "IDLE"


@pytest.fixture
def own_rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def writer(own_rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Writer:
    writer = Writer(str(own_rank.path))
    writer.step(1)
    monkeypatch.setattr(rankmend, "_writer", writer)
    return writer


def test_time_that_two_threads_made_negative_begins_anew_and_no_step_is_lost(
    writer: Writer, own_rank: Rank, capfd: pytest.CaptureFixture[str]
) -> None:
    writer.add_wait(-1_000_000_000)

    writer.step(2)
    writer.add_wait(5_000_000)
    writer.step(3)

    records = own_rank.read().records
    assert [record.step for record in records] == [1, 2, 3]
    assert [record.waited_s for record in records[1:]] == [0.0, 0.005]
    assert capfd.readouterr().err == ""
