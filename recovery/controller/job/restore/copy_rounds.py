"""Decides which step's snapshots are copied to other nodes, and when all copies of it are there. Pure.

A lost node's ranks can go on from a step only if every rank has that step. So one round copies one step of all ranks:
the controller names a step, each rank leaves its first snapshot from there on until a later one is named
(`rankmend.hook.snapshots.layout`), and the next round begins once every copy is there. Until then, holders keep the copies of
the round before, and each rank its own snapshot of that step, in whatever attempt it was: the copies of a lost node's ranks
are of use only beside it. So from the first round on, one whole step outlives the loss of a node at any time.

A round fails where a rank was past the step before it received it: the copies are of several steps, or their files were
overwritten. The next one names a later step.

During training that step lies ahead, far enough for every launcher to hear of it first. In a pause (an evaluation, a compilation, the last
step) no rank gets there, so the round takes the newest step of which every rank has a snapshot.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detectors.parts.fleet_parts import NO_PARTS, FleetParts
from recovery.checkpoints.snapshots.copies.placement import (
    Groups,
    PlacedNode,
    holders,
    place,
    placed_node,
)
from recovery.journal.attempt_records import Placement
from recovery.messages.copying import CopyOrder, HeldFor
from recovery.messages.exchange import HeldSnapshot, Peer, Report, SnapshotPoint

HEAR_S: Final = 3.0  # from a snapshot to the launchers' hearing of it: a report and its answer
HEAR_S_MAX: Final = 60.0
PAUSE_S: Final = 5.0  # between two rounds: a snapshot each second is not copied each second
PAUSED_S: Final = 10.0  # and two intervals without a snapshot: the ranks pause, however late their launchers report
ROUND_S_MAX: Final = 3600.0  # at 5 % of a 100 Gbit/s link, 2 TB


@dataclass(frozen=True, slots=True)
class CopyRound:
    from_step: int
    began_at_s: float
    hear_s: float  # how late a launcher may hear of it


@dataclass(frozen=True, slots=True)
class CopyRounds:
    """The rounds of one attempt."""

    attempt: int
    copies: int  # of each snapshot, on other nodes
    groups: Groups = ()
    placed: tuple[PlacedNode, ...] = ()  # that the groups are of
    now: CopyRound | None = None
    before: SnapshotPoint | None = None  # the newest complete one of earlier attempts
    complete: SnapshotPoint | None = None
    complete_at_s: float = float("-inf")
    hear_s: float = HEAR_S
    step_times: tuple[tuple[int, float], ...] = ()  # of the two newest snapshots, monotonic

    def of_next_attempt(self, attempt: int, copies: int) -> "CopyRounds":
        """Return the state at the beginning of another attempt."""
        return CopyRounds(attempt, copies, before=self.complete or self.before, hear_s=self.hear_s)

    def observe(
        self,
        placement: Sequence[Placement],
        reports: Mapping[str, Report],
        now_s: float,
        parts: FleetParts = NO_PARTS,
    ) -> "CopyRounds":
        """Return the state after a look at the newest reports of the attempt's nodes; ``parts``: what these share."""
        reported = [reports.get(item.node) for item in placement]
        if len(placement) < 2 or not self.copies:
            return replace(self, now=None)
        if any(
            item is None or item.copier is None or item.attempt != self.attempt for item in reported
        ):
            return self  # a launcher is being replaced, or is of a version without copies
        known = [item for item in reported if item is not None]
        after = self._placed(known, parts)._timed(known, now_s)
        return after._judged(placement, reports, now_s)._begun(placement, known, now_s)

    def orders(
        self, placement: Sequence[Placement], reports: Mapping[str, Report]
    ) -> dict[str, CopyOrder]:
        """Return what each node is to do for the round: one without ranks, to free what it has held for others."""
        whole = self.complete or self.before
        if (self.now is None and whole is None) or not self.copies:
            return {}
        ranks = {item.node: item.ranks for item in placement}
        kept_by = holders(self.groups, self.copies)
        held_for: dict[str, list[HeldFor]] = {}
        for node, by in kept_by.items():
            for holder in by:
                held_for.setdefault(holder, []).append(HeldFor(node, ranks[node]))
        orders = {}
        former = [node for node, report in reports.items() if report.copies and node not in ranks]
        for node in (*ranks, *former):
            orders[node] = CopyOrder(
                self.attempt,
                None if self.now is None else self.now.from_step,
                tuple(_peer(reports[item]) for item in kept_by.get(node, ()) if item in reports),
                tuple(held_for.get(node, ())),
                whole,
            )
        return orders

    def _placed(self, reports: Sequence[Report], parts: FleetParts) -> "CopyRounds":
        nodes = tuple(placed_node(report.node, report.domain, parts) for report in reports)
        if nodes == self.placed:
            return self
        return replace(self, placed=nodes, groups=place(nodes, self.copies, self.groups))

    def _timed(self, reports: Sequence[Report], now_s: float) -> "CopyRounds":
        """Note when the two newest snapshots were written."""
        times = dict(self.step_times)
        for report in reports:
            for snapshot in report.snapshots:
                if snapshot.attempt == self.attempt:
                    times.setdefault(snapshot.step, now_s - snapshot.age_s)
        return replace(self, step_times=tuple(sorted(times.items())[-2:]))

    def _judged(
        self, placement: Sequence[Placement], reports: Mapping[str, Report], now_s: float
    ) -> "CopyRounds":
        """Return the state with the round ended if it is complete or has failed."""
        now = self.now
        if now is None:
            return self
        copied = self._copied(placement, reports, now.from_step)
        steps = {step for found in copied.values() for step in found}
        is_whole = len(steps) == 1 and all(copied.values())
        if is_whole:
            point = SnapshotPoint(self.attempt, min(steps))
            hear_s = max(HEAR_S, self.hear_s / 2)
            return replace(self, now=None, complete=point, complete_at_s=now_s, hear_s=hear_s)
        is_lost = any(
            fault.attempt == self.attempt and fault.step >= now.from_step and fault.is_final
            for report in reports.values()
            for fault in report.copy_faults
        )
        if len(steps) > 1 or is_lost or now_s - now.began_at_s > ROUND_S_MAX:
            return replace(self, now=None, hear_s=min(HEAR_S_MAX, 2 * self.hear_s))
        if self.step_times and now.from_step > self.step_times[-1][0] and self._pauses(now_s):
            return replace(self, now=None)  # no rank gets there
        return self

    def _copied(
        self, placement: Sequence[Placement], reports: Mapping[str, Report], from_step: int
    ) -> dict[tuple[int, str], set[int]]:
        """Return which steps of the round each holder has of each rank."""
        kept_by = holders(self.groups, self.copies)
        found: dict[tuple[int, str], set[int]] = {}
        for item in placement:
            for holder in kept_by.get(item.node, ()):
                copies: Sequence[HeldSnapshot] = reports[holder].copies if holder in reports else ()
                for rank in item.ranks:
                    found[rank, holder] = {
                        copy.step
                        for copy in copies
                        if (copy.rank, copy.attempt) == (rank, self.attempt)
                        if copy.step >= from_step and not copy.is_damaged
                    }
        return found

    def _begun(
        self, placement: Sequence[Placement], reports: Sequence[Report], now_s: float
    ) -> "CopyRounds":
        """Return the state with a new round, where there is something new to copy."""
        if self.now is not None or now_s - self.complete_at_s < PAUSE_S or not self.step_times:
            return self
        if len(self.step_times) < 2 and now_s - self.step_times[0][1] < HEAR_S:
            return self  # a second one shows how soon each is overwritten
        step = self._step_of_all(reports) if self._pauses(now_s) else self._next_step(now_s)
        if self.complete is not None and step <= self.complete.step:
            return self
        ranks = [rank for item in placement for rank in item.ranks]
        reported = {
            snapshot.rank
            for report in reports
            for snapshot in report.snapshots
            if snapshot.attempt == self.attempt
        }
        if not set(ranks) <= reported:
            return self  # a rank has no room for any
        return replace(self, now=CopyRound(step, now_s, self.hear_s))

    def _pauses(self, now_s: float) -> bool:
        """Return whether the ranks have made no snapshot for much longer than they take from one to the next."""
        if len(self.step_times) < 2:
            return False
        (_older, before_s), (_newest, written_at_s) = self.step_times
        waited_s = now_s - written_at_s
        return waited_s > 2 * (written_at_s - before_s) + max(PAUSED_S, self.hear_s)

    def _step_of_all(self, reports: Sequence[Report]) -> int:
        """Return the newest step of which every rank has a snapshot, or the newest of any rank where they have none in common."""
        steps: dict[int, set[int]] = {}
        for report in reports:
            for snapshot in report.snapshots:
                if snapshot.attempt == self.attempt and not snapshot.is_damaged:
                    steps.setdefault(snapshot.rank, set()).add(snapshot.step)
        shared = set.intersection(*steps.values()) if steps else set()
        return max(shared, default=self.step_times[-1][0])

    def _next_step(self, now_s: float) -> int:
        """Return a step that no rank is past when its launcher receives it.

        A rank overwrites a snapshot with the second one after it.
        """
        newest, written_at_s = self.step_times[-1]
        if len(self.step_times) < 2:
            return newest  # no second one has come in `HEAR_S`
        older, before_s = self.step_times[0]
        interval_s = max(written_at_s - before_s, 1e-3)
        lag = (now_s - written_at_s + self.hear_s) / interval_s
        return newest if lag < 2 else newest + (newest - older) * math.ceil(lag - 1)


def _peer(report: Report) -> Peer:
    assert report.copier is not None, "checked before a round began"
    return Peer(report.node, report.launcher_id, report.copier)
