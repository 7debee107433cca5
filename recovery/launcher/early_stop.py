"""Stop signals that arrive before the launcher's loop takes them, or after it: the process ends in order.

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
