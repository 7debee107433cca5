"""Signals that ask to end: as something to look at, so that none interrupts the start of a process, or as one exception."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_END: Final = b"\0"  # no signal has this number
_WAKE_S: Final = 0.05  # how long the main thread gets to see a signal by itself


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
    """Give what tells of a signal that came within the block."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    stopping = Stopping(reader)

    def note(number: int, _frame: FrameType | None) -> None:
        stopping.signal_number = stopping.signal_number or number
        with contextlib.suppress(OSError):
            os.write(writer, b"!")

    before = {one: signal.signal(one, note) for one in _wanted()}
    try:
        yield stopping
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        os.close(reader)
        os.close(writer)


def _wanted() -> list[signal.Signals]:
    """Return the signals to look at: nohup has SIGHUP ignored, for a program that is to outlive its terminal."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [one for one in SIGNALS if hangs_up or one is not signal.SIGHUP]


class StoppedError(BaseException):
    """A signal has asked to end. No handler of ordinary errors takes it."""

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
    before = {one: signal.signal(one, raising.stop) for one in _wanted()}
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda lost: raising.lose(lost) or unraisable(lost)
    wakeup = signal.set_wakeup_fd(raising.writer, warn_on_full_buffer=False)
    waker = threading.Thread(target=raising.wake, name="signals", daemon=True)
    waker.start()
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_IGN if raising.number is not None else handler)
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
        while (told := os.read(self._reader, 1)) != _END:
            if told[0] in SIGNALS:
                time.sleep(_WAKE_S)
                if self._is_due:
                    signal.pthread_kill(main, told[0])
        os.close(self._reader)
