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
    states = sorted(backend.kubernetes_states().values(), key=lambda state: state.node)
    return msgspec.structs.replace(view, states=[_state(state) for state in states])


def _state(node: SeenNode) -> wire.KubernetesNodeView:
    return wire.KubernetesNodeView(
        node.node,
        node.is_cordoned,
        node.is_ours,
        node.cordoned_by,
        node.ready,
        list(node.conditions),
        list(node.taints),
        node.seen_unix_s,
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
        [wire.SlurmDrainView(node, drain.unix_s, drain.reason) for drain in past.drains],
        past.over,
        "" if standing is None else standing.stay.value,
        "" if standing is None else standing.text,
        None if standing is None else standing.due_unix_s,
        [
            wire.SlurmNodeEventView(event.unix_s, event.kind.value, event.text)
            for event in past.events
        ],
    )


def _view(desk: RequestDesk, work: Work) -> wire.SlurmRequestView:
    requested, ended = work.request, work.ended
    return wire.SlurmRequestView(
        requested.key,
        requested.action.value,
        list(requested.nodes),
        requested.slurm_job or requested.pods_of,
        requested.reason,
        work.asked_unix_s,
        "" if ended is None else ended.outcome.value,
        desk.waits_for(requested.key) if ended is None else ended.text,
    )
