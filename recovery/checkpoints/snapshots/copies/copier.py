"""The launcher's end of its copier: starts the process, and another one in the place of one that died.

It is started with the first command, or at once where a launcher that was killed has left copies: a job that keeps no
snapshots has none.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import Clock
from rankmend.parts_path import program
from recovery.checkpoints.snapshots.copies.copy_messages import (
    LINE_BYTES_MAX,
    BelieveSecrets,
    CopierCommand,
    CopierEvent,
    CopierLost,
    StartCopier,
    decode_event,
    encode_line,
)
from recovery.checkpoints.snapshots.files import copy_paths
from recovery.messages.exchange import Endpoint

log = logging.getLogger(__name__)

STARTS_MAX: Final = 5
NO_LIMIT_BYTES_PER_S: Final = 1e15
PAUSE_S: Final = 5.0  # doubled from start to start
END_S_MAX: Final = 2.0
_READ_BYTES: Final = 1 << 16
_WAITING_BYTES_MAX: Final = 8 << 20  # commands that a stopped copier doesn't read


class CopierProcess:
    """For the launcher's thread. Nothing here blocks but `close`, and that for `END_S_MAX`."""

    def __init__(
        self, start: StartCopier, listener: socket.socket, endpoint: Endpoint, clock: Clock
    ) -> None:
        """Take over a socket that listens; ``endpoint``: where other nodes reach it."""
        self._start = start
        self._clock = clock
        self._listener = listener
        self._endpoint = endpoint
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._unsent = b""
        self._starts = 0
        self._start_at_s = float("-inf")
        if copy_paths(Path(start.folder)):
            self._spawn()

    @property
    def endpoint(self) -> Endpoint | None:
        return None if self._process is None and self._starts else self._endpoint

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def believe(self, secrets: tuple[str, ...]) -> None:
        if secrets != self._start.secrets:
            self._start = msgspec.structs.replace(self._start, secrets=secrets)
            if self._process is not None:
                self.send(BelieveSecrets(secrets))

    def send(self, command: CopierCommand) -> None:
        if not self._starts:
            self._spawn()
        if self._process is not None and len(self._unsent) < _WAITING_BYTES_MAX:
            self._unsent += encode_line(command)
            self._flush()

    def take_events(self) -> list[CopierEvent]:
        events: list[CopierEvent] = []
        process = self._process
        if process is None:
            if 0 < self._starts < STARTS_MAX and self._clock.now_s() >= self._start_at_s:
                self._spawn()
            return events
        self._flush()
        assert process.stdout is not None, "it is a pipe"
        has_ended = False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(process.stdout.fileno(), _READ_BYTES):
                self._read += data
            has_ended = True
        *lines, self._read = self._read.split(b"\n")
        for line in lines:
            try:
                events.append(decode_event(line))
            except msgspec.MsgspecError as error:
                log.warning("the copier of snapshots said %.200r: %s", line, error)
        if has_ended or len(self._read) > LINE_BYTES_MAX:
            events.append(self._bury(process))
        return events

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        self._listener.close()

    def _spawn(self) -> None:
        self._starts += 1
        descriptor = self._listener.fileno()
        self._listener.setblocking(True)
        # With the launcher's environment: its packages may lie where PYTHONPATH says.
        command = program("recovery.checkpoints.snapshots.copies.copier_process")
        self._process = subprocess.Popen(
            [sys.executable, *command, str(descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(descriptor,),
            start_new_session=True,  # a terminal's Ctrl-C is the launcher's business
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._read, self._unsent = b"", b""
        self.send(self._start)

    def _flush(self) -> None:
        process = self._process
        if process is None or not self._unsent:
            return
        assert process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                written = os.write(process.stdin.fileno(), self._unsent)
                self._unsent = self._unsent[written:]

    def _bury(self, process: "subprocess.Popen[bytes]") -> CopierLost:
        code = _end(process)
        self._process = None
        self._start_at_s = self._clock.now_s() + PAUSE_S * 2 ** (self._starts - 1)
        is_final = self._starts >= STARTS_MAX
        return CopierLost(f"exit code {code}, start {self._starts} of {STARTS_MAX}", is_final)


def _end(process: "subprocess.Popen[bytes]") -> int:
    """End the process and return its exit code."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None, "both are pipes"
        with contextlib.suppress(OSError):
            pipe.close()
    try:
        return process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
