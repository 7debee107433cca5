"""Carries the ranks' output to the console, to files, or both, and keeps its last lines.

One thread reads all pipes; outlets (`rankmend.console`) do the writing. While a console or a log
file is slow, the pipes fill up and the ranks wait, as under torchrun. A reader that takes nothing
for `STUCK_S` blocks nobody: its lines are dropped and counted, and training continues.
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import selectors
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from string import Template
from typing import Final, Protocol

from rankmend.console import Outlet, OutletTarget
from rankmend.errors import ConfigError, LaunchError
from rankmend.files import replace_file
from rankmend.own_folder import open_to_append, refuse_foreign_link

log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct("HHHH")  # rows, columns, pixels twice: tty_ioctl(4), struct winsize
_OUTPUT_FLAGS: Final = 1  # places in what tcgetattr returns
_LOCAL_FLAGS: Final = 3

RANK_FILE: Final = "rank"
MOVED_LOOK_S: Final = 1.0  # logrotate compresses a file that it has moved at once, or a day later

TRACE_LINES_MAX: Final = 400  # held back; a traceback of 100 frames takes 300
BYTES_MAX: Final = 65_536
KNOWN_MAX: Final = 64  # tracebacks of an attempt that are compared

_PREFIX: Final = re.compile(rb"^\[rank\d{1,9}\]: ?")  # torch.distributed's own
_HEAD: Final = b"Traceback (most recent call last):"

LINES_MAX: Final = 60  # kept per rank and stream; a Python traceback with causes fits
LINE_BYTES_MAX: Final = 2000
_READ_BYTES: Final = 65536
_PARTIAL_BYTES_MAX: Final = 65536  # an endless line is passed on in pieces
_LOOK_S: Final = 0.05  # between two checks whether a slow console has room again
_CLOSE_S_MAX: Final = 5.0  # for the reading thread, which never blocks


def open_terminal() -> tuple[int, int]:
    """Return the outer and inner end of a new terminal that changes and echoes nothing.

    A rank gets it for progress bars and colours if the user has a terminal, as under torchrun. Its
    outer end is read like a pipe. It is raw, so the user's terminal gets exactly what the rank
    writes.
    """
    outer, inner = os.openpty()
    attributes = termios.tcgetattr(inner)
    attributes[_OUTPUT_FLAGS] &= ~termios.OPOST
    attributes[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    return outer, inner


def copy_size(source: int, target: int, columns_taken: int) -> None:
    """Give a terminal the size of another one, less the columns of a prefix."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(_SIZE.size))
        rows, columns, *_pixels = _SIZE.unpack(size)
        left = max(1, columns - columns_taken) if columns else 0
        fcntl.ioctl(target, termios.TIOCSWINSZ, _SIZE.pack(rows, left, 0, 0))


class LogFile:
    """One log file of a rank. Opens itself and its folder at the first write; after a failure, the next write tries again.

    A file that was moved or removed (logrotate, a person) is made anew within `MOVED_LOOK_S`. The thread that writes it also opens it,
    because a disk can hang.
    """

    def __init__(
        self, path: Path, rank: int | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``rank``: whose output it is, where its folder doesn't show that already; a file beside it does."""
        self.path = path
        self._rank = rank
        self._now_s = now_s
        self._looked_at_s = now_s()
        self._descriptor: int | None = None

    def write(self, data: memoryview) -> int:
        if self._descriptor is not None and self._was_moved(self._descriptor):
            self.close()
        if self._descriptor is None:
            self._descriptor = self._open()
        return os.write(self._descriptor, data)

    def _was_moved(self, descriptor: int) -> bool:
        now_s = self._now_s()
        if now_s - self._looked_at_s < MOVED_LOOK_S:
            return False
        self._looked_at_s = now_s
        try:
            return not os.path.samestat(os.fstat(descriptor), self.path.lstat())
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _open(self) -> int:
        """Open the file below the user's folder, without following links that others planted."""
        attempt = self.path.parent.parent
        attempt.parent.mkdir(parents=True, exist_ok=True)
        for folder in (attempt, self.path.parent):
            folder.mkdir(exist_ok=True)
            refuse_foreign_link(folder, lambda text: PermissionError(errno.EPERM, text))
        if self._rank is not None:
            mark = self.path.with_name(RANK_FILE)
            with contextlib.suppress(LaunchError):  # the lines matter more than whose they are
                replace_file(mark, f"{self._rank}\n".encode(), LaunchError, durable=False)
        return open_to_append(self.path)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def describe_loss(self, lines: int, error: OSError | None) -> bytes:
        why = "the disk took nothing" if error is None else f"of an error: {error.strerror}"
        return f"rankmend: {lines} lines are missing here because {why}\n".encode()


def tell_loss(target: OutletTarget, error: OSError | None) -> None:
    """Log that a file begins to lose lines; the ranks continue."""
    assert isinstance(target, LogFile)
    log.warning(
        "output lines of a rank are lost: cannot write its log file",
        extra={
            "path": str(target.path),
            "why": "the disk takes nothing" if error is None else error.strerror,
        },
    )


@dataclass(slots=True)
class _Held:
    shown: bytearray = field(default_factory=bytearray)
    lines: list[bytes] = field(default_factory=list)


class RepeatedTraces:
    """Shows a traceback that several ranks of a node print only once: of eight ranks with one typo, seven add nothing new.

    For the console alone: log files, and the last lines of each rank, have all of it. A traceback
    is held back until its last line has come, and shown as it is if that takes too long, or if no
    other rank has printed the same.
    """

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}  # by rank
        self._known: deque[tuple[tuple[bytes, ...], int]] = deque(maxlen=KNOWN_MAX)
        self._errors: deque[bytes] = deque(maxlen=KNOWN_MAX)

    def forget(self) -> None:
        """Begin another attempt."""
        self._known.clear()
        self._errors.clear()

    def has_shown(self, line: str) -> bool:
        """Return whether a traceback that ends with this line is on the console; Python may add a hint to it."""
        return any(
            shown.startswith(line.split("\n", maxsplit=1)[0].encode()) for shown in self._errors
        )

    def take(self, rank: int, head: bytes, line: bytes) -> bytes:
        """Return what to show now that a rank has printed a whole line; ``head``: what stands before it on the console."""
        text = _PREFIX.sub(b"", line).rstrip()
        held = self._held.get(rank)
        if held is None:
            if text != _HEAD:
                return head + line
            held = self._held[rank] = _Held()
        held.shown += head + line
        held.lines.append(text)
        is_long = len(held.lines) > TRACE_LINES_MAX or len(held.shown) > BYTES_MAX
        if is_long:
            return self.flush(rank)
        if text == _HEAD or not text or text.startswith(b" "):
            return b""
        del self._held[rank]
        return self._whole(rank, head, held)

    def _whole(self, rank: int, head: bytes, held: _Held) -> bytes:
        key = tuple(held.lines)
        other = next((known for lines, known in self._known if lines == key), None)
        if other is not None and other != rank:
            who = head or f"rank {rank}: ".encode()
            return who + f"the same traceback as rank {other}'s\n".encode()
        self._known.append((key, rank))
        self._errors.append(held.lines[-1])
        return bytes(held.shown)

    def flush(self, rank: int) -> bytes:
        """Return what is held back of a rank's lines, and hold it no longer."""
        held = self._held.pop(rank, None)
        return b"" if held is None else bytes(held.shown)

    def held(self) -> tuple[int, ...]:
        """Return the ranks of which lines are held back."""
        return tuple(self._held)


class Streams(IntFlag):
    """torchrun's numbers for --redirects and --tee."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


def parse_streams(text: str, local_world_size: int) -> tuple[Streams, ...]:
    """Return one value per local rank from "3" or from a list such as "0:3,1:2"."""
    if text.isdigit() and int(text) <= Streams.ALL:
        return (Streams(int(text)),) * local_world_size
    chosen = [Streams.NONE] * local_world_size
    for item in text.split(","):
        match = re.fullmatch(r"(\d+):([0-3])", item)
        if match is None or int(match[1]) >= local_world_size:
            raise ConfigError(
                f"{text!r} is neither 0 to 3 nor a list such as 0:3,1:2 for {local_world_size} ranks"
            )
        chosen[int(match[1])] = Streams(int(match[2]))
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """Where each local rank's output goes."""

    # folder of this run, with files in attempt_<n>/<local rank>/{stdout,stderr}.log
    log_folder: Path | None
    redirects: tuple[Streams, ...]  # to a file instead of the console, unless it is in `tee`, too
    tee: tuple[Streams, ...]  # to a file as well as the console
    shown_local_ranks: frozenset[int] | None  # on the console; None: all
    is_prefixed: bool
    filters: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())  # stdout, stderr: copied
    # Before each line, with $role_name, $rank and $local_rank as torchrun fills them in.
    prefix_template: str = "[rank $rank] "
    role: str = "default"

    def prefix_of(self, rank: int, local_rank: int) -> bytes:
        """Return what stands before each line of a rank; a name that nobody knows stays as it is."""
        if not self.is_prefixed:
            return b""
        names = {"role_name": self.role, "rank": rank, "local_rank": local_rank}
        return Template(self.prefix_template).safe_substitute(names).encode()


class Shown(Protocol):
    """The interface of `rankmend.console.Console`."""

    def put(self, number: int, data: bytes) -> None: ...
    def has_room(self, number: int) -> bool: ...
    def terminal(self, number: int) -> int | None: ...
    def flush(self) -> bool: ...


@dataclass(slots=True)
class _Stream:
    rank: int
    number: int  # 1 or 2
    descriptor: int
    console: int | None  # 1 or 2; None: not shown
    file: LogFile | None
    prefix: bytes
    lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=LINES_MAX))
    partial: bytearray = field(default_factory=bytearray)
    partial_shown: int = 0  # bytes of it that are already on the terminal
    terminal: int | None = (
        None  # the console's descriptor; None: not a terminal, or this stream is hidden
    )
    is_line_start: bool = True


class Output:
    """The pipes of one job's ranks."""

    def __init__(self, plan: OutputPlan, console: Shown) -> None:
        self._plan = plan
        self._console = console
        self._files = Outlet("log files", on_loss=tell_loss)
        self._lock = threading.Lock()  # guards the streams and the selector, never a write
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._streams: dict[tuple[int, int], _Stream] = {}  # (rank, 1 or 2)
        self._filtered: dict[int, LogFile] = {}  # 1 or 2, of the newest attempt
        self._filtered_of = 0  # that attempt
        self._paused: set[tuple[int, int]] = set()  # not read while their reader is slow
        self._traces = RepeatedTraces()
        self._traces_of = 0  # the attempt whose tracebacks these are
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    @property
    def slots(self) -> int:
        """Return the number of local ranks."""
        return len(self._plan.redirects)

    def open_rank(self, attempt: int, rank: int, local_rank: int) -> tuple[int, int]:
        """Return the write ends for a rank's stdout and stderr; the caller closes them."""
        ends = []
        for number in (1, 2):
            stream, write_end = self._make_stream(attempt, rank, local_rank, number)
            read_end = stream.descriptor
            with self._lock:
                self._open_filtered(attempt)
                if attempt > self._traces_of:
                    self._traces_of = attempt
                    self._traces.forget()
                self._drop((rank, number))
                self._streams[rank, number] = stream
                self._selector.register(read_end, selectors.EVENT_READ, (rank, number))
            ends.append(write_end)
        self._wake()
        return ends[0], ends[1]

    def last_lines(self, rank: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the last lines of a rank's stdout and stderr, including those still in the pipes."""
        result: list[tuple[str, ...]] = []
        with self._lock:
            for number in (1, 2):
                stream = self._streams.get((rank, number))
                if stream is None:
                    result.append(())
                    continue
                self._drain(stream)
                lines = [*stream.lines, *([bytes(stream.partial)] if stream.partial else [])]
                result.append(tuple(line.decode("utf-8", "replace") for line in lines))
        self._wake()
        return result[0], result[1]

    def has_shown(self, error: str) -> bool:
        """Return whether the console has a traceback of the newest attempt that ends with this line."""
        with self._lock:
            return self._traces.has_shown(error)

    def close(self) -> None:
        """Pass on the rest and end; waits, with a bound, for a slow console or disk."""
        if self._wake_read < 0:
            return  # already closed
        with self._lock:
            for key, stream in self._streams.items():
                self._drain(stream)
                self._drop(key, keep=True)
            self._close_filtered()
            self._is_closing = True
        self._wake()
        self._thread.join(_CLOSE_S_MAX)
        self._files.close()
        self._console.flush()
        if not self._thread.is_alive():
            with self._lock:
                self._selector.close()
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_read = self._wake_write = -1

    def resize(self) -> None:
        """Give the ranks' terminals the current size of the user's terminal."""
        with self._lock:
            for stream in self._streams.values():
                if stream.terminal is not None and stream.descriptor >= 0:
                    copy_size(stream.terminal, stream.descriptor, len(stream.prefix))

    def _make_stream(
        self, attempt: int, rank: int, local_rank: int, number: int
    ) -> tuple[_Stream, int]:
        plan, mine = self._plan, Streams(number)
        is_redirected, is_teed = (
            bool(streams[local_rank] & mine) for streams in (plan.redirects, plan.tee)
        )
        is_shown = (is_teed or not is_redirected) and (
            plan.shown_local_ranks is None or local_rank in plan.shown_local_ranks
        )
        file = None
        if plan.log_folder is not None and (is_redirected or is_teed):
            name = "stdout.log" if number == 1 else "stderr.log"
            folder = plan.log_folder / f"attempt_{attempt}" / str(local_rank)
            file = LogFile(folder / name, None if rank == local_rank else rank)
        prefix = plan.prefix_of(rank, local_rank)
        terminal = self._console.terminal(number) if is_shown else None
        if terminal is None:
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
        else:
            read_end, write_end = open_terminal()
            copy_size(terminal, read_end, len(prefix))
        os.set_blocking(read_end, False)
        console = number if is_shown else None
        stream = _Stream(rank, number, read_end, console, file, prefix, terminal=terminal)
        return stream, write_end

    def _open_filtered(self, attempt: int) -> None:
        """Start copying the filtered lines into files of this attempt."""
        folder = self._plan.log_folder
        if folder is None or attempt <= self._filtered_of:
            return
        self._close_filtered()
        self._filtered_of = attempt
        for number, name in ((1, "filtered_stdout.log"), (2, "filtered_stderr.log")):
            if self._plan.filters[number - 1]:
                self._filtered[number] = LogFile(folder / f"attempt_{attempt}" / name)

    def _close_filtered(self) -> None:
        for file in self._filtered.values():
            self._files.finish(file)
        self._filtered.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._is_closing:
                    return
                self._read_paused_again()
                timeout_s = _LOOK_S if self._paused or self._has_prompts() else 1.0
            ready = self._selector.select(timeout_s)
            if not ready:
                self._show_prompts()
            for key, _events in ready:
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    continue
                with self._lock:
                    self._read_or_pause(key.data)

    def _read_or_pause(self, key: tuple[int, int]) -> None:
        stream = self._streams.get(key)
        if stream is None or stream.descriptor < 0:
            return
        if not self._has_room(stream):
            self._selector.unregister(stream.descriptor)
            self._paused.add(key)
        elif not self._read(stream):
            self._drop(key, keep=True)

    def _read_paused_again(self) -> None:
        for key in [key for key in self._paused if self._has_room(self._streams[key])]:
            self._paused.discard(key)
            self._selector.register(self._streams[key].descriptor, selectors.EVENT_READ, key)

    def _has_prompts(self) -> bool:
        return any(
            stream.terminal is not None and len(stream.partial) > stream.partial_shown
            for stream in self._streams.values()
        )

    def _show_held(self, stream: _Stream) -> None:
        """Show what was held back of a traceback whose end doesn't come."""
        if stream.number != 2 or stream.console is None:
            return
        if held := self._traces.flush(stream.rank):
            self._console.put(stream.console, held)

    def _show_prompts(self) -> None:
        """Show unfinished lines on a terminal: prompts, or lines whose rest is missing; and tracebacks without an end."""
        with self._lock:
            for rank in self._traces.held():
                if (stream := self._streams.get((rank, 2))) is not None:
                    self._show_held(stream)
            for stream in self._streams.values():
                if stream.terminal is None or stream.console is None:
                    continue
                rest = bytes(stream.partial[stream.partial_shown :])
                if rest:
                    head = b"" if stream.partial_shown else self._head(stream)
                    self._console.put(stream.console, head + rest)
                    stream.partial_shown = len(stream.partial)

    @staticmethod
    def _head(stream: _Stream) -> bytes:
        return stream.prefix if stream.is_line_start else b""

    def _has_room(self, stream: _Stream) -> bool:
        return (stream.console is None or self._console.has_room(stream.console)) and (
            stream.file is None or self._files.has_room()
        )

    def _drain(self, stream: _Stream) -> None:
        for _read in range(64):  # 4 MiB: a writer at full speed must not hold us here
            if stream.descriptor < 0 or not self._read(stream, is_last=False):
                return

    def _read(self, stream: _Stream, *, is_last: bool = True) -> bool:
        """Read one piece of a stream; False at its end, or (without is_last) when it is empty."""
        if stream.descriptor < 0:
            return False
        try:
            data = os.read(stream.descriptor, _READ_BYTES)
        except BlockingIOError:
            return is_last
        except OSError:
            return False
        if data:
            self._take(stream, data)
        return bool(data)

    def _take(self, stream: _Stream, data: bytes) -> None:
        if stream.file is not None:
            self._files.put(stream.file, data)
        stream.partial += data
        *whole, rest = re.split(rb"(?<=[\n\r])", bytes(stream.partial))
        if len(rest) > _PARTIAL_BYTES_MAX:
            whole, rest = [*whole, rest], b""
        stream.partial = bytearray(rest)
        shown = bytearray()
        for line in whole:
            stream.lines.append(line.rstrip(b"\r\n")[:LINE_BYTES_MAX])
            if stream.partial_shown:
                shown += line[stream.partial_shown :]
            elif stream.number == 2 and stream.console is not None:
                shown += self._traces.take(stream.rank, self._head(stream), line)
            else:
                shown += self._head(stream) + line
            stream.partial_shown = 0
            self._copy_filtered(stream, line)
            stream.is_line_start = line.endswith((b"\n", b"\r"))
        if stream.console is not None and shown:
            self._console.put(stream.console, bytes(shown))

    def _copy_filtered(self, stream: _Stream, line: bytes) -> None:
        file = self._filtered.get(stream.number)
        if file is not None and any(text in line for text in self._plan.filters[stream.number - 1]):
            self._files.put(file, stream.prefix + line.rstrip(b"\r\n") + b"\n")

    def _drop(self, key: tuple[int, int], *, keep: bool = False) -> None:
        """Close a stream; ``keep`` its last lines for later callers."""
        stream = self._streams.get(key) if keep else self._streams.pop(key, None)
        if stream is None or stream.descriptor < 0:
            return
        self._show_held(stream)
        if stream.partial and stream.console is not None:
            head = b"" if stream.partial_shown else self._head(stream)
            rest = bytes(stream.partial[stream.partial_shown :])
            self._console.put(stream.console, head + rest + b"\n")
        if stream.partial:
            stream.lines.append(bytes(stream.partial)[:LINE_BYTES_MAX])
            stream.partial = bytearray()
        if key in self._paused:
            self._paused.discard(key)
        else:
            self._selector.unregister(stream.descriptor)
        os.close(stream.descriptor)
        stream.descriptor = -1
        if stream.file is not None:
            self._files.finish(stream.file)

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._wake_write >= 0:  # callers may want the last lines after the end
                os.write(self._wake_write, b"x")
