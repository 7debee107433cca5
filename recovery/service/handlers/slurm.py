"""What was asked of Slurm, and the nodes that were drained there."""

from typing import Final

from recovery.api import wire
from recovery.service.backend import Backend
from recovery.service.call import Call
from recovery.slurm.desk import SlurmDesk
from recovery.slurm.ledger import Work

REQUESTS_MAX: Final = 1000


async def slurm(backend: Backend, call: Call[None]) -> wire.SlurmView:
    del call  # who may ask is decided by the route
    desk = backend.slurm
    if desk is None:
        return wire.SlurmView(enabled=False, acts=False, problem="", requests=[], nodes=[])
    ledger = desk.ledger
    works = list(ledger.works.values())[-REQUESTS_MAX:]
    nodes = [
        wire.SlurmNodeView(
            node,
            past.is_ours,
            [wire.SlurmDrainView(node, one.unix_s, one.reason) for one in past.drains],
            past.over,
        )
        for node, past in sorted(ledger.nodes.items())
    ]
    requests = [_view(desk, work) for work in reversed(works)]
    problem = desk.bench.problem
    return wire.SlurmView(
        enabled=True, acts=desk.limits.act, problem=problem, requests=requests, nodes=nodes
    )


def _view(desk: SlurmDesk, work: Work) -> wire.SlurmRequestView:
    asked, ended = work.request, work.ended
    return wire.SlurmRequestView(
        asked.key,
        asked.action.value,
        list(asked.nodes),
        asked.slurm_job,
        asked.reason,
        work.asked_unix_s,
        "" if ended is None else ended.outcome.value,
        desk.waits_for(asked.key) if ended is None else ended.text,
    )
