"""Ranks that wait for the word to misbehave, and what follows it."""

import contextlib
import importlib.util
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.gpu.agent_beside import ROOT, environment
from bench.gpu.fault_evidence import Ears, Evidence
from bench.gpu.rows import NotTriedError
from bench.gpu.watch import Watched

READY_S_MAX: Final = 25.0  # the processes import torch at once
BUILD_S_MAX: Final = 25.0
END_S_MAX: Final = 10.0
HEAR_S_MAX: Final = 2.0
SAID_LINES_MAX: Final = 200
SOURCE: Final = Path(__file__).with_name("misbehave.cu")
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

    def go(self, library: str) -> None:
        """Have it open the GPU and launch. Raises RuntimeError where it never came up."""
        assert self.process.stdin is not None
        if self.hear(READY_S_MAX) != "ready":
            raise RuntimeError(f"{self.fault} did not come up: {self.lines()[-3:]}")
        self.process.stdin.write(f"go {library}\n".encode())

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
    """Ranks that wait for their word, the library with the kernels, and what was heard so far."""

    def __init__(self, nvml: Any, folder: Path) -> None:
        self.watched: Watched | None = None
        with contextlib.suppress(NotTriedError):
            self.watched = Watched(nvml)
        self.ears = Ears(self.watched)
        self.heard: list[Evidence] = []
        self._folder = folder
        self.ranks = {fault: FaultyRank(fault, folder) for fault in FAULTS}
        self._library = folder / "misbehave.so"
        self._build: subprocess.Popen[bytes] | None = None
        if nvcc := _nvcc():
            self._build = subprocess.Popen(
                [
                    *(nvcc, "-shared", "-Xcompiler", "-fPIC", "-O2"),
                    *("-gencode", "arch=compute_90,code=sm_90"),
                    *("-gencode", "arch=compute_80,code=compute_80"),
                    *("-o", str(self._library), str(SOURCE)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(folder / "nvcc.err").open("wb"),
            )

    def library(self) -> str:
        """Return what fault_worker.py loads, or raise NotTriedError."""
        if self._build is not None:
            try:
                if self._build.wait(BUILD_S_MAX) == 0:
                    return str(self._library)
            except subprocess.TimeoutExpired:
                self._build.kill()
                self._build.wait()
        if importlib.util.find_spec("cupy") is not None:
            return "cupy"
        said = ""
        with contextlib.suppress(OSError):
            said = (self._folder / "nvcc.err").read_text(errors="replace")[-200:]
        raise NotTriedError(f"neither nvcc nor CuPy builds the kernels here {said}".strip())

    @contextlib.contextmanager
    def listening(self, rank: FaultyRank) -> Iterator[Evidence]:
        """Keep what follows a fault."""
        evidence = Evidence(rank.fault, rank.pid)
        self.heard.append(evidence)
        yield evidence
        self.ears.hear(evidence, HEAR_S_MAX)

    def close(self) -> None:
        for rank in self.ranks.values():
            if rank.process.poll() is None:
                rank.kill()
        if self._build is not None and self._build.poll() is None:
            self._build.kill()
        self.ears.close()
        if self.watched is not None:
            self.watched.sampler.close()


def _nvcc() -> str | None:
    for path in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if path and os.access(path, os.X_OK):
            return path
    return None
