"""Why a job gives a node no ranks any more: the cause, for decisions, and the words for it.

Only the cause is ever asked; `LeaveReason.text` is journaled beside it for people.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class LeaveCause(Enum):
    UNKNOWN = "unknown"  # from a version that did not record it
    NOT_JOINED = "not_joined"
    ENDED = "ended"  # its launcher has ended
    LEFT = "left"  # the job had left it before
    ALERT = "alert"
    SILENT = "silent"
    HELD = "held"  # by the cluster: drained, quarantined, in maintenance
    SLOW = "slow"
    BLAMED = "blamed"  # several times in a row
    CUT_OFF = "cut_off"  # from other nodes of the job
    ACCUSED = "accused"
    PERSON = "person"
    NUMBERS = "numbers"


LOST: Final = frozenset({LeaveCause.SILENT, LeaveCause.CUT_OFF})
"""Causes after which a node comes back by speaking; after others only by a person's word."""

GONE: Final = LOST | {LeaveCause.ALERT}
"""Causes that may have one cause of their own: a part that several nodes share."""

_OTHERS_MAX: Final = 64  # journaled with a node that is cut off; the rest count as reached

_WORDS: Final = {
    LeaveCause.NOT_JOINED: "it has not joined",
    LeaveCause.ENDED: "its launcher has ended",
    LeaveCause.SILENT: "silent",
    LeaveCause.SLOW: "slow",
    LeaveCause.BLAMED: "blamed {} times in a row",
    LeaveCause.CUT_OFF: "cut off from {}",
    LeaveCause.NUMBERS: "its numbers went wrong first",
    LeaveCause.ACCUSED: "accused, and the policy allows no restart in place",
}


@dataclass(frozen=True, slots=True)
class LeaveReason:
    cause: LeaveCause
    detail: str = ""  # names, a count, or another's words where there are none of our own
    others: tuple[str, ...] = ()  # CUT_OFF: the nodes it does not reach

    @property
    def text(self) -> str:
        return _WORDS.get(self.cause, "{}").format(self.detail)


def cut_off_from(others: list[str]) -> LeaveReason:
    """Return the reason to leave a node that does not reach these others, one at least."""
    more = f" and {len(others) - 1} others" if len(others) > 1 else ""
    return LeaveReason(LeaveCause.CUT_OFF, f"{others[0]}{more}", tuple(others[:_OTHERS_MAX]))
