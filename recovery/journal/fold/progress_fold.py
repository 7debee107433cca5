"""Fold a run of records of progress, and of what was measured, at once: nearly all of a long journal. Pure.

To fold one entry copies the ledger several times. In such a run nothing asks the ledger before the run ends, so only
a few numbers are kept: the ledger is the same, to the last bit, as after folding one by one.
"""

from typing import Final, TypeAlias

from rankmend.errors import JournalError
from recovery.journal.attempt_records import (
    Milestone,
    RelativeMilestone,
    SavesStalled,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.fold.attempt_fold import with_relative
from recovery.journal.fold.budget_fold import with_first_step, with_step
from recovery.journal.fold.changed_copy import replace
from recovery.journal.fold.save_fold import run_sums, trains, with_run_sums
from recovery.journal.ledger import Ledger, Moment
from recovery.journal.reach import Reach, farther, is_farther
from recovery.journal.records import Entry

MEASURED: Final = (WorkSeen, StepsSeen, SavesStalled)
"""Change nothing but until when ranks are known to have trained."""
ProgressRecord: TypeAlias = Milestone | RelativeMilestone | WorkSeen | StepsSeen | SavesStalled
PROGRESS: Final = frozenset({Milestone, RelativeMilestone, *MEASURED})
"""What a run consists of."""


class ProgressRun:
    """A run that begins behind ``ledger``."""

    def __init__(self, ledger: Ledger) -> None:
        self._before = ledger
        self._number = ledger.number
        self._steps = Reach(ledger.highest_step, ledger.floor_step)
        self._relative = ledger.reach
        self._has_relative = self._has_stepped = self._has_begun = False
        self._trains = trains(ledger)
        self._ran_at = ledger.ran_at
        self._sums = run_sums(ledger.history)

    def take(self, entry: Entry, record: ProgressRecord) -> None:
        """Add the next entry, which holds ``record``."""
        if entry.number != self._number + 1:
            raise JournalError(f"record {entry.number} follows record {self._number}")
        self._number = entry.number
        self._has_begun = self._has_begun or not isinstance(record, MEASURED)
        if isinstance(record, Milestone):
            known, self._steps = self._steps, farther(self._steps, record.step, record.floor_step)
            self._has_stepped = self._has_stepped or is_farther(known, self._steps)
        elif isinstance(record, RelativeMilestone):
            known, self._has_relative = self._relative, True
            self._relative = farther(known, record.steps, record.floor_steps)
            is_news = self._before.is_base_known and is_farther(known, self._relative)
            self._has_stepped = self._has_stepped or is_news
        at = Moment(entry.unix_s, entry.monotonic_s, entry.boot_id) if self._trains else None
        if at is not None and self._ran_at is not None:
            self._sums = self._sums.after(self._ran_at.until_s(at))
        self._ran_at = at

    def ledger(self) -> Ledger:
        """Return the ledger after the newest entry."""
        after = replace(
            self._before,
            number=self._number,
            highest_step=self._steps.highest,
            floor_step=self._steps.floor,
            history=with_run_sums(self._before.history, self._sums),
            ran_at=self._ran_at,
        )
        if self._has_relative:
            after = with_relative(after, self._relative)
        if self._has_begun:
            after = with_first_step(after)
        return with_step(after) if self._has_stepped else after
