"""Incidents: the list with MTTR, the story of each, and taking note of one that was given up."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from recovery.accounting.goodput.time_window import read_window
from recovery.api import wire
from recovery.console.views.incident_view import view_story, with_clock
from recovery.journal.records import Entry
from recovery.service.http.backend import Backend
from recovery.service.http.call import Call
from recovery.service.http.permission import may_read_job
from recovery.service.http.request_errors import CallConflictError
from recovery.service.jobs.known_incidents import JOBS_MAX, JobPlace
from recovery.service.pager import escalated
from recovery.service.roles import UnknownError


class IncidentsQuery(Struct):
    job: wire.Uuid | None = None
    limit: Annotated[int, Meta(ge=1, le=wire.INCIDENTS_MAX)] = 100


class StoryQuery(Struct):
    """Of a job's story, only the records that its account of time from this moment on needs."""

    since: float | None = None  # unix seconds


async def incidents(backend: Backend, call: Call[IncidentsQuery]) -> wire.Incidents:
    wanted, limit = call.given.job, call.given.limit
    known = backend.worker.jobs.everywhere
    places = [
        JobPlace(job_id, item.name, item.journal)
        for job_id, item in reversed(list(known.items()))
        if wanted in (None, job_id) and may_read_job(call.subject, item)
    ][:JOBS_MAX]
    found = await backend.disk.read(lambda: backend.incidents.newest(places, limit))
    return wire.Incidents([with_clock(view, backend.clock.unix_s()) for view in found])


async def story(backend: Backend, call: Call[StoryQuery]) -> wire.Story:
    wanted = call.parts["incident"]
    found = await _find_story(backend, call, wanted, call.given.since)
    if found is None:
        raise UnknownError(f"no incident or job {wanted}")
    return found


async def acknowledge(backend: Backend, call: Call[wire.Because]) -> wire.Done:
    incident, reason = call.parts["incident"], call.given.reason
    worker, who = backend.worker, call.subject.name
    reported = await backend.ask(lambda: escalated(worker))
    if not any(item.incident_id == incident and item.job_id in call.job_ids for item in reported):
        found = await _find_story(backend, call, incident)
        if found is None or found.incident_id is None:
            raise UnknownError(f"no incident {incident}")
        raise CallConflictError(
            f"incident {incident} has nothing to acknowledge: it has not ended its job",
            "incident",
            incident,
        )
    await backend.ask(lambda: worker.desk.acknowledge(incident, who, reason))
    return wire.Done(f"incident {incident} is acknowledged: its notices stop")


async def _find_story(
    backend: Backend, call: Call[Any], wanted: str, since_unix_s: float | None = None
) -> wire.Story | None:
    """Return the story of a job or an incident from its journal on disk, or None."""
    is_job = wanted in call.known
    places = [(job_id, call.known[job_id]) for job_id in call.job_ids]

    def act() -> wire.Story | None:
        for job_id, item in places:
            entries: Sequence[Entry]
            if is_job and since_unix_s is not None:
                entries = read_window(item.journal, since_unix_s)
            else:
                entries = item.journal.read()
            found = view_story(entries, job_id, item.name, None if is_job else wanted)
            if found is not None:
                return found
        return None

    return await backend.disk.read(act)
