"""Who works on a desk: of several controllers the one that holds its lease."""

import math
from typing import Final, Protocol

from rankmend.errors import ManagerError

ACT_S_MIN: Final = 1.0  # a call that changes something is not begun with less left
_MARGIN_S: Final = 1.0  # between the end of such a call and the end of the lease


class DeskLease(Protocol):
    def hold(self) -> int | None:
        """Return the epoch under which this controller works on the desk, after a try to become the one; None: another one does.

        Another epoch than before: another controller may have worked there in between. Raises JournalError.
        """
        ...

    def left_s(self) -> float:
        """Return for how long it holds at least, if it is not renewed. For any thread."""
        ...


class OwnDesk:
    """The lease of a desk whose journal is this controller's own file."""

    def hold(self) -> int:
        return 0

    def left_s(self) -> float:
        return math.inf


class LeaseShortError(ManagerError):
    """Too little is left of the lease to begin a call that changes something: nothing was done."""

    def __init__(self, left_s: float) -> None:
        super().__init__(
            f"nothing is begun: the lease of this controller has only {left_s:.1f} s left"
        )


def act_timeout_s(timeout_s: float, left_s: float) -> float | None:
    """Return the timeout of a call that changes something; None: too little is left of the lease to begin it."""
    bound_s = left_s - _MARGIN_S
    return None if bound_s < ACT_S_MIN else min(timeout_s, bound_s)
