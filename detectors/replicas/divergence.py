"""Which ranks hold other values than their replicas. Pure.

The job's owner declares which ranks are replicas of each other (`detectors.replicas.layout`), or it is learned. Ranks whose part (the floating-point tensors below one key
of the state, such as `model`) had equal digests at `EQUAL_MIN` snapshots with different content ought to be
equal from then on, since data-parallel training makes the same update on each of them. Shards differ from the first
snapshot on, and random states and positions in the data are no floating-point tensors, so neither is ever accused.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

EQUAL_MIN: Final = 3
"""Our choice: replicas that are equal by chance, such as moments that are all zero, differ after the first updates."""
TOLD_MAX: Final = 64
"""Our choice: findings of declared replicas in an attempt. Where there are more, the declaration is wrong."""

_Value = TypeVar("_Value")
Digests = Mapping[int, Mapping[str, str]]
"""By rank, the digest of each part of its state at one step."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Ranks that ought to hold equal values of a part at a step, and don't."""

    step: int
    part: str
    group: tuple[int, ...]  # all that ought to be equal
    odd: tuple[int, ...]  # those that differ from a majority; none: there is no majority

    @property
    def suspects(self) -> tuple[int, ...]:
        """Return the ranks of which one at least is wrong."""
        return self.odd or self.group


@dataclass(frozen=True, slots=True)
class _Learned:
    groups: frozenset[frozenset[int]]  # of ranks with equal values
    digests: frozenset[str]  # at the newest step, to tell whether the content has changed
    equal_count: int  # steps with different content at which the groups were these


@dataclass(frozen=True, slots=True)
class ReplicaHistory:
    """What is known of the replicas of one job. Take one step after the other."""

    step: int = -1
    parts: Mapping[str, _Learned] = field(default_factory=dict)

    def take(self, step: int, digests: Digests) -> tuple["ReplicaHistory", tuple[Divergence, ...]]:
        """Return what is known after a step of which all ranks' digests are here, and what differs at it.

        A step that is not newer changes nothing. A divergence is told once: from then on the ranks that differ
        make groups of their own.
        """
        if step <= self.step:
            return self, ()
        found: list[Divergence] = []
        parts: dict[str, _Learned] = {}
        for part, groups in _groups_of(digests).items():
            known = self.parts.get(part)
            now = _Learned(frozenset(groups.values()), frozenset(groups), 1)
            if known is not None and known.groups == now.groups:
                has_changed = known.digests != now.digests
                now = replace(now, equal_count=known.equal_count + has_changed)
            elif known is not None and known.equal_count >= EQUAL_MIN:
                found += differences(step, part, known.groups, groups)
            parts[part] = now
        return ReplicaHistory(step, parts), tuple(found)

    def groups(self, part: str) -> tuple[tuple[int, ...], ...]:
        """Return which ranks, two or more, ought to hold equal values of a part; none before that is known."""
        known = self.parts.get(part)
        if known is None or known.equal_count < EQUAL_MIN:
            return ()
        return tuple(sorted(tuple(sorted(group)) for group in known.groups if len(group) > 1))

    def differing(self, step: int, digests: Digests) -> tuple[Divergence, ...]:
        """Return what differs at a step by what is known, without taking it in. ``step``: of any age."""
        found: list[Divergence] = []
        for part, groups in _groups_of(digests).items():
            known = self.parts.get(part)
            if known is not None and known.equal_count >= EQUAL_MIN:
                found += differences(step, part, known.groups, groups)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class DeclaredReplicas:
    """Replicas of a job whose owner says which ranks they are: nothing is learned, and no other rank is compared."""

    declared: frozenset[frozenset[int]]
    sharded_parts: frozenset[str] = frozenset()  # that replicas divide among them
    step: int = -1
    told: frozenset[Divergence] = frozenset()  # with the step 0

    def take(
        self, step: int, digests: Digests
    ) -> tuple["DeclaredReplicas", tuple[Divergence, ...]]:
        """Return what is known after a step of which all ranks' digests are here, and what differs at it for the first time."""
        if step <= self.step:
            return self, ()
        now = self.differing(step, digests)
        new = tuple(
            divergence for divergence in now if replace(divergence, step=0) not in self.told
        )
        new = new[: TOLD_MAX - len(self.told)]
        reported = self.told | {replace(divergence, step=0) for divergence in new}
        return replace(self, step=step, told=reported), new

    def differing(self, step: int, digests: Digests) -> tuple[Divergence, ...]:
        """Return what differs at a step, told or not. ``step``: of any age."""
        found: list[Divergence] = []
        for part, groups in _groups_of(digests).items():
            if part not in self.sharded_parts:
                having = frozenset[int]().union(*groups.values())
                known = frozenset(item & having for item in self.declared if item & having)
                found += differences(step, part, known, groups)
        return tuple(found)


def _groups_of(digests: Digests) -> dict[str, dict[str, frozenset[int]]]:
    """Return for each part which ranks have which digest."""
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for rank, parts in digests.items():
        for part, digest in parts.items():
            found[part][digest].add(rank)
    return {
        part: {digest: frozenset(ranks) for digest, ranks in groups.items()}
        for part, groups in found.items()
    }


def differences(
    step: int,
    part: str,
    known: frozenset[frozenset[int]],
    now: Mapping[_Value, frozenset[int]],
) -> list[Divergence]:
    """Return which of the groups that ought to be equal are not, by which ranks have which value now."""
    found = []
    for group in sorted(known, key=min):
        pieces = [group & ranks for ranks in now.values() if group & ranks]
        if len(pieces) < 2:
            continue
        largest = max(pieces, key=len)
        has_majority = 2 * len(largest) > len(group)
        odd = tuple(sorted(group - largest)) if has_majority else ()
        found.append(Divergence(step, part, tuple(sorted(group)), odd))
    return found
