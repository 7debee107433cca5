"""Keeps cores busy: WORKERS CORES UNTIL_BOOT_S. Ends by itself at that time of CLOCK_BOOTTIME, too."""

import os
import time
from collections.abc import Sequence

from recovery.lab.inject.faulty.lifeline import (
    die_with_parent,
    end_with_pipe,
    say_ready,
    wait_for_go,
)

_LOOK_S = 0.05  # of work between two looks at the clock


def main(arguments: Sequence[str]) -> None:
    workers, cores, until = int(arguments[0]), arguments[1], float(arguments[2])
    wait_for_go()
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    for _ in range(workers):
        if os.fork() == 0:
            die_with_parent()
            os.close(0)
            os.close(1)
            _work(until)
    say_ready()
    end_with_pipe()
    while time.clock_gettime(time.CLOCK_BOOTTIME) < until:
        time.sleep(min(1.0, max(0.0, until - time.clock_gettime(time.CLOCK_BOOTTIME))))


def _work(until_boot_s: float) -> None:
    while time.clock_gettime(time.CLOCK_BOOTTIME) < until_boot_s:
        next_s = time.monotonic() + _LOOK_S
        while time.monotonic() < next_s:
            pass
    os._exit(0)
