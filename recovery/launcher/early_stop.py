"""Stop signals that arrive before or after the launcher's loop: the process still ends in order.

By default such a signal ends a process at once. What it holds, as the claim on a checkpoint folder,
would stay, although no rank has ever run.
"""

import contextlib
import signal
import threading
from collections.abc import Collection, Iterator
from types import FrameType


@contextlib.contextmanager
def exit_on(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Have each of these signals raise SystemExit with a shell's code for it, 128 + its number.

    One that is ignored (nohup) stays so. Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [one for one in set(numbers) if signal.getsignal(one) is not signal.SIG_IGN]
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
    """Have a stop signal that `exit_on` would act on wait until the block has ended.

    A second one ends it at once. Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            _exit(number, frame)
        came.append(number)

    held = [one for one in signal.valid_signals() if signal.getsignal(one) is _exit]
    for number in held:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, _exit)
    if came:
        _exit(came[0], None)
