"""What a job's journal adds up to about its saves, failures and restarts. Pure.

`recovery.journal.fold.save_fold` makes it, `recovery.views.checkpoint_view` turns it into costs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from recovery.journal.attempt_records import SavesSeen, StallSource

SAVES_KEPT: Final = 16  # records; each is of one save, or of several that came fast
_INTERVALS: Final = 5  # newest records that the usual interval is the median of
HALF_LIFE_S: Final = 7 * 86400.0
"""Running time after which a failure counts half. Our choice: repairs change a rate within weeks."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that ranks have read."""

    size_bytes: int
    took_s: float  # of the slowest rank: from asking for it to its first section


@dataclass(frozen=True, slots=True)
class SaveHistory:
    saves: tuple[SavesSeen, ...] = ()  # oldest first
    ran_s: float = 0.0  # ranks were verified and trained; older time and failures count less
    failures: float = 0.0
    # Of these, the ones after which every rank began where it had been: what it kept in memory was there.
    stayed: float = 0.0
    repairs: float = 0.0  # failures that were recovered from, ...
    repaired_s: float = 0.0  # ... and for how long no step was made: fault to first step
    restored: Restored | None = None  # the newest that was measured

    @property
    def interval_s(self) -> float | None:
        """Return the usual time from the begin of a save to the next; None before two saves."""
        return _middle(one.interval_s for one in self.saves[-_INTERVALS:])

    @property
    def save_s(self) -> float | None:
        return _middle(one.save_s for one in self.saves[-_INTERVALS:])

    @property
    def stall_source(self) -> StallSource:
        """Return the best source that has measured a stall."""
        sources = {one.stall_source for one in self.saves if one.stall_s is not None}
        best = (StallSource.SECTION, StallSource.STEPS)
        return next((one for one in best if one in sources), StallSource.UNKNOWN)

    @property
    def stall_s(self) -> float | None:
        """Return for how long a save stops training, by the best source; None: not known."""
        source = self.stall_source
        stalls = [one.stall_s for one in self.saves if one.stall_source is source]
        known = [stall_s for stall_s in stalls if stall_s is not None]
        if not known:
            return None
        # What the steps tell may contain an evaluation, or a step that was slow by chance.
        return fmean(known) if source is StallSource.SECTION else median(known)

    @property
    def repair_s(self) -> float | None:
        """Return the mean time from a fault to the first step; None before the first recovery."""
        return self.repaired_s / self.repairs if self.repairs else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
