"""Faults of a console: a pipe that nobody reads, a terminal under Ctrl-S."""

import contextlib
import fcntl
import os
import select
import struct
import termios

from tests.support.eventually import DEADLINE_S
from tests.support.faults.fault import Fault

_SMALL_BYTES = 4096  # the smallest that a pipe can hold
_FILLER = b"." * 511 + b"\n"
_CTRL_S, _CTRL_Q = b"\x13", b"\x11"


class Console:
    """What a process takes for its console, and what has come out of it so far."""

    def __init__(self, inner: int, outer: int) -> None:
        self.inner = inner  # for the process, which may have it alone: `hand_over`
        self._outer = outer
        self.shown = b""

    def hand_over(self) -> None:
        """Close the end of the process, which has a copy by now."""
        if self.inner >= 0:
            os.close(self.inner)
            self.inner = -1

    def read_until(self, wanted: bytes) -> None:
        """Read until this is shown; the end of the output is a failure, too."""
        while wanted not in self.shown:
            assert self._read(), f"ended before {wanted!r}: {self.shown!r}"

    def read_all(self) -> bytes:
        """Read until the last writer has closed it."""
        while self._read():
            pass
        return self.shown

    def _read(self) -> bool:
        """Read what comes next; return whether more may come."""
        readable, _, _ = select.select([self._outer], [], [], DEADLINE_S)
        assert readable, f"nothing more within {DEADLINE_S:.0f} s: {self.shown!r}"
        try:
            data = os.read(self._outer, 65536)
        except OSError:  # EIO: the last writer of a terminal has gone
            return False
        self.shown += data
        return bool(data)

    def close(self) -> None:
        self.hand_over()
        if self._outer >= 0:
            os.close(self._outer)
            self._outer = -1


class Terminal(Console):
    """A pseudoterminal."""

    def __init__(self) -> None:
        outer, inner = os.openpty()
        super().__init__(inner, outer)

    def type(self, text: bytes) -> None:
        os.write(self._outer, text)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hold(self) -> Fault:
        """Press Ctrl-S; Ctrl-Q at the end."""
        os.write(self._outer, _CTRL_S)

        def release() -> None:
            with contextlib.suppress(OSError):
                os.write(self._outer, _CTRL_Q)

        return Fault("terminal held by Ctrl-S", release)


class Pipe(Console):
    """A pipe to a reader such as a pager."""

    def __init__(self) -> None:
        outer, inner = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(inner, fcntl.F_SETPIPE_SZ, _SMALL_BYTES)
        super().__init__(inner, outer)

    def hold(self) -> Fault:
        """Fill the pipe; nobody reads until the end."""
        os.set_blocking(self.inner, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.inner, _FILLER)
        os.set_blocking(self.inner, True)
        return Fault("pipe that nobody reads", lambda: None)
