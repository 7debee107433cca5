"""Nodes: the list, where their agents are, and taking a node out of use and back."""

from collections.abc import Sequence

from rankmend.errors import ConfigError
from recovery.api import wire
from recovery.controller.job.spelling import find_unknown, say_unknown
from recovery.schedulers.slurm.desk import RequestDesk
from recovery.service.discovery import targets
from recovery.service.fleet.answers import nodes_of, others
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call
from recovery.service.http.handlers.watched import seen_watched
from recovery.service.jobs import views
from recovery.service.roles import Role, Subject, UnknownNodeError


async def nodes(backend: Backend, call: Call[None]) -> wire.Nodes:
    return wire.Nodes(await _seen_nodes(backend, call.subject))


async def agents(backend: Backend, call: Call[None]) -> list[wire.Target]:
    """Return where Prometheus finds the agents of the nodes."""
    seen, reported = await _seen_nodes(backend, call.subject), backend.config.discovery
    sight = backend.sight(call.subject, seen)
    jobs: dict[str, list[str]] = {name: [] for name in reported.nodes if sight.sees_node(name)}
    for node in seen:
        jobs.setdefault(node.node, []).append(node.job_id)
    for watched in await seen_watched(backend, call.subject):
        for name in watched.nodes:
            jobs.setdefault(name, []).append(watched.job_id)
    return await backend.disk.run(lambda: targets(jobs, reported))


async def drain(backend: Backend, call: Call[wire.NodeDrain]) -> wire.Done:
    node, reason, who = call.parts["node"], call.given.reason, call.subject.name
    if not call.given.is_expected:
        await refuse_unknown_nodes(backend, call.subject, [node])
    manager = _manager_of(backend, call.given.also_in)
    await backend.ask(lambda: backend.worker.desk.drain(node, who, reason))
    done = f"{node} is drained: ranks there keep running, and it gets no new ones"
    if manager is None:
        return wire.Done(done)
    is_asked = await backend.disk.run(lambda: manager.take_out(node, who, reason))
    name = manager.limits.manager
    also = f"{name} is asked to take it out" if is_asked else f"{name} has been asked already"
    return wire.Done(f"{done}; {also}")


def _manager_of(backend: Backend, name: str) -> RequestDesk | None:
    """Return where to ask for a drain, too; raise ConfigError where the controller may not ask there."""
    found = {"slurm": backend.slurm, "kubernetes": backend.kubernetes}.get(name)
    if name and found is None:
        raise ConfigError(f"the controller has no [{name}] with enabled = true")
    return found


async def release(backend: Backend, call: Call[wire.Because]) -> wire.Done:
    node, reason, who = call.parts["node"], call.given.reason, call.subject.name
    if not call.given.is_expected:
        await refuse_unknown_nodes(backend, call.subject, [node])
    await backend.ask(lambda: backend.worker.desk.release(node, who, reason))
    desks = [item for item in (backend.slurm, backend.kubernetes) if item is not None]

    def take_back() -> list[str]:
        return [desk.limits.manager for desk in desks if desk.take_back(node, who, reason)]

    requested = " and ".join(await backend.disk.run(take_back))
    also = f"; {requested} is asked to take back our drain" if requested else ""
    return wire.Done(f"{node} can get ranks again{also}")


async def refuse_unknown_nodes(backend: Backend, subject: Subject, named: Sequence[str]) -> None:
    """Raise UnknownNodeError where no launcher, alert, person, setting or drain of ours has named a node."""
    heard_of = await backend.ask(backend.worker.known_nodes)
    everybody = Subject("nodes", frozenset({Role.FLEET_READ}), how="controller", via=subject.via)
    heard_of |= {node.node for node in nodes_of(await others(backend, "nodes", everybody))}
    desks = [item for item in (backend.slurm, backend.kubernetes) if item is not None]
    drained = [node for desk in desks for node in desk.ledger.nodes]
    known = [*heard_of, *backend.config.discovery.nodes, *drained]
    unknown = find_unknown(named, known)
    if unknown is not None:
        seen = [item for item in known if subject.may_use_node(item)]
        raise UnknownNodeError(say_unknown("node", unknown, seen), unknown)


async def _seen_nodes(backend: Backend, subject: Subject) -> list[wire.NodeView]:
    """Return the nodes of all jobs that the subject may see."""
    desk = backend.worker.desk
    found = await backend.look(
        lambda running: [view for job in running for view in views.view_nodes(job, desk)]
    )
    found += nodes_of(await others(backend, "nodes", subject))
    sight = backend.sight(subject, found)
    return [item for item in found if sight.sees_job(item.job_id) and sight.sees_node(item.node)]
