"""Which shared part explains workers that slow down or fail together: the smallest one, or none. Pure.

A worker is a rank or a node. To explain bad workers one by one costs 1 each. A part that explains them costs 1, and 1 for each sound worker below it, since a
broken part should have hurt that one, too. The cheapest account holds, so of two parts around the same bad workers the smaller one is named, and a
sound part never is: it would cost more than the workers one by one. Where two parts cost the same and one leaves nothing for the other to explain, both are
told and none is named.

Nobody is named either where almost all are bad: then everything explains it.

Bad nodes, or bad NICs of nodes, as workers whose shared part is looked for.

Which switch explains nodes whose network is degraded, by the ports that are bad on them.

A node hangs on a leaf of each of its networks, so without its bad ports all of these explain it equally well.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from detectors.parts.fleet_parts import FleetPart, FleetParts, SharedKind
from detectors.wording import counted, names_in_words
from rankmend.errors import SourceError

SHARE_MIN: Final = 0.75  # of a part's workers that must be bad; noise hides some
BAD_SHARE_MAX: Final = 0.75  # of all workers; above it there is nothing sound to compare with
TIES_TOLD_MAX: Final = 4
NAMED_TOLD_MAX: Final = 4
_ORDER: Final = {kind: place for place, kind in enumerate(SharedKind)}


class BlameEnd(Enum):
    NAMED = "named"
    TIED = "tied"  # several parts explain it equally well
    NO_PART = "no_part"  # no shared part explains it
    ALMOST_ALL = "almost_all"  # bad: whatever they share explains it
    TOO_FEW = "too_few"  # one bad worker shares nothing


@dataclass(frozen=True, slots=True)
class PlacedWorker:
    """A rank, or a node with ``name`` equal to ``node``."""

    name: str
    node: str
    nic: str | None = None  # that the rank uses; it names the rail where the parts name none


@dataclass(frozen=True, slots=True)
class ExplainingPart:
    part: FleetPart
    bad: tuple[str, ...]  # workers below it
    sound: int  # workers below it

    def __str__(self) -> str:
        return f"{self.part} ({len(self.bad)} of {len(self.bad) + self.sound})"


@dataclass(frozen=True, slots=True)
class SharedBlame:
    end: BlameEnd
    named: tuple[ExplainingPart, ...] = ()
    tied: tuple[ExplainingPart, ...] = ()
    alone: tuple[str, ...] = ()  # bad workers that nothing named or tied explains

    @property
    def bad(self) -> int:
        """Return how many workers are bad."""
        reported = {name for item in (*self.named, *self.tied) for name in item.bad}
        return len(reported | set(self.alone))

    @property
    def part(self) -> str:
        """Return the parts that are named, or those of which one can't be told from another; empty: none."""
        if self.named:
            return names_in_words([str(item.part) for item in self.named], NAMED_TOLD_MAX)
        return " or ".join(str(part.part) for part in self.tied[:TIES_TOLD_MAX])

    def in_words(self, noun: str = "node") -> str:
        """Return one sentence; empty for a single bad worker."""
        if self.end is BlameEnd.TOO_FEW:
            return ""
        if self.end is BlameEnd.ALMOST_ALL:
            return f"almost all {noun}s are hit: no part of the fleet can be told from the others"
        if self.end is BlameEnd.NO_PART:
            return f"no shared part explains these {noun}s"
        texts = []
        if self.named:
            texts.append(f"explained by {names_in_words([str(item) for item in self.named])}")
        if self.tied:
            tied = " or ".join(str(part) for part in self.tied[:TIES_TOLD_MAX])
            texts.append(f"{tied} explain it equally well, so none is named")
        if self.alone:
            texts.append(f"{counted(len(self.alone), f'{noun}')} on their own")
        return "; ".join(texts)


@dataclass(frozen=True, slots=True)
class _Candidate:
    part: FleetPart
    hit: frozenset[str]
    sound: int

    def gain(self, left: Collection[str]) -> int:
        return len(self.hit & set(left)) - self.sound - 1


def explain_shared(
    workers: Sequence[PlacedWorker],
    bad: Collection[str],
    parts: FleetParts,
    kinds: Collection[SharedKind] | None = None,
) -> SharedBlame:
    """Return what explains the ``bad`` ones of all ``workers`` that are known.

    ``kinds``: the parts that can cause such a fault at all, as a leaf switch can't heat a GPU; None: all.
    """
    names = {worker.name for worker in workers}
    hit = frozenset(bad) & names
    if len(hit) < 2:
        return SharedBlame(BlameEnd.TOO_FEW, alone=tuple(sorted(hit)))
    if len(hit) > BAD_SHARE_MAX * len(names):
        return SharedBlame(BlameEnd.ALMOST_ALL, alone=tuple(sorted(hit)))
    return _cheapest(_candidates(workers, hit, parts, kinds), hit)


def together(since_s: Mapping[str, float], within_s: float) -> tuple[frozenset[str], ...]:
    """Return the workers whose faults began within so long of the first of them, the largest group first."""
    groups: list[list[str]] = []
    first_s = 0.0
    for name in sorted(since_s, key=lambda item: (since_s[item], item)):
        if not groups or since_s[name] - first_s > within_s:
            groups.append([])
            first_s = since_s[name]
        groups[-1].append(name)
    return tuple(
        frozenset(group) for group in sorted(groups, key=lambda group: (-len(group), group))
    )


def _cheapest(candidates: Sequence[_Candidate], bad: frozenset[str]) -> SharedBlame:
    left, named, tied = set(bad), list[ExplainingPart](), list[ExplainingPart]()
    due = list(candidates)
    while due:
        due = [candidate for candidate in due if candidate.gain(left) > 0]
        if not due:
            break
        best = max(candidate.gain(left) for candidate in due)
        first = next(candidate for candidate in due if candidate.gain(left) == best)
        rest = left - first.hit
        rivals = [
            candidate
            for candidate in due
            if candidate.gain(left) == best
            and candidate.hit & first.hit & left
            and candidate.gain(rest) <= 0
        ]
        if len(rivals) > 1:
            tied += [_told(rival) for rival in rivals]
            left -= frozenset().union(*(rival.hit for rival in rivals))
        else:
            named.append(_told(first))
            left = rest
    end = BlameEnd.NAMED if named else BlameEnd.TIED if tied else BlameEnd.NO_PART
    return SharedBlame(end, tuple(named), tuple(tied), tuple(sorted(left)))


def _told(candidate: _Candidate) -> ExplainingPart:
    return ExplainingPart(candidate.part, tuple(sorted(candidate.hit)), candidate.sound)


def _candidates(
    workers: Sequence[PlacedWorker],
    bad: frozenset[str],
    parts: FleetParts,
    kinds: Collection[SharedKind] | None,
) -> list[_Candidate]:
    below: dict[FleetPart, list[PlacedWorker]] = {}
    for worker in workers:
        for part in _parts_of(worker, parts):
            if kinds is None or part.kind in kinds:
                below.setdefault(part, []).append(worker)
    found = []
    for part, members in below.items():
        hit = frozenset(member.name for member in members if member.name in bad)
        if len(hit) < max(2.0, SHARE_MIN * len(members)) or len(members) == len(workers):
            continue
        # What is wider than a node shows on several of them: else the node is the cause.
        nodes = {member.node for member in members if member.name in hit}
        if len(nodes) < 2 and part.kind not in (SharedKind.NIC, SharedKind.NODE):
            continue
        found.append(_Candidate(part, hit, len(members) - len(hit)))
    return sorted(found, key=lambda item: (_ORDER[item.part.kind], item.part.name))


def _parts_of(worker: PlacedWorker, parts: FleetParts) -> set[FleetPart]:
    found = {FleetPart(SharedKind.NODE, worker.node)} if worker.node else set()
    if worker.node:
        found |= parts.of_worker(worker.node, worker.nic)
    if worker.nic:
        found.add(FleetPart(SharedKind.RAIL, parts.rail_of(worker.node, worker.nic)))
        if worker.node:
            found.add(FleetPart(SharedKind.NIC, f"{worker.node} {worker.nic}"))
    return found


@dataclass(frozen=True, slots=True)
class BadPlace:
    node: str
    nic: str = ""  # "": the whole node


def find_workers(
    bad: Collection[BadPlace], known: Sequence[str], parts: FleetParts
) -> tuple[list[PlacedWorker], set[str]]:
    """Return the workers of all ``known`` nodes, and the names of the bad ones.

    A worker is a node; where a bad place names a NIC, it is a NIC that has a rail, or the name of a bad one. Raises SourceError for a NIC that the node's layout does not have.
    """
    if not any(place.nic for place in bad):
        workers = [PlacedWorker(node, node) for node in dict.fromkeys(known)]
        return workers, {place.node for place in bad}
    named: dict[str, set[str]] = {}
    for place in bad:
        named.setdefault(place.node, set()).update(_devices(place, parts))
    railless = {device for own in named.values() for device in own} - {
        device for node in named for device in _rail_nics(node, parts)
    }
    workers, hit = [], set[str]()
    for node in dict.fromkeys(known):
        own = named.get(node, set())
        alike = {device for device in railless if parts.ports_of(node, device)}
        for device in sorted(own | alike | _rail_nics(node, parts)):
            worker = PlacedWorker(f"{node}/{device}", node, device)
            workers.append(worker)
            hit |= {worker.name} if device in own else set()
    return workers, hit


def _devices(place: BadPlace, parts: FleetParts) -> set[str]:
    if not place.nic:
        found = _rail_nics(place.node, parts)
        if not found:
            raise SourceError(f"the topology names no NIC with a rail of {place.node}")
        return found
    ports = parts.ports_of(place.node, place.nic)
    if not ports:
        raise SourceError(f"the topology names no NIC {place.nic} of {place.node}: see `rankmend fabric topology --pages`")  # fmt: skip
    return {port.device for port in ports}


def _rail_nics(node: str, parts: FleetParts) -> set[str]:
    layout = parts.layout_of(node)
    return set() if layout is None else {nic.device for nic in layout.nics if nic.rail}


PLANE_CHECK: Final = "plane_degraded"
# A rail is the same port on all nodes, by name only: what breaks it is its switch.
_KINDS: Final = frozenset({SharedKind.NODE, SharedKind.LEAF, SharedKind.SWITCH})


def explain_network(
    bad: Mapping[str, Collection[str]], known: Collection[str], parts: FleetParts
) -> SharedBlame:
    """Return what explains these nodes, each with its bad ports such as ``mlx5_0/1`` or ``eth2``; none: they are not known.

    ``known``: all nodes that would have told of a fault.
    """
    workers, hit = [], []
    for node, ports in bad.items():
        nics: list[str | None] = [*sorted({port.partition("/")[0] for port in ports})] or [None]
        for nic in nics:
            name = node if nic is None else f"{node} {nic}"
            workers.append(PlacedWorker(name, node, nic))
            hit.append(name)
    workers += [PlacedWorker(node, node) for node in sorted(set(known) - bad.keys())]
    return explain_shared(workers, hit, parts, _KINDS)
