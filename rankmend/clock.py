"""The one source of time. Durations use the monotonic clock, stamps for people unix time."""

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Return CLOCK_MONOTONIC in seconds, the clock of the progress files."""
        ...

    def unix_s(self) -> float:
        """Return seconds since 1970 for a journal or a person, never for a duration."""
        ...


class SystemClock:
    def now_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


def read_boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return the kernel's id of this boot: monotonic times compare only within one."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
