"""Limits a rate of bytes. Pure."""

from typing import Final

BURST_S: Final = 0.05  # a burst delays others' packets by as long as the link takes for it


class TokenBucket:
    """Lets bytes pass at a mean rate, with bursts of `BURST_S` of it, or of one piece if that is larger.

    In any T seconds at most ``bytes_per_s * (T + BURST_S)`` pass, and one piece.
    """

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a rate of {bytes_per_s} bytes/s: want more than 0")
        self._bytes_per_s = bytes_per_s
        self._free = bytes_per_s * BURST_S  # negative: owed
        self._at_s = now_s

    def take(self, size_bytes: int, now_s: float) -> float:
        """Return how many seconds to wait before this piece may pass. It counts at once."""
        rate = self._bytes_per_s
        self._free = min(rate * BURST_S, self._free + rate * max(0.0, now_s - self._at_s))
        self._at_s = max(self._at_s, now_s)
        wait_s = max(0.0, -self._free / rate)
        self._free -= size_bytes
        return wait_s
