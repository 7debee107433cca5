"""When the service looks for cycles of dead objects: when its memory has grown, not when it has made many objects.

Reports and requests die by their count. Python's own rule looks for cycles at every so many new objects, and the
newest reports of 80,000 ranks are a quarter of a million that live for seconds: with 9,900 nodes that took a fifth
of the core, in pauses of 0.5 to 7 s, and found nothing. Cycles are what closed connections and failures leave.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

GROWTH_RATIO: Final = 0.5  # share of the memory after the last look that cycles may take
# What 1,600 connections take: a look at a service with 2,000 nodes takes 0.3 s.
GROWTH_BYTES_MIN: Final = 128 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")


def read_resident_bytes() -> int:
    """Return how much memory this process holds (proc(5): statm, second field, in pages)."""
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Cycles:
    """Looks for cycles once memory has grown by so much since the last look."""

    def __init__(
        self,
        read_bytes: Callable[[], int] = read_resident_bytes,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._read_bytes = read_bytes
        self._collect = collect
        self._known_bytes = read_bytes()

    def look(self) -> bool:
        """Collect if it is due; return whether it was."""
        known, now = self._known_bytes, self._read_bytes()
        if now - known < max(GROWTH_BYTES_MIN, GROWTH_RATIO * known):
            self._known_bytes = min(known, now)  # what it shrinks by may not be filled with cycles
            return False
        self._collect()
        self._known_bytes = self._read_bytes()
        return True
