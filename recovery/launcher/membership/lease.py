"""The lease by which the launchers of one attempt keep it alive, and the clock that dates it."""

import time
from dataclasses import dataclass

from recovery.messages.exchange import Peer


@dataclass(frozen=True, slots=True)
class Lease:
    """The attempt that is kept alive, and by whom."""

    attempt: int
    peers: tuple[Peer, ...]  # more than half of them are a majority
    lease_s: float
    neighbours: tuple[Peer, ...] = ()  # asked often, and never counted for the majority


def boot_time_s() -> float:
    """Return CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
