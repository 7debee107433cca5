"""The pause before the next try, after a number of failures in a row. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A wait that grows with each failure, up to a bound."""

    first_s: float
    cap_s: float
    factor: float = 2.0
    jitter: float = (
        0.0  # the share of a wait that chance may take off, so that many do not return at once
    )

    def wait_s(self, failures: int, draw: float = 1.0) -> float:
        """Return how long to wait; ``failures`` counts from 1, ``draw`` is a random number from 0 to 1."""
        try:
            whole_s = min(self.first_s * self.factor ** max(0, failures - 1), self.cap_s)
        except OverflowError:
            whole_s = self.cap_s
        return whole_s * (1.0 - self.jitter * (1.0 - draw))
