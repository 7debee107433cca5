"""Whether the next attempt begins from snapshots in its ranks' memory. Pure.

A snapshot is restored only where every rank's part of one step is there, whole and unchanged: on
the node on which it will run, on another reachable node, from which it is fetched, or as the part
of a rank that is equal (`StandIns`). The newest such step wins over the checkpoint unless that is
newer, or restores of the step have led to no progress.

A step at which replicas differ is passed over, because one of them is wrong and the older ones were
equal; but of three or more the majority is restored, on the odd rank too, where that saves as much
as for a lost rank. Once the same error has come again at the same step, or twice more at later
ones, the job goes back to the checkpoint: a loss that is no number is in the snapshots, too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detectors.wording import ranks_in_words
from recovery.controller.job.restore.restore_choice import snapshot_from_damage
from recovery.journal.attempt_records import Choice, FetchedPart, PassedOver, Placement, identity_of
from recovery.journal.ledger import Ledger
from recovery.journal.limits import Policy
from recovery.messages.copying import FetchOrder
from recovery.messages.exchange import HeldSnapshot, Peer, Report, SnapshotPoint

Fault = tuple[int, int, int, str]
"""What a node could not give: rank, attempt and step of a snapshot, and the node."""

SETTLE_S_MAX: Final = 30.0  # for a node to read its snapshots again: 2 GB take 0.3 s, 100 GB 15 s
STAND_IN_S_MIN: Final = 5.0
"""Our choice: what another rank's snapshot must save at least. To fetch it takes a second or more."""
_PASSED_OVER_MAX: Final = 3

Differ = Callable[[SnapshotPoint, Mapping[int, HeldSnapshot]], str | None]
Elsewhere = Mapping[int, Sequence[tuple[str, HeldSnapshot]]]
"""For each rank what other nodes than its own have of its snapshots: a node, and what it has."""

FETCH_S_MAX: Final = 600.0  # 160 GB of a node at 10 Gbit/s take 128 s
PASSING_S_MAX: Final = 30.0  # for a source that can't be reached, or whose copier is being replaced

_Source = tuple[str, HeldSnapshot]


@dataclass(frozen=True, slots=True)
class StandIn:
    """A whole snapshot of another rank, and the node that has it."""

    node: str
    held: HeldSnapshot


@dataclass(frozen=True, slots=True)
class StandIns:
    """The ranks of one attempt whose snapshots others can begin from, because the two are equal as a whole.

    In plain data-parallel training the ranks hold the same state. Where their whole snapshots had
    equal digests at several steps (`recovery.controller.job.watch.replica_watch`), and all
    snapshots of a step are equal again, any of them is what a lost rank had: then no step is lost,
    although nothing was copied. Ranks that differ in anything, also in a random state, never stand
    in for each other. A rank whose parameters differ from those of a majority gives nothing from
    that step on, and can begin from the majority's instead of its own.
    """

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
        even = [item for item in group if not self.is_odd(item, point)]
        found = [there[item] for item in even if item in there]
        if len({item.held.digest for item in found}) != 1:
            return None  # none is there, or they differ: which one is right is not known
        if len(even) < len(group) and 2 * len(found) <= len(group):
            return None  # without the ranks that were lost it is no majority
        return found[group.index(rank) % len(found)]


NOBODY: Final = StandIns()


def stand_ins(ledger: Ledger, reports: Mapping[str, Report], failed: Collection[Fault]) -> StandIns:
    """Return what the reachable nodes could give to ranks of equal state after the newest attempt's end."""
    known = ledger.replicas
    if known is None or known.attempt != ledger.attempt:
        return NOBODY
    given: dict[SnapshotPoint, dict[int, StandIn]] = {}
    for node, report in sorted(reports.items()):
        if report.copier is None or (report.snapshots_through or 0) < ledger.attempt:
            continue
        for snapshot in report.snapshots:
            fault = snapshot.rank, snapshot.attempt, snapshot.step, node
            if (
                snapshot.attempt == known.attempt
                and not snapshot.is_damaged
                and fault not in failed
            ):
                given.setdefault(snapshot.point, {}).setdefault(
                    snapshot.rank, StandIn(node, snapshot)
                )
    odd: dict[int, int] = {}
    for differing in ledger.differing:
        if differing.attempt == known.attempt:
            for rank in differing.odd:
                odd.setdefault(rank, differing.step)
    return StandIns({rank: group for group in known.groups for rank in group}, given, odd)


@dataclass(frozen=True, slots=True)
class _Step:
    """What there is of one step."""

    point: SnapshotPoint
    parts: Mapping[int, HeldSnapshot]  # by rank, of its own node where that has it whole
    nodes: Mapping[int, str]  # from which the others are fetched
    of_ranks: Mapping[int, int]  # whose part it is, where another rank's stands in
    mended: Collection[int] = ()  # ranks that differed from a majority, and have its part by now

    @property
    def age_s(self) -> float:
        return max(part.age_s for part in self.parts.values())

    def why_not(self, ranks: Sequence[int]) -> str | None:
        """Return why these ranks can't restore it, or None."""
        damaged = [rank for rank in ranks if rank in self.parts and self.parts[rank].is_damaged]
        if damaged:
            return f"changed in memory since it was written, of {ranks_in_words(damaged)}"
        missing = [rank for rank in ranks if rank not in self.parts]
        if missing:
            return f"not there of {ranks_in_words(missing)}"
        sizes = {part.world_size for part in self.parts.values()} - {len(ranks)}
        return f"of {min(sizes)} ranks, and there are {len(ranks)}" if sizes else None


def unsettled(
    placement: Sequence[Placement],
    reports: Sequence[Report],
    attempt: int,
    waited_s: float,
    elsewhere: Collection[int] = (),
) -> str | None:
    """Return the node whose snapshots are being read after the attempt's end, or None once all were.

    Nobody waits where a rank's node has read its own, and neither it nor another one has any of this rank.
    ``elsewhere``: the ranks of which another node has something.
    """
    if waited_s >= SETTLE_S_MAX:
        return None
    ranks = {place.node: place.ranks for place in placement}
    for report in reports:
        is_read = (report.snapshots_through or 0) >= attempt
        own = {snapshot.rank for snapshot in report.snapshots}
        if is_read and not set(ranks[report.node]) <= own | set(elsewhere):
            return None
    for report in reports:
        read_through = report.snapshots_through
        if read_through is not None and read_through < attempt <= report.empty_through:
            return report.node
    return None


def with_snapshot(
    choice: Choice,
    ledger: Ledger,
    policy: Policy,
    placement: Sequence[Placement],
    held: Mapping[str, Sequence[HeldSnapshot]],
    differ: Differ = lambda _point, _parts: None,
    elsewhere: Elsewhere | None = None,
    stand_ins: StandIns = NOBODY,
) -> Choice:
    """Return the choice with the snapshot to restore, if a snapshot is better than what was chosen.

    Its `fetched` then names what is still on other nodes. ``held``: what each node has in memory, read after the last
    attempt had gone from it. ``differ``: how replicas differ in these parts of a step, in words, or None.
    """
    if choice.is_new_run or _is_rolled_back(choice, ledger):
        return choice
    if choice.restore is not None and _is_suspect(ledger, policy):
        return choice
    steps = _steps_of(placement, held, elsewhere or {}, stand_ins)
    found = _newest_restorable(choice, ledger, policy, placement, steps, differ, _spoiled)
    if found.snapshot is None and (choice.restore is None or _is_behind(choice, ledger)):
        # Nothing is left from before the numbers went wrong: that is no reason to lose what there is.
        found = _newest_restorable(choice, ledger, policy, placement, steps, differ, None)
    return found


def _newest_restorable(
    choice: Choice,
    ledger: Ledger,
    policy: Policy,
    placement: Sequence[Placement],
    steps: Sequence[_Step],
    differ: Differ,
    spoiled: Callable[[SnapshotPoint, Ledger], str | None] | None,
) -> Choice:
    is_behind = spoiled is not None and _is_behind(choice, ledger)
    ranks = [rank for place in placement for rank in place.ranks]
    passed_over: list[PassedOver] = []
    best: _Step | None = None  # with another rank's part: one without may be nearly as new
    for step in steps:
        point = step.point
        if point.attempt < ledger.memory_since:
            continue  # passed over before, and what passed it over may be forgotten
        if choice.begins_at is not None and point.step < choice.begins_at and not is_behind:
            break  # the checkpoint is newer, and all that follow are older
        differing = _differing(point, ledger, {*step.of_ranks, *step.mended})
        reason = step.why_not(ranks) or differing or differ(point, step.parts)
        if reason is None and spoiled is not None:
            reason = spoiled(point, ledger)
        restores = ledger.restores_of(identity_of(point))
        if reason is None and restores >= policy.restore_failures_max:
            reason = f"restored {restores} times without progress"
        if reason is None and best is None and step.of_ranks:
            best = step
        elif reason is None and best is None:
            return _chosen(choice, step, passed_over)
        elif reason is None and not step.nodes and best is not None:
            is_nearly_as_new = step.age_s - best.age_s < STAND_IN_S_MIN
            return _chosen(choice, step if is_nearly_as_new else best, passed_over)
        elif reason is not None and best is None and len(passed_over) < _PASSED_OVER_MAX:
            passed_over.append(PassedOver(f"snapshot of step {point.step}", point.step, reason))
    if best is not None:
        return _chosen(choice, best, passed_over)
    return replace(choice, passed_over=(*passed_over, *choice.passed_over))


def _chosen(choice: Choice, step: _Step, passed_over: Sequence[PassedOver]) -> Choice:
    return replace(
        choice,
        is_possible=True,
        snapshot=step.point,
        fetched=tuple(
            FetchedPart(rank, step.nodes[rank], step.of_ranks.get(rank))
            for rank in sorted(step.nodes)
        ),
        reason=f"snapshot of every rank, written in attempt {step.point.attempt}",
        passed_over=(*passed_over, *choice.passed_over),
    )


def _is_behind(choice: Choice, ledger: Ledger) -> bool:
    """Return whether the job goes back and the checkpoint is not from before that step, for want of another."""
    back = ledger.goes_back
    return back is not None and choice.begins_at is not None and choice.begins_at >= back.behind


def _spoiled(point: SnapshotPoint, ledger: Ledger) -> str | None:
    """Return why a step is not restored after numbers went wrong, or None."""
    if (damaged := snapshot_from_damage(point, ledger)) is not None:
        return damaged
    for back in ledger.rollbacks:
        if point.attempt <= back.attempt and point.step >= back.behind:
            return "not from before the numbers went wrong"
    return None


def _is_suspect(ledger: Ledger, policy: Policy) -> bool:
    """Return whether what the ranks have in memory may be what fails.

    The same error came again at the same step, or a third time where each attempt comes a few steps further, as where a
    script looks for losses that are no numbers now and then.
    """
    run = ledger.errors
    is_same = run is not None and run.step is not None and run.count >= policy.same_error_max
    return is_same or ledger.memory_errors > policy.same_error_max


def _is_rolled_back(choice: Choice, ledger: Ledger) -> bool:
    """Return whether checkpoints were removed before a start: what is in memory is of the run that a person has left."""
    seen = ledger.restorable
    if ledger.incident is not None or seen is None:
        return False
    if choice.restore is None:
        return True
    steps = (choice.restore.step, seen.step)
    return None not in steps and choice.restore.step < seen.step  # type: ignore[operator] # both are known


def _differing(point: SnapshotPoint, ledger: Ledger, replaced: Collection[int] = ()) -> str | None:
    """Return how replicas differ at a step, by the journal. ``replaced``: ranks that begin from others of their group."""
    found = [
        differ
        for differ in ledger.differing
        if differ.attempt == point.attempt and differ.step <= point.step
        if not differ.odd or not set(differ.odd) <= set(replaced)
    ]
    return found[0].in_words if found else None


def _steps_of(
    placement: Sequence[Placement],
    held: Mapping[str, Sequence[HeldSnapshot]],
    elsewhere: Elsewhere,
    stand_ins: StandIns,
) -> list[_Step]:
    """Return what there is of each step, the newest first."""
    steps: dict[SnapshotPoint, dict[int, HeldSnapshot]] = {}
    nodes: dict[SnapshotPoint, dict[int, str]] = {}
    for place in placement:
        for part in held.get(place.node, ()):
            if part.rank in place.ranks:
                steps.setdefault(part.point, {})[part.rank] = part
    for rank in (rank for place in placement for rank in place.ranks):
        for node, part in elsewhere.get(rank, ()):
            own = steps.setdefault(part.point, {}).get(rank)
            if not part.is_damaged and (own is None or own.is_damaged):
                steps[part.point][rank] = part
                nodes.setdefault(part.point, {})[rank] = node
    of_ranks: dict[SnapshotPoint, dict[int, int]] = {}
    mended: dict[SnapshotPoint, set[int]] = {}
    for point in stand_ins.given:
        parts = steps.setdefault(point, {})
        for rank in (rank for place in placement for rank in place.ranks):
            found = stand_ins.find(rank, point)
            if found is None:
                continue
            is_odd = stand_ins.is_odd(rank, point)
            if is_odd and rank in parts and parts[rank].digest == found.held.digest:
                mended.setdefault(point, set()).add(rank)
            elif is_odd or rank not in parts or parts[rank].is_damaged:
                parts[rank] = replace(found.held, rank=rank)
                nodes.setdefault(point, {})[rank] = found.node
                of_ranks.setdefault(point, {})[rank] = found.held.rank
    newest_first = sorted(steps, key=lambda point: (point.step, point.attempt), reverse=True)
    return [
        _Step(
            *(point, steps[point], nodes.get(point, {})),
            *(of_ranks.get(point, {}), mended.get(point, ())),
        )
        for point in newest_first
    ]


@dataclass(frozen=True, slots=True)
class Fetching:
    """The snapshots that nodes fetch from others before an attempt begins.

    The controller requests them with each answer to a report, and they are done once the launchers
    report that they have them: so no record is needed before the attempt, and another controller
    finds out the same by itself.
    """

    attempt: int = 0  # the attempt that has ended
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

        ``reports``: of all reachable nodes.
        """
        homes = {rank: place.node for place in placement for rank in place.ranks}
        found: dict[int, list[_Source]] = {}
        for node, report in sorted(reports.items()):
            if report.copier is None:
                continue
            is_read = (report.snapshots_through or 0) >= attempt
            own = [snapshot for snapshot in report.snapshots if homes.get(snapshot.rank) != node]
            for item in (*report.copies, *(own if is_read else ())):
                home = homes.get(item.rank)
                target = None if home is None else reports.get(home)
                if target is None or target.copier is None or item.is_damaged:
                    continue
                if (item.rank, item.attempt, item.step, node) not in failed:
                    found.setdefault(item.rank, []).append((node, item))
        return found

    def wanting(
        self,
        choice: Choice,
        placement: Sequence[Placement],
        elsewhere: Elsewhere,
        stand_ins: StandIns,
        reports: Mapping[str, Report],
    ) -> "Fetching":
        """Return the state in which the missing parts of the choice are requested."""
        point = choice.snapshot
        if point is None or not choice.fetched:
            return replace(self, orders={}, text="")
        homes = {rank: place.node for place in placement for rank in place.ranks}
        orders: dict[str, list[FetchOrder]] = {}
        requested = dict(self.asked)
        for part in choice.fetched:
            if part.of_rank is not None:
                snapshot = stand_ins.given[point][part.of_rank].held
            else:
                (snapshot,) = (
                    item
                    for node, item in elsewhere[part.rank]
                    if (node, item.point) == (part.node, point)
                )
            report = reports[part.node]
            assert report.copier is not None, "it is a source"
            peer = Peer(part.node, report.launcher_id, report.copier)
            order = FetchOrder(snapshot, peer, part.rank)
            orders.setdefault(homes[part.rank], []).append(order)
            requested[point, part.rank] = part
        nodes = sorted({part.node for part in choice.fetched})
        ranks = ranks_in_words([part.rank for part in choice.fetched])
        text = f"the snapshots of {ranks} are fetched from {', '.join(nodes)}"
        return replace(
            self,
            orders={node: tuple(own) for node, own in orders.items()},
            text=text,
            asked=requested,
        )

    def told(self, choice: Choice) -> Choice:
        """Return the choice with what was fetched for it, once all of it is there."""
        if choice.snapshot is None:
            return choice
        parts = [part for (point, _rank), part in self.asked.items() if point == choice.snapshot]
        return replace(choice, fetched=tuple(sorted(parts, key=lambda part: part.rank)))


def failed_fetches(reports: Mapping[str, Report], attempt: int, waited_s: float) -> set[Fault]:
    """Return the parts that nodes reported they could not give or get after an attempt.

    ``waited_s``: a fault that may pass counts from `PASSING_S_MAX` on.
    """
    return {
        (fault.rank, fault.attempt, fault.step, fault.node)
        for report in reports.values()
        for fault in report.copy_faults
        if report.empty_through >= attempt and not (fault.may_pass and waited_s < PASSING_S_MAX)
    }
