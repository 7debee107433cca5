"""The GPU report's rows on hidden collectives, with the hook's own timing on a device of streams in virtual time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu.hidden_truth import HiddenTruth
from bench.gpu.rows import Trial
from rankmend.hook.hidden_work import Hidden
from rankmend.hook.stream_waits import StreamWaits
from rankmend.hook.writer import Writer
from tests.support.hook import Rank

pytestmark = pytest.mark.process

HOST_MS = 0.02  # what a call takes the host
COLLECTIVE_MS = 0.015  # what NCCL's kernel takes once it may begin


class Stream:
    """What has been handed to it ends at this moment."""

    def __init__(self) -> None:
        self.end_ms = 0.0


class Device:
    """Streams of which each does one thing after the other, a stream of NCCL's own, and a host that runs ahead."""

    name = "cuda"

    def __init__(self) -> None:
        self.host_ms = 0.0
        self.current, self.nccl = Stream(), Stream()
        self.streams = [self.current, self.nccl]
        distributed = SimpleNamespace(all_reduce=self.all_reduce)
        self.torch = SimpleNamespace(distributed=distributed, ones=lambda *_size, device: device)
        self.hidden: Hidden
        self.events: StreamWaits
        self.writer: Writer

    def do(self, milliseconds: float = 0.0, stream: Stream | None = None) -> float:
        """Hand something to a stream that takes it so long; return when it will be done."""
        self.host_ms += HOST_MS
        stream = stream or self.current
        stream.end_ms = max(stream.end_ms, self.host_ms) + milliseconds
        return stream.end_ms

    spin = do

    def stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def follow(self, stream: Stream) -> None:
        stream.end_ms = max(stream.end_ms, self.do())

    def synchronize(self) -> None:
        self.host_ms = max(self.host_ms, *(one.end_ms for one in self.streams))

    def all_reduce(self, _tensor: object, async_op: bool) -> "Work":
        assert async_op
        self.nccl.end_ms = max(self.nccl.end_ms, self.do())
        work = Work(self, self.do(COLLECTIVE_MS, self.nccl))
        self.hidden.flights.issued(work, self.writer)
        return work

    # As torch.cuda for the hook's events

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def Event(self, enable_timing: bool) -> "Event":  # noqa: N802 - as torch.cuda names it
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, 0.0

    def record(self) -> None:
        self.at_ms = self.device.do()

    def query(self) -> bool:
        return self.at_ms <= self.device.host_ms

    def elapsed_time(self, end: "Event") -> float:
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end.at_ms - self.at_ms


class Work:
    def __init__(self, device: Device, end_ms: float) -> None:
        self.device, self.end_ms = device, end_ms

    def wait(self) -> None:
        """As the hook wraps it: the current stream stands still until the collective's end."""
        device = self.device
        issue = device.hidden.flights.waits(self, device.writer)
        start = device.events.begin(device.writer)
        device.current.end_ms = max(device.do(), self.end_ms)
        device.events.end(start, device.writer, issue)
        device.hidden.tell_when_due(device.writer)


class OwnRank:
    """As bench.gpu.own_rank, with the device's hook."""

    def __init__(self, folder: Path) -> None:
        self._rank, self.device, self._steps = Rank(folder), Device(), 1
        device = self.device
        device.writer = Writer(str(self._rank.path))
        device.writer.step(1)
        device.events = StreamWaits(device, now_ns=lambda: int(device.host_ms * 1e6))
        device.hidden = Hidden(device.events)

    def hook(self) -> None:
        pass

    def step(self) -> None:
        self._steps += 1
        self.device.writer.step(self._steps)

    def flush(self) -> None:
        self.device.synchronize()
        self.device.all_reduce(None, async_op=True).wait()
        self.device.synchronize()

    def read(self) -> Any:
        return self._rank.read()


@pytest.mark.parametrize("row", ["measured", "within", "once"])
def test_row_finds_what_the_hook_tells_right(tmp_path: Path, row: str) -> None:
    trial = Trial()

    getattr(HiddenTruth(OwnRank(tmp_path)), row)(trial)

    assert trial.failures == []
    assert trial.figures["most_told_ms"] == pytest.approx(trial.figures["most_true_ms"], abs=0.2)


@pytest.mark.parametrize("row", ["measured", "within", "once"])
def test_row_finds_that_the_hook_tells_nothing(tmp_path: Path, row: str) -> None:
    rank, trial = OwnRank(tmp_path), Trial()
    rank.device.hidden.flights.waits = lambda _work, _writer: None  # forgets every issue

    getattr(HiddenTruth(rank), row)(trial)

    assert trial.failures
