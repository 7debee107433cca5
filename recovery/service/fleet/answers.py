"""What is shown of other controllers' jobs, and which controller answers a request: the present owner where it can, else what is known.

Nothing here asks the deciding thread, nor reads a job's journal: what is known is the last answer of the owner, else the job's settings.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from detectors.wording import counted
from recovery.api import wire
from recovery.console.views.job_view import UNMANAGED
from recovery.service.fleet.peers import ToldElsewhere
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call
from recovery.service.http.permission import may_read_job
from recovery.service.http.request_errors import FullError
from recovery.service.http.route import Answerer, Route
from recovery.service.jobs.job_registry import JobRegistry
from recovery.service.jobs.job_store import JobElsewhere, OtherController
from recovery.service.roles import Subject

UNHEARD: Final = "not heard"  # state of a job whose controller doesn't answer

_SHOWN: Final = frozenset({"job", "ranks"})


def answering_peer(
    jobs: JobRegistry, route: Route[Any, Any, Any], call: Call[Any]
) -> OtherController | None:
    """Return the controller that is to answer; None: this one."""
    if route.answerer is Answerer.HERE:
        return None
    fleet = jobs.fleet
    if route.answerer is Answerer.DESK:
        return None if call.subject.via else fleet.peers.get(fleet.desks.get(route.name, ""))
    job_id = call.job_ids[0] if call.job_ids else ""
    elsewhere = None if job_id in jobs.known else fleet.jobs.get(job_id)
    if elsewhere is None:
        return None
    peer = fleet.peers.get(elsewhere.holder)
    if call.subject.via or (peer is None and route.name not in _SHOWN):
        raise FullError(
            f"job {job_id} has no controller at this moment: one takes it within seconds; try again"
        )
    return peer


def show_without_owner(backend: Backend, route: Route[Any, Any, Any], call: Call[Any]) -> Any:
    """Return what there is to show of a job whose controller doesn't answer; None: nothing."""
    if route.name not in _SHOWN or not call.job_ids:
        return None
    job_id = call.job_ids[0]
    elsewhere = backend.worker.jobs.fleet.jobs.get(job_id)
    if elsewhere is None:
        return None
    if route.name == "ranks":
        return wire.RankMap(job_id, 0, None, [], [], [], [], [], [], [])
    return wire.JobDetail(_last_of(backend, job_id, elsewhere), [])


async def jobs_elsewhere(backend: Backend, subject: Subject) -> list[wire.JobView]:
    """Return the jobs that other controllers have, or that none has now."""
    fleet, peers = backend.worker.jobs.fleet, backend.peers
    if subject.via or peers is None or not (fleet.peers or fleet.jobs):
        return []
    reported: dict[str, wire.JobView] = {}
    for job in await peers.jobs():
        for view in job.answer.jobs if job.answer is not None and not job.problem else ():
            reported[view.job_id] = msgspec.structs.replace(view, controller=job.peer.title)
    running = backend.worker.jobs.running
    for job_id, elsewhere in backend.worker.jobs.fleet.jobs.items():
        if job_id not in reported:
            reported[job_id] = _last_of(backend, job_id, elsewhere)
    return [
        item
        for job_id, item in reported.items()
        if job_id not in running and may_read_job(subject, item)
    ]


def _last_of(backend: Backend, job_id: str, elsewhere: JobElsewhere) -> wire.JobView:
    """Return what a job's owner said last of it; where it has said nothing, what the job was started with."""
    peer = backend.worker.jobs.fleet.peers.get(elsewhere.holder)
    owner = "" if peer is None else peer.title
    problem = f"its controller, on {owner}, does not answer"
    if peer is None:
        problem = "no controller has it at this moment; one takes it within seconds"
    seen = None if backend.peers is None else backend.peers.jobs_seen.get(job_id)
    if seen is not None:
        age_s = backend.clock.now_s() - seen.at_s
        problem = f"{problem}: shown as it was {age_s:.0f} s ago"
        return msgspec.structs.replace(
            seen.view, controller=owner, told_age_s=age_s, problem=problem
        )
    stored = elsewhere.found.stored
    return wire.JobView(
        job_id=job_id,
        name=stored.join.name,
        owner=stored.owner,
        state=UNMANAGED if peer is None else UNHEARD,
        attempt=0,
        world_size=0,
        nodes=0,
        restarts=0,
        restarts_without_progress=0,
        highest_step=None,
        incidents=0,
        incident_id=None,
        reason=None,
        problem=problem,
        attributes=stored.join.attributes,
        controller=owner,
    )


async def others(backend: Backend, name: str, subject: Subject) -> list[ToldElsewhere]:
    """Return what the other controllers answer to a route of lists."""
    return [] if backend.peers is None else await backend.peers.gather(name, subject)


def nodes_of(answers: Iterable[ToldElsewhere]) -> list[wire.NodeView]:
    """Return the nodes in answers; those of an old answer were heard longer ago by that."""
    found = []
    for answer in answers:
        for node in () if answer.answer is None else answer.answer.nodes:
            heard_s = node.heard_age_s
            if answer.age_s and heard_s is not None:
                node = msgspec.structs.replace(node, heard_age_s=heard_s + answer.age_s)  # noqa: PLW2901
            found.append(node)
    return found


def notes_on_others(backend: Backend, subject: Subject) -> list[str]:
    """Return what people must know of the others: who doesn't answer, and which jobs nobody has."""
    fleet = backend.worker.jobs.fleet
    if subject.via or backend.peers is None:
        return []
    notes = []
    for peer in fleet.peers.values():
        if not peer.secret:
            jobs = _count(fleet.jobs.values(), peer)
            notes.append(
                f"the controller on {peer.title} is an older one, which shows its jobs itself only: ask it for {jobs}"
            )
    for peer, since_s, why in backend.peers.silent():
        jobs = _count(fleet.jobs.values(), peer)
        notes.append(
            f"the controller on {peer.title} has not answered for {since_s:.0f} s ({why}): {jobs} of it shown as last reported"
        )
    free = sum(job.holder not in fleet.peers for job in fleet.jobs.values())
    if free:
        notes.append(
            f"{counted(free, 'job')} without a controller at this moment: one takes each within seconds"
        )
    return notes


def _count(jobs: Iterable[JobElsewhere], peer: OtherController) -> str:
    return counted(sum(job.holder == peer.controller_id for job in jobs), "job")
