"""Stands in for torch.cuda: events on a stream that passes them when it is told to."""

import struct


class FakeCuda:
    """Events on a stream that passes them when told to."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.passed_ms = -1.0
        self.is_capturing = False
        self.made = self.times_read = 0
        self.broken_after: int | None = None  # so many reads of times

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def Event(self, enable_timing: bool) -> "FakeEvent":  # noqa: N802 - as torch.cuda names it
        assert enable_timing
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = self.cuda.now_ms

    def query(self) -> bool:
        return self.at_ms <= self.cuda.passed_ms

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.query(), "read before the stream has passed the first"  # CUDA refuses both
        assert end.query(), "read before the stream has passed the second"
        self.cuda.times_read += 1
        if self.cuda.broken_after is not None:
            self.cuda.broken_after -= 1
            if self.cuda.broken_after < 0:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        (float32_ms,) = struct.unpack("f", struct.pack("f", end.at_ms - self.at_ms))
        return float(float32_ms)
