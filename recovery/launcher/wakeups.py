"""Wakes the launcher's loop, for other threads and for signals."""

import contextlib
import logging
import os
import signal
from collections.abc import Collection, Iterator
from typing import Final

from rankmend import console

log = logging.getLogger(__name__)

_SUSPEND_FLUSH_S: Final = 1.0  # for the console to show why the launcher goes silent


class Wakeups:
    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        """Wake the loop. May be called from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self.descriptor, b"\0")

    def take_signals(self) -> list[signal.Signals]:
        """Return the signals that have arrived since the last call, without waiting."""
        try:
            received = os.read(self._read, 4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in received if number]

    def close(self) -> None:
        os.close(self._read)
        os.close(self.descriptor)


@contextlib.contextmanager
def signals_to(descriptor: int, numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Write the numbers of arriving signals to ``descriptor``."""
    wanted = [
        number
        for number in set(numbers)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup, or a shell's background job
    ]
    previous = {number: signal.signal(number, lambda *_: None) for number in wanted}
    previous_descriptor = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)


def suspend() -> None:
    """Stop this process, as Ctrl-Z asks; its ranks and guardian, in other sessions, keep running."""
    log.warning(
        "suspended by Ctrl-Z: the ranks keep training, but nothing recovers them until `fg` or `bg`"
    )
    console.flush(_SUSPEND_FLUSH_S)
    os.kill(os.getpid(), signal.SIGSTOP)
    log.warning("continued")
