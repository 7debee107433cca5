"""Runs one program with bounds: no shell, no input, fixed environment, bounded time and output.

A program that can't be killed (D state, on a bus that hangs) is left behind, and is not started
again before it has ended.
"""

import os
import selectors
import signal
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from agent.root_helper.questions import ProgramOutcome, ProgramResult
from rankmend.clock import Clock
from rankmend.errors import SourceError

OUTPUT_BYTES_MAX: Final = 1 << 20  # 2,000 sensors or a full SEL need 200 kB
ERROR_BYTES_MAX: Final = 2_000
KILL_S_MAX: Final = 2.0
LEFT_PIPES_S_MAX: Final = 0.5  # for what a program's own children still have to say
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Program:
    """One program call of the fixed list."""

    name: str  # name of the result: a device, or a part of the query
    paths: tuple[str, ...]  # absolute; the first that is there is run
    arguments: tuple[str, ...]
    timeout_s: float


class ProgramRunner:
    """Runs programs and remembers those that could not be ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stuck: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
        self._is_stopped = False

    def run(self, program: Program, deadline_s: float) -> ProgramResult:
        """Return what a program says, at the latest `KILL_S_MAX` after the deadline."""
        path = next((path for path in program.paths if Path(path).is_file()), None)
        if path is None:
            return ProgramResult(
                program.name, ProgramOutcome.ABSENT, error=f"no {program.paths[0]}"
            )
        command = (path, *program.arguments)
        now_s = self._clock.now_s()
        try:
            if now_s >= deadline_s:
                raise SourceError("no time left to run it")
            process = self._begin(command)
        except SourceError as error:
            return ProgramResult(program.name, ProgramOutcome.FAILED, error=str(error))
        try:
            return self._follow(
                program, command, process, min(deadline_s, now_s + program.timeout_s)
            )
        finally:
            with self._lock:
                self._running.discard(process)

    def _begin(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        _check_trust(command[0])
        with self._lock:
            earlier = self._stuck.get(command)
            if earlier is not None and earlier.poll() is None:
                text = f"an earlier run (pid {earlier.pid}) hangs and can't be killed"
                raise SourceError(text)
            self._stuck.pop(command, None)
            if self._is_stopped:
                raise SourceError("the helper is stopping")
            try:
                process = _start(command)
            except OSError as error:
                raise SourceError(f"cannot run {command[0]}: {error.strerror}") from error
            self._running.add(process)
        return process

    def has_stuck(self) -> bool:
        """Return whether an abandoned program is still running."""
        with self._lock:
            return any(process.poll() is None for process in self._stuck.values())

    def stop(self) -> None:
        """Kill what runs, and start nothing more."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                _kill(process)

    def _follow(
        self,
        program: Program,
        command: Sequence[str],
        process: subprocess.Popen[bytes],
        deadline_s: float,
    ) -> ProgramResult:
        output, error_text, problem = self._read(process, deadline_s)
        _kill(process)  # and its children; it is not reaped yet, so the group is still its own
        try:
            exit_code = process.wait(KILL_S_MAX)
        except subprocess.TimeoutExpired:
            with self._lock:
                self._stuck[tuple(command)] = process
            problem, exit_code = f"{command[0]} hangs and can't be killed", -signal.SIGKILL
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        if problem:
            return ProgramResult(program.name, ProgramOutcome.FAILED, exit_code, output, problem)
        return ProgramResult(program.name, ProgramOutcome.ANSWERED, exit_code, output, error_text)

    def _read(
        self, process: subprocess.Popen[bytes], deadline_s: float
    ) -> tuple[str, str, str | None]:
        """Return output, error text and why it was cut short, if it was."""
        output, error_text = bytearray(), bytearray()
        problem: str | None = None
        pidfd = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                assert process.stdout is not None
                assert process.stderr is not None
                selector.register(process.stdout, selectors.EVENT_READ, output)
                selector.register(process.stderr, selectors.EVENT_READ, error_text)
                selector.register(pidfd, selectors.EVENT_READ, None)
                while problem is None and selector.get_map():
                    left_s = deadline_s - self._clock.now_s()
                    found = selector.select(max(0.0, left_s))
                    # a stop of this process that outlasts the time ends select() without a look
                    found = found or selector.select(0)
                    if left_s <= 0 and not found:
                        if pidfd in selector.get_map():
                            problem = "it took too long"
                        break
                    for key, _events in found:
                        if key.data is None:  # it has ended
                            selector.unregister(pidfd)
                            deadline_s = min(deadline_s, self._clock.now_s() + LEFT_PIPES_S_MAX)
                            continue
                        data = os.read(key.fd, _CHUNK)
                        if not data:
                            selector.unregister(key.fileobj)
                        key.data.extend(data)
                        if key.data is error_text:
                            del error_text[ERROR_BYTES_MAX:]
                    if len(output) > OUTPUT_BYTES_MAX:
                        problem = f"more than {OUTPUT_BYTES_MAX} bytes of output"
        finally:
            os.close(pidfd)
        texts = (bytes(data[:OUTPUT_BYTES_MAX]) for data in (output, error_text))
        output_text, text = (data.decode("utf-8", "replace") for data in texts)
        return output_text, text.strip(), problem


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=_ENVIRONMENT,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # else it is reaped and its number may be another's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _check_trust(path: str) -> None:
    """Raise SourceError for a program that another user could have written: root must not run it."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of the file that a link leads to
    except OSError as error:
        raise SourceError(f"cannot stat {path}: {error.strerror}") from error
    if found.st_uid not in (0, os.geteuid()):
        raise SourceError(f"{path} belongs to uid {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SourceError(f"other users may write to {path}")
