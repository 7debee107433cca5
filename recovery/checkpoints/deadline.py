"""A bound on reading: asked before every piece of work, and it can be drawn nearer meanwhile.

A look beside training also keeps to a rate. Nobody waits for it; as soon as somebody does, the rate
is off. A read that somebody waits for ends early where its rate shows that the time can't suffice.
"""

import math
import threading
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import RankmendError

_PAUSE_S_MAX: Final = 5.0  # then `checked_at_s` moves on: a pause is no read that hangs
_RATE_S_MIN: Final = 1.0  # of reading, before its rate says anything: a cold storage begins slowly


class UnfinishedError(RankmendError):
    """The deadline came first: nothing is known of what was being read."""


class Deadline:
    """``rate_bytes_per_s``: read no faster, for as long as nobody waits; 0 is no limit."""

    def __init__(
        self,
        clock: Clock,
        timeout_s: float,
        parent: "Deadline | None" = None,
        *,
        is_awaited: bool = True,
        rate_bytes_per_s: float = 0.0,
    ) -> None:
        self._clock = clock
        self._parent = parent
        self._began_s = clock.now_s()
        self._ends_s = self._began_s + timeout_s
        self._rate_bytes_per_s = rate_bytes_per_s
        self._next_read_s = self._began_s
        self._awaited = threading.Event()
        if is_awaited:
            self._awaited.set()
        self.read_bytes = 0  # within this bound, by every reader
        self._expected_bytes: int | None = None
        self._checked_at_s = self._began_s

    @property
    def checked_at_s(self) -> float:
        """Return when somebody was about to read, or paused to keep to the rate."""
        parent_s = self._parent.checked_at_s if self._parent else -math.inf
        return max(self._checked_at_s, parent_s)

    @property
    def is_awaited(self) -> bool:
        """Return whether somebody waits for what is read, or for the end of it."""
        return self._parent.is_awaited if self._parent else self._awaited.is_set()

    @property
    def rate_bytes_per_s(self) -> float:
        """Return how fast to read at most; 0: at any speed, as where somebody waits."""
        if self._parent is not None:
            return self._parent.rate_bytes_per_s
        return 0.0 if self._awaited.is_set() else self._rate_bytes_per_s

    def expect(self, total_bytes: int) -> None:
        """End once it shows that so many bytes can't be read in time: to wait for the rest brings nothing."""
        self._expected_bytes = total_bytes

    def count(self, read_bytes: int, *, is_cached: bool = False) -> None:
        """Add what a reader has read, and wait where that was faster than the rate.

        ``is_cached``: it came from the page cache. That takes processor time, too, so the rate holds for it as well.
        """
        self.read_bytes += read_bytes
        if self._expected_bytes is not None:
            spent_s = self._clock.now_s() - self._began_s
            left_bytes = self._expected_bytes - self.read_bytes
            if spent_s >= _RATE_S_MIN and left_bytes * spent_s > self.read_bytes * self.left_s():
                self._ends_s = min(self._ends_s, self._clock.now_s())
        if self._parent is not None:
            self._parent.count(read_bytes, is_cached=is_cached)
        elif self._rate_bytes_per_s and not self._awaited.is_set():
            # what was not read in time is not made up for: no burst after a pause
            begin_s = max(self._next_read_s, self._clock.now_s())
            self._next_read_s = begin_s + read_bytes / self._rate_bytes_per_s
            self._pause()

    def _pause(self) -> None:
        while not self._awaited.is_set():
            now_s = self._checked_at_s = self._clock.now_s()
            left_s = min(self._next_read_s - now_s, self.left_s())
            if left_s <= 0:
                return
            self._awaited.wait(min(left_s, _PAUSE_S_MAX))

    def shorten(self, timeout_s: float) -> None:
        """End in ``timeout_s`` from now, unless the end comes sooner anyway; any thread may call.

        Somebody waits from now on, so the rate is off.
        """
        self._ends_s = min(self._ends_s, self._clock.now_s() + timeout_s)
        self._awaited.set()

    def left_s(self) -> float:
        return max(0.0, self._over_at_s() - self._clock.now_s())

    def within(self, timeout_s: float) -> "Deadline":
        """Return a deadline of so many seconds, which ends with this one at the latest."""
        return Deadline(self._clock, timeout_s, self)

    def share(self, ratio: float) -> "Deadline":
        """Return a deadline for this ratio of what is left, which ends with this one at the latest."""
        return Deadline(self._clock, self.left_s() * ratio, self)

    def check(self) -> None:
        """Raise when the time is over. Readers ask often: it looks at the clock once."""
        now_s = self._clock.now_s()
        self._note_check(now_s)
        if now_s >= self._over_at_s():
            raise UnfinishedError(f"not finished within {now_s - self._began_s:.3g} s")

    def _note_check(self, now_s: float) -> None:
        self._checked_at_s = now_s
        if self._parent is not None:
            self._parent._note_check(now_s)

    def _over_at_s(self) -> float:
        parent_s = self._parent._over_at_s() if self._parent else math.inf
        return min(parent_s, self._ends_s)
