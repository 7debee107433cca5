"""Which snapshots are brought from other nodes before an attempt begins. Pure.

It is asked of launchers with each answer to their reports, and is done once they report that they have it: so nothing of
it is journaled before the attempt, and another controller finds out the same by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detectors.wording import ranks_in_words
from recovery.job.snapshot_choice import Elsewhere
from recovery.job.stand_ins import Fault, StandIns
from recovery.journal.attempt_records import Choice, FetchedPart, Placement
from recovery.messages.copying import FetchOrder
from recovery.messages.exchange import HeldSnapshot, Peer, Report, SnapshotPoint

FETCH_S_MAX: Final = 600.0  # 160 GB of a node at 10 Gbit/s take 128 s
PASSING_S_MAX: Final = 30.0  # for a source that can't be reached, or whose copier is being replaced

_Source = tuple[str, HeldSnapshot]


@dataclass(frozen=True, slots=True)
class Fetching:
    """The fetches between two attempts."""

    attempt: int = 0  # the one that has ended
    orders: Mapping[str, tuple[FetchOrder, ...]] = field(default_factory=dict)
    text: str = ""  # what is waited for
    asked: Mapping[tuple[SnapshotPoint, int], FetchedPart] = field(default_factory=dict)  # by rank

    def of_attempt(self, attempt: int) -> "Fetching":
        return self if self.attempt == attempt else Fetching(attempt)

    def sources(
        self,
        placement: Sequence[Placement],
        reports: Mapping[str, Report],
        attempt: int,
        failed: set[Fault],
    ) -> dict[int, list[_Source]]:
        """Return what nodes have of ranks that are to run elsewhere, but for what has ``failed``.

        ``reports``: of all nodes that are heard.
        """
        homes = {rank: place.node for place in placement for rank in place.ranks}
        found: dict[int, list[_Source]] = {}
        for node, report in sorted(reports.items()):
            if report.copier is None:
                continue
            is_read = (report.snapshots_through or 0) >= attempt
            own = [one for one in report.snapshots if homes.get(one.rank) != node]
            for one in (*report.copies, *(own if is_read else ())):
                home = homes.get(one.rank)
                target = None if home is None else reports.get(home)
                if target is None or target.copier is None or one.is_damaged:
                    continue
                if (one.rank, one.attempt, one.step, node) not in failed:
                    found.setdefault(one.rank, []).append((node, one))
        return found

    def wanting(
        self,
        choice: Choice,
        placement: Sequence[Placement],
        elsewhere: Elsewhere,
        stand_ins: StandIns,
        reports: Mapping[str, Report],
    ) -> "Fetching":
        """Return the state in which what the choice lacks is asked for."""
        point = choice.snapshot
        if point is None or not choice.fetched:
            return replace(self, orders={}, text="")
        homes = {rank: place.node for place in placement for rank in place.ranks}
        orders: dict[str, list[FetchOrder]] = {}
        asked = dict(self.asked)
        for part in choice.fetched:
            if part.of_rank is not None:
                snapshot = stand_ins.given[point][part.of_rank].held
            else:
                (snapshot,) = (
                    one
                    for node, one in elsewhere[part.rank]
                    if (node, one.point) == (part.node, point)
                )
            report = reports[part.node]
            assert report.copier is not None, "it is a source"
            peer = Peer(part.node, report.launcher_id, report.copier)
            order = FetchOrder(snapshot, peer, part.rank)
            orders.setdefault(homes[part.rank], []).append(order)
            asked[point, part.rank] = part
        nodes = sorted({part.node for part in choice.fetched})
        ranks = ranks_in_words([part.rank for part in choice.fetched])
        text = f"the snapshots of {ranks} are fetched from {', '.join(nodes)}"
        return replace(
            self, orders={node: tuple(own) for node, own in orders.items()}, text=text, asked=asked
        )

    def told(self, choice: Choice) -> Choice:
        """Return the choice with what was fetched for it, once all of it is there."""
        if choice.snapshot is None:
            return choice
        parts = [part for (point, _rank), part in self.asked.items() if point == choice.snapshot]
        return replace(choice, fetched=tuple(sorted(parts, key=lambda part: part.rank)))


def failed_fetches(reports: Mapping[str, Report], attempt: int, waited_s: float) -> set[Fault]:
    """Return what nodes said that they could not give or get after an attempt.

    ``waited_s``: a fault that may pass counts from `PASSING_S_MAX` on.
    """
    return {
        (fault.rank, fault.attempt, fault.step, fault.node)
        for report in reports.values()
        for fault in report.copy_faults
        if report.empty_through >= attempt and not (fault.may_pass and waited_s < PASSING_S_MAX)
    }
