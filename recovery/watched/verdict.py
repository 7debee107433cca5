"""What the controller says of a watched job. Pure."""

from dataclasses import dataclass
from enum import Enum

from detectors.finding import Finding


class WatchedState(Enum):
    STARTING = "starting"  # no rank has made two steps
    TRAINING = "training"
    SLOW = "slow"  # it trains, and waits for a rank
    HUNG = "hung"
    SUSPENDED = "suspended"  # all its ranks are stopped: `scontrol suspend` does that
    UNKNOWN = "unknown"  # a node of it reports nothing, or no rank can be read
    ENDED = "ended"

    @property
    def is_trouble(self) -> bool:
        return self in (WatchedState.SLOW, WatchedState.HUNG)


@dataclass(frozen=True, slots=True)
class WatchedVerdict:
    state: WatchedState
    reason: str
    findings: tuple[Finding, ...] = ()  # of trouble: one of a hang, one for each slow rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that the job waits for."""
        return tuple(sorted({rank for finding in self.findings for rank in finding.ranks}))
