"""Notifies people through Alertmanager: one alert for each cause, for as long as it lasts.

`recovery.service.paging` decides what belongs together and words it,
`recovery.controller.cluster.notices` decides where a person is needed; `rankmend.alerting` sends
it, as in the agent. The deciding thread is queried once a second, and a change goes out at once.
The causes are in the cluster's journal: a controller that starts anew has the same ones, and closes
those that are over.
"""

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from detectors.formats.site.plant_files import COOLING_FILE, POWER_FILE
from detectors.node.node_alerts import check_of
from detectors.parts.cooling import CoolingReading, judge_cooling
from detectors.parts.power_feeds import PowerReading, judge_power
from detectors.parts.site_units import COOLANT_UNIT, POWER_FEED, UnitVerdict
from detectors.parts.symptoms import SharedSymptom, symptom_of
from detectors.wording import counted
from rankmend.alerting import Alert, AlertmanagerTarget, make_post, target_url
from rankmend.clock import Clock
from rankmend.errors import JournalError, RankmendError, SourceError
from rankmend.files import read_capped
from rankmend.lasting_trouble import LastingTrouble
from recovery.console.views.state_words import word_of
from recovery.controller.cluster.broken_parts import find_broken_parts
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.notices import (
    EndedJob,
    Notice,
    NoticeKind,
    RunningJob,
    find_notices,
    most_urgent,
)
from recovery.journal.job_records import OutcomeKind
from recovery.journal.ledger import Wish
from recovery.service.controller_config import Config, Discovery, console_base, runbooks_base
from recovery.service.jobs.served_job import Job
from recovery.service.jobs.worker import Worker
from recovery.service.paging.alerts import Links, alerts_of, ended_alerts_of, marks_of
from recovery.service.paging.causes import CauseChanges, SharedBy, follow
from recovery.service.paging.daily_record import daily_record
from recovery.service.paging.site_troubles import SiteFile, readings_troubles, unit_troubles
from recovery.service.paging.trouble import NodeAlert, PresentTrouble, find_troubles, nodes_of

log = logging.getLogger(__name__)

READ_S: Final = 15.0
SILENT_S: Final = 60.0  # a reading of storage without an answer for so long is worth nothing
BYTES_MAX: Final = 16 << 20

_T = TypeVar("_T")

LOOK_S: Final = 1.0  # people need no less; 500 jobs cost the deciding thread a millisecond
ANSWER_S_MAX: Final = 15.0  # for the deciding thread to answer
STOP_S_MAX: Final = 2.0


class ReadingsWatch(Generic[_T]):
    """Reads a file of coolant units or power feeds once in a while, for the messages to people.

    It has a thread of its own: a file on a storage that hangs delays nothing else. Then its last
    reading grows old, and a message says so.
    """

    def __init__(
        self,
        what: str,
        told: Callable[[], str | None],
        parse: Callable[[bytes], tuple[_T, ...]],
        clock: Clock,
    ) -> None:
        """``what`` the file is of, in the plural; ``told``: the file in force, None: there is none."""
        self._what = what
        self._file_in_force = told
        self._parse = parse
        self._clock = clock
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._newest: SiteFile[_T] = SiteFile()  # replaced as a whole
        self._begun: tuple[str, float] | None = None  # the file that is being read, and since when

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._should_stop.set()

    def newest(self) -> SiteFile[_T]:
        """Return the file's last reading. For any thread."""
        newest, begun = self._newest, self._begun
        if begun is None or self._clock.now_s() - begun[1] <= SILENT_S:
            return newest
        path = begun[0]
        retained = newest.readings if newest.path == path else ()
        return SiteFile(path, retained, f"{path} gives no answer")

    def read(self) -> None:
        """Read the file; a file that can't be read leaves nothing known, and is logged once."""
        path, before = self._file_in_force(), self._newest
        if path is None:
            self._newest = SiteFile()
            return
        self._begun = (path, self._clock.now_s())
        try:
            body = read_capped(Path(path), BYTES_MAX, SourceError)
            self._newest = SiteFile(path, self._parse(body))
        except SourceError as error:
            text = str(error)
            problem = text if path in text else f"{path}: {text}"
            self._newest = SiteFile(path, problem=problem)
            if not before.problem:
                log.warning(
                    "cannot read the site's file",
                    extra={"of": self._what, "file": path, "error": text},
                )
        finally:
            self._begun = None

    def _run(self) -> None:
        while True:
            self.read()
            if self._should_stop.wait(READ_S):
                return


@dataclass(frozen=True, slots=True)
class Look:
    """The notices that are due at one moment."""

    notices: tuple[Notice, ...]
    changes: CauseChanges
    alerts: tuple[Alert, ...]
    ended: tuple[Alert, ...]
    site_since: Mapping[str, float]  # since when each trouble of the site's units is known
    units: tuple[UnitVerdict, ...] = ()  # a verdict on each of these
    unrecorded: str = ""  # why the causes are not in the journal


@dataclass(frozen=True, slots=True)
class SiteReadings:
    """The readings of the site's files now."""

    cooling: SiteFile[CoolingReading] = field(default_factory=SiteFile)
    power: SiteFile[PowerReading] = field(default_factory=SiteFile)


@dataclass(frozen=True, slots=True)
class SiteView:
    """The site's units now."""

    site: SiteReadings = field(default_factory=SiteReadings)
    verdicts: tuple[UnitVerdict, ...] = ()
    judged_s_ago: float = 0.0


class Pager:
    def __init__(
        self,
        worker: Worker,
        clock: Clock,
        config: Config,
        discovery: Callable[[], Discovery] | None = None,
    ) -> None:
        """Certificates and a token that can't be used are refused here. ``discovery``: that in force, with the site's files."""
        self._worker = worker
        self._clock = clock
        people = config.alertmanagers
        self._links = Links(
            runbooks_base(config, socket.gethostname()), console_base(config, socket.gethostname())
        )
        self._targets: list[AlertmanagerTarget] = []
        if people.urls:
            post = make_post(people.ca_file, people.cert_file, people.key_file, people.token_file)
            self._targets = [
                AlertmanagerTarget(target_url(url), clock, post) for url in people.urls
            ]
        reported = discovery or (lambda: config.discovery)
        self._cooling = ReadingsWatch(
            "coolant units", lambda: reported().cooling_file, COOLING_FILE.parse, clock
        )
        self._power = ReadingsWatch(
            "power feeds", lambda: reported().power_file, POWER_FILE.parse, clock
        )
        self._site_since: Mapping[str, float] = {}
        self._units: tuple[float, tuple[UnitVerdict, ...]] = (clock.now_s(), ())  # when, and what
        self._counts: Counter[str] = Counter()
        self._began_s = clock.now_s()
        self._unread = LastingTrouble(log, "cannot notify people now", clock)
        self._unrecorded = LastingTrouble(log, "messages are not in the journal", clock)
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pager", daemon=True)

    def start(self) -> None:
        for target in self._targets:
            target.start()
        self._began_s = self._clock.now_s()
        self._cooling.start()
        self._power.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; alerts already sent expire by themselves."""
        self._should_stop.set()
        self._cooling.stop()
        self._power.stop()
        for target in self._targets:
            target.stop()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(STOP_S_MAX)

    def counts(self) -> dict[str, int]:
        """Return how many notices of each kind there are now. For any thread."""
        counts = self._counts
        return {kind.value: counts[kind.value] for kind in NoticeKind}

    def told(self) -> dict[str, bool]:
        """Return for each Alertmanager whether it took the newest message. For any thread."""
        return {target.name: target.counts().is_taken for target in self._targets}

    def site(self) -> SiteView:
        """Return the site's units as they were read and judged last. For any thread."""
        judged_at_s, verdicts = self._units
        return SiteView(self._newest(), verdicts, self._clock.now_s() - judged_at_s)

    def _newest(self) -> SiteReadings:
        return SiteReadings(self._cooling.newest(), self._power.newest())

    def _run(self) -> None:
        while not self._should_stop.wait(LOOK_S):
            self.turn()

    def turn(self) -> None:
        """Look once, and send what is due."""
        if not self._worker.is_taken_up:
            return
        try:
            found = self._worker.call(self._look).result(ANSWER_S_MAX)
        except FutureTimeoutError:
            self._unread.note("no answer from the deciding thread")
            return
        except RankmendError as error:
            self._unread.note(error)
            return
        except Exception:
            log.exception("cannot find out what to notify people about")
            return
        self._unread.end()
        self.tell(found)

    def _look(self) -> Look:
        listened_s = self._clock.now_s() - self._began_s
        found = look(self._worker, self._links, listened_s, self._newest(), self._site_since)
        self._site_since = found.site_since
        self._units = (self._clock.now_s(), found.units)
        return found

    def tell(self, found: Look) -> None:
        """Send the notices that are due now."""
        if found.unrecorded:
            self._unrecorded.note(found.unrecorded)
        else:
            self._unrecorded.end()
        self._counts = Counter(notice.kind.value for notice in found.notices)
        for target in self._targets:
            target.update(found.alerts, found.ended)


def look(
    worker: Worker,
    links: Links,
    listened_s: float,
    site: SiteReadings = SiteReadings(),
    site_since: Mapping[str, float] = MappingProxyType({}),
) -> Look:
    """Return the notices that are due, once they are in the journal or can't be. For the deciding thread."""
    desk = worker.desk
    now_s, nodes = desk.now_unix_s(), desk.nodes_active()
    jobs = [made for job in worker.jobs.running.values() if (made := _running(job)) is not None]
    running = mark_contested(jobs, desk)
    found = find_notices(running, escalated(worker), desk.ledger, desk.policy, nodes, now_s)
    notices = most_urgent((*found, *worker.watched.notices()))
    placed = {place.node: item.name for item in running for place in item.ledger.placement}
    alerts_now = list(_node_alerts(worker))
    unmanaged = _unmanaged(worker)
    troubles = find_troubles(running, notices, alerts_now, placed, now_s, knows_all=not unmanaged)
    units = _judge_units(worker, site, alerts_now)
    files = {COOLANT_UNIT: site.cooling, POWER_FEED: site.power}
    bad = (
        *unit_troubles(units, now_s, site_since),
        *readings_troubles(units, files, now_s, site_since),
    )
    known = desk.known_nodes() | worker.members() if desk.parts.on and desk.alerts.active else ()
    desk.broken_parts = find_broken_parts(
        desk.parts,
        known,
        desk.alerts.active,
        units,
        desk.doubts("").keys(),
        desk.policy.budgets.nodes_held_percent,
    )
    troubles = (*bad, *troubles)
    changes = _follow(worker, troubles, unmanaged, now_s, listened_s)
    unrecorded = _record(worker, changes)
    marked = (*(item.told for item in changes.open), *changes.lately)
    alerts = (
        *alerts_of(changes.open, links),
        *marks_of(marked, lambda job_id: desk.shares_as(desk.owner_of(job_id))),
    )
    record = daily_record(desk.ledger.causes, troubles, desk.policy.people.record_hour, now_s)
    if record is not None:
        alerts = (*alerts, Alert(*record))
    since = {trouble.key: trouble.since_unix_s for trouble in bad}
    ended = ended_alerts_of(changes.closed, links)
    return Look(notices, changes, alerts, ended, since, units, unrecorded)


def _follow(
    worker: Worker,
    troubles: tuple[PresentTrouble, ...],
    unmanaged: frozenset[str],
    now_unix_s: float,
    listened_s: float,
) -> CauseChanges:
    """Return the causes as they are now."""
    desk = worker.desk
    return follow(
        desk.ledger.causes,
        troubles,
        desk.policy.people,
        now_unix_s,
        ends=_ends(
            worker,
            {
                job
                for _at_s, cause in desk.ledger.causes.values()
                if not cause.is_over
                for job in cause.job_ids
            },
        ),
        unmanaged=unmanaged,
        listened_s=listened_s,
        shared=_shared(worker, troubles),
        owner_of=lambda job_id: desk.shares_as(desk.owner_of(job_id)),
    )


def _unmanaged(worker: Worker) -> frozenset[str]:
    """Return the jobs of which this controller knows nothing now: others report theirs."""
    jobs = worker.jobs
    unread = {job_id for job_id, job in jobs.running.items() if job.controller is None}
    return frozenset(unread | (jobs.fleet.jobs.keys() - jobs.running.keys()))


def _record(worker: Worker, changes: CauseChanges) -> str:
    """Journal what has changed; return why that is impossible now: people get the notice all the same."""
    try:
        worker.desk.note_causes(changes.records)
    except JournalError as error:
        return str(error)
    return ""


def _judge_units(
    worker: Worker, site: SiteReadings, alerts: Sequence[NodeAlert]
) -> tuple[UnitVerdict, ...]:
    """Return a verdict on each coolant unit and power feed, by its readings and by the nodes that it harms."""
    desk, found = worker.desk, list[UnitVerdict]()
    cooling, power = site.cooling.readings, site.power.readings
    hot, short = (_nodes_with(item.symptom, alerts) for item in (COOLANT_UNIT, POWER_FEED))
    if not (cooling or power) and (max(len(hot), len(short)) < 2 or not desk.parts.on):
        return ()
    known, now_s = desk.known_nodes() | worker.members(), desk.now_unix_s()
    found += judge_cooling(cooling, hot, known, desk.parts, now_s)
    found += judge_power(power, short, known, desk.parts, now_s)
    return tuple(found)


def _nodes_with(symptom: SharedSymptom, alerts: Sequence[NodeAlert]) -> set[str]:
    return {alert.node for alert in alerts if symptom_of(check_of(alert.alertname)) is symptom}


def _shared(worker: Worker, troubles: tuple[PresentTrouble, ...]) -> SharedBy:
    """Return what nodes share, where there is something to explain."""
    desk = worker.desk
    if not desk.parts.on or not any(trouble.nodes for trouble in troubles):
        return SharedBy()
    return SharedBy(desk.known_nodes() | worker.members(), desk.parts)


def _ends(worker: Worker, job_ids: set[str]) -> dict[str, str]:
    """Return how jobs stand now, in words, for messages that are closed."""
    said: dict[str, str] = {}
    for job_id in job_ids:
        job = worker.jobs.running.get(job_id)
        known = worker.jobs.known.get(job_id)
        if job is not None and job.controller is not None:
            ledger = job.controller.ledger
            nodes = len(ledger.placement)
            if ledger.wish is Wish.RANKS and ledger.is_verified:
                said[job_id] = f"trains (attempt {ledger.attempt}, {counted(nodes, 'node')})"
            else:
                said[job_id] = "it does not train now"
        elif known is not None and known.outcome is not None:
            outcome = known.outcome
            by = worker.desk.ledger.acknowledged.get(outcome.incident_id or "")
            took = f"acknowledged by {by.who}; " if by is not None else ""
            said[job_id] = f"{took}the job has ended ({word_of(outcome.kind.value)})"
    return said


def _node_alerts(worker: Worker) -> Iterator[NodeAlert]:
    for alert in worker.desk.alerts.active:
        target = alert.target
        if target.node and alert.is_firing:
            yield NodeAlert(
                target.alertname,
                alert.node,
                target.severity,
                alert.summary,
                alert.started_unix_s,
                target.device,
            )


def escalated(worker: Worker) -> list[EndedJob]:
    """Return the jobs that rankmend has given up. For the deciding thread."""
    return [
        EndedJob(
            item.job_id,
            item.stored.join.name,
            item.ended.outcome,
            item.ended.unix_s,
            item.stored.owner,
        )
        for item in worker.jobs.ended()
        if item.ended is not None and item.ended.outcome.kind is OutcomeKind.ESCALATED
    ]


def mark_contested(jobs: list[RunningJob], desk: ClusterController) -> list[RunningJob]:
    """Return the jobs with the nodes of their incidents on which others are, and where nobody but its launchers says that it is."""
    if not any(job.ledger.incident is not None for job in jobs):
        return jobs
    placed: dict[str, list[str]] = {}  # by node, the jobs whose ranks are placed there
    for job in jobs:
        for place in job.ledger.placement:
            placed.setdefault(place.node, []).append(job.job_id)
    return [replace(job, contested=_contested(desk, job, placed)) for job in jobs]


def _contested(
    desk: ClusterController, job: RunningJob, placed: Mapping[str, Collection[str]]
) -> frozenset[str]:
    incident = job.ledger.incident
    nodes = () if incident is None else nodes_of(job.ledger, incident)
    return frozenset(
        node for node in nodes if desk.is_contested(node, job.job_id, placed.get(node, ()))
    )


def _running(job: Job) -> RunningJob | None:
    if job.controller is None:
        return None
    ledger, policy = job.controller.ledger, job.settings.policy
    silent_at_s = job.hearing.now_s() - policy.node_silent_s
    silent = {
        node
        for node in ledger.fence_waits
        if job.reported_at_s.get(node, silent_at_s) <= silent_at_s
    }
    orphaned = job.orphaned()
    return RunningJob(
        job.job_id,
        job.stored.join.name,
        ledger,
        policy,
        frozenset(silent),
        "" if orphaned is None else orphaned.describe(job.stored.owner),
        job.stored.owner,
    )
