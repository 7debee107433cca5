"""How fast work goes, from windows of a quarter of a second, which other load of the machine disturbs less than a mean.

A window is longer than the period of a CPU quota (100 ms, Linux Documentation/scheduler/sched-bwc.rst), so that a node
that is held back all the time is slow in its best window, too.
"""

import threading
import time
from typing import Callable, List

WINDOW_S = 0.25


def best_rate(work: Callable[[int], float], threads: int, seconds: float) -> float:
    """Return the best rate per second of a window; ``work(thread)`` returns how much it has done each time."""
    done = [0.0] * threads
    is_over = threading.Event()
    errors: List[BaseException] = []

    def go_on(number: int) -> None:
        try:
            while not is_over.is_set():
                done[number] += work(number)
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            errors.append(error)
            is_over.set()

    running = [threading.Thread(target=go_on, args=(n,), daemon=True) for n in range(threads)]
    for thread in running:
        thread.start()
    rates = [0.0]
    end_s = time.monotonic() + seconds
    at_s, before = time.monotonic(), sum(done)
    while at_s < end_s and not is_over.wait(WINDOW_S):
        now_s, now = time.monotonic(), sum(done)
        rates.append((now - before) / (now_s - at_s))
        at_s, before = now_s, now
    is_over.set()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return max(rates)


def timed_rates(work: Callable[[], float], seconds: float) -> List[float]:
    """Return the rate of each window of one thread; ``work`` returns how much it has done, and waits for its device."""
    rates: List[float] = []
    end_s = time.monotonic() + seconds
    while not rates or time.monotonic() < end_s:
        done, at_s = 0.0, time.monotonic()
        while time.monotonic() - at_s < WINDOW_S:
            done += work()
        rates.append(done / (time.monotonic() - at_s))
    return rates
