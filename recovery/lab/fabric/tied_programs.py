"""Programs that a flow runs: each with a time limit, bounded output, and an end together with this process, whatever kills it.

A program that a driver holds in the kernel can't be killed at once. It is left behind, it dies when the driver lets it go, and nothing
is started again on its device before that.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmend.errors import LaunchError, SourceError
from recovery.launcher.processes.process_tree import pids, read_state

OUTPUT_BYTES_MAX: Final = 1 << 18
_TIED: Final = Path(__file__).with_name("tied_child.py")
_KILL_S_MAX: Final = 3.0  # for a killed program to be gone
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """``code``: None where it was killed at its time limit."""

    code: int | None
    output: str
    errors: str


@dataclass(slots=True)
class TiedProgram:
    """A program that runs, below `tied_child`, which ends with the pipe to its standard input."""

    process: "subprocess.Popen[bytes]"
    _files: tuple[int, int]

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> bool:
        """Return whether it is over. It is not reaped yet, so that its number stays its own."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return (
            self.process.returncode is not None
            or os.waitid(os.P_PID, self.process.pid, flags) is not None
        )

    def wait(self, limit_s: float, is_wanted: Callable[[], bool] = lambda: True) -> ProgramEnd:
        """Return how it ended; kill it at the limit, or as soon as nobody wants it any more."""
        until_s = time.monotonic() + limit_s
        while not (has_ended := self.has_ended()) and time.monotonic() < until_s and is_wanted():
            time.sleep(_LOOK_S)
        self.kill()
        code = self.process.returncode if has_ended else None
        return ProgramEnd(code, *map(_read, self._files))

    def kill(self) -> None:
        """Kill it with all of its group, and wait a moment until all of them are gone."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        until_s = time.monotonic() + _KILL_S_MAX
        while not self.is_gone() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)

    def is_gone(self) -> bool:
        """Return whether no process of its group is left. `tied_child` dies at once, also where a driver holds the program below it."""
        return self.process.poll() is not None and not _has_members(self.process.pid)


@dataclass(slots=True)
class TiedPrograms:
    """All programs of this process. For any thread."""

    _running: set[int] = field(default_factory=set)
    _stuck: list[tuple[str, TiedProgram]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: bool = False

    @contextlib.contextmanager
    def run(self, words: Sequence[str], device: str) -> Iterator[TiedProgram]:
        """Start a program, and kill it at the end of the block. Raises LaunchError where it can't be started."""
        files = (os.memfd_create("output"), os.memfd_create("errors"))
        program = None
        try:
            program = TiedProgram(self._start(words, device, files), files)
            yield program
        finally:
            if program is not None:
                self._end(device, program)
                if program.process.stdin is not None:
                    program.process.stdin.close()
            for file in files:
                os.close(file)

    def close(self) -> None:
        """Kill all, and start no more."""
        with self._lock:
            self._is_closed = True
            for pid in self._running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def _start(
        self, words: Sequence[str], device: str, files: tuple[int, int]
    ) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._is_closed:
                raise LaunchError("the test was stopped")
            self._stuck = [item for item in self._stuck if not item[1].is_gone()]
            if any(name == device for name, _program in self._stuck):
                raise LaunchError(f"a killed {Path(words[0]).name} still holds {device}")
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", _TIED, str(OUTPUT_BYTES_MAX), *words],
                    stdin=subprocess.PIPE, stdout=files[0], stderr=files[1], start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise LaunchError(f"cannot run {words[0]}: {error.strerror}") from error
            self._running.add(process.pid)
        return process

    def _end(self, device: str, program: TiedProgram) -> None:
        with self._lock:
            self._running.discard(program.pid)  # its number may be another's after this
        program.kill()
        if not program.is_gone():
            with self._lock:
                self._stuck.append((device, program))


def _read(file: int) -> str:
    return os.pread(file, OUTPUT_BYTES_MAX, 0).decode("utf-8", "replace")


def _has_members(group: int) -> bool:
    """Return whether a process of the group is left. One that is dead doesn't count: nobody may reap it where process 1 is a job's own."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # another user's: the number is in use again
        return False
    return any(_is_member(pid, group) for pid in pids())


def _is_member(pid: int, group: int) -> bool:
    with contextlib.suppress(SourceError):
        state = read_state(pid)
        return state is not None and state.group == group and state.letter not in "ZX"
    return False
