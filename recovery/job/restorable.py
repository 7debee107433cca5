"""Notes which checkpoint a failure would restore now, by what was looked at beside training.

It is what a person reads on the console and in `rankmend plan`, and what tells later that
there was something to restore. A note an hour is usual; saves that come faster share one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from detectors.finding import SymptomKind
from recovery.checkpoints.model import CheckpointVerdict, Hindrance
from recovery.checkpoints.order import held_by
from recovery.job.restore_choice import choose_checkpoint
from recovery.job.save_meter import SaveMeter
from recovery.journal.attempt_records import CheckpointSeen
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy

NOTE_S: Final = 10.0  # between two notes; saves are minutes apart, or it is a short run
PASSED_OVER_MAX: Final = (
    3  # kept with a note, for `rankmend plan`; `rankmend checkpoints` shows all
)
ROOM_MIN_BYTES: Final = 1 << 20  # no training state is smaller
LOOK_S: Final = 1.0  # between two looks at what was found beside training, every 5 s


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
        (at for at, one in enumerate(known) if restore and one.candidate.path == restore.path), None
    )
    if place is None:
        return None
    chosen = known[place]
    newer = next((one for one in known[:place] if one.hindrance is Hindrance.WRITING), None)
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
