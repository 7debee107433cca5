"""Waits of a CUDA stream, with a stand-in for CUDA. What a GPU itself does with it: bench/gpu/areas/sections.py."""

import importlib.util
import sys
from pathlib import Path

import pytest

import rankmend
from rankmend.hook import layout
from rankmend.hook.stream_waits import PAIRS_MAX, StreamWaits, make_find_stream
from rankmend.hook.writer import Writer
from tests.support.cuda_events import FakeCuda
from tests.support.hook import Rank

pytestmark = pytest.mark.process


@pytest.fixture
def own_rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def writer(own_rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Writer:
    writer = Writer(str(own_rank.path))
    writer.step(1)
    monkeypatch.setattr(rankmend, "_writer", writer)
    return writer


def test_events_are_read_only_once_the_stream_has_passed_them(writer: Writer) -> None:
    cuda = FakeCuda()
    events = StreamWaits(cuda, now_ns=lambda: 0)
    told: list[int] = []
    writer.add_wait = told.append  # type: ignore[method-assign]

    for _ in range(2):
        start = events.begin(writer)
        cuda.now_ms += 4.0
        events.end(start, writer)
    assert told == []
    cuda.passed_ms = cuda.now_ms
    events.end(events.begin(writer), writer)

    assert told == [4_000_000, 4_000_000, 0]


def test_wait_in_which_the_host_stood_still_with_an_idle_stream_counts_once(writer: Writer) -> None:
    cuda = FakeCuda()
    events = StreamWaits(cuda, now_ns=lambda: int(cuda.now_ms * 1e6))
    told: list[int] = []
    writer.add_wait = told.append  # type: ignore[method-assign]

    start = events.begin(writer)
    cuda.now_ms += 4.0  # a barrier: the section has this time already
    cuda.passed_ms = cuda.now_ms
    events.end(start, writer)

    assert told == [0]


def test_device_that_has_failed_is_asked_for_no_events_and_raises_nothing(writer: Writer) -> None:
    class Failed(FakeCuda):
        def is_current_stream_capturing(self) -> bool:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert not StreamWaits(Failed()).is_on()


def test_stream_that_passes_nothing_costs_no_more_than_a_bounded_number_of_events(
    writer: Writer,
) -> None:
    events = StreamWaits(FakeCuda())

    fill(events, writer)

    assert len(events) == PAIRS_MAX


def fill(events: StreamWaits, writer: Writer) -> None:
    for _ in range(PAIRS_MAX + 100):
        start = events.begin(writer)
        if start is not None:
            events.end(start, writer)


def test_waits_are_timed_again_once_the_stream_has_caught_up(writer: Writer) -> None:
    cuda = FakeCuda()
    events = StreamWaits(cuda, now_ns=lambda: 0)
    fill(events, writer)
    told: list[int] = []
    writer.add_wait = told.append  # type: ignore[method-assign]

    cuda.passed_ms = cuda.now_ms
    start = events.begin(writer)
    cuda.now_ms += 4.0
    cuda.passed_ms = cuda.now_ms
    events.end(start, writer)

    assert told == [0] * PAIRS_MAX + [4_000_000]
    assert len(events) == 0


class FakeTorch:
    """Two streams, told apart as C++ does."""

    def __init__(self) -> None:
        self._C = self.cuda = self
        self.stream, self.made = 1, 0

    def _cuda_getDevice(self) -> int:  # noqa: N802 - PyTorch's names
        return 0

    def _cuda_getCurrentStream(self, device: int) -> tuple[int, int, int]:  # noqa: N802
        return self.stream, device, 1

    def current_stream(self) -> tuple[str, int]:
        self.made += 1
        return "stream", self.stream


def test_current_stream_is_made_once_and_never_mistaken_for_another() -> None:
    torch = FakeTorch()
    find_stream = make_find_stream(torch)

    first = [find_stream() for _ in range(3)]
    torch.stream = 2

    assert find_stream() == ("stream", 2)
    torch.stream = 1
    assert [*first, find_stream()] == [("stream", 1)] * 4
    assert torch.made == 2


def test_pytorch_without_the_quick_way_is_asked_by_the_events_themselves() -> None:
    assert make_find_stream(object()) is None


def test_no_event_is_recorded_while_a_graph_is_captured(writer: Writer) -> None:
    cuda = FakeCuda()
    cuda.is_capturing = True

    assert not StreamWaits(cuda).is_on()


# A device on which each wait takes 7 ms, under real PyTorch.
JOB = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Event:
    made = 0
    def __init__(self, enable_timing):
        Event.made += 1
    def record(self, stream=None):
        pass
    def query(self):
        return True
    def elapsed_time(self, end):
        return 7.0

dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
ones = torch.ones(2)

def train():
    optimizer.zero_grad()
    replica(torch.ones(4, 8)).square().sum().backward()
    dist.all_reduce(ones)
    dist.all_reduce(ones, async_op=True).wait()
    dist.barrier()
    optimizer.step()

for _ in range(4):
    train()
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.Event = Event
for _ in range(4):
    train()
print(Event.made, sum(p.double().sum().item() for p in model.parameters()).hex())
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
def test_scripts_collectives_and_backward_are_timed_on_its_device(tmp_path: Path) -> None:
    rank = Rank(tmp_path, environment={layout.ENV_AUTO: "1"})

    events, told = rank.run(sys.executable, JOB).split()

    assert int(events) > 0
    records = rank.read().records
    assert records[-1].waited_s - records[0].waited_s > 0.02, "the device's waits are the rank's"
    (tmp_path / "store").unlink()
    unwatched = Rank(tmp_path, name="other", environment={layout.ENV_AUTO: "0"})
    assert unwatched.run(sys.executable, JOB).split() == ["0", told]
