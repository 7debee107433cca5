"""What was asked of Slurm and of Kubernetes, and the nodes that were drained there."""

from typing import Final

import msgspec

from recovery.api import wire
from recovery.schedulers.kubernetes.node_states import SeenNode
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.schedulers.slurm.ledger import NodeHistory, Work
from recovery.schedulers.slurm.return_rules import ReturnStanding
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call

REQUESTS_MAX: Final = 1000


async def slurm(backend: Backend, call: Call[None]) -> wire.SlurmView:
    del call  # who may ask is decided by the route
    return _view_desk(backend.slurm)


async def kubernetes(backend: Backend, call: Call[None]) -> wire.SlurmView:
    del call
    view = _view_desk(backend.kubernetes)
    states = sorted(backend.kubernetes_states().values(), key=lambda one: one.node)
    return msgspec.structs.replace(view, states=[_state(one) for one in states])


def _state(one: SeenNode) -> wire.KubernetesNodeView:
    return wire.KubernetesNodeView(
        one.node,
        one.is_cordoned,
        one.is_ours,
        one.cordoned_by,
        one.ready,
        list(one.conditions),
        list(one.taints),
        one.seen_unix_s,
    )


def _view_desk(desk: RequestDesk | None) -> wire.SlurmView:
    if desk is None:
        return wire.SlurmView(enabled=False, acts=False, problem="", requests=[], nodes=[])
    ledger = desk.ledger
    works = list(ledger.works.values())[-REQUESTS_MAX:]
    standings = desk.returns.standings
    nodes = [
        _node(node, past, standings.get(node) if past.is_ours else None)
        for node, past in sorted(ledger.nodes.items())
    ]
    requests = [_view(desk, work) for work in reversed(works)]
    problem = desk.bench.problem
    return wire.SlurmView(
        enabled=True, acts=desk.limits.act, problem=problem, requests=requests, nodes=nodes
    )


def _node(node: str, past: NodeHistory, standing: ReturnStanding | None) -> wire.SlurmNodeView:
    return wire.SlurmNodeView(
        node,
        past.is_ours,
        [wire.SlurmDrainView(node, one.unix_s, one.reason) for one in past.drains],
        past.over,
        "" if standing is None else standing.stay.value,
        "" if standing is None else standing.text,
        None if standing is None else standing.due_unix_s,
        [wire.SlurmNodeEventView(one.unix_s, one.kind.value, one.text) for one in past.events],
    )


def _view(desk: RequestDesk, work: Work) -> wire.SlurmRequestView:
    asked, ended = work.request, work.ended
    return wire.SlurmRequestView(
        asked.key,
        asked.action.value,
        list(asked.nodes),
        asked.slurm_job or asked.pods_of,
        asked.reason,
        work.asked_unix_s,
        "" if ended is None else ended.outcome.value,
        desk.waits_for(asked.key) if ended is None else ended.text,
    )
