"""Whether numbers that were equal on all ranks of a group have come apart. Pure.

Nobody says which ranks ought to have equal numbers: it is learned, as for snapshots (`detectors.replicas`). A gradient norm is
taken of gradients that all ranks of a data-parallel group share, so it is the same number to the last bit. Numbers that
are the rank's own, such as a loss of its own batch, differ from the first step on and are never accused.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from detectors.replicas.divergence import Divergence, differences

EQUAL_MIN: Final = 20
"""Our choice: steps with equal numbers, other ones each time. As long as the past that a spike needs."""
HELD: Final = 3
"""Our choice: steps in a row. What has come apart stays so; a number that one rank has rounded otherwise does not."""

_Groups = frozenset[frozenset[int]]


class ApartWatch:
    """What is known of which ranks have equal values of one number. Take the steps in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._groups: _Groups = frozenset()
        self._ranks: frozenset[int] = frozenset()
        self._values: frozenset[float] = (
            frozenset()
        )  # at the newest step, to tell whether they change
        self._equal = 0  # steps with new values at which the groups were these
        self._first: tuple[Divergence, ...] = ()  # when they came apart
        self._held = 0

    def take(self, step: int, values: Mapping[int, float]) -> tuple[Divergence, ...]:
        """Return what came apart and has held for long enough at this step, of which all ranks told a finite value."""
        by_value: dict[float, set[int]] = defaultdict(set)
        for rank, value in values.items():
            by_value[value].add(rank)
        groups = {value: frozenset(ranks) for value, ranks in by_value.items()}
        ranks = frozenset(values)
        has_changed = self._values != groups.keys()
        self._values = frozenset(groups)
        found: list[Divergence] = []
        if ranks == self._ranks and self._groups != frozenset(groups.values()):
            found = differences(step, self._name, self._groups, groups)
        if not found and ranks == self._ranks:
            # The same groups; or ranks whose numbers are their own had one in common.
            self._first, self._held = (), 0
            self._equal += has_changed
            return ()
        if self._equal < EQUAL_MIN or ranks != self._ranks:
            self._learn(groups, ranks)
            return ()
        self._first = self._first or tuple(found)
        self._held += 1
        if self._held < HELD:
            return ()
        told = self._first
        self._learn(groups, ranks)
        return told

    def _learn(self, groups: Mapping[float, frozenset[int]], ranks: frozenset[int]) -> None:
        self._groups, self._ranks = frozenset(groups.values()), ranks
        self._equal, self._first, self._held = 1, (), 0
