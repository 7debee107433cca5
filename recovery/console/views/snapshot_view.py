"""What a job's ranks keep in memory, what that costs, and how often they best keep it. Pure.

A snapshot is of use after a failure that leaves every rank on its node. So its best interval is that for these failures alone:
of the job's own ones the journal knows them, and one more that stayed is assumed, as with the published rate.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from recovery.api import wire
from recovery.checkpoints.snapshots.memory import NodeMemory, newest_step_of
from recovery.journal.checkpoint_cost import (
    FORMULA,
    Costs,
    best_interval_s,
    cost_of,
    failure_interval_s,
)
from recovery.journal.ledger import Ledger, SaveHistory
from recovery.messages.exchange import HeldSnapshot

WITHOUT_MAX: Final = 16  # ranks that are named
_MEASURED_MAX: Final = 256  # ranks that the usual interval is the median of


class _Part(NamedTuple):
    """One rank's snapshot on the node on which it runs."""

    held: HeldSnapshot
    age_s: float  # as of now


def view_snapshots(
    nodes: Sequence[NodeMemory], ledger: Ledger, ranks: Sequence[int] | None = None
) -> wire.SnapshotView | None:
    """Return what the job's ranks have in memory; None where they have nothing and have requested nothing.

    ``ranks``: those that were looked at, where that is not the whole job.
    """
    wanted = range(ledger.world_size) if ranks is None else ranks
    parts = list(_parts(nodes, ledger))
    retained = [item for node in nodes for item in node.kept.values()]
    if not parts and not retained:
        return None
    holding = {part.held.rank for part in parts if not part.held.is_damaged}
    without = [rank for rank in wanted if rank not in holding]
    newest = _newest_whole(parts, wanted, ledger.world_size)
    stall_s = max((item.stalled_s / item.count for item in retained if item.count), default=None)
    interval_s = _interval_s(parts)
    share = stayed_share(ledger.history)
    mean_s = _failure_interval_s(ledger) / share
    repair_s = ledger.history.repair_s or 0.0
    present, best, missing = _costs(interval_s, stall_s, mean_s, repair_s)
    bytes_of = [sum(item.size_bytes for item in (*node.held, *node.copies)) for node in nodes]
    copied = _newest_whole(list(_copies(nodes, ledger)), wanted, ledger.world_size)
    copied_step = copied[0].held.step if copied else None
    step = newest[0].held.step if newest else None
    return wire.SnapshotView(
        step=step,
        attempt=newest[0].held.attempt if newest else None,
        steps_since=_steps_since(step, nodes, ledger),
        age_s=max((part.age_s for part in newest), default=None),
        size_bytes=sum(part.held.size_bytes for part in newest) if newest else None,
        held_bytes=sum(bytes_of),
        node_bytes=max(bytes_of, default=0),
        ranks=len(wanted),
        without_count=len(without),
        without=without[:WITHOUT_MAX],
        damaged=sum(part.held.is_damaged for part in parts),
        refused=sum(item.refused for item in retained),
        files=min((item.files for item in retained), default=None),
        stall_s=stall_s,
        interval_s=interval_s,
        stayed_ratio=share,
        failure_interval_s=mean_s,
        present=present,
        best=best,
        formula=FORMULA,
        missing=missing,
        copied_step=copied_step,
        copied_steps_since=_steps_since(copied_step, nodes, ledger),
        copied_age_s=max((part.age_s for part in copied), default=None),
        copied_bytes=sum(copy.size_bytes for node in nodes for copy in node.copies),
    )


def stayed_share(history: SaveHistory) -> float:
    """Return the share of failures that leave every rank on its node."""
    return min(1.0, (history.stayed + 1) / (history.failures + 1))


def _failure_interval_s(ledger: Ledger) -> float:
    history = ledger.history
    return failure_interval_s(history.failures, history.ran_s, max(1, ledger.world_size))


def _parts(nodes: Sequence[NodeMemory], ledger: Ledger) -> Iterator[_Part]:
    """Yield the snapshots that a restart could use: on the node where their rank runs, and of no lost node."""
    place_of = {rank: place.node for place in ledger.placement for rank in place.ranks}
    for node in nodes:
        member = ledger.members.get(node.node)
        if member is not None and member.is_lost:
            continue
        for item in node.held:
            if place_of.get(item.rank, node.node) == node.node:
                yield _Part(item, item.age_s + node.told_age_s)


def _copies(nodes: Sequence[NodeMemory], ledger: Ledger) -> Iterator[_Part]:
    """Yield the copies on nodes that are not lost."""
    for node in nodes:
        member = ledger.members.get(node.node)
        if member is None or not member.is_lost:
            for copy in node.copies:
                yield _Part(copy, copy.age_s + node.told_age_s)


def _newest_whole(parts: Sequence[_Part], ranks: Sequence[int], world_size: int) -> list[_Part]:
    """Return all parts of the newest step of which every rank has one, whole and unchanged; none: there is no such step."""
    found: dict[tuple[int, int], dict[int, _Part]] = {}
    for part in parts:
        item = part.held
        if not item.is_damaged and item.world_size == world_size:
            found.setdefault((item.step, item.attempt), {})[item.rank] = part
    wanted = set(ranks)
    whole = [point for point, by_rank in found.items() if by_rank.keys() >= wanted]
    return list(found[max(whole)].values()) if whole else []


def _interval_s(parts: Sequence[_Part]) -> float | None:
    """Return the usual time from one snapshot to the next, by the two that each rank has of the newest attempt."""
    newest = max((part.held.attempt for part in parts), default=0)
    by_rank: dict[int, list[HeldSnapshot]] = {}
    for part in parts:
        if len(by_rank) > _MEASURED_MAX:
            break
        if part.held.attempt == newest and part.held.sequence:
            by_rank.setdefault(part.held.rank, []).append(part.held)
    return _middle(by_rank)


def _middle(by_rank: Mapping[int, Sequence[HeldSnapshot]]) -> float | None:
    known = []
    for held in by_rank.values():
        ordered = sorted(held, key=lambda item: item.sequence)
        first, last = ordered[0], ordered[-1]
        if last.sequence > first.sequence and first.age_s > last.age_s:
            known.append((first.age_s - last.age_s) / (last.sequence - first.sequence))
    return median(known) if known else None


def _steps_since(step: int | None, nodes: Sequence[NodeMemory], ledger: Ledger) -> int | None:
    """Return how many steps a failure now would repeat. The journal's highest step is seconds old while ranks tell newer ones."""
    reported = newest_step_of(node.newest_step for node in nodes)
    newest = ledger.highest_step if reported is None else reported
    if step is None or newest is None or not ledger.is_comparable:
        return None
    return max(0, newest - step)


def _costs(
    interval_s: float | None, stall_s: float | None, mean_s: float, repair_s: float
) -> tuple[wire.CostView | None, wire.CostView | None, str]:
    """Return what the present interval costs and the best one, or what is missing for that."""
    if stall_s is None:
        return None, None, "the running ranks have kept no snapshot yet"
    if stall_s <= 0:
        return None, None, "snapshots stop training for no time that can be measured"
    costs = Costs(stall_s, stall_s, mean_s, repair_s)
    best = _cost(best_interval_s(costs), costs)
    if interval_s is None:
        return None, best, "no rank has two snapshots of this attempt, so the interval is not known"
    return _cost(interval_s, costs), best, ""


def _cost(interval_s: float, costs: Costs) -> wire.CostView:
    cost = cost_of(interval_s, costs)
    return wire.CostView(interval_s, cost.stalls, cost.recomputed, cost.restarts, cost.total)
