"""The lease by which the launchers of one attempt keep it alive, and the clock that dates it.

Three keepers end an attempt whose launcher reached nobody for `lease_s`: the guardian kills the ranks at `until_s`; where it
stands still with its launcher, each rank ends itself from `ends_s` on, as it counts a step (`rankmend.hook.lease`). The
controller takes the node for empty `lease_margin_s` later at the earliest. Whoever comes later finds nothing to do.
"""

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


@dataclass(frozen=True, slots=True)
class RankDeadline:
    """Until when the ranks of an attempt may run; CLOCK_BOOTTIME."""

    until_s: float  # the guardian kills them, and they publish nothing more
    ends_s: (
        float | None
    )  # by then a kill is done: a rank that still steps ends itself; None: an older controller


def prolong(
    before: RankDeadline | None, until_s: float, kill_bound_s: float, now_s: float
) -> RankDeadline | None:
    """Return the deadline that a contact gives; None: the one before is over, and stays so.

    The controller may have begun the next attempt by then, and answers reports all the same.
    """
    if before is not None and now_s >= before.until_s:
        return None
    return RankDeadline(until_s, until_s + kill_bound_s if kill_bound_s > 0 else None)


def boot_time_s() -> float:
    """Return CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
