"""The standard output and standard error of a process that must never wait for its console.

`take_over` puts outlets behind ``sys.stdout`` and ``sys.stderr``, so that logs, notices, tracebacks
and `print` all go through them. What can't be written in time is dropped and counted
(`rankmend.outlet`). At the end of the process what is left is flushed, with a bound.
"""

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
from typing import IO, Final

from rankmend.outlet import FLUSH_STUCK_S, Descriptor, Outlet

_OUT: Final = 1
_ERR: Final = 2


class Console:
    """Descriptors 1 and 2, with one queue where both are the same file, so that order is kept."""

    def __init__(self, out: int = _OUT, err: int = _ERR) -> None:
        self._descriptors = {_OUT: out, _ERR: err}
        self._targets = {_OUT: Descriptor(out), _ERR: Descriptor(err)}
        first = Outlet("console")
        second = first if _is_same_file(out, err) else Outlet("console-err")
        self._outlets = {_OUT: first, _ERR: second}
        self._lock = threading.RLock()  # reentrant: a signal handler may print
        self._open_line: set[Outlet] = set()  # where a rank's line has no end yet: a progress bar

    def put(self, number: int, data: bytes, *, is_own: bool = False) -> None:
        """Show lines on standard output (1) or standard error (2), or drop them. Never waits.

        A line of rankmend itself (``is_own``) never stands behind a progress bar or a prompt of a rank.
        """
        outlet = self._outlets[number]
        with self._lock:
            if is_own and outlet in self._open_line:
                data = b"\n" + data
            if not outlet.put(self._targets[number], data, is_own=is_own):
                return
            if is_own or data.endswith(b"\n"):
                self._open_line.discard(outlet)
            else:
                self._open_line.add(outlet)

    def has_room(self, number: int) -> bool:
        """Return False while it is worth waiting for a reader that is slow and reads."""
        return self._outlets[number].has_room()

    def terminal(self, number: int) -> int | None:
        """Return the descriptor of standard output (1) or error (2) if it is a terminal."""
        descriptor = self._descriptors[number]
        return descriptor if os.isatty(descriptor) else None

    def flush(self, stuck_s: float = FLUSH_STUCK_S) -> bool:
        """Wait, with a bound, until all is shown; return whether it is."""
        flushed = [outlet.flush(stuck_s) for outlet in set(self._outlets.values())]
        return all(flushed)


class _Raw(io.RawIOBase):
    """What `print` and `logging` write to. Its flush waits for nothing."""

    def __init__(self, console: Console, number: int) -> None:
        self._console = console
        self._number = number

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._console.put(self._number, bytes(data), is_own=True)
        return len(data)

    def fileno(self) -> int:
        return self._number

    @property
    def name(self) -> str:
        return "<stdout>" if self._number == _OUT else "<stderr>"

    def isatty(self) -> bool:
        return os.isatty(self._number)


_lock = threading.Lock()
_console: Console | None = None


def take_over() -> Console:
    """Return this process's console, and have all that is printed from now on go through it.

    A background process may write to its terminal even where ``stty tostop`` forbids it: SIGTTOU
    would stop the whole process. Streams that are not descriptors 1 and 2 stay what they are.
    """
    global _console  # noqa: PLW0603 - a process has one
    with _lock:
        if _console is None:
            _open_standard()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            _console = Console()
            atexit.register(_console.flush)
        if _is_descriptor(sys.stdout, _OUT):
            sys.stdout = _stream(_console, _OUT, sys.stdout)
        if _is_descriptor(sys.stderr, _ERR):
            sys.stderr = _stream(_console, _ERR, sys.stderr)
        return _console


def flush(stuck_s: float = FLUSH_STUCK_S) -> bool:
    """Wait, with a bound, until all that was printed is shown; return whether it is."""
    return _console is None or _console.flush(stuck_s)


def _stream(console: Console, number: int, before: IO[str]) -> io.TextIOWrapper:
    with contextlib.suppress(OSError, ValueError):
        before.flush()
    raw = _Raw(console, number)
    encoding = getattr(before, "encoding", None) or "utf-8"
    return io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)


def _is_descriptor(stream: IO[str] | None, number: int) -> bool:
    if stream is None:
        return True  # it was closed when this process began
    if isinstance(getattr(stream, "buffer", None), _Raw):
        return False
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False


def _open_standard() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: the next file to be opened would be the console."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _is_same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
