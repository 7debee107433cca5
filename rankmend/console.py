"""Standard output and standard error of a process that must never wait for its console.

`take_over` puts outlets behind ``sys.stdout`` and ``sys.stderr``, so that logs, notices, tracebacks
and `print` all go through them. An outlet drops and counts what it can't write in time. At the end
of the process it flushes the rest, with a bound.

A child that is forked without exec has no thread, and must not use its parent's outlets.
"""

import atexit
import contextlib
import errno
import io
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Final, NamedTuple, Protocol

ROOM_BYTES: Final = 1 << 20  # 10,000 lines of 100 characters
# A reader that is only slow gets more: the last lines of a rank that died are taken without waiting.
SLOW_BYTES_MAX: Final = 8 << 20
OWN_BYTES: Final = 256 << 10  # kept free for lines of rankmend itself: 1,000 of the longest
STUCK_S: Final = 10.0  # a page in a pager, a stall of ssh or NFS; far below any limit for hangs
FLUSH_STUCK_S: Final = 5.0  # at the end, for a reader that takes nothing
FLUSH_S_MAX: Final = 60.0  # at the end, for one that is slow
_PIECE_BYTES: Final = 4096  # PIPE_BUF: a reader of one page counts as reading
_ERROR_CHARS_MAX: Final = 200
_RETRY_S: Final = 1.0  # a descriptor that another program has made non-blocking

_OUT: Final = 1
_ERR: Final = 2


class OutletTarget(Protocol):
    """Where the bytes go. Used by the outlet's thread alone."""

    def write(self, data: memoryview) -> int:
        """Write some of it, as long as that takes, and return how many bytes; or raise OSError.

        Any other exception counts as a failed write, too.
        """
        ...

    def close(self) -> None: ...

    def describe_loss(self, lines: int, error: OSError | None) -> bytes:
        """Return the line that takes the place of lines that are lost. ``error``: None: no room."""
        ...


class Descriptor:
    """An open descriptor, which stays open."""

    def __init__(self, number: int) -> None:
        self._number = number

    def write(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self._number, data)
            except BlockingIOError:
                select.select([], [self._number], [], _RETRY_S)

    def close(self) -> None:
        return

    def describe_loss(self, lines: int, error: OSError | None) -> bytes:
        why = "the console was not read" if error is None else f"of an error: {error.strerror}"
        return f"rankmend: {lines} lines were dropped here because {why}\n".encode()


class _Item(NamedTuple):
    target: OutletTarget
    data: bytes  # empty: close the target
    lines: int  # that are lost if it can't be written
    is_note: bool = False  # one line that stands for `lines` others


class Outlet:
    """A bounded queue and one daemon thread that writes it; the targets of one outlet wait for each other.

    A write to a terminal under Ctrl-S, a pager, a dead ssh connection, journald or a network file
    system can block for as long as nobody reads. `put` never waits: it drops and counts what finds
    no room, and the outlet writes the count in its place once the reader is back. A caller who can
    wait, such as the thread that reads the ranks' pipes, slows down for a reader that is slow but
    reads (`has_room`), and not for one that reads nothing for `STUCK_S`.

    ``on_loss`` is called, by any thread, when a target begins to lose lines.
    """

    def __init__(
        self,
        name: str,
        on_loss: Callable[[OutletTarget, OSError | None], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._on_loss = on_loss
        self._now_s = now_s
        self._changed = threading.Condition()  # guards all below, never held while writing
        self._queue: deque[_Item] = deque()
        self._bytes = 0
        self._lost: dict[OutletTarget, int] = {}  # lines that no note has counted yet
        self._errors: dict[OutletTarget, OSError] = {}  # targets whose last write failed
        self._torn: set[OutletTarget] = set()  # and which failed in the middle of a line
        self._moved_at_s: float | None = None  # when the write under way began or last moved
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def put(self, target: OutletTarget, data: bytes, *, is_own: bool = False) -> bool:
        """Queue whole lines; return False where they are dropped. Never waits.

        ``is_own``: lines of rankmend itself, which may take the room that is kept for them.
        """
        lines = max(1, data.count(b"\n"))
        with self._changed:
            limit = ROOM_BYTES if self._is_stuck() or self._is_closed else SLOW_BYTES_MAX
            is_dropped = self._bytes + len(data) > limit + (OWN_BYTES if is_own else 0)
            is_news = is_dropped and target not in self._lost
            if is_dropped:
                self._lost[target] = self._lost.get(target, 0) + lines
            else:
                self._write_loss(target)
                self._append(_Item(target, data, lines))
        if is_news:
            self._report_loss(target, None)
        return not is_dropped

    def finish(self, target: OutletTarget) -> None:
        """Close a target after all that was put before."""
        with self._changed:
            self._write_loss(target)
            self._append(_Item(target, b"", 0))

    def has_room(self) -> bool:
        """Return False while it is worth waiting for a reader that is slow and reads."""
        with self._changed:
            return self._bytes < ROOM_BYTES or self._is_stuck()

    def flush(self, stuck_s: float = FLUSH_STUCK_S, timeout_s: float = FLUSH_S_MAX) -> bool:
        """Wait until all is written; return whether it is.

        Waits as long as bytes move, and not at all for a reader that has taken none for ``stuck_s``.
        """
        began_s = self._now_s()
        with self._changed:
            while self._queue or self._moved_at_s is not None:
                now_s = self._now_s()
                moved_at_s = began_s if self._moved_at_s is None else self._moved_at_s
                left_s = min(moved_at_s + stuck_s, began_s + timeout_s) - now_s
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, 0.5))
        return True

    def close(self, stuck_s: float = FLUSH_STUCK_S) -> bool:
        """Flush and end the thread; a thread that hangs in a write ends with the process."""
        is_flushed = self.flush(stuck_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return is_flushed

    # With the lock held.

    def _append(self, item: _Item) -> None:
        self._queue.append(item)
        self._bytes += len(item.data)
        if self._thread is None:
            # Not before the first line: who forks helpers at its start has no thread yet.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _write_loss(self, target: OutletTarget) -> None:
        lines = self._lost.pop(target, 0)
        if lines:
            note = _describe_loss(target, lines, self._errors.get(target))
            if target in self._torn:  # whose last line was written in part
                note = b"\n" + note
            self._append(_Item(target, note, lines, is_note=True))

    def _is_stuck(self) -> bool:
        return self._moved_at_s is not None and self._now_s() - self._moved_at_s >= STUCK_S

    # The thread.

    def _run(self) -> None:
        while (item := self._take()) is not None:
            error, left = self._write(item)
            with self._changed:
                self._bytes -= len(item.data)
                self._moved_at_s = None
                is_news = error is not None and item.target not in self._errors
                if error is None:
                    self._errors.pop(item.target, None)
                else:
                    self._errors[item.target] = error
                    lines = (
                        item.lines if item.is_note else min(item.lines, max(1, left.count(b"\n")))
                    )
                    self._lost[item.target] = self._lost.get(item.target, 0) + lines
                    if 0 < len(left) < len(item.data):
                        self._torn.add(item.target)
                if not item.data:
                    self._lost.pop(item.target, None)
                    self._errors.pop(item.target, None)
                    self._torn.discard(item.target)
            if is_news:
                self._report_loss(item.target, error)

    def _report_loss(self, target: OutletTarget, error: OSError | None) -> None:
        if self._on_loss is not None:
            with contextlib.suppress(Exception):  # the thread must live on, and `put` never raises
                self._on_loss(target, error)

    def _take(self) -> _Item | None:
        with self._changed:
            while not self._queue:
                # There may never be another `put`: the loss is written now, unless that would fail, too.
                for target in [item for item in self._lost if item not in self._errors]:
                    self._write_loss(target)
                if self._queue:
                    break
                self._changed.notify_all()
                if self._is_closed:
                    return None
                self._changed.wait()
            self._moved_at_s = self._now_s()
            return self._queue.popleft()

    def _write(self, item: _Item) -> tuple[OSError | None, bytes]:
        """Write an item; return what went wrong, and what was not written because of it."""
        if not item.data:
            with contextlib.suppress(Exception):
                item.target.close()
            return None, b""
        left = memoryview(item.data)
        try:
            while left:
                left = left[item.target.write(left[:_PIECE_BYTES]) :]
                with self._changed:
                    self._moved_at_s = self._now_s()
                    self._changed.notify_all()
        except OSError as error:
            return error, bytes(left)
        except Exception as error:  # noqa: BLE001 - a thread that ends would lose all later lines
            return _as_os_error(error), bytes(left)
        return None, b""


def _describe_loss(target: OutletTarget, lines: int, error: OSError | None) -> bytes:
    try:
        return target.describe_loss(lines, error)
    except Exception:  # noqa: BLE001 - the count is lost rather than the thread or the caller
        return f"rankmend: {lines} lines were dropped here\n".encode()


def _as_os_error(error: Exception) -> OSError:
    """Return a target's own failure as an OSError, the form that every target can describe."""
    return OSError(errno.EIO, f"{type(error).__name__}: {error}"[:_ERROR_CHARS_MAX])


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


def _is_same_file(number: int, other: int) -> bool:
    first, second = os.fstat(number), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
