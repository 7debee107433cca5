"""Compares the snapshots of replicas, step by step: journals each difference once, and which ranks are equal as a whole."""

from collections.abc import Mapping
from typing import Final

from detectors.replicas.divergence import Divergence, ReplicaHistory, divergences
from recovery.journal.ledger import Ledger
from recovery.journal.snapshot_records import ReplicasDiffer, ReplicasKnown
from recovery.messages.exchange import HeldSnapshot, Report, SnapshotPoint

_STEPS_MAX: Final = 8  # of which not all ranks have told; a rank has two snapshots
_GROUPINGS_MAX: Final = 8  # in an attempt; ranks that are now equal and now not are no replicas
_WHOLE: Final = "whole"  # the snapshot: random states, positions and counters, too


class ReplicaWatch:
    """Learns which ranks are replicas from what their launchers report. It begins anew with the controller."""

    def __init__(self) -> None:
        self._nodes: dict[int, str] = {}  # by rank
        self._waiting: dict[SnapshotPoint, dict[int, HeldSnapshot]] = {}
        self._history = ReplicaHistory()
        self._wholes = ReplicaHistory()
        self._attempt = 0
        self._groups: tuple[tuple[int, ...], ...] | None = None  # None: not known yet
        self._groupings = 0
        self._found: list[ReplicasDiffer] = []
        # Ranks that differ from a majority of the attempt's replicas, and one of these each.
        self._odd: dict[int, int] = {}

    def receive(self, report: Report) -> None:
        for held in report.snapshots:
            if held.is_damaged or not held.parts:
                continue
            known = self._waiting.setdefault(held.point, {})
            self._nodes[held.rank] = report.node
            if held.rank not in known:
                known[held.rank] = held
                if len(known) == held.world_size:
                    self._compare(held.point, known)
        for point in sorted(self._waiting, key=lambda one: (one.attempt, one.step))[:-_STEPS_MAX]:
            del self._waiting[point]

    def due(self, ledger: Ledger) -> tuple[ReplicasDiffer | ReplicasKnown, ...]:
        """Return the records of what the journal does not have."""
        found, self._found = self._found, []
        known = self._known(ledger)
        return (*(one for one in found if one not in ledger.differing), *known)

    def _known(self, ledger: Ledger) -> tuple[ReplicasKnown, ...]:
        journaled = ledger.replicas
        is_of_attempt = journaled is not None and journaled.attempt == self._attempt
        if self._attempt != ledger.attempt or self._groups is None:
            return ()  # what the journal has still holds
        if self._groups == (journaled.groups if is_of_attempt and journaled else ()):
            return ()
        return (ReplicasKnown(self._attempt, self._groups),)

    def why_not(self, point: SnapshotPoint, parts: Mapping[int, HeldSnapshot]) -> str | None:
        """Return why a step must not be restored: replicas differ, and which one is right is not known."""
        found = divergences(point.step, self._history, _digests_of(parts))
        return self._record(point, found[0]).in_words if found else None

    def _compare(self, point: SnapshotPoint, parts: Mapping[int, HeldSnapshot]) -> None:
        if point.attempt > self._attempt:
            # Other ranks, other code, an older step: what was learned may not hold.
            self._attempt, self._history = point.attempt, ReplicaHistory()
            self._wholes, self._groups, self._groupings = ReplicaHistory(), None, 0
            self._odd = {}
        self._history, found = self._history.take(point.step, _digests_of(parts))
        for one in found:
            self._note_odd(one)
        self._learn(point.step, parts)
        self._found += [self._record(point, one) for one in found]

    def _note_odd(self, found: Divergence) -> None:
        like = min(set(found.group) - set(found.odd))
        for rank in found.odd:
            self._odd[rank] = like
        self._odd.update({rank: like for rank, one in self._odd.items() if one in found.odd})

    def _learn(self, step: int, parts: Mapping[int, HeldSnapshot]) -> None:
        """Note which ranks' whole snapshots are equal, but for those that are known to have gone wrong."""
        digests = {rank: {_WHOLE: held.digest} for rank, held in parts.items()}
        for group in self._groups or ():
            for rank in group:
                if self._odd.get(rank) in group:  # it ought to be equal still
                    digests[rank] = digests[self._odd[rank]]
        self._wholes, differing = self._wholes.take(step, digests)
        groups = self._wholes.groups(_WHOLE)
        if groups == self._groups or not (groups or differing):
            return  # a change is only known to last after some steps
        self._groupings += bool(groups)
        self._groups = groups if self._groupings <= _GROUPINGS_MAX else ()

    def _record(self, point: SnapshotPoint, found: Divergence) -> ReplicasDiffer:
        node = self._nodes.get(found.odd[0], "") if len(found.odd) == 1 else ""
        return ReplicasDiffer(point.attempt, point.step, found.part, found.group, found.odd, node)


def _digests_of(parts: Mapping[int, HeldSnapshot]) -> dict[int, dict[str, str]]:
    return {rank: {part.name: part.digest for part in held.parts} for rank, held in parts.items()}
