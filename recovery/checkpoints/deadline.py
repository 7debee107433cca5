"""A bound on reading: asked before every piece of work, and it can be drawn nearer meanwhile."""

import math

from rankmend.clock import Clock
from rankmend.errors import RankmendError


class UnfinishedError(RankmendError):
    """The deadline came first: nothing is known of what was being read."""


class Deadline:
    def __init__(self, clock: Clock, timeout_s: float, parent: "Deadline | None" = None) -> None:
        self._clock = clock
        self._parent = parent
        self._began_s = clock.now_s()
        self._ends_s = self._began_s + timeout_s
        self.read_bytes = 0  # within this bound, by every reader
        self.checked_at_s = self._began_s  # somebody was about to read

    def count(self, read_bytes: int) -> None:
        """Add what a reader has read."""
        self.read_bytes += read_bytes
        if self._parent is not None:
            self._parent.count(read_bytes)

    def shorten(self, timeout_s: float) -> None:
        """End in ``timeout_s`` from now, unless the end comes sooner anyway; any thread may call."""
        self._ends_s = min(self._ends_s, self._clock.now_s() + timeout_s)

    def left_s(self) -> float:
        parent_left_s = self._parent.left_s() if self._parent else math.inf
        return max(0.0, min(parent_left_s, self._ends_s - self._clock.now_s()))

    def share(self, ratio: float) -> "Deadline":
        """Return a deadline for this ratio of what is left, which ends with this one at the latest."""
        return Deadline(self._clock, self.left_s() * ratio, self)

    def check(self) -> None:
        """Raise when the time is over."""
        self.checked_at_s = self._clock.now_s()
        if self.left_s() <= 0:
            spent_s = self._clock.now_s() - self._began_s
            raise UnfinishedError(f"not finished within {spent_s:.3g} s")
