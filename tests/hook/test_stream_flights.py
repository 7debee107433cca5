"""What NCCL's collectives hide, with a stand-in for CUDA. What a GPU itself does with it: bench/gpu/areas/sections.py."""

import gc
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace

import pytest

import rankmend
from rankmend.hook import layout
from rankmend.hook.hidden_work import Hidden, make_joined, make_joining
from rankmend.hook.process_groups import BY_STREAM, BY_STREAM_OF_GPU, Groups
from rankmend.hook.stream_flights import FLYING_MAX, StreamFlights, Stretches
from rankmend.hook.stream_waits import StreamWaits
from rankmend.hook.writer import Writer
from rankmend.rank_values import ToldHidden
from tests.support.cuda_events import FakeCuda
from tests.support.hook import Rank

pytestmark = pytest.mark.process


class Work:
    """A collective of a device."""


class Stream:
    """A rank's stream and what the hook sees of it. All of its work takes the time that is told."""

    def __init__(self, writer: Writer) -> None:
        self.cuda = FakeCuda()
        self.works = [0, 0, 0]
        self._writer = writer
        self._events = StreamWaits(self.cuda, now_ns=lambda: 0)
        self.flights = StreamFlights(self._events, self.works)
        self._events.flights = self.flights

    def issue(self) -> Work:
        work = Work()
        self.flights.issued(work, self._writer)
        return work

    def compute(self, milliseconds: float) -> None:
        self.cuda.now_ms += milliseconds

    def wait(self, work: Work | None, stands_ms: float = 0.0) -> None:
        """Wait for a collective, or for something else, for which the stream stands still so long."""
        issue = None if work is None else self.flights.waits(work, self._writer)
        start = self._events.begin(self._writer)
        self.cuda.now_ms += stands_ms
        self._events.end(start, self._writer, issue)

    def told(self) -> tuple[int, float, float]:
        """Return the collectives timed, and milliseconds at least and at most, once the stream has passed all."""
        self.cuda.passed_ms = self.cuda.now_ms
        self.wait(None)
        self.cuda.passed_ms = self.cuda.now_ms
        return self.works[0], self.works[1] / 1e6, self.works[2] / 1e6


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def writer(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Writer:
    writer = Writer(str(rank.path))
    writer.step(1)
    monkeypatch.setattr(rankmend, "_writer", writer)
    return writer


@pytest.fixture
def stream(writer: Writer) -> Stream:
    return Stream(writer)


def test_collective_for_which_the_stream_stands_still_was_in_flight_since_its_issue(
    stream: Stream,
) -> None:
    work = stream.issue()
    stream.compute(20.0)
    stream.wait(work, stands_ms=5.0)

    assert stream.told() == (1, 20.0, 20.0)


def test_collective_that_is_over_at_the_wait_hid_no_more_than_the_time_since_its_issue(
    stream: Stream,
) -> None:
    work = stream.issue()
    stream.compute(20.0)
    stream.wait(work)

    assert stream.told() == (1, 0.0, 20.0)


def test_nothing_is_told_before_the_stream_has_passed_the_wait(stream: Stream) -> None:
    work = stream.issue()
    stream.compute(20.0)
    stream.wait(work, stands_ms=5.0)

    assert stream.works == [0, 0, 0]


def test_collectives_in_flight_at_once_count_once(stream: Stream) -> None:
    first = stream.issue()
    stream.compute(10.0)
    second = stream.issue()
    stream.compute(10.0)
    stream.wait(second, stands_ms=1.0)
    stream.wait(first, stands_ms=1.0)

    assert stream.told() == (2, 20.0, 20.0)


def test_time_that_the_stream_stands_still_for_another_is_not_hidden(stream: Stream) -> None:
    work = stream.issue()
    stream.compute(10.0)
    stream.wait(None, stands_ms=30.0)
    stream.compute(10.0)
    stream.wait(work, stands_ms=5.0)

    assert stream.told() == (1, 20.0, 20.0)


def test_stream_that_still_has_to_stand_still_when_a_collective_begins_on_another_one(
    stream: Stream,
) -> None:
    """The host has recorded a wait that the stream comes to after the collective has begun elsewhere."""
    stream.compute(100.0)
    stream.wait(None, stands_ms=30.0)
    stream.cuda.now_ms = 90.0  # of a stream that has less to do
    work = stream.issue()
    stream.cuda.now_ms = 150.0
    stream.wait(work, stands_ms=5.0)

    assert stream.told() == (1, 30.0, 30.0)


def test_wait_beside_which_no_collective_flies_costs_one_look_at_times(stream: Stream) -> None:
    stream.wait(stream.issue(), stands_ms=1.0)
    stream.told()
    before = stream.cuda.times_read

    for _ in range(10):
        stream.wait(None, stands_ms=1.0)
        stream.cuda.passed_ms = stream.cuda.now_ms
    stream.told()

    assert stream.cuda.times_read - before == 11


def test_collective_that_is_waited_for_at_once_hides_nothing(stream: Stream) -> None:
    stream.wait(stream.issue(), stands_ms=7.0)

    assert stream.told() == (1, 0.0, 0.0)


def test_hours_of_training_lose_no_microsecond(stream: Stream) -> None:
    for _ in range(4000):  # 5.6 hours: 32 bits of a float would be 2 ms off by then
        stream.compute(5000.0)
        work = stream.issue()
        stream.compute(0.25)
        stream.wait(work, stands_ms=0.125)
        stream.cuda.passed_ms = stream.cuda.now_ms

    count, least_ms, most_ms = stream.told()
    assert count == 4000
    assert least_ms == most_ms == pytest.approx(1000.0, abs=4.0), "1 us a collective"


def test_collective_that_nobody_waits_for_is_a_gap_and_is_not_kept_alive(
    stream: Stream, rank: Rank
) -> None:
    for _ in range(FLYING_MAX):
        stream.issue()
    gc.collect()

    assert len(stream.flights) <= 64
    assert rank.read().hidden == ToldHidden(has_untimed=True)


def test_collectives_in_flight_are_bounded(stream: Stream, rank: Rank) -> None:
    kept = [stream.issue() for _ in range(FLYING_MAX)]
    assert rank.read().hidden is None

    kept.append(stream.issue())

    assert len(stream.flights) == FLYING_MAX
    assert rank.read().hidden == ToldHidden(has_untimed=True)


@pytest.mark.parametrize("at", ["issue", "wait"])
def test_collective_in_a_captured_graph_is_a_gap(stream: Stream, rank: Rank, at: str) -> None:
    stream.cuda.is_capturing = at == "issue"
    work = stream.issue()
    stream.cuda.is_capturing = True
    issue = stream.flights.waits(work, rankmend._writer)
    if issue is not None:  # as the wrapper of Work.wait does where it has no events
        stream.flights.lose(issue, rankmend._writer)

    assert rank.read().hidden == ToldHidden(has_untimed=True)


def test_device_that_fails_while_it_is_read_raises_nothing(stream: Stream, rank: Rank) -> None:
    work = stream.issue()
    stream.wait(work, stands_ms=1.0)
    stream.cuda.broken_after = 1  # the wait itself is still read

    assert stream.told() == (0, 0.0, 0.0)
    assert rank.read().hidden == ToldHidden(has_untimed=True)


def test_collective_that_is_waited_for_long_after_others_keeps_its_issue(stream: Stream) -> None:
    """The first one of all: its issue is the moment from which everything is dated at first."""
    first = stream.issue()
    for _ in range(3):
        stream.compute(4000.0)
        stream.wait(None, stands_ms=1.0)
        stream.cuda.passed_ms = stream.cuda.now_ms
    other = stream.issue()
    stream.compute(10.0)
    stream.wait(other, stands_ms=1.0)
    stream.wait(first, stands_ms=1.0)

    count, least_ms, most_ms = stream.told()
    assert (count, least_ms, most_ms) == (2, pytest.approx(12010.0), pytest.approx(12010.0))
    free = stream._events._free
    assert len({id(event) for event in free}) == len(free), "no event is there twice"


def test_events_are_used_again_and_none_twice_at_once(stream: Stream) -> None:
    for _ in range(50):
        works = [stream.issue() for _ in range(3)]
        stream.compute(3000.0)
        for work in works:
            stream.wait(work, stands_ms=1.0)
        stream.told()

    free = stream._events._free
    assert len({id(event) for event in free}) == len(free)
    assert stream.cuda.made <= 20


# Which collectives are timed like that -----------------------------------------------------------


class Group:
    _device_types = (SimpleNamespace(type="cuda"),)

    def _get_backend_name(self) -> str:
        return "nccl"


NCCL = Group()


class OnGpu:
    is_cuda = True


class OnCpu:
    is_cuda = False


@pytest.mark.parametrize(
    ("seen_by", "tensor", "is_asynchronous", "timed"),
    [
        (BY_STREAM, OnGpu, True, True),
        (BY_STREAM, OnGpu, False, False),
        (BY_STREAM, OnGpu, None, False),
        (BY_STREAM_OF_GPU, OnGpu, True, True),
        (BY_STREAM_OF_GPU, OnCpu, True, False),
    ],
)
def test_only_asynchronous_collectives_on_a_gpu_are_followed(
    writer: Writer,
    seen_by: int,
    tensor: Callable[[], object],
    is_asynchronous: bool | None,
    timed: bool,
) -> None:
    hidden = Hidden(StreamWaits(FakeCuda()))

    arguments = (object(), [[tensor()]], object())
    hidden.began(Work(), writer, seen_by, arguments, is_asynchronous)

    assert len(hidden.flights) == timed


def test_blocking_collective_of_the_ranks_own_stream_hides_nothing_and_one_beside_it_is_a_gap(
    writer: Writer, rank: Rank
) -> None:
    stream = ["own"]
    events = StreamWaits(FakeCuda(), find_stream=lambda: stream[0])
    hidden = Hidden(events)
    assert events.is_on()
    events.mark_own()

    hidden.began(Work(), writer, BY_STREAM, (), False)
    hidden.tell_when_due(writer)
    assert rank.read().hidden == ToldHidden(works=1)
    stream[0] = "of the framework"
    hidden.began(Work(), writer, BY_STREAM, (), False)

    assert rank.read().hidden == ToldHidden(works=1, has_untimed=True)


def test_calls_that_are_joined_are_one_collective(writer: Writer) -> None:
    hidden = Hidden(StreamWaits(FakeCuda()))
    joined = Work()
    begin = make_joining(lambda _group: None, get_ident(), hidden)
    end = make_joined(lambda _group: joined, get_ident(), Groups(), hidden)

    begin(NCCL)
    hidden.began(Work(), writer, BY_STREAM, (), True)
    assert len(hidden.flights) == 0
    assert end(NCCL) is joined
    hidden.began(Work(), writer, BY_STREAM, (), True)

    assert len(hidden.flights) == 2


@pytest.mark.parametrize(
    ("stretches", "fresh"),
    [
        ([(0, 5), (5, 7)], [5, 2]),
        ([(0, 5), (3, 7)], [5, 2]),
        ([(3, 7), (0, 5)], [4, 3]),
        ([(0, 2), (4, 6), (1, 5)], [2, 2, 2]),
        ([(0, 2), (4, 6), (8, 9), (-1, 10)], [2, 2, 1, 6]),
        ([(4, 4), (5, 4)], [0, 0]),
        ([(0, 9), (2, 3)], [9, 0]),
    ],
)
def test_each_instant_is_taken_once(stretches: list[tuple[int, int]], fresh: list[int]) -> None:
    taken = Stretches()

    assert [taken.take(*one) for one in stretches] == fresh


def test_stretches_remembered_are_bounded_and_what_is_forgotten_is_never_free_again() -> None:
    taken = Stretches()
    for begin in range(0, 2000, 2):
        taken.take(begin, begin + 1)

    assert len(taken._taken) <= 64
    assert taken.take(0, 2000) < 100


# Under real PyTorch, on a device where the stream stands still for 700 ms at each wait -------------

JOB = """
import os, torch, torch.distributed as dist

class Event:
    now_ms = 0.0
    def __init__(self, enable_timing):
        self.at_ms = 0.0
    def record(self, stream=None):
        Event.now_ms += 700.0  # the host waits for less, also on a busy machine
        self.at_ms = Event.now_ms
    def query(self):
        return True
    def elapsed_time(self, end):
        return end.at_ms - self.at_ms

dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=0, world_size=1)
group = torch._C._distributed_c10d.ProcessGroup
group._get_backend_name = lambda self: "nccl"
group._device_types = [torch.device("cuda")]
joined = []
group._start_coalescing = lambda self, device: None
group._end_coalescing = lambda self, device: joined.pop()
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.Event = Event
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
ones = torch.ones(2)
for _ in range(4):
    model(torch.ones(4, 8)).square().sum().backward()
    works = [dist.all_reduce(ones, async_op=True), dist.broadcast(ones, 0, async_op=True)]
    for work in works:
        work.wait()
    dist.all_reduce(ones)
    optimizer.step()
from time import sleep
sleep(0.11)  # what was timed is told ten times a second
dist.all_reduce(ones, async_op=True).wait()
with dist.distributed_c10d._coalescing_manager(device=torch.device("cuda"), async_ops=True) as one:
    joined.append(dist.broadcast(ones, 0, async_op=True))
one.wait()
print(ones.tolist())
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch installed")
def test_scripts_asynchronous_collectives_are_timed_on_its_device(tmp_path: Path) -> None:
    rank = Rank(tmp_path, environment={layout.ENV_AUTO: "1"})

    assert rank.run(sys.executable, JOB).split() == ["[1.0,", "1.0]"]

    hidden = rank.read().hidden
    assert hidden is not None
    assert not hidden.has_untimed
    # Two a step from the third on, in flight until the waits began: 1.4 s and 1.4 s more, of which
    # 0.7 s are the wait for the first.
    assert hidden.works_least_s == pytest.approx(hidden.works_most_s)
    assert hidden.works_least_s > 2
