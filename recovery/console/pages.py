"""What each page shows: asks the source, shares the answers among viewers, and gives values to a template."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rankmend.clock import Clock
from recovery.accounting.goodput.job_time import JobTime
from recovery.api import wire
from recovery.console.acts import FORMS, ActName, command_of, may_do, words_of
from recovery.console.fleet import (
    Fleet,
    NodeInKubernetes,
    NodeRow,
    NodeUse,
    RackFinder,
    choose,
    is_noted,
    natural,
    view_fleet,
)
from recovery.console.incident import (
    WaitingPlan,
    is_for_person,
    is_open_word,
    loss_of,
    view_page,
    view_waiting,
)
from recovery.console.job_time import loss_spark, view_time
from recovery.console.journal_page import newest_plain, row_of, view_journal
from recovery.console.node_readings import view_readings
from recovery.console.rank_table import slowest, view_counts
from recovery.console.shared_reads import SharedReads
from recovery.console.source import JobRecords, PageError, PastJob, RankTail, Source, Viewer
from recovery.console.views.incident_view import entries_of_incident, view_incidents
from recovery.console.views.state_words import TRAINS, standing_word
from recovery.journal.cluster_records import CauseTold, WatchedAsked
from recovery.journal.job_records import OutcomeKind
from recovery.journal.records import Entry

TIME_S: Final = 15.0  # where the time went: it moves slowly, and takes a look at the whole journal
ROWS: Final = 100  # of a table's page
# Of the fleet's page: on a bad day there are hundreds, and the nodes must still be found below them.
PLANS_SHOWN: Final = 3
OPEN_SHOWN: Final = 10
JOBS_SHOWN: Final = 20
_ENDED: Final = frozenset(kind.value for kind in OutcomeKind)
_HAS_OPEN: Final = frozenset({"waiting", "recovering"})  # states of a job
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Page:
    """A template and its values."""

    template: str
    title: str
    values: Mapping[str, Any]


class Pages:
    """Belongs to the event loop."""

    def __init__(
        self, source: Source, clock: Clock, racks: RackFinder, threads: Executor | None = None
    ) -> None:
        """``threads`` do what takes more than a moment; None: the event loop's own."""
        self.source = source
        self._clock = clock
        self._racks = racks
        self._threads = threads
        self.shared = SharedReads(clock.now_s, source.revision)

    async def _get(self, viewer: Viewer, read: Callable[..., Awaitable[_T]], *about: str) -> _T:
        key = (read.__name__, viewer.sight, about)
        return await self.shared.get(key, lambda: read(viewer, *about))

    async def _fleet_of(self, viewer: Viewer) -> Fleet:
        async def make(viewer: Viewer) -> Fleet:
            source = self.source
            nodes = await self._get(viewer, source.nodes)
            watched = await self._get(viewer, source.watched)
            known = [
                *await self._get(viewer, source.known_nodes),
                *(node for job in watched for node in job.nodes),
            ]
            cluster = await self._get(viewer, source.cluster)
            jobs = await self._get(viewer, source.jobs)
            named = {job.job_id: job for job in jobs}
            now_unix_s = self._clock.unix_s()
            rack_of = self._racks()
            return await asyncio.get_running_loop().run_in_executor(
                self._threads,
                view_fleet,
                nodes,
                known,
                cluster,
                named,
                rack_of,
                now_unix_s,
                watched,
            )

        return await self.shared.get(("fleet", viewer.sight), lambda: make(viewer))

    async def _waiting(self, viewer: Viewer, plan: wire.PlanView) -> WaitingPlan:
        nodes = await self._get(viewer, self.source.nodes)
        cluster = await self._get(viewer, self.source.cluster)
        return view_waiting(plan, nodes, cluster.held, cluster.findings)

    async def _time_of(self, viewer: Viewer, job_id: str) -> JobTime | None:
        key = ("time", viewer.sight, job_id)
        return await self.shared.get(key, lambda: self.source.time(viewer, job_id), TIME_S, TIME_S)

    async def fleet(self, viewer: Viewer, query: Mapping[str, str]) -> Page:
        source = self.source
        fleet = await self._fleet_of(viewer)
        jobs = await self._get(viewer, source.jobs)
        cluster = await self._get(viewer, source.cluster)
        plans = await self._get(viewer, source.plans)
        incidents = await self._get(viewer, source.incidents)
        watched = await self._get(viewer, source.watched)
        slurm = await self._get(viewer, source.slurm)
        kubernetes = await self._get(viewer, source.kubernetes)
        ended = await self._get(viewer, source.ended)
        opened = [incident for incident in incidents if is_open_word(standing_word(incident))]
        older = _older_open(incidents, jobs)
        wanted, state = query.get("q", "")[:100], query.get("state", "")
        is_filtered = bool(wanted or state)
        rows = choose(fleet.nodes, wanted, state)
        if not is_filtered:
            rows = [row for row in rows if not row.state.is_good]
        return Page(
            "fleet.html.j2",
            "Fleet",
            {
                "fleet": fleet,
                "states": list(NodeUse),
                "rows": rows[:ROWS],
                "rows_beyond": max(0, len(rows) - ROWS),
                "q": wanted,
                "state": state,
                "is_filtered": is_filtered,
                "jobs": _first_in_need(jobs, plans)[:JOBS_SHOWN],
                "jobs_all": len(jobs),
                "job_states": _states_in_need(jobs),
                "names": {f"job:{job.job_id}": job.name for job in jobs},
                "ended": len(ended),
                "plans": [await self._waiting(viewer, plan) for plan in plans[:PLANS_SHOWN]],
                "plans_left": max(0, len(plans) - PLANS_SHOWN),
                "open_incidents": opened[:OPEN_SHOWN],
                "opened": len(opened) + len(older),
                "newest": incidents[:5],
                "watched": watched,
                "cluster": cluster,
                "slurm": slurm,
                "slurm_out": []
                if slurm is None
                else [node for node in slurm.nodes if node.is_ours],
                "kubernetes": kubernetes,
                "kubernetes_noted": []
                if kubernetes is None
                else [item for item in kubernetes.states if is_noted(item)],
            },
        )

    async def jobs(self, viewer: Viewer, query: Mapping[str, str]) -> Page:
        jobs = await self._get(viewer, self.source.jobs)
        watched = await self._get(viewer, self.source.watched)
        plans = await self._get(viewer, self.source.plans)
        wanted, state = query.get("q", "")[:100], query.get("state", "")
        running = [
            view
            for view in _first_in_need(jobs, plans)
            if wanted.lower() in view.name.lower() and state in ("", view.state)
        ]
        ended = [
            item
            for item in await self._get(viewer, self.source.ended)
            if wanted.lower() in item.name.lower()
        ]
        return Page(
            "jobs.html.j2",
            "Jobs",
            {
                "running": running[:ROWS],
                "state": state,
                "states": sorted({job.state for job in jobs} | ({state} if state else set())),
                "running_left": max(0, len(running) - ROWS),
                "ended": ended[:ROWS],
                "ended_left": max(0, len(ended) - ROWS),
                "watched": watched[:ROWS],
                "waits": {plan.job_id for plan in plans},
                "q": wanted,
            },
        )

    async def _job_of(self, viewer: Viewer, job_id: str) -> wire.JobDetail:
        """Return a job with its nodes. Of a controller it is made from what other pages read, too."""
        jobs = await self._get(viewer, self.source.jobs) if self.source.is_controller else ()
        job = next((item for item in jobs if item.job_id == job_id), None)
        if job is None:
            return await self._get(viewer, self.source.job, job_id)
        nodes = await self._get(viewer, self.source.nodes)
        return wire.JobDetail(job, [node for node in nodes if node.job_id == job_id])

    async def job(self, viewer: Viewer, job_id: str) -> Page:
        _check_uuid(job_id)
        detail = await self._job_of(viewer, job_id)
        ranks = await self._get(viewer, self.source.ranks, job_id)
        plans = await self._get(viewer, self.source.plans)
        records = await self._get(viewer, self.source.records, job_id)
        time = await self._time_of(viewer, job_id)
        cluster = await self._get(viewer, self.source.cluster)
        incidents = view_incidents(records.entries, records.name)
        scope = f"job:{job_id}"
        plan = next((item for item in plans if item.job_id == job_id), None)
        return Page(
            "job.html.j2",
            detail.job.name,
            {
                "job": detail.job,
                "is_ended": detail.job.state in _ENDED,
                "nodes": detail.nodes[:ROWS],
                "nodes_left": max(0, len(detail.nodes) - ROWS),
                "plan": None if plan is None else await self._waiting(viewer, plan),
                "loss": _lost_by(incidents, self._clock.unix_s()),
                "incidents": list(reversed(incidents))[:ROWS],
                "time": view_time(time),
                "ranks": ranks,
                "loss_curve": loss_spark(ranks.losses),
                "slowest": slowest(ranks, trains=detail.job.state == TRAINS),
                "counts": view_counts(ranks),
                "highest": max((step for step in ranks.steps if step is not None), default=None),
                "pause": next((item for item in cluster.paused if item.scope == scope), None),
                "scope": scope,
                "newest": newest_plain(records.entries, 8),
            },
        )

    async def ranks(self, viewer: Viewer, job_id: str) -> wire.RankMap:
        _check_uuid(job_id)
        return await self._get(viewer, self.source.ranks, job_id)

    async def watched(self, viewer: Viewer, job_id: str) -> Page:
        found = await self._get(viewer, self.source.watched)
        job = next((item for item in found if item.job_id == job_id), None)
        if job is not None:
            return Page("watched.html.j2", job.name or job.job_id, {"job": job})
        # The link in a message holds for as long as the cluster's journal tells of its cause.
        about = await self._cluster_entries(viewer, lambda record: _names_job(record, job_id))
        if not about:
            raise PageError(f"no watched job {job_id[:80]}", 404)
        reported = [
            entry.record for entry in about if isinstance(entry.record, CauseTold | WatchedAsked)
        ]
        name = next((item.job for item in reported if item.job_id == job_id), "")
        values = {
            "job_id": job_id,
            "name": name,
            "rows": [row_of(entry) for entry in reversed(about)],
            "nodes": sorted({node for item in reported for node in item.nodes}, key=natural),
        }
        return Page("watched_before.html.j2", name or job_id, values)

    async def incidents(self, viewer: Viewer) -> Page:
        found = await self._get(viewer, self.source.incidents)
        plans = await self._get(viewer, self.source.plans)
        jobs = await self._get(viewer, self.source.jobs)
        ended = [item for item in found if not is_open_word(standing_word(item))]
        return Page(
            "incidents.html.j2",
            "Incidents",
            {
                "opened": [item for item in found if is_open_word(standing_word(item))],
                "older": _older_open(found, jobs)[:ROWS],
                "ended": ended[:ROWS],
                "left": max(0, len(ended) - ROWS),
                "plans": plans[:ROWS],
                "plans_left": max(0, len(plans) - ROWS),
            },
        )

    async def incident(self, viewer: Viewer, incident: str) -> Page:
        records = await self._get(viewer, self.source.records, incident)
        own = entries_of_incident(records.entries, incident)
        views = view_incidents(records.entries, records.name)
        view = next((item for item in views if item.incident_id == incident), None)
        if view is None or not own:
            raise PageError(f"no incident {incident[:80]}", 404)
        plans = await self._get(viewer, self.source.plans)
        fleet = await self._fleet_of(viewer)
        found = next((item for item in plans if item.incident_id == incident), None)
        plan = None if found is None else await self._waiting(viewer, found)
        jobs = await self._get(viewer, self.source.jobs)
        job = next((item for item in jobs if item.job_id == records.job_id), None)
        node = next((row for row in fleet.nodes if row.name == view.node), None)
        rows = [row for row in (row_of(entry) for entry in own) if row.is_plain]
        page = view_page(view, own, records.entries, plan, self.source.own_node, job)
        readings = await self._get(viewer, self.source.readings, incident)
        accused = [(item.node, item.device) for item in page.accused]
        tails: Sequence[RankTail] = ()
        if view.ranks:
            tails = await self._get(viewer, self.source.tails, incident)
        return Page(
            "incident.html.j2",
            f"Incident {incident}",
            {
                "page": page,
                "readings": view_readings(readings, accused),
                "tails": tails,
                "incident": view,
                "story": rows,
                "opened": own[0].unix_s,
                "plan": plan,
                "node": node,
            },
        )

    async def node(self, viewer: Viewer, name: str) -> Page:
        fleet = await self._fleet_of(viewer)
        nodes = await self._get(viewer, self.source.nodes)
        slurm = await self._get(viewer, self.source.slurm)
        kubernetes = await self._get(viewer, self.source.kubernetes)
        incidents = await self._get(viewer, self.source.incidents)
        cluster = await self._get(viewer, self.source.cluster)
        job_alerts = await self._cluster_rows(viewer, name)
        row = next((node for node in fleet.nodes if node.name == name), None)
        if row is None and job_alerts:  # a message of an agent's finding leads here
            row = NodeRow(name, NodeUse.UNASSIGNED, "-", "", 0, (), None)
        if row is None:
            raise PageError(f"no node {name[:80]}: no launcher, alert or person has named it", 404)
        scope = f"node:{name}"
        jobs = await self._get(viewer, self.source.jobs)
        return Page(
            "node.html.j2",
            f"Node {name}",
            {
                "node": row,
                "views": [node for node in nodes if node.node == name],
                "states": {job.job_id: job.state for job in jobs},
                "watched": [
                    item
                    for item in await self._get(viewer, self.source.watched)
                    if name in item.nodes
                ][:ROWS],
                "findings": [finding for finding in cluster.findings if finding.node == name][
                    :ROWS
                ],
                "slurm": None
                if slurm is None
                else next((node for node in slurm.nodes if node.node == name), None),
                "kubernetes": None if kubernetes is None else NodeInKubernetes.of(kubernetes, name),
                "incidents": [incident for incident in incidents if incident.node == name][:ROWS],
                "hold": next((item for item in cluster.held if item.node == name), None),
                "pause": next((item for item in cluster.paused if item.scope == scope), None),
                "scope": scope,
                "history": job_alerts,
            },
        )

    async def _cluster_rows(self, viewer: Viewer, node: str) -> list[Any]:
        """Return what the cluster's journal says of a node, the newest first."""
        about = await self._cluster_entries(
            viewer,
            lambda record: (
                getattr(record, "node", None) == node or node in getattr(record, "nodes", ())
            ),
        )
        return [row_of(entry) for entry in reversed(about)]

    async def _cluster_entries(
        self, viewer: Viewer, is_wanted: Callable[[Any], bool]
    ) -> list[Entry]:
        """Return the newest of those entries of the cluster's journal, the oldest of them first."""
        try:
            entries = await self._get(viewer, self.source.cluster_records)
        except PageError:  # not for this viewer
            return []
        return [entry for entry in entries if is_wanted(entry.record)][-ROWS:]

    async def journal(self, viewer: Viewer, query: Mapping[str, str]) -> Page:
        wanted, kind = query.get("job", ""), query.get("kind", "")[:64]
        before = (
            int(text) if (text := query.get("before", "")).isdecimal() and len(text) < 16 else None
        )
        jobs: list[wire.JobView | PastJob] = [
            *await self._get(viewer, self.source.jobs),
            *await self._get(viewer, self.source.ended),
        ]
        if not wanted and not self.source.is_controller and jobs:
            wanted = jobs[0].job_id
        whose = "the cluster" if self.source.is_controller else "this machine's jobs"
        records = JobRecords("", whose, ())
        if wanted:
            _check_uuid(wanted)
            records = await self._get(viewer, self.source.records, wanted)
        elif self.source.is_controller:
            entries = await self._get(viewer, self.source.cluster_records)
            records = JobRecords("", "the cluster", entries)
        return Page(
            "journal.html.j2",
            "Journal",
            {
                "page": view_journal(records.entries, kind, before),
                "of": records,
                "jobs": jobs[:ROWS],
                "wanted": wanted,
                "kind": kind,
            },
        )

    async def act_form(self, viewer: Viewer, query: Mapping[str, str], key: str) -> Page:
        """Return the page that says what an act will do, and asks for the reason."""
        name, about = read_act(query)
        form, words = FORMS[name], words_of(name, about)
        if not may_do(viewer.may, name, about):
            limit = "its token is limited to some jobs or nodes"
            raise PageError(f"{viewer.name} may not act on this: {limit}", 403)
        plan = None
        if name in (ActName.APPROVE, ActName.REJECT):
            plans = await self.source.plans(
                viewer
            )  # never a shared answer: people decide on this one
            plan = next(
                (
                    item
                    for item in plans
                    if item.job_id == about["job"] and item.incident_id == about["incident"]
                ),
                None,
            )
            if plan is None:
                raise PageError(f"{words['incident']} has no plan that waits any more", 409)
            if name is ActName.APPROVE and not is_for_person(plan):
                raise PageError(
                    f"the plan of {words['incident']} waits for {plan.waits_for}, not for approval: "
                    f"{plan.judgement_reason}; it goes on by itself",
                    409,
                )
            about = {**about, "plan": plan.plan_id}
        return Page(
            "act.html.j2",
            form.title.format(**words),
            {
                "act": name.value,
                "form": form,
                "heading": form.title.format(**words),
                "command_text": command_of(name, about),
                "about": about,
                "plan": plan,
                "key": key,
            },
        )


def _lost_by(incidents: Sequence[wire.IncidentView], now_unix_s: float) -> float:
    """Return the seconds that a job's incidents have cost so far."""
    losses = [loss_of(incident) for incident in incidents]
    return sum(
        (loss.seconds or 0.0)
        if loss.since_unix_s is None
        else max(0.0, now_unix_s - loss.since_unix_s)
        for loss in losses
    )


def _first_in_need(
    jobs: Sequence[wire.JobView], plans: Sequence[wire.PlanView]
) -> list[wire.JobView]:
    """Return the jobs that wait for a person first, then all others that don't train."""
    waits = {plan.job_id for plan in plans}

    def place(job: wire.JobView) -> int:
        if job.job_id in waits or job.state == "waiting":
            return 0
        return 1 if job.problem or job.state != "running" else 2

    return sorted(jobs, key=place)


def _states_in_need(jobs: Sequence[wire.JobView]) -> list[tuple[str, int]]:
    """Return how many jobs are in each state but `running`."""
    counts = Counter(job.state for job in jobs if job.state != "running")
    return sorted(counts.items())


def _older_open(
    incidents: Sequence[wire.IncidentView], jobs: Sequence[wire.JobView]
) -> list[wire.JobView]:
    """Return the jobs with an open incident that is older than the newest ones, which alone are read."""
    known = {incident.incident_id for incident in incidents}
    return [
        job
        for job in jobs
        if job.incident_id and job.incident_id not in known and job.state in _HAS_OPEN
    ]


def _names_job(record: object, job_id: str) -> bool:
    """Return whether a record of the cluster's journal is about a job of another launcher."""
    return isinstance(record, CauseTold | WatchedAsked) and (
        job_id == record.job_id or job_id in getattr(record, "job_ids", ())
    )


def read_act(given: Mapping[str, str]) -> tuple[ActName, dict[str, str]]:
    """Return which act is requested and about what, or raise PageError."""
    try:
        name = ActName(given.get("act", ""))
    except ValueError as error:
        raise PageError(f"there is no action {given.get('act', '')!r:.80}", 400) from error
    form = FORMS[name]
    missing = [word for word in form.needs if word not in given]
    if missing:
        raise PageError(f"{name.value} needs {missing[0]}", 400)
    return name, {word: given[word][:300] for word in (*form.needs, *form.takes) if word in given}


def _check_uuid(text: str) -> None:
    if not _UUID.fullmatch(text):
        raise PageError(f"no job {text[:80]}", 404)
