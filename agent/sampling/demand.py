"""When somebody will read what no check reads.

Checks keep their cadence. All else is read for people and dashboards, who come every 15 s or more
seldom: such values are read shortly before a reader is expected, so that a scrape waits for no driver
and yet finds values of a second or two ago. A reader that has come twice is expected again after as
long as lay between. Who comes for the first time finds values that are at most `UNREAD_S_MAX` old.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

UNREAD_S_MAX: Final = (
    15.0  # Prometheus' usual interval: without a reader, values are read this often
)
LATE_S: Final = 0.2  # how much a scraper strays from its rhythm
READERS_MAX: Final = 16  # two Prometheus servers, a controller, some people
_GAP_S_MIN: Final = 0.05  # two pages for one look are one visit
_GAPS_MAX: Final = 3  # a reader that has stayed away for so many gaps has gone


@dataclass(slots=True)
class _Reader:
    came_at_s: float
    gap_s: float | None = None


class Demand:
    """Learns the rhythm of readers. All methods may be called from any thread."""

    def __init__(self, now_s: Callable[[], float], *, is_constant: bool = False) -> None:
        """``is_constant``: everything is read all the time, as a check or a controller reads it."""
        self._now_s = now_s
        self._lock = Lock()
        self._readers: dict[str, _Reader] = {}
        self.is_constant = is_constant

    def note(self, reader: str) -> None:
        """Note that ``reader``, a client's address, takes values at this moment."""
        now_s = self._now_s()
        with self._lock:
            known = self._readers.pop(reader, None)
            if known is None:
                known = _Reader(now_s)
            elif (gap_s := now_s - known.came_at_s) >= _GAP_S_MIN:
                known.came_at_s, known.gap_s = now_s, gap_s
            self._readers[reader] = known  # the newest last
            if len(self._readers) > READERS_MAX:
                del self._readers[next(iter(self._readers))]

    def is_expected(self, from_s: float, to_s: float) -> bool:
        """Return whether a reader is expected from ``from_s`` seconds from now until ``to_s``."""
        if self.is_constant:
            return True
        now_s = self._now_s()
        with self._lock:
            return any(
                _comes(reader, now_s, now_s + from_s, now_s + to_s + LATE_S)
                for reader in self._readers.values()
            )


def _comes(reader: _Reader, now_s: float, first_s: float, last_s: float) -> bool:
    gap_s = reader.gap_s
    if gap_s is None or now_s - reader.came_at_s > _GAPS_MAX * gap_s + LATE_S:
        return False
    missed = max(1, -int((reader.came_at_s - first_s) // gap_s))  # rounded up
    return reader.came_at_s + missed * gap_s <= last_s
