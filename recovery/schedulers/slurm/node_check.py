"""Runs a site's check of one node: by argument vector, within a timeout, never waited for.

Each check has a thread and a session of its own. `timeout` of coreutils ends it even if the controller was killed
meanwhile; a process that nothing can end (state D) is left behind.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rankmend.printable import printable

LINE_MAX: Final = 300  # of what is kept of the output
_TAIL_BYTES: Final = 4096
_CHUNK_BYTES: Final = 1 << 16
_LOOK_S: Final = 0.1
_MARGIN_S: Final = 2.0  # for us to end it, before `timeout` does
_REAP_S_MAX: Final = 1.0
_KEPT: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "SLURM_CONF", "SLURM_CONF_SERVER", "TZ",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckEnd:
    exit_code: int | None  # None: it could not be run, or did not end in time
    text: str  # the last line of its output, or why there is no exit code

    @property
    def is_passed(self) -> bool:
        return self.exit_code == 0


class RunningCheck(Protocol):
    def end(self) -> CheckEnd | None:
        """Return how it ended, or None while it runs."""
        ...

    def stop(self) -> None:
        """Kill it. Does not wait."""
        ...


class StartCheck(Protocol):
    def __call__(self, words: Sequence[str], timeout_s: float, /) -> RunningCheck: ...


def words_for(command: Sequence[str], node: str) -> list[str]:
    """Return the argument vector for a node."""
    return [word.replace("{node}", node) for word in command]


def start_check(words: Sequence[str], timeout_s: float) -> RunningCheck:
    return _Check(words, timeout_s, os.environ)


class _Check:
    def __init__(
        self, words: Sequence[str], timeout_s: float, environment: Mapping[str, str]
    ) -> None:
        self._words = list(words)
        self._timeout_s = timeout_s
        retained = {name: environment[name] for name in _KEPT if name in environment}
        self._environment = {**retained, "LC_ALL": "C.UTF-8"}
        self._end: CheckEnd | None = None
        self._should_stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._run, name="node-check", daemon=True).start()

    def end(self) -> CheckEnd | None:
        return self._end

    def stop(self) -> None:
        self._should_stop.set()
        process = self._process
        if process is not None and process.poll() is None:
            _kill(process)

    def _run(self) -> None:
        try:
            self._end = self._follow()
        except OSError as error:
            self._end = CheckEnd(None, f"cannot be run: {error.strerror}")

    def _follow(self) -> CheckEnd:
        until_s = time.monotonic() + self._timeout_s
        backstop = ["timeout", "--signal=KILL", f"{self._timeout_s + _MARGIN_S:g}"]
        process = subprocess.Popen(
            [*backstop, *self._words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None, "a pipe was asked for"
        tail = b""
        # Its end counts, not that of its output: what it leaves behind (a shared ssh connection) may keep that open.
        with process.stdout as output, selectors.DefaultSelector() as selector:
            os.set_blocking(output.fileno(), False)
            selector.register(output, selectors.EVENT_READ)
            while process.poll() is None:
                if self._should_stop.is_set() or time.monotonic() >= until_s:
                    _kill(process)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_REAP_S_MAX)
                    why = "stopped" if self._should_stop.is_set() else "no end"
                    return CheckEnd(
                        None, f"{why} after {self._timeout_s:g} s{_last_line_text(tail)}"
                    )
                if selector.get_map():
                    if selector.select(_LOOK_S) and (more := _read(output.fileno())) is not None:
                        tail = (tail + more)[-_TAIL_BYTES:]
                        if not more:
                            selector.unregister(output)
                else:
                    time.sleep(_LOOK_S)
            tail = (tail + (_read(output.fileno()) or b""))[-_TAIL_BYTES:]
        if process.returncode in (126, 127) and not tail:
            return CheckEnd(process.returncode, "the command was not found or can't be run")
        return CheckEnd(process.returncode, _last_line(tail))


def _read(descriptor: int) -> bytes | None:
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, _CHUNK_BYTES)
    return None


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # `timeout` is the head of a group with all that it started, unless that made a session of its own.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(tail: bytes) -> str:
    lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines() if line.strip()]
    return printable(lines[-1][:LINE_MAX]) if lines else ""


def _last_line_text(tail: bytes) -> str:
    line = _last_line(tail)
    return f": {line}" if line else ""
