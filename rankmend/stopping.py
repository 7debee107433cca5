"""Signals that ask to end: as something to look at, so that none interrupts the start of a process, or as one exception."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


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

    # nohup has it ignored, for a program that is to outlive its terminal
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    taken = [one for one in SIGNALS if hangs_up or one is not signal.SIGHUP]
    before = {one: signal.signal(one, note) for one in taken}
    try:
        yield stopping
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        os.close(reader)
        os.close(writer)


class StoppedError(BaseException):
    """A signal has asked to end. No handler of ordinary errors takes it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextlib.contextmanager
def raising_signals() -> Iterator[None]:
    """Have the first such signal raise StoppedError in the main thread; the next ones are ignored, since the block then ends within its own bounds."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise StoppedError(number)

    before = {one: signal.signal(one, stop) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
