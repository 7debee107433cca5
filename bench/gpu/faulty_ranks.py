"""Ranks that wait for the word to misbehave, and what follows it."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.gpu.agent_beside import ROOT, environment
from bench.gpu.fault_evidence import Ears, Evidence
from bench.gpu.fault_worker import REFUSED
from bench.gpu.rows import NotTriedError
from bench.gpu.watch import Watched

READY_S_MAX: Final = 25.0  # the processes import torch at once
END_S_MAX: Final = 10.0
HEAR_S_MAX: Final = 2.0
SAID_LINES_MAX: Final = 200
FAULTS: Final = ("read_far", "read_misaligned", "trap_always", "assert", "run_forever", "check")


class FaultyRank:
    """A process of bench/gpu/fault_worker.py, which imports torch while others are looked at."""

    def __init__(self, fault: str, folder: Path) -> None:
        self.fault = fault
        self._said = folder / f"{fault}.err"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.gpu.fault_worker", fault],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                bufsize=0,
                cwd=ROOT,
                env={**environment(), "CUDA_LAUNCH_BLOCKING": "0"},
            )
        self._rest = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, timeout_s: float) -> str:
        """Return the next line, empty where there is none in time."""
        assert self.process.stdout is not None
        end_s = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                return ""
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return ""
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode(errors="replace").strip()

    def go(self) -> None:
        """Have it open the GPU and launch. Raises RuntimeError where it never came up."""
        assert self.process.stdin is not None
        if self.hear(READY_S_MAX) != "ready":
            raise RuntimeError(f"{self.fault} did not come up: {self.lines()[-3:]}")
        self.process.stdin.write(b"go\n")

    def end(self) -> int | None:
        """Wait for its end; return the exit code, a signal's as -N, None where it had to be killed."""
        try:
            return self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> float:
        """Kill it; return after how many seconds it was gone."""
        began_s = time.monotonic()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S_MAX)
        return time.monotonic() - began_s

    def lines(self) -> list[str]:
        text = self._said.read_text(encoding="utf-8", errors="replace")
        return text.splitlines()[-SAID_LINES_MAX:]


class Faults:
    """Ranks that wait for their word, and what was heard so far."""

    def __init__(self, nvml: Any, folder: Path) -> None:
        self.watched: Watched | None = None
        with contextlib.suppress(NotTriedError):
            self.watched = Watched(nvml)
        self.ears = Ears(self.watched)
        self.heard: list[Evidence] = []
        self.ranks = {fault: FaultyRank(fault, folder) for fault in FAULTS}

    @contextlib.contextmanager
    def listening(self, rank: FaultyRank) -> Iterator[Evidence]:
        """Keep what follows a fault. Raises NotTriedError where there was none."""
        evidence = Evidence(rank.fault, rank.pid)
        yield evidence
        if rank.process.poll() == REFUSED:
            raise NotTriedError(f"the driver takes no PTX: {' '.join(rank.lines()[-1:])}")
        self.heard.append(evidence)
        self.ears.hear(evidence, HEAR_S_MAX)

    def close(self) -> None:
        for rank in self.ranks.values():
            if rank.process.poll() is None:
                rank.kill()
        self.ears.close()
        if self.watched is not None:
            self.watched.sampler.close()
