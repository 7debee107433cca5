"""Signals for a daemon's main loop, and signals that stop a process."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

_CHUNK_BYTES: Final = 4096

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_END: Final = b"\0"  # no signal has this number
_WAKE_S: Final = 0.05  # how long the main thread gets to see a signal by itself


class SignalInbox:
    """Catches signals from `catch` on, for a loop to read. Only the main thread may use it, and only one at a time.

    `signal.sigtimedwait` is no base for such a loop: when SIGCONT ends a stop (SIGSTOP, a frozen
    cgroup, a debugger) after the timeout is over, CPython returns whatever lay in its memory as the
    signal's number (3.11: `signal_sigtimedwait_impl` leaves its retry loop without an answer). Here
    handlers record the signals, and a pipe wakes the loop; a wait that returns for no reason does
    no harm.
    """

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


@dataclass(slots=True)
class Stopping:
    """``wake`` becomes readable once a signal has come; ``signal_number`` is the first one."""

    wake: int
    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        return 128 + (self.signal_number or 0)


@contextlib.contextmanager
def take_signals() -> Iterator[Stopping]:
    """Yield the record of a signal that arrives within the block, so that no signal interrupts the start of a process."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    stopping = Stopping(reader)

    def note(number: int, _frame: FrameType | None) -> None:
        stopping.signal_number = stopping.signal_number or number
        with contextlib.suppress(OSError):
            os.write(writer, b"!")

    before = {item: signal.signal(item, note) for item in _wanted()}
    try:
        yield stopping
    finally:
        for item, handler in before.items():
            signal.signal(item, handler)
        os.close(reader)
        os.close(writer)


def _wanted() -> list[signal.Signals]:
    """Return the signals to look at: nohup has SIGHUP ignored, for a program that is to outlive its terminal."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [item for item in SIGNALS if hangs_up or item is not signal.SIGHUP]


class StoppedError(BaseException):
    """A signal that requests the end of the process. No handler of ordinary errors catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextlib.contextmanager
def raising_signals() -> Iterator[None]:
    """Have the first such signal raise StoppedError in the main thread. The next ones are ignored, after the block, too: it ends within its own bounds.

    The exception arrives whatever the process does. The kernel may hand the signal to another thread while the main thread
    waits: that one is then woken. And what runs in a finaliser loses every exception: it is raised once more.
    """
    raising = _Raising()
    before = {item: signal.signal(item, raising.stop) for item in _wanted()}
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda lost: raising.lose(lost) or unraisable(lost)
    wakeup = signal.set_wakeup_fd(raising.writer, warn_on_full_buffer=False)
    waker = threading.Thread(target=raising.wake, name="signals", daemon=True)
    waker.start()
    try:
        yield
    finally:
        for item, handler in before.items():
            signal.signal(item, signal.SIG_IGN if raising.number is not None else handler)
        signal.set_wakeup_fd(wakeup)
        sys.unraisablehook = unraisable
        os.write(raising.writer, _END)
        waker.join()
        os.close(raising.writer)


class _Raising:
    def __init__(self) -> None:
        self.number: int | None = None  # the first signal
        self._is_due = True  # the exception must still be raised
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.writer, False)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        if self._is_due:
            self._is_due = False
            raise StoppedError(self.number)

    def lose(self, lost: "sys.UnraisableHookArgs") -> bool:
        """Take note of an exception that was raised where it reached nobody; return whether it is ours."""
        if not isinstance(lost.exc_value, StoppedError):
            return False
        self._is_due = True
        os.write(self.writer, bytes([self.number or signal.SIGTERM]))
        return True

    def wake(self) -> None:
        """Interrupt what the main thread waits for until it has seen the signal. Python's handler wrote its number here, in whichever thread."""
        main = threading.main_thread().ident
        assert main is not None
        while (reported := os.read(self._reader, 1)) != _END:
            if reported[0] in SIGNALS:
                time.sleep(_WAKE_S)
                if self._is_due:
                    signal.pthread_kill(main, reported[0])
        os.close(self._reader)
