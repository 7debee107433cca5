"""A process that works the GPU while the report looks at it: bench/gpu/load_worker.py, with bounded waits."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bench.gpu.rows import NotTriedError

READY_S_MAX: Final = 40.0  # import of torch, and the first context
STOP_S_MAX: Final = 15.0
WORKER: Final = (sys.executable, "-m", "bench.gpu.load_worker")

# dense bf16 operations a clock and SM, from NVIDIA's data sheets: 989.4 TFLOPS at 1,830 MHz on 132 SMs (H100 and H200
# SXM), 312 at 1,410 MHz on 108 (A100)
BF16_PER_CLOCK_AND_SM: Final = {(8, 0): 2048, (9, 0): 4096}


class LoadError(Exception):
    """The process that should work the GPU has failed."""


class Load:
    """What ran: when batches ended, and how much work one is."""

    def __init__(self, began: dict[str, Any]) -> None:
        self.work = float(began["work"])
        self.sms = int(began["sms"])
        self.capability = (int(began["capability"][0]), int(began["capability"][1]))
        self.marks: list[tuple[float, int]] = []

    def rate(self, from_s: float, to_s: float) -> float:
        """Return the work a second between two moments of CLOCK_MONOTONIC."""
        inside = [(at_s, count) for at_s, count in self.marks if from_s <= at_s <= to_s]
        if len(inside) < 3:
            raise LoadError(f"only {len(inside)} batches ended within {to_s - from_s:.1f} s")
        (first_s, first), (last_s, last) = inside[0], inside[-1]
        return (last - first) * self.work / (last_s - first_s)


class Worker:
    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._is_ready = False
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    @contextlib.contextmanager
    def running(self, name: str, number: int) -> Iterator[Load]:
        """Have it work; the load's marks are known after the block. Raises LoadError."""
        end_s = time.monotonic() + READY_S_MAX
        if not self._is_ready:
            self._hear(end_s)
            self._is_ready = True
        self._tell(f"{name} {number}")
        load = Load(self._hear(end_s))
        try:
            yield load
        except BaseException:
            self.kill()  # what it says next would be taken for the answer to another command
            raise
        self._tell("stop")
        stopped = self._hear(time.monotonic() + STOP_S_MAX)
        load.marks = [(float(at_s), int(count)) for at_s, count in stopped["marks"]]

    def kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S_MAX)

    def end(self) -> None:
        """End it in good order, so that its memory is freed at once."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except OSError as error:
            raise LoadError(f"the load has ended with {self._process.poll()}") from error

    def _hear(self, end_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([self._process.stdout], [], [], left_s)[0]:
                self.kill()
                raise LoadError("the load did not answer in time")
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            if not data:
                raise LoadError(f"the load has ended with {self._process.wait(STOP_S_MAX)}")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            if "out of memory" in message["error"]:
                raise NotTriedError(f"the GPU's memory is in use: {message['error']}")
            raise LoadError(message["error"])
        return message


class Workers:
    """One worker for all rows; another where it has died."""

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._command = command
        self._worker: Worker | None = None

    def get(self) -> Worker:
        if self._worker is None or not self._worker.is_alive():
            self._worker = Worker(self._command)
        return self._worker

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def peak_bf16_per_s(load: Load, sm_hertz: float) -> float:
    """Return the most dense bf16 operations a second at this clock, or raise NotTriedError."""
    per_clock = BF16_PER_CLOCK_AND_SM.get(load.capability)
    if per_clock is None:
        major, minor = load.capability
        raise NotTriedError(f"no data-sheet figure for compute capability {major}.{minor}")
    return per_clock * load.sms * sm_hertz
