"""Records which checkpoint a failure would restore now, and warns of a job that saves nothing. Pure.

Looks beside training find the checkpoint. The console and `rankmend plan` show it, and it proves
later that there was something to restore. One record an hour is usual; saves that come faster share
a record.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from detectors.finding import SymptomKind
from rankmend.rank_values import Unsaved
from recovery.checkpoints.order import held_by
from recovery.controller.job.restore.restore_choice import choose_checkpoint
from recovery.controller.job.watch.meters import SaveMeter
from recovery.journal.attempt_records import CheckpointSeen, SavesMissing
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.messages.candidates import CheckpointVerdict, Hindrance

NOTE_S: Final = 10.0  # between two notes; saves are minutes apart, or it is a short run
PASSED_OVER_MAX: Final = (
    3  # kept with a note, for `rankmend plan`; `rankmend checkpoints` shows all
)
ROOM_MIN_BYTES: Final = 1 << 20  # no training state is smaller
LOOK_S: Final = 1.0  # between two looks at what was found beside training, every 5 s

# Of the job's own usual interval: one save failed, and the next one too or it is late (as RankmendCheckpointOld).
INTERVALS: Final = 3
_GAP_S_MAX: Final = 60.0  # between two looks beside training: a longer one was no training
_EXAMPLE_MAX: Final = 300

_NOTHING_THERE: Final = frozenset({Hindrance.MISSING, Hindrance.ALIAS})


def checkpoint_seen(
    ledger: Ledger, policy: Policy, known: Sequence[CheckpointVerdict], saves: SaveMeter
) -> CheckpointSeen | None:
    """Return the checkpoint that a failure would restore now, where that is news."""
    known = [_trusted(ledger, verdict) for verdict in known]
    if not any(verdict.is_valid for verdict in known):
        return None
    choice = choose_checkpoint(ledger, policy, known)
    restore = choice.restore
    place = next(
        (
            at
            for at, verdict in enumerate(known)
            if restore and verdict.candidate.path == restore.path
        ),
        None,
    )
    if place is None:
        return None
    chosen = known[place]
    newer = next(
        (verdict for verdict in known[:place] if verdict.hindrance is Hindrance.WRITING), None
    )
    candidate, noted = chosen.candidate, ledger.restorable
    if noted is not None and (noted.path, noted.modified_unix_s) == (
        candidate.path,
        candidate.modified_unix_s,
    ):
        return None
    return CheckpointSeen(
        candidate.path,
        candidate.step,
        candidate.format.value,
        candidate.format.label,
        candidate.modified_unix_s,
        chosen.reason,
        candidate.size_bytes,
        saves.take(),
        None if newer is None else newer.candidate.path,
        held_by(candidate).value,
        choice.passed_over[:PASSED_OVER_MAX],
    )


def _trusted(ledger: Ledger, verdict: CheckpointVerdict) -> CheckpointVerdict:
    """Return the verdict, valid and with the proof known then where the newest attempt began from this very save, or it was noted before.

    A save that was restored a moment after it ended is younger than the grace, and no longer being written.
    """
    if verdict.hindrance is not Hindrance.WRITING:
        return verdict
    candidate, noted = verdict.candidate, ledger.restorable
    known = {} if noted is None else {(noted.path, noted.modified_unix_s): noted.reason}
    began = None if ledger.started is None else ledger.started.choice
    if began is not None and began.restore is not None and began.modified_unix_s is not None:
        known[began.restore.path, began.modified_unix_s] = began.reason
    reason = known.get((candidate.path, candidate.modified_unix_s))
    if reason is None:
        return verdict
    return replace(verdict, is_valid=True, hindrance=None, reason=reason)


def room_wanted(ledger: Ledger) -> int:
    """Return how many bytes must be free before the next attempt, whose ranks may have failed for lack of them; 0: any number.

    A fence is a few bytes, and fits where a save does not. A job that has saved nothing yet needs at least some.
    """
    incident = ledger.incident
    if incident is None or incident.last_failure.finding.symptom.kind is not SymptomKind.STORAGE:
        return 0
    known = 0 if ledger.restorable is None else ledger.restorable.size_bytes
    return max(known, ROOM_MIN_BYTES)


class MissingSaves:
    """Counts how long the job has trained since its last save, or since it began.

    A folder that the script doesn't save into, saving that is switched off, an interval longer than
    the run: nothing of this shows before the first failure, which then costs everything. Training
    alone counts, not the time of incidents, and across attempts: a job that fails every half hour
    and saves nothing gets the warning, too.
    """

    def __init__(self, policy: Policy, folder: str) -> None:
        """``folder``: where checkpoints are looked for, for people; empty: not known by name."""
        self._wait_s = policy.save_wait_s
        self._folder = folder
        self._trained_s = 0.0
        self._looked_at_s: float | None = None
        self._saved_number = 0
        self._warned_at_s = float("-inf")

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
        seen = [verdict for verdict in known if verdict.hindrance not in _NOTHING_THERE]
        cause = _cause(ledger, seen)
        reported = ledger.unsaved
        if reported is not None and (
            reported.record.cause is cause or now_s - self._warned_at_s < self._wait_s
        ):
            return None
        self._warned_at_s = now_s
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


def _cause(ledger: Ledger, seen: Sequence[CheckpointVerdict]) -> Unsaved:
    if not seen:
        return Unsaved.NOTHING_FOUND
    # Launchers report the newest ones alone: what a failure would restore may be behind them.
    is_restorable = ledger.restorable is not None or any(verdict.is_valid for verdict in seen)
    return Unsaved.NONE_NEWER if is_restorable else Unsaved.NONE_VALID


def _example(seen: Sequence[CheckpointVerdict]) -> str:
    """Return the newest one with the reason why it can't be restored; empty if it can."""
    if not seen or seen[0].is_valid:
        return ""
    return f"{seen[0].candidate.tag}: {seen[0].reason}"[:_EXAMPLE_MAX]
