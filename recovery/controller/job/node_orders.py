"""What each node of a job ought to be running, as an order. From the ledger and the job's settings alone."""

from collections import Counter
from collections.abc import Collection, Sequence

from recovery.controller.job.adoption import is_named
from recovery.controller.job.membership import has_launcher_of_attempt, neighbours_of, peers_of
from recovery.controller.job.restore.checkpoint_reports import readers_of
from recovery.controller.job.settings import JobSettings
from recovery.controller.job.watch.hang_verdict import collection_for
from recovery.controller.job.watch.slow_causes import asked_number, nodes_to_read, told_findings
from recovery.journal.attempt_records import StandKind
from recovery.journal.ledger import Ledger, Wish
from recovery.messages.candidates import Share
from recovery.messages.exchange import VERSION, Order, Stop


def shares_of(ledger: Ledger, settings: JobSettings) -> dict[str, Share]:
    """Return what each node reads of the checkpoints: in a look, or beside training."""
    if ledger.wish is Wish.NOTHING and ledger.finder is not None:
        return {reader.node: reader.share for reader in ledger.readers}
    if ledger.wish is Wish.RANKS and settings.has_checkpoints:
        return {
            reader.node: reader.share for reader in readers_of(ledger.placement, ledger.members)
        }
    return {}


def _continued_on(ledger: Ledger, ranks: Collection[int]) -> tuple[int, ...]:
    """Return the ranks of a node that the newest record about stopped ranks has ordered to go on."""
    standing = ledger.standing
    if standing is None or standing.kind is not StandKind.CONTINUED:
        return ()
    return tuple(rank for rank in standing.ranks if rank in ranks)


def _roles(ledger: Ledger, nodes: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return each node's first rank among those of its role, and how many these are; empty: all have one role.

    As torchrun has it (`torch.distributed.elastic.agent.server.api`, `_assign_worker_ranks`): in the order of group ranks.
    """
    sizes = {place.node: len(place.ranks) for place in ledger.placement}
    role_of = {
        node: member.role if (member := ledger.members.get(node)) is not None else ""
        for node in nodes
    }
    if len(set(role_of.values())) < 2:
        return {}
    counts: Counter[str] = Counter()
    first = {}
    for node in nodes:
        first[node] = counts[role_of[node]]
        counts[role_of[node]] += sizes[node]
    return {node: (first[node], counts[role_of[node]]) for node in nodes}


def orders_for(
    ledger: Ledger, settings: JobSettings, nodes: Collection[str] | None = None
) -> tuple[Order, ...]:
    """Return what each node, or each of ``nodes``, ought to be running, from the ledger alone.

    A node without ranks (a spare, one that left, one whose launcher came after the attempt began)
    is ordered to run nothing, so that anything that it may still run is stopped.
    """
    is_running = ledger.wish is Wish.RANKS
    collect, collect_s = collection_for(ledger)
    started = ledger.started if is_running else None
    placement, members = ledger.placement, ledger.members
    ranks = {place.node: place.ranks for place in placement}
    groups = {place.node: group for group, place in enumerate(placement)}
    names = [node for node in ranks if is_named(node)]
    names += [node for node in members if node not in ranks]
    peers = peers_of(ledger) if is_running else ()
    world_size = sum(len(place.ranks) for place in placement)
    requested = asked_number(ledger) if is_running else 0
    readers = nodes_to_read(ledger, placement) if requested else set()
    first = next(iter(ranks), None)
    shares = shares_of(ledger, settings)
    looks = ledger.finder is not None and ledger.wish is Wish.NOTHING
    sizes = tuple(len(place.ranks) for place in placement)
    roles = _roles(ledger, [node for node in ranks if is_running])
    spares = sum(
        member.left is None and member.ended_through is None
        for node, member in members.items()
        if node not in ranks
    )
    orders = []
    for node in names if nodes is None else [name for name in names if name in nodes]:
        member = members.get(node)
        is_its = member is None or has_launcher_of_attempt(ledger, member)
        runs = ranks.get(node, ()) if is_running and is_its else ()
        orders.append(
            Order(
                version=VERSION,
                job_id=settings.job_id,
                revision=ledger.revision,
                attempt=ledger.attempt,
                ranks=runs,
                world_size=max(world_size, 1),
                group_rank=groups.get(node, 0),
                group_count=max(len(placement), 1),
                stop=Stop.KILL if ledger.closing is None else ledger.closing.stop,
                grace_s=0.0 if ledger.closing is None else ledger.closing.grace_s,
                restore=None if started is None or not runs else started.choice.restore,
                snapshot=None if started is None or not runs else started.choice.snapshot,
                restarts=ledger.restarts,
                restarts_max=settings.policy.restarts_max,
                collect=collect,
                collect_s=collect_s,
                node=node,
                launcher_id="" if member is None else member.launcher_id,
                epoch=ledger.epoch,
                rendezvous=None if started is None or not runs else started.rendezvous,
                peers=peers if runs else (),
                lease_s=settings.policy.lease_s if runs and peers else 0.0,
                kill_bound_s=settings.policy.kill_bound_s if runs and peers else 0.0,
                finds_checkpoints=looks and node in shares,
                controller_id=ledger.controller_id,
                reads_hardware=requested if node in readers else 0,
                findings=told_findings(ledger, ranks.get(node, ()), is_first=node == first),
                share=shares.get(node),
                continues=_continued_on(ledger, runs),
                continue_number=ledger.continued_number if runs else 0,
                neighbours=neighbours_of(ledger, groups[node]) if runs and peers else (),
                spare_count=spares if is_running else 0,
                group_sizes=sizes if runs and len(set(sizes)) > 1 else (),
                role_rank=roles[node][0] if runs and roles else 0,
                role_world_size=roles[node][1] if runs and roles else 0,
            )
        )
    return tuple(orders)
