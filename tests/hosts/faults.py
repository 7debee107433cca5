"""What can be broken and is mended again: a fault ends with its block, its fleet, or the interpreter.

What is done to a process or a file works on any of them, within a test host or not.
"""

import atexit
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_FILL_BYTES_MAX = 1 << 30  # more is a disk of this machine and not one made for a test
FILL_NAME = ".filled-by-a-test"
_FAKETIME = "faketime/libfaketimeMT.so.1"  # the one for programs with threads

_standing: list["Fault"] = []


class Fault:
    """Something that is broken until `end`, which may be called twice."""

    def __init__(self, what: str, undo: Callable[[], None]) -> None:
        self.what = what
        self._undo: Callable[[], None] | None = undo
        _standing.append(self)

    @property
    def is_standing(self) -> bool:
        return self._undo is not None

    def end(self) -> None:
        if (undo := self._undo) is not None:
            self._undo = None
            _standing.remove(self)
            undo()

    def __enter__(self) -> "Fault":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<{self.what}{'' if self.is_standing else ', ended'}>"


@atexit.register
def end_all() -> None:
    """End every fault that still stands, the newest first; each of them even when another can't be ended."""
    for fault in reversed(_standing.copy()):
        with contextlib.suppress(OSError, RuntimeError):
            fault.end()


def kill(process: int | subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal that is never taken back to a process that is there."""
    os.kill(_pid(process), number)


def stop(process: int | subprocess.Popen[bytes]) -> Fault:
    """Have a process stand still (state T) until the end."""
    pid = _pid(process)
    pidfd = os.pidfd_open(pid)  # the pid may be another process's by then
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    except BaseException:
        os.close(pidfd)
        raise

    def resume() -> None:
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)

    return Fault(f"process {pid} stopped", resume)


def _pid(process: int | subprocess.Popen[bytes]) -> int:
    return process if isinstance(process, int) else process.pid


def fill(folder: Path) -> Fault:
    """Fill the file system of a folder up to the last byte; a small one made for the test, or it is refused."""
    size = os.statvfs(folder)
    free_bytes = size.f_bfree * size.f_frsize
    if folder.stat().st_dev == Path("/").stat().st_dev or free_bytes > _FILL_BYTES_MAX:
        raise ValueError(f"refused to fill {folder}: {free_bytes} bytes free, not a disk of a test")
    file = folder / FILL_NAME
    fault = Fault(f"{folder} full", lambda: file.unlink(missing_ok=True))
    try:
        _write_until_full(file)
    except BaseException:
        fault.end()
        raise
    return fault


def _write_until_full(file: Path) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        for block_bytes in (1 << 20, 1 << 12, 1):
            block = bytes(block_bytes)
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, block)
        os.fsync(fd)
    finally:
        os.close(fd)


def faketime_library() -> Path | None:
    """Return where Debian's package faketime keeps its library; None where it is not installed."""
    return next(iter(sorted(Path("/usr/lib").glob(f"*/{_FAKETIME}"))), None)


class FakeClock:
    """The wall clock of the processes that are started with `environment`; it can jump while they run.

    CLOCK_MONOTONIC stays true, as it does on a machine whose wall clock is set.
    """

    def __init__(self, file: Path) -> None:
        library = faketime_library()
        if library is None:
            raise FileNotFoundError("libfaketime is not installed (Debian: faketime)")
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",  # read the file at each look at the clock, not every 10 s
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self._set(0)

    def jump(self, offset_s: float) -> Fault:
        """Set the clock this far from the true one, until the end."""
        fault = Fault(f"clock of {self._file.name} off by {offset_s} s", lambda: self._set(0))
        self._set(offset_s)
        return fault

    def _set(self, offset_s: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+f}\n", encoding="ascii")
        new.replace(self._file)  # a reader sees the old or the new, never half
