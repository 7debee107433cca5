"""When a node that we drained may be checked, and when it may return. Pure.

What keeps it out is one of `Stay`, and the text is for people.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from recovery.schedulers.slurm.ledger import NodeHistory
from recovery.schedulers.slurm.limits import DAY_S, NodeLimits
from recovery.schedulers.slurm.managed_node import ManagedNode

_DOUBLINGS_MAX: Final = 20


class Stay(Enum):
    """Why a node that we drained is still out."""

    PERSON = "person"  # no check is set: a person returns it
    OFFENDER = "offender"  # it was drained too often: a person returns it
    BUSY = "busy"  # jobs of before the drain still run there
    SILENT = "silent"  # its manager does not hear it, has it down, or it restarts
    WAITING = "waiting"  # for the time of its check
    PAUSED = "paused"
    CHECKING = "checking"
    ASKED = "asked"  # a request about it is under way: its return, mostly


@dataclass(frozen=True, slots=True)
class ReturnStanding:
    stay: Stay
    text: str
    due_unix_s: float | None = None  # of the next check


def stands_alone(
    node: str, past: NodeHistory, limits: NodeLimits, now_unix_s: float
) -> ReturnStanding | None:
    """Return what keeps a node out until a person says otherwise, or None."""
    todo = f"rankmend resume --node {node} returns it"
    if not limits.return_check:
        return ReturnStanding(Stay.PERSON, f"{limits.table}.return_check is not set: {todo}")
    count = offences(past, limits, now_unix_s)
    if limits.offences_max and count >= limits.offences_max:
        text = f"drained {count} times within {limits.offence_days:g} days ({limits.table}.offences_max is {limits.offences_max})"
        return ReturnStanding(Stay.OFFENDER, f"{text}: {todo}")
    return None


def offences(past: NodeHistory, limits: NodeLimits, now_unix_s: float) -> int:
    """Return how often we drained the node lately, since a person has last returned it."""
    since_s = now_unix_s - limits.offence_days * DAY_S
    return sum(drain.unix_s > since_s and not drain.is_forgiven for drain in past.drains)


def not_ready(seen: ManagedNode, manager: str) -> ReturnStanding | None:
    """Return why a node can't be checked now, or None: it is drained and empty."""
    if seen.is_silent or seen.is_down:
        state = "+".join([seen.base, *sorted(seen.flags)])
        return ReturnStanding(
            Stay.SILENT, f"waits until {manager} reaches it and has it up: it is {state}"
        )
    if seen.is_rebooting:
        return ReturnStanding(Stay.SILENT, "waits for its restart")
    if "MAINT" in seen.flags:
        return ReturnStanding(Stay.SILENT, "is reserved for maintenance")
    if seen.is_used:
        return ReturnStanding(Stay.BUSY, "is draining: its jobs still run")
    return None


def due_unix_s(past: NodeHistory, limits: NodeLimits, empty_unix_s: float) -> float:
    """Return when the node is checked next; ``empty_unix_s``: since when it is seen drained and empty."""
    first_s = empty_unix_s + limits.return_after_s
    if past.checked is None:
        return first_s
    pause_s = limits.return_pause_s * 2.0 ** min(max(past.check_count - 1, 0), _DOUBLINGS_MAX)
    return max(first_s, past.checked_unix_s + min(pause_s, max(DAY_S, limits.return_pause_s)))
