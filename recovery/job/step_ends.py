"""When the last steps of a rank ended. Pure.

33 pairs of objects for each of 80,000 ranks took 300 MB, which grew for minutes after each start of ranks, and each growth by half of the memory had
the service look for cycles of dead objects, for 0.7 s.
"""

from array import array
from collections.abc import Iterator
from typing import Final

KEPT: Final = 33  # 32 step times a rank for the median
_ROOM: Final = KEPT + 1  # the one that is being written is none of those that another thread reads
_NONE: Final = bytes(2 * _ROOM * 8)
_TRIES: Final = 3  # of another thread, while this one adds


class StepEnds:
    """A ring of the newest, each with its number and its time. One thread appends."""

    __slots__ = ("_count", "_ring")

    def __init__(self) -> None:
        self._count = 0
        self._ring = array("d", _NONE)  # number, time, number, time; numbers are exact up to 2**53

    def append(self, number: int, at_s: float) -> None:
        place = 2 * (self._count % _ROOM)
        self._ring[place] = number
        self._ring[place + 1] = at_s
        self._count += 1

    @property
    def newest_number(self) -> int:
        """Return the number of the newest; 0: there is none."""
        return int(self._ring[2 * ((self._count - 1) % _ROOM)]) if self._count else 0

    @property
    def newest_at_s(self) -> float | None:
        return self._ring[2 * ((self._count - 1) % _ROOM) + 1] if self._count else None

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Go through number and time, the oldest first. For any thread."""
        for _try in range(_TRIES):
            count, ring = self._count, self._ring[:]
            if count == self._count:
                break
        for at in range(max(0, count - KEPT), count):
            place = 2 * (at % _ROOM)
            yield int(ring[place]), ring[place + 1]
