"""What this machine does in a moment that every machine can: to be printed beside figures, so that those of two machines compare.

    python bench/yardstick.py
    python bench/yardstick.py --json

Three pieces of work of a fixed size, each in CPU time of this thread, the median of rounds: a copy of 64 MiB that no cache holds, a call of
an empty Python function, and a sum over a dict of 1,000 floats. A figure that is the same number of calls on two machines is as fast
on both. Others' work on the same core still shows: it empties caches and shares the core's units. So the spread is printed, too.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

COPY_BYTES = 64 * 2**20
ROUNDS = 21
CALLS = 20_000
SUMS = 200


@dataclass(frozen=True)
class Yardstick:
    machine: str
    copy_ms: float  # of 64 MiB
    copy_gb_per_s: float
    call_ns: float  # of an empty Python function with one argument, the loop included
    sum_us: float  # over the values of a dict of 1,000 floats, in Python code
    spread_percent: float  # of the call: from the first to the last quarter of the rounds

    def __str__(self) -> str:
        return (
            f"yardstick: {self.machine}; copy of 64 MiB {self.copy_ms:.1f} ms ({self.copy_gb_per_s:.1f} GB/s), "
            f"empty Python call {self.call_ns:.0f} ns (spread {self.spread_percent:.0f} %), "
            f"sum of 1,000 in Python {self.sum_us:.0f} us"
        )

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure_yardstick(rounds: int = ROUNDS) -> Yardstick:
    """Measure for about 0.3 s."""
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    view = memoryview(target)

    def copy() -> None:
        view[:] = source

    copies = _times_s(copy, rounds)
    calls = _times_s(_call_often, rounds)
    sums = _times_s(_sum_often, rounds)
    quarters = statistics.quantiles(calls, n=4)
    copy_s, call_s = statistics.median(copies), statistics.median(calls)
    return Yardstick(
        f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}",
        round(copy_s * 1e3, 2),
        round(COPY_BYTES / copy_s / 1e9, 2),
        round(call_s / CALLS * 1e9, 1),
        round(statistics.median(sums) / SUMS * 1e6, 2),
        round(100 * (quarters[2] - quarters[0]) / call_s, 1),
    )


def _times_s(act: Callable[[], None], rounds: int) -> list[float]:
    act()
    times = []
    for _ in range(rounds):
        began_s = time.thread_time()
        act()
        times.append(time.thread_time() - began_s)
    return times


def _empty(_number: int) -> None:
    pass


def _call_often() -> None:
    for number in range(CALLS):
        _empty(number)


_VALUES = {number: float(number) for number in range(1000)}


def _sum_often() -> None:
    for _ in range(SUMS):
        total = 0.0
        for value in _VALUES.values():
            total += value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = measure_yardstick()
    print(json.dumps(found.as_dict()) if options.json else found)


if __name__ == "__main__":
    main()
