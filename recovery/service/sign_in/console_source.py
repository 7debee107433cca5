"""Gives the console what the API gives: the same handlers, with the same permissions, rates and audit lines."""

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from rankmend.errors import RankmendError
from recovery.accounting.goodput.job_time import JobTime
from recovery.accounting.goodput.time_window import read_job_time
from recovery.accounting.readings.reading import NodeReading
from recovery.accounting.readings.reading_file import read_readings
from recovery.api import wire
from recovery.console.acts import ActName, AskedAct
from recovery.console.source import JobRecords, PageError, PastJob, RankTail, Viewer
from recovery.console.views.incident_view import entries_of_incident
from recovery.journal.ledger import Moment
from recovery.journal.open_journal import OpenJournal
from recovery.journal.records import Entry
from recovery.messages.outside import PersonAct
from recovery.service.http.backend import Backend
from recovery.service.http.error_answers import AnsweredError, answer_error
from recovery.service.http.handlers.jobs import JobsQuery
from recovery.service.http.permission import (
    Asked,
    Touches,
    World,
    demand,
    may_read_job,
    permit,
    reads_all,
    touch_of,
)
from recovery.service.http.web import Api
from recovery.service.jobs.job_registry import RegisteredJob
from recovery.service.jobs.known_incidents import JOBS_MAX, JobPlace
from recovery.service.roles import READERS, Role
from recovery.service.sign_in.console_door import subject_of

log = logging.getLogger(__name__)

_INCIDENTS: Final = 200
_JOURNALS_MAX: Final = (
    50  # read at once, the newest first: after a start the others follow with the next looks
)

_T = TypeVar("_T", bound=msgspec.Struct)


class ServiceSource:
    """Belongs to the event loop."""

    is_controller = True
    own_node = ""  # whoever reads the page sits elsewhere

    def __init__(
        self,
        api: Api,
        cluster_journal: OpenJournal,
        read_cluster: Callable[[], tuple[Entry, ...]],
        boot_id: str,
        title: str,
    ) -> None:
        self._api = api
        self._read_cluster = read_cluster
        self._cluster_journal = cluster_journal
        self._boot_id = boot_id
        self.title = title
        self._revision_key = secrets.token_bytes(16)

    @property
    def _backend(self) -> Backend:
        return self._api.backend

    async def _ask(self, viewer: Viewer, name: str, given: Any = None, **parts: str) -> Any:
        try:
            return await self._api.carry_out(name, subject_of(viewer), parts, given, viewer.peer)
        except AnsweredError as error:
            raise PageError(str(error), error.answer.status) from error

    async def jobs(self, viewer: Viewer) -> list[wire.JobView]:
        found: wire.Jobs = await self._ask(viewer, "jobs", JobsQuery())
        return found.jobs

    async def ended(self, viewer: Viewer) -> list[PastJob]:
        subject = subject_of(viewer)
        return [
            PastJob(job_id, item.name, item.owner, item.outcome.kind.value, item.outcome.reason)
            for job_id, item in reversed(list(self._backend.worker.jobs.everywhere.items()))
            if item.outcome is not None and may_read_job(subject, item)
        ]

    async def job(self, viewer: Viewer, job_id: str) -> wire.JobDetail:
        found: wire.JobDetail = await self._ask(viewer, "job", job=job_id)
        return found

    async def ranks(self, viewer: Viewer, job_id: str) -> wire.RankMap:
        found: wire.RankMap = await self._ask(viewer, "ranks", job=job_id)
        return found

    async def nodes(self, viewer: Viewer) -> list[wire.NodeView]:
        found: wire.Nodes = await self._ask(viewer, "nodes")
        return found.nodes

    async def known_nodes(self, viewer: Viewer) -> list[str]:
        sight = self._backend.sight(subject_of(viewer))
        return [name for name in self._backend.config.discovery.nodes if sight.sees_node(name)]

    async def cluster(self, viewer: Viewer) -> wire.Cluster:
        found: wire.Cluster = await self._ask(viewer, "cluster")
        return found

    async def plans(self, viewer: Viewer) -> list[wire.PlanView]:
        found: wire.Plans = await self._ask(viewer, "plans")
        return found.plans

    async def watched(self, viewer: Viewer) -> list[wire.WatchedView]:
        found: wire.Watched = await self._ask(viewer, "watched")
        return found.watched

    async def slurm(self, viewer: Viewer) -> wire.SlurmView | None:
        return await self._desk(viewer, "slurm")

    async def kubernetes(self, viewer: Viewer) -> wire.SlurmView | None:
        return await self._desk(viewer, "kubernetes")

    async def _desk(self, viewer: Viewer, name: str) -> wire.SlurmView | None:
        if not reads_all(subject_of(viewer)):
            return None
        found: wire.SlurmView = await self._ask(viewer, name)
        return found if found.enabled else None

    async def incidents(self, viewer: Viewer) -> list[wire.IncidentView]:
        """Return the newest incidents. Of a journal only what has come is read."""
        subject, backend = subject_of(viewer), self._backend
        try:
            demand(subject, *READERS)
            places = [
                JobPlace(job_id, item.name, item.journal)
                for job_id, item in reversed(list(backend.worker.jobs.everywhere.items()))
                if may_read_job(subject, item)
            ][:JOBS_MAX]
            return await backend.disk.read(
                lambda: backend.incidents.newest(places, _INCIDENTS, _JOURNALS_MAX)
            )
        except RankmendError as error:
            raise self._refused(error) from error

    async def records(self, viewer: Viewer, wanted: str) -> JobRecords:
        try:
            places = self._places(viewer, wanted)

            def read() -> JobRecords | None:
                for job_id, item in places:
                    entries = item.journal.read()
                    if wanted == job_id or entries_of_incident(entries, wanted):
                        return JobRecords(job_id, item.name, entries)
                return None

            found = await self._backend.disk.read(read)
        except RankmendError as error:
            raise self._refused(error) from error
        if found is None:
            raise PageError(f"no incident or job {wanted[:80]}", 404)
        return found

    async def readings(self, viewer: Viewer, incident: str) -> Sequence[NodeReading]:
        records = await self.records(viewer, incident)  # refuses what the viewer may not see
        known = self._backend.worker.jobs.everywhere.get(records.job_id)
        if known is None:
            return ()
        try:
            folder = known.journal.folder
            found = await self._backend.disk.read(lambda: read_readings(folder, incident))
        except RankmendError as error:
            raise self._refused(error) from error
        return [item for item in found if subject_of(viewer).may_use_node(item.node)]

    async def tails(self, viewer: Viewer, incident: str) -> Sequence[RankTail]:
        """Return none: the files lie on the nodes, and the evidence names them."""
        del viewer, incident
        return ()

    def _places(self, viewer: Viewer, wanted: str) -> list[tuple[str, RegisteredJob]]:
        """Return the jobs of which one is, or has, what is wanted, and that the viewer may see."""
        known, desk = self._backend.worker.jobs.everywhere, self._backend.worker.desk
        demand(subject_of(viewer), *READERS)
        world = World(known, desk.ledger.windows)
        touch = touch_of(Touches.JOB, Asked({"incident": wanted}), world)
        return [(job_id, known[job_id]) for job_id in permit(subject_of(viewer), touch, known)]

    async def cluster_records(self, viewer: Viewer) -> Sequence[Entry]:
        try:
            demand(subject_of(viewer), Role.FLEET_READ)
            permit(subject_of(viewer), touch_of(Touches.CLUSTER, Asked({}), World({}, {})), {})
            return await self._backend.disk.read(self._read_cluster)
        except RankmendError as error:
            raise self._refused(error) from error

    async def time(self, viewer: Viewer, job_id: str) -> JobTime | None:
        try:
            job = dict(self._places(viewer, job_id)).get(job_id)
        except RankmendError as error:
            raise self._refused(error) from error
        if job is None:
            raise PageError(f"no job {job_id[:80]}", 404)
        journal, clock, is_running = job.journal, self._backend.clock, job.outcome is None
        now = Moment(clock.unix_s(), clock.now_s(), self._boot_id) if is_running else None
        try:
            return await self._backend.disk.read(lambda: read_job_time(journal, now))
        except RankmendError as error:
            raise self._refused(error) from error

    def revision(self) -> str:
        worker = self._backend.worker
        # list() of a dict's values is one step for the interpreter: the deciding thread adds and removes jobs.
        entries = sum(job.entries for job in list(worker.jobs.running.values()))
        troubles = sum(list(worker.watched.found.values()))
        peers = self._backend.peers
        elsewhere = 0 if peers is None else peers.changes
        text = f"{len(worker.jobs.everywhere)}.{elsewhere}.{entries}.{self._cluster_journal.last_number}.{troubles}"
        # Every viewer receives it, and how many jobs others have is not for all: only whether it is the same.
        return hashlib.blake2b(text.encode(), key=self._revision_key, digest_size=8).hexdigest()

    async def act(self, viewer: Viewer, requested: AskedAct) -> str:
        name, parts, given = _route_of(requested)
        done: wire.Done = await self._ask(viewer, name, given, **parts)
        return done.text

    def _refused(self, error: RankmendError) -> PageError:
        backend = self._backend
        answer = answer_error(
            error,
            "console",
            is_stopping=backend.is_stopping,
            is_taken_up=backend.worker.is_taken_up,
        )
        return PageError(answer.problem.error, answer.status)


def _route_of(requested: AskedAct) -> tuple[str, dict[str, str], msgspec.Struct]:
    """Return the route that does it, the parts of its path, and its body."""
    about, because = requested.about, {"reason": requested.reason}
    match requested.name:
        case ActName.APPROVE | ActName.REJECT:
            is_approval = requested.name is ActName.APPROVE
            command = {
                "act": (PersonAct.APPROVE if is_approval else PersonAct.REJECT).value,
                "reason": requested.reason,
                "incident_id": about["incident"] or None,
                "key": requested.key or secrets.token_hex(16),
                "plan_id": about.get("plan", ""),
            }
            return "command", {"job": about["job"]}, _body(command, wire.JobCommand)
        case ActName.ACKNOWLEDGE:
            return "acknowledge", {"incident": about["incident"]}, _body(because, wire.Because)
        case ActName.PAUSE | ActName.RESUME:
            verb, scope = requested.name.value, about["scope"]
            if scope == "cluster":
                return f"{verb}_cluster", {}, _body(because, wire.Because)
            return verb, {"scope": scope}, _body(because, wire.Because)
        case ActName.DRAIN:
            return "drain", {"node": about["node"]}, _body(because, wire.NodeDrain)
        case ActName.UNDRAIN:
            return "release", {"node": about["node"]}, _body(because, wire.Because)


def _body(given: dict[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise PageError(str(error), 400) from error
