"""A job's ledger as far as the account of its time asks it: most records need no fold. Pure.

A fold takes 0.1 ms, and nearly all records of a long job tell of progress and of what was measured. So
what changes nothing of what a job does is not folded, and of progress only the farthest is, as soon as
another record may ask for it. Budgets, saves and repairs in this ledger are not those of the job.
"""

from dataclasses import replace
from typing import Final

from recovery.journal.attempt_records import (
    CheckpointSeen,
    Milestone,
    RelativeMilestone,
    SavesStalled,
    StepsSeen,
    WorkSeen,
)
from recovery.journal.fold.entry_fold import fold
from recovery.journal.ledger import Ledger
from recovery.journal.records import Entry, Record

# Change nothing of what a job does.
_NOT_FOLDED: Final = (WorkSeen, StepsSeen, SavesStalled, CheckpointSeen)


class TimeLedger:
    def __init__(self) -> None:
        self.standing = Ledger()  # as it is, but for how far the newest attempt has come
        self._held: Entry | None = None  # the newest record of progress that is not folded yet
        self._highest = self._floor = -1  # of all that are not; -1: none reported it
        # The same of steps that count from the start of the process.
        self._relative_highest = self._relative_floor = -1

    def take(self, entry: Entry) -> tuple[Ledger, Ledger]:
        """Return the ledger before and after an entry: the same where it changes nothing of what the job does."""
        record = entry.record
        if isinstance(record, _NOT_FOLDED):
            return self.standing, self.standing
        # With the first new step what a person has set aside counts again: that changes what the job does.
        if isinstance(record, Milestone | RelativeMilestone) and not self.standing.set_aside:
            self.hold(entry, record)
            return self.standing, self.standing
        self._fold_held()
        before = self.standing
        self._fold(entry, record)
        return before, self.standing

    def hold(self, entry: Entry, record: Milestone | RelativeMilestone) -> None:
        """Take an entry of progress, where nothing is set aside: only the farthest is folded, later."""
        self._held = entry
        if isinstance(record, Milestone):
            self._highest = max(self._highest, record.step)
            if record.floor_step is not None:
                self._floor = max(self._floor, record.floor_step)
        else:
            self._relative_highest = max(self._relative_highest, record.steps)
            if record.floor_steps is not None:
                self._relative_floor = max(self._relative_floor, record.floor_steps)

    def _fold_held(self) -> None:
        held, attempt = self._held, self.standing.attempt
        if held is None:
            return
        if self._highest >= 0:
            self._fold(held, Milestone(attempt, self._highest, _known_step(self._floor)))
        if self._relative_highest >= 0:
            floor = _known_step(self._relative_floor)
            self._fold(held, RelativeMilestone(attempt, self._relative_highest, floor))
        self._held = None
        self._highest = self._floor = self._relative_highest = self._relative_floor = -1

    def _fold(self, entry: Entry, record: Record) -> None:
        # Numbered without those that are not folded.
        numbered = replace(entry, number=self.standing.number + 1, record=record)
        self.standing = fold(self.standing, numbered)


def _known_step(step: int) -> int | None:
    return None if step < 0 else step
