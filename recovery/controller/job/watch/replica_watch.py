"""Compares the snapshots of replicas, step by step: journals each difference once, and which ranks are equal as a whole."""

from collections.abc import Mapping
from typing import Final

from detectors.replicas.divergence import DeclaredReplicas, Divergence, ReplicaHistory
from detectors.replicas.layout import ParallelLayout
from recovery.journal.ledger import Ledger
from recovery.journal.observation_records import ReplicasDiffer, ReplicasKnown
from recovery.messages.exchange import HeldSnapshot, Report, SnapshotPoint

_STEPS_MAX: Final = 8  # of which not all ranks have reported; a rank has two snapshots
_GROUPINGS_MAX: Final = 8  # in an attempt; ranks that are now equal and now not are no replicas
_WHOLE: Final = "whole"  # the snapshot: random states, positions and counters, too


class ReplicaWatch:
    """Learns which ranks are replicas from what their launchers report, unless a layout declares it. It begins anew with the controller."""

    def __init__(self, layout: ParallelLayout | None = None) -> None:
        self._layout = layout
        self._nodes: dict[int, str] = {}  # by rank
        self._waiting: dict[SnapshotPoint, dict[int, HeldSnapshot]] = {}
        self._history: ReplicaHistory | DeclaredReplicas = ReplicaHistory()
        self._wholes = ReplicaHistory()
        self._attempt = 0
        self._declared: tuple[tuple[int, ...], ...] = ()
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
        for point in sorted(self._waiting, key=lambda item: (item.attempt, item.step))[
            :-_STEPS_MAX
        ]:
            del self._waiting[point]

    def due(self, ledger: Ledger) -> tuple[ReplicasDiffer | ReplicasKnown, ...]:
        """Return the records of what the journal does not have."""
        found, self._found = self._found, []
        known = self._known(ledger)
        return (*(item for item in found if not any(map(item.repeats, ledger.differing))), *known)

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
        history = self._declared_history(len(parts)) or self._history
        found = history.differing(point.step, _digests_of(parts))
        return self._record(point, found[0]).in_words if found else None

    def _compare(self, point: SnapshotPoint, parts: Mapping[int, HeldSnapshot]) -> None:
        self._begin(point.attempt, len(parts))
        self._history, found = self._history.take(point.step, _digests_of(parts))
        for item in found:
            self._note_odd(item)
        self._learn(point.step, parts)
        self._found += [self._record(point, item) for item in found]

    def _begin(self, attempt: int, world_size: int) -> None:
        """Forget what was learned of older attempts: with other ranks, other code or an older step it may not hold."""
        if attempt <= self._attempt:
            return
        self._attempt = attempt
        self._history = self._declared_history(world_size) or ReplicaHistory()
        self._wholes, self._groups, self._groupings = ReplicaHistory(), None, 0
        self._odd = {}

    def _declared_history(self, world_size: int) -> DeclaredReplicas | None:
        if self._layout is None:
            return None
        self._declared = self._layout.replicas(world_size)
        groups = frozenset(map(frozenset, self._declared))
        return DeclaredReplicas(groups, frozenset(self._layout.sharded_parts))

    def _note_odd(self, found: Divergence) -> None:
        like = min(set(found.group) - set(found.odd))
        for rank in found.odd:
            self._odd[rank] = like
        self._odd.update({rank: like for rank, item in self._odd.items() if item in found.odd})

    def _learn(self, step: int, parts: Mapping[int, HeldSnapshot]) -> None:
        """Note which ranks' whole snapshots are equal, but for those that are known to have gone wrong."""
        digests = {rank: {_WHOLE: held.digest} for rank, held in parts.items()}
        for group in self._groups or ():
            for rank in group:
                if self._odd.get(rank) in group:  # it ought to be equal still
                    digests[rank] = digests[self._odd[rank]]
        if self._layout is not None:
            groups = _equal_in(self._declared, digests)
            differing = groups != (self._groups or ())
        else:
            self._wholes, found = self._wholes.take(step, digests)
            groups, differing = self._wholes.groups(_WHOLE), bool(found)
        if groups == self._groups or not (groups or differing):
            return  # a change is only known to last after some steps
        self._groupings += bool(groups)
        self._groups = groups if self._groupings <= _GROUPINGS_MAX else ()

    def _record(self, point: SnapshotPoint, found: Divergence) -> ReplicasDiffer:
        node = self._nodes.get(found.odd[0], "") if len(found.odd) == 1 else ""
        return ReplicasDiffer(
            *(point.attempt, point.step, found.part, found.group, found.odd, node),
            is_declared=self._layout is not None,
        )


def _digests_of(parts: Mapping[int, HeldSnapshot]) -> dict[int, dict[str, str]]:
    return {rank: {part.name: part.digest for part in held.parts} for rank, held in parts.items()}


def _equal_in(
    declared: tuple[tuple[int, ...], ...], digests: Mapping[int, Mapping[str, str]]
) -> tuple[tuple[int, ...], ...]:
    """Return which ranks of the declared groups, two or more, are equal as a whole."""
    found: list[tuple[int, ...]] = []
    for group in declared:
        by_digest: dict[str, list[int]] = {}
        for rank in group:
            by_digest.setdefault(digests[rank][_WHOLE], []).append(rank)
        found += [tuple(ranks) for ranks in by_digest.values() if len(ranks) > 1]
    return tuple(sorted(found))
