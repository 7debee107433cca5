"""Compares the snapshots of replicas, step by step: journals each difference once."""

from collections.abc import Mapping
from typing import Final

from detectors.replicas.divergence import Divergence, ReplicaHistory, divergences
from recovery.journal.ledger import Ledger
from recovery.journal.snapshot_records import ReplicasDiffer
from recovery.messages.exchange import HeldSnapshot, Report, SnapshotPoint

_STEPS_MAX: Final = 8  # of which not all ranks have told; a rank has two snapshots


class ReplicaWatch:
    """Learns which ranks are replicas from what their launchers report. It begins anew with the controller."""

    def __init__(self) -> None:
        self._waiting: dict[SnapshotPoint, dict[int, HeldSnapshot]] = {}
        self._history = ReplicaHistory()
        self._attempt = 0
        self._found: list[ReplicasDiffer] = []

    def receive(self, report: Report) -> None:
        for held in report.snapshots:
            if held.is_damaged or not held.parts:
                continue
            known = self._waiting.setdefault(held.point, {})
            if held.rank not in known:
                known[held.rank] = held
                if len(known) == held.world_size:
                    self._compare(held.point, known)
        for point in sorted(self._waiting, key=lambda one: (one.attempt, one.step))[:-_STEPS_MAX]:
            del self._waiting[point]

    def due(self, ledger: Ledger) -> tuple[ReplicasDiffer, ...]:
        """Return the records of what the journal does not have."""
        found, self._found = self._found, []
        return tuple(one for one in found if one not in ledger.differing)

    def why_not(self, point: SnapshotPoint, parts: Mapping[int, HeldSnapshot]) -> str | None:
        """Return why a step must not be restored: replicas differ, and which one is right is not known."""
        found = divergences(point.step, self._history, _digests_of(parts))
        return _record(point, found[0]).in_words if found else None

    def _compare(self, point: SnapshotPoint, parts: Mapping[int, HeldSnapshot]) -> None:
        if point.attempt > self._attempt:
            # Other ranks, other code, an older step: what was learned may not hold.
            self._attempt, self._history = point.attempt, ReplicaHistory()
        self._history, found = self._history.take(point.step, _digests_of(parts))
        self._found += [_record(point, one) for one in found]


def _digests_of(parts: Mapping[int, HeldSnapshot]) -> dict[int, dict[str, str]]:
    return {rank: {part.name: part.digest for part in held.parts} for rank, held in parts.items()}


def _record(point: SnapshotPoint, found: Divergence) -> ReplicasDiffer:
    return ReplicasDiffer(point.attempt, point.step, found.part, found.group, found.odd)
