"""Signals for a daemon's main loop: kept until the loop takes them.

`signal.sigtimedwait` is no base for such a loop: when SIGCONT ends a stop (SIGSTOP, a frozen cgroup,
a debugger) after the timeout is over, CPython returns whatever lay in its memory as the signal's
number (3.11: `signal_sigtimedwait_impl` leaves its retry loop without an answer). Here handlers note
what has come, and a pipe wakes the loop; a wait that returns for no reason does no harm.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from types import FrameType
from typing import Final

_CHUNK_BYTES: Final = 4096


class SignalInbox:
    """Catches signals from `catch` on. Only the main thread may use it, and only one at a time."""

    def __init__(self, numbers: Iterable[signal.Signals] = ()) -> None:
        self._come: set[signal.Signals] = set()
        self._before: dict[signal.Signals, object] = {}
        self._read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._write_end = write_end
        # a full pipe wakes as well as one byte does
        self._wakeup_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.catch(numbers)

    def catch(self, numbers: Iterable[signal.Signals]) -> None:
        """Catch these, too, from now on: they no longer end the process by themselves."""
        for number in numbers:
            before = signal.signal(number, self._note)
            self._before.setdefault(number, before)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal has come; for a selector."""
        return self._read_end

    def wait(self, timeout_s: float) -> None:
        """Return when a signal has come, after ``timeout_s`` seconds, or sooner for no reason."""
        if self._come:
            return
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)

    def read(self) -> frozenset[signal.Signals]:
        """Return what has come since the last call; the same signal twice counts once."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_end, _CHUNK_BYTES):
                pass
        come = frozenset(self._come)
        self._come.difference_update(come)  # what comes at this moment is kept
        return come

    def __enter__(self) -> "SignalInbox":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the signals back to who had them before."""
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what `signal` has returned
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read_end)
        os.close(self._write_end)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._come.add(signal.Signals(number))
