"""Jobs: their state, limits and plans, and what people have them do."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from recovery.api import wire
from recovery.console.views.job_view import view_ranks
from recovery.messages.outside import PersonCommand
from recovery.service.fleet.answers import jobs_elsewhere, others
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call
from recovery.service.http.permission import JobQuery, may_read_job
from recovery.service.http.request_errors import CallConflictError
from recovery.service.jobs import views
from recovery.service.jobs.job_registry import refuse_ended
from recovery.service.jobs.served_job import Job
from recovery.service.roles import Subject, UnknownError


class JobsQuery(Struct):
    ended: bool = False


class PolicyQuery(JobQuery):
    pass


class PlanQuery(JobQuery, kw_only=True):
    job: wire.Uuid
    node: wire.Name | None = None


async def jobs(backend: Backend, call: Call[JobsQuery]) -> wire.Jobs:
    desk, may_use = backend.worker.desk, call.subject.may_use_node
    shown = await backend.look(
        lambda running: [views.view_job(job, desk, may_use) for job in running]
    )
    elsewhere = await jobs_elsewhere(backend, call.subject)
    if call.given.ended:
        ended = await backend.ask(backend.worker.jobs.ended)
        newest = ended[-wire.INCIDENTS_MAX :]
        shown += await backend.disk.read(lambda: [views.view_ended(item) for item in newest])
    return wire.Jobs([item for item in shown if may_read_job(call.subject, item)] + elsewhere)


async def job(backend: Backend, call: Call[None]) -> wire.JobDetail:
    job_id, _known = call.job
    worker, subject = backend.worker, call.subject

    def view(running: Sequence[Job]) -> wire.JobDetail | None:
        found = next((item for item in running if item.job_id == job_id), None)
        if found is None:
            return None
        nodes = views.view_nodes(found, worker.desk)
        return wire.JobDetail(
            views.view_job(found, worker.desk, subject.may_use_node),
            [node for node in nodes if subject.may_use_node(node.node)],
        )

    shown = await backend.look(view)
    if shown is not None:
        return shown
    ended = await backend.ask(lambda: worker.jobs.find_ended(job_id))
    return wire.JobDetail(await backend.disk.read(lambda: views.view_ended(ended)), [])


async def ranks(backend: Backend, call: Call[None]) -> wire.RankMap:
    """Return where the ranks of a job stand, without asking the deciding thread."""
    job_id, _known = call.job
    # The event loop may look a job up: the deciding thread adds and removes jobs, and changes none in place.
    running = backend.worker.jobs.running.get(job_id)
    controller = None if running is None else running.controller
    shown = await backend.views.read(
        lambda: view_ranks(job_id, None if controller is None else controller.picture())
    )
    return _within(shown, call.subject)


def _within(shown: wire.RankMap, subject: Subject) -> wire.RankMap:
    """Leave out the ranks of nodes that the subject may not see."""
    hidden = {
        place for place, node in enumerate(shown.node_names) if not subject.may_use_node(node)
    }
    if not hidden:
        return shown
    retained = [row for row, place in enumerate(shown.nodes) if place not in hidden]
    names = ["" if place in hidden else node for place, node in enumerate(shown.node_names)]
    columns = {
        name: [getattr(shown, name)[row] for row in retained]
        for name in ("ranks", "nodes", "steps", "ages_s", "states", "factors")
    }
    return msgspec.structs.replace(shown, node_names=names, **columns)


async def plans(backend: Backend, call: Call[None]) -> wire.Plans:
    worker, subject = backend.worker, call.subject

    def act() -> list[wire.PlanView]:
        return [plan for job in worker.jobs.running.values() for plan in views.view_plans(job)]

    shown = await backend.ask(act)
    for reported in await others(backend, "plans", subject):
        shown += () if reported.answer is None or reported.problem else reported.answer.plans
    sight = backend.sight(subject)
    return wire.Plans([item for item in shown if sight.sees_job(item.job_id)])


async def plan(backend: Backend, call: Call[PlanQuery]) -> wire.PlanView:
    job_id, known = call.job
    node = call.given.node
    refuse_ended(job_id, known)
    return await backend.ask(lambda: backend.worker.dry_run(job_id, node))


async def policy(backend: Backend, call: Call[PolicyQuery]) -> wire.PolicyView:
    worker = backend.worker
    if not call.job_ids:
        return await backend.ask(lambda: views.view_policy(worker.desk, worker.jobs.policy_for("")))
    job_id, known = call.job
    refuse_ended(job_id, known)

    def act() -> wire.PolicyView:
        running = worker.jobs.running.get(job_id)
        if running is None:
            raise UnknownError(f"no job {job_id}")
        return views.view_policy(worker.desk, running.settings.policy, running)

    return await backend.ask(act)


def command_of(subject: Subject, requested: wire.JobCommand) -> PersonCommand:
    """Return a person's command, with what the person may speak for."""
    return PersonCommand(
        requested.act,
        subject.name,
        requested.reason,
        requested.incident_id,
        requested.node,
        requested.key,
        bool(subject.jobs),
    )


async def command(backend: Backend, call: Call[wire.JobCommand]) -> wire.Done:
    job_id, _known = call.job
    requested = call.given
    reported = command_of(call.subject, requested)
    call.detail = f"{requested.act.value} {requested.incident_id or ''} {requested.node or ''} {requested.reason}"
    acted = await backend.ask(lambda: backend.worker.command(job_id, reported, requested.plan_id))
    if acted.is_refused:
        raise CallConflictError(acted.result, "act", requested.act.value, acted.refusal)
    return wire.Done(acted.result)
