"""What lies in a checkpoint folder, and what a restart from it would read: `rankmend checkpoints`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from recovery.checkpoints.background import CheckpointWatch
from recovery.checkpoints.deadline import Deadline
from recovery.checkpoints.finder import CheckpointFinder
from recovery.checkpoints.manifests import Manifests
from recovery.checkpoints.names import refuse_url
from recovery.checkpoints.order import CandidateEvidence, passed_over
from recovery.messages.candidates import CheckpointSettings, CheckpointVerdict, Share

_MEASURED_BYTES_MIN: Final = 1 << 20  # less says how long files take to open, and no rate
_JUDGED_MAX: Final = 1000  # candidates read in one call; a folder rarely keeps more than 100


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """The candidates of one folder, newest first."""

    path: str
    looked_at_unix_s: float
    verdicts: tuple[CheckpointVerdict, ...]
    read_bytes_per_s: float | None  # while they were read just now; None when that was too little
    unknown: tuple[str, ...] = ()  # files that are checkpoints by their names alone
    deeper: str | None = None  # looks like a checkpoint, but lies too deep
    evidence: Mapping[str, CandidateEvidence] = field(
        default_factory=dict
    )  # of each candidate, by path

    @property
    def chosen(self) -> CheckpointVerdict | None:
        """Return the one that a restart would use, or None when none can be restored."""
        return next((verdict for verdict in self.verdicts if verdict.is_valid), None)

    @property
    def passed_over(self) -> tuple[CheckpointVerdict, ...]:
        """Return what is newer than the chosen one and can't be used."""
        return passed_over(self.verdicts, self.chosen.candidate.path) if self.chosen else ()

    @property
    def looks_like_checkpoint_count(self) -> int:
        return sum(verdict.looks_like_checkpoint for verdict in self.verdicts)

    def restore_s(self, size_bytes: int, replicas: int) -> float | None:
        """Return how long reading takes that each replica does, at the rate of this look."""
        if not self.read_bytes_per_s or not size_bytes:
            return None
        return size_bytes * replicas / self.read_bytes_per_s


def look_into(
    folder: Path, marker: str | None, names: Sequence[str], timeout_s: float, clock: Clock
) -> CheckpointFolder:
    """Read every checkpoint in the folder with one of these names, if there are any.

    Raises SourceError when it can't be listed.
    """
    refuse_url(str(folder))
    settings = CheckpointSettings(
        marker=marker,
        names=tuple(names),
        validate_max=_JUDGED_MAX,
        background_timeout_s=timeout_s,
        check_wait_s=math.inf,  # no restart waits for a person's answer
    )
    manifests = Manifests(folder, trusts=False)
    found = CheckpointFinder(folder, settings, clock, manifests)
    finder = _TimedFinder(found, clock)
    watch = CheckpointWatch(finder, clock)  # its thread is left behind when storage hangs
    try:
        verdicts = watch.candidates(enough=_JUDGED_MAX, timeout_s=timeout_s)
    finally:
        watch.stop(timeout_s=0.0)
    return CheckpointFolder(
        str(folder.absolute()),
        clock.unix_s(),
        verdicts,
        finder.read_bytes_per_s,
        found.unknown,
        found.deeper,
        found.evidence,
    )


class _TimedFinder:
    """A finder that measures how fast checkpoints are read."""

    def __init__(self, finder: CheckpointFinder, clock: Clock) -> None:
        self.settings = finder.settings
        self.share = Share()
        self.owed: frozenset[str] = frozenset()  # no ranks restore anything
        self.restored: Mapping[str, float] = {}
        self._finder = finder
        self._clock = clock
        self._read_bytes = 0
        self._read_s = 0.0

    @property
    def read_bytes_per_s(self) -> float | None:
        if self._read_s <= 0 or self._read_bytes < _MEASURED_BYTES_MIN:
            return None
        return self._read_bytes / self._read_s

    def look(self, deadline: Deadline, enough: int) -> Iterator[tuple[CheckpointVerdict, ...]]:
        seen_bytes, since_s = deadline.read_bytes, self._clock.now_s()
        for verdicts in self._finder.look(deadline, enough):
            now_s = self._clock.now_s()
            if deadline.read_bytes > seen_bytes:
                self._read_bytes += deadline.read_bytes - seen_bytes
                self._read_s += now_s - since_s
            seen_bytes, since_s = deadline.read_bytes, now_s
            yield verdicts
