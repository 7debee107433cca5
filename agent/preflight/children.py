"""Processes that may hang in the kernel, run side by side and never waited for beyond their deadlines.

Each is the head of a session of its own, is killed by the kernel when its starter dies, and has a timer that ends it in any
case. None holds the caller's streams: slurmd, for one, waits for the end of its prolog's. A process that SIGKILL does not
end is in state D: it is reported with where it waits, and left behind.

Use them from the main thread of a process with one thread: the child is a fork, and its death signal is bound to the thread
that forked it (prctl(2), PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from detectors.preflight.levels import REAP_S

_PR_SET_PDEATHSIG: Final = 1
_LINES_BYTES_MAX: Final = 8_000_000
_ERRORS_BYTES_KEPT: Final = 4_000
_CHUNK_BYTES: Final = 1 << 16
_ALONE_S: Final = (
    2.0  # a child whose starter neither ended it nor died ends so long after its deadline
)
_DESCRIPTORS_MAX: Final = 4096
_LOOK_S: Final = 0.02
_LIBC: Final = ctypes.CDLL(None)


class ChildEndKind(Enum):
    """How a process ended."""

    ENDED = "ended"
    KILLED = "killed"  # by us, at its deadline or because the check was stopped
    HUNG = "hung"  # SIGKILL does not end it


@dataclass(frozen=True, slots=True)
class ChildEnd:
    kind: ChildEndKind
    status: int | None  # exit code, or the negative signal; None: unknown
    output: bytes
    errors: str  # the last of what it wrote on stderr
    took_s: float
    waits_in: str = ""  # of one that hangs: state and place in the kernel

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON objects that it printed; what is no such line is left out."""
        found = []
        for line in self.output.splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found


@dataclass(slots=True)
class _Running:
    name: str
    pid: int
    began_s: float
    deadline_s: float  # monotonic
    output: int
    errors: int
    lifeline: int  # its end tells a wrapped program that we are gone
    data: bytearray = field(default_factory=bytearray)
    told: bytearray = field(default_factory=bytearray)
    status: int | None = None
    killed_s: float | None = None


class LoadChildren:
    """The processes of one check. ``wake``: a descriptor that becomes readable when the check is to stop."""

    def __init__(self, wake: int | None = None) -> None:
        self._wake = wake
        self._running: dict[str, _Running] = {}
        self.left_behind: list[str] = []

    def start_program(
        self,
        name: str,
        make_words: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        limit_s: float,
    ) -> None:
        """Start a program; ``make_words`` gets the descriptor of the lifeline, which it may pass on."""

        def body(lifeline: int) -> None:
            os.set_inheritable(lifeline, True)
            words = list(make_words(lifeline))
            os.execvpe(words[0], words, dict(environment))  # noqa: S606

        self._start(name, body, limit_s)

    def start_function(
        self, name: str, function: Callable[[int], Mapping[str, Any]], limit_s: float
    ) -> None:
        """Run a function in a fork; ``function`` gets a descriptor that ends when `finish` asks it to end."""

        def body(lifeline: int) -> None:
            answer = json.dumps(function(lifeline)).encode() + b"\n"
            while answer:
                answer = answer[os.write(1, answer) :]

        self._start(name, body, limit_s)

    def _start(self, name: str, body: Callable[[int], None], limit_s: float) -> None:
        assert name not in self._running, "a name is that of one process"
        output, output_end = os.pipe2(os.O_CLOEXEC)
        errors, errors_end = os.pipe2(os.O_CLOEXEC)
        lifeline_end, lifeline = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        now_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become_child(parent, limit_s, body, output_end, errors_end, lifeline_end)
        for descriptor in (output_end, errors_end, lifeline_end):
            os.close(descriptor)
        for descriptor in (output, errors):
            os.set_blocking(descriptor, False)
        self._running[name] = _Running(name, pid, now_s, now_s + limit_s, output, errors, lifeline)

    def ask_to_end(self, name: str) -> None:
        """Tell a function that its time is over: its descriptor ends."""
        running = self._running.get(name)
        if running is not None and running.lifeline >= 0:
            os.close(running.lifeline)
            running.lifeline = -1

    def wait(self, names: Sequence[str]) -> dict[str, ChildEnd]:
        """Return how each of these ended; returns early, with the rest killed, if the check is to stop."""
        ends: dict[str, ChildEnd] = {}
        while left := [self._running[name] for name in names if name in self._running]:
            if self._is_stopping():
                ends.update(self.stop(names))
                break
            for running in left:
                end = self._look(running)
                if end is not None:
                    ends[running.name] = end
            self._read([running for running in left if running.name in self._running])
        return ends

    def stop(self, names: Sequence[str] | None = None) -> dict[str, ChildEnd]:
        """Kill these, or all, and return how they ended, within `REAP_S`."""
        chosen = [self._running[n] for n in names or list(self._running) if n in self._running]
        for running in chosen:
            _kill(running)
        ends: dict[str, ChildEnd] = {}
        while left := [item for item in chosen if item.name in self._running]:
            for running in left:
                end = self._look(running)
                if end is not None:
                    ends[running.name] = end
            if left:
                time.sleep(_LOOK_S)
        return ends

    def _is_stopping(self) -> bool:
        return self._wake is not None and bool(select.select([self._wake], [], [], 0)[0])

    def _read(self, left: Sequence[_Running]) -> None:
        """Wait for output of any, a moment at most, and keep what is there."""
        descriptors = [self._wake] if self._wake is not None else []
        descriptors += [running.output for running in left if running.output >= 0]
        descriptors += [running.errors for running in left if running.errors >= 0]
        if not descriptors:
            time.sleep(_LOOK_S)
            return
        ready = set(select.select(descriptors, [], [], _LOOK_S * 5)[0])
        for running in left:
            if running.output in ready:
                running.output = _take(running.output, running.data, _LINES_BYTES_MAX)
            if running.errors in ready:
                running.errors = _take(running.errors, running.told, None)

    def _look(self, running: _Running) -> ChildEnd | None:
        """Return how a process ended if it has; kill it at its deadline, and leave it if that does not help."""
        now_s = time.monotonic()
        if running.status is None:
            running.status = _reap(running.pid)
        if running.status is not None:
            kind = ChildEndKind.ENDED if running.killed_s is None else ChildEndKind.KILLED
            return self._end(running, kind, now_s)
        if running.killed_s is None and now_s >= running.deadline_s:
            _kill(running)
        elif running.killed_s is not None and now_s >= running.killed_s + REAP_S:
            self.left_behind.append(running.name)
            return self._end(running, ChildEndKind.HUNG, now_s, _place_in_kernel(running.pid))
        return None

    def _end(
        self, running: _Running, kind: ChildEndKind, now_s: float, waits_in: str = ""
    ) -> ChildEnd:
        if kind is not ChildEndKind.HUNG:
            # What is left of its group, as a program behind a wrapper, ends with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.pid, signal.SIGKILL)
        for descriptor, data, most in (
            (running.output, running.data, _LINES_BYTES_MAX),
            (running.errors, running.told, None),
        ):
            if descriptor >= 0:
                left = _take(descriptor, data, most)
                if left >= 0:
                    os.close(left)
        if running.lifeline >= 0:
            os.close(running.lifeline)
        del self._running[running.name]
        status = running.status
        code = None if status is None else os.waitstatus_to_exitcode(status)
        reported = bytes(running.told[-_ERRORS_BYTES_KEPT:]).decode("utf-8", "replace")
        return ChildEnd(
            kind, code, bytes(running.data), reported, now_s - running.began_s, waits_in
        )


def _become_child(
    parent: int,
    limit_s: float,
    body: Callable[[int], None],
    output: int,
    errors: int,
    lifeline: int,
) -> None:
    """Run in the child; never returns."""
    code = 1
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        for item in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGPIPE):
            signal.signal(item, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_s + REAP_S + _ALONE_S)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (errors, 2)):
            os.dup2(source, target)
        for descriptor in range(3, _DESCRIPTORS_MAX):
            if descriptor != lifeline:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        body(lifeline)
        code = 0
    except BaseException as error:  # noqa: BLE001 - told to the parent, which has its stderr
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _take(descriptor: int, data: bytearray, most: int | None) -> int:
    """Read what is there and return the descriptor, or -1 once it has ended and is closed."""
    while True:
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return descriptor
        if not chunk:
            os.close(descriptor)
            return -1
        data += chunk
        if most is None:
            del data[:-_ERRORS_BYTES_KEPT]
        elif len(data) > most:
            del data[most:]


def _kill(running: _Running) -> None:
    if running.killed_s is None:
        running.killed_s = time.monotonic()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGKILL)


def _reap(pid: int) -> int | None:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if found else None


def _place_in_kernel(pid: int) -> str:
    """Return the state of a process's threads and where they wait, such as ``D in request_wait_answer``."""
    for folder in sorted(Path(f"/proc/{pid}/task").glob("*"))[:64]:
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            place = (folder / "wchan").read_text().strip("\0\n")
        except (OSError, IndexError):
            continue
        if state == "D":
            return f"{state} in {place}" if place not in ("", "0") else state
    return "not in state D"
