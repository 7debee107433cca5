"""Notes that a job trains and saves nothing where checkpoints are looked for. Pure.

A folder that the script doesn't save into, saving that is switched off, an interval longer than the run: nothing
of this shows before the first failure, which then costs everything. What is counted is training alone, not the time
of incidents, across attempts: a job that fails every half hour and saves nothing is warned, too.
"""

from collections.abc import Sequence
from typing import Final

from rankmend.unsaved import Unsaved
from recovery.checkpoints.model import CheckpointVerdict, Hindrance
from recovery.journal.attempt_records import SavesMissing
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy

# Of the job's own usual interval: one save failed, and the next one too or it is late (as RankmendCheckpointOld).
INTERVALS: Final = 3
_GAP_S_MAX: Final = 60.0  # between two looks beside training: a longer one was no training
_EXAMPLE_MAX: Final = 300


class MissingSaves:
    """Counts how long the job has trained since its last save, or since it began."""

    def __init__(self, policy: Policy, folder: str) -> None:
        """``folder``: where checkpoints are looked for, for people; empty: not known by name."""
        self._wait_s = policy.save_wait_s
        self._folder = folder
        self._trained_s = 0.0
        self._looked_at_s: float | None = None
        self._saved_number = 0
        self._told_at_s = float("-inf")

    def due(
        self,
        ledger: Ledger,
        known: Sequence[CheckpointVerdict],
        now_s: float,
        *,
        has_snapshots: bool,
    ) -> SavesMissing | None:
        """Return the record that is due now, if any. Call it about once a second while the attempt is watched.

        ``known``: what was found beside training. At most one record for each cause and each `save_wait_s`.
        """
        self._count(ledger, now_s)
        wait_s = max(self._wait_s, INTERVALS * (ledger.history.interval_s or 0.0))
        if not self._wait_s or self._trained_s < wait_s or not ledger.is_verified:
            return None
        seen = [one for one in known if one.hindrance not in _NOTHING_THERE]
        cause = _cause(ledger, seen)
        told = ledger.unsaved
        if told is not None and (
            told.record.cause is cause or now_s - self._told_at_s < self._wait_s
        ):
            return None
        self._told_at_s = now_s
        return SavesMissing(
            ledger.attempt,
            cause,
            round(self._trained_s, 1),
            self._folder,
            ledger.restorable_path or "",
            _example(seen),
            has_snapshots,
        )

    def _count(self, ledger: Ledger, now_s: float) -> None:
        if ledger.saved_number != self._saved_number:
            self._saved_number, self._trained_s = ledger.saved_number, 0.0
        if self._looked_at_s is not None and ledger.is_verified:
            self._trained_s += min(_GAP_S_MAX, max(0.0, now_s - self._looked_at_s))
        self._looked_at_s = now_s if ledger.is_verified else None


_NOTHING_THERE: Final = frozenset({Hindrance.MISSING, Hindrance.ALIAS})


def _cause(ledger: Ledger, seen: Sequence[CheckpointVerdict]) -> Unsaved:
    if not seen:
        return Unsaved.NOTHING_FOUND
    # Launchers tell the newest ones alone: what a failure would restore may be behind them.
    is_restorable = ledger.restorable is not None or any(one.is_valid for one in seen)
    return Unsaved.NONE_NEWER if is_restorable else Unsaved.NONE_VALID


def _example(seen: Sequence[CheckpointVerdict]) -> str:
    """Return the newest one with the reason why it can't be restored; empty if it can."""
    if not seen or seen[0].is_valid:
        return ""
    return f"{seen[0].candidate.tag}: {seen[0].reason}"[:_EXAMPLE_MAX]
