"""Handles stop signals before and after the launcher's loop, so that the process still ends in order.

By default such a signal ends a process at once. Its claim on a checkpoint folder would remain,
although no rank has ever run.
"""

import contextlib
import signal
import threading
from collections.abc import Collection, Iterator
from types import FrameType


@contextlib.contextmanager
def exit_on(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Make each of these signals raise SystemExit with the shell's code for it, 128 + its number.

    An ignored signal (nohup) stays ignored. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [item for item in set(numbers) if signal.getsignal(item) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _exit) for number in wanted}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def finish_first() -> Iterator[None]:
    """Delay a stop signal that `exit_on` would act on until the block has ended.

    A second signal ends the block at once. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            _exit(number, frame)
        came.append(number)

    held = [item for item in signal.valid_signals() if signal.getsignal(item) is _exit]
    for number in held:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, _exit)
    if came:
        _exit(came[0], None)
