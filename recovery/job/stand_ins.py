"""Which rank's snapshot another rank can begin from, because the two are equal as a whole. Pure.

In plain data-parallel training the ranks hold the same state. Where their whole snapshots had equal digests at several steps
(`recovery.job.replica_watch`), and all that are there of a step are equal again, any of them is what a rank that is lost had:
then no step is lost, although nothing of it was copied. Ranks that differ in anything, also in a random state, never stand in
for each other. A rank whose parameters have come apart from those of a majority gives nothing from that step on, and can begin from one
of the majority instead of its own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from recovery.journal.ledger import Ledger
from recovery.messages.exchange import HeldSnapshot, Report, SnapshotPoint

Fault = tuple[int, int, int, str]
"""What a node could not give: rank, attempt and step of a snapshot, and the node."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """A whole snapshot of another rank, and the node that has it."""

    node: str
    held: HeldSnapshot


@dataclass(frozen=True, slots=True)
class StandIns:
    """What could be given, of one attempt."""

    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by rank
    given: Mapping[SnapshotPoint, Mapping[int, StandIn]] = field(default_factory=dict)
    odd: Mapping[int, int] = field(
        default_factory=dict
    )  # rank: since when it differs from a majority

    @property
    def ranks(self) -> Collection[int]:
        """Return the ranks that have an equal one."""
        return self.groups.keys()

    def is_odd(self, rank: int, point: SnapshotPoint) -> bool:
        """Return whether this rank's own snapshot of a step differs from those of a majority."""
        return rank in self.odd and self.odd[rank] <= point.step

    def find(self, rank: int, point: SnapshotPoint) -> StandIn | None:
        """Return what this rank can begin from, or None. The ranks that need one get different ones, as far as there are any."""
        group = self.groups.get(rank, ())
        there = self.given.get(point, {})
        even = [one for one in group if not self.is_odd(one, point)]
        found = [there[one] for one in even if one in there]
        if len({one.held.digest for one in found}) != 1:
            return None  # none is there, or they differ: which one is right is not known
        if len(even) < len(group) and 2 * len(found) <= len(group):
            return None  # without the ranks that were lost it is no majority
        return found[group.index(rank) % len(found)]


NOBODY: Final = StandIns()


def stand_ins(ledger: Ledger, reports: Mapping[str, Report], failed: Collection[Fault]) -> StandIns:
    """Return what the nodes that are heard could give to ranks of equal state after the newest attempt's end."""
    known = ledger.replicas
    if known is None or known.attempt != ledger.attempt:
        return NOBODY
    given: dict[SnapshotPoint, dict[int, StandIn]] = {}
    for node, report in sorted(reports.items()):
        if report.copier is None or (report.snapshots_through or 0) < ledger.attempt:
            continue
        for one in report.snapshots:
            fault = one.rank, one.attempt, one.step, node
            if one.attempt == known.attempt and not one.is_damaged and fault not in failed:
                given.setdefault(one.point, {}).setdefault(one.rank, StandIn(node, one))
    odd: dict[int, int] = {}
    for differing in ledger.differing:
        if differing.attempt == known.attempt:
            for rank in differing.odd:
                odd.setdefault(rank, differing.step)
    return StandIns({rank: group for group in known.groups for rank in group}, given, odd)
