"""The clock by which several controllers date what they decide: the database's, carried on by the monotonic clock between two readings.

A budget counts what was spent within an hour, by the stamps of records that other controllers wrote. With each host's
wall clock, one whose clock was set back would date its records into the past, where nobody counts them any more.
"""

import threading
from typing import Final

from rankmend.clock import Clock

# A reading is wrong by half of what it took at most. One that took longer doesn't replace a better one.
READING_S_MAX: Final = 0.5


class DatabaseClock:
    def __init__(self, clock: Clock) -> None:
        """``clock``: this host's. Its wall clock counts only until the first reading."""
        self._clock = clock
        self._lock = threading.Lock()
        self._offset_s: float | None = None  # of the database's wall clock to our monotonic one

    def now_s(self) -> float:
        return self._clock.now_s()

    def unix_s(self) -> float:
        """Return the database's wall clock, in seconds since 1970."""
        with self._lock:
            offset_s = self._offset_s
        return self._clock.unix_s() if offset_s is None else self._clock.now_s() + offset_s

    def note(self, database_unix_s: float, asked_at_s: float) -> None:
        """Take in what the database's clock said between ``asked_at_s`` (monotonic seconds) and now."""
        answered_at_s = self._clock.now_s()
        with self._lock:
            if self._offset_s is None or answered_at_s - asked_at_s <= READING_S_MAX:
                self._offset_s = database_unix_s - (asked_at_s + answered_at_s) / 2
