"""The running service: event loop, connections, API and worker put together.

`Service` is started within an event loop; `ServiceThread` gives it a loop of its own, for a launcher that
hosts its job's controller, and for tests.
"""

import asyncio
import contextlib
import importlib.util
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from aiohttp import web

from rankmend.clock import Clock, read_boot_id
from rankmend.errors import ConfigError, JournalError, RankmendError
from rankmend.listening import bind, hide_versions, parse_listen
from rankmend.milestones import ProcessMilestone, name_milestone
from rankmend.version import RANKMEND_VERSION
from recovery.api.wire import Join
from recovery.console.site import ConsoleSite
from recovery.controller.cluster.cluster import ClusterController, NodesElsewhere
from recovery.controller.cluster.cluster_limits_file import PolicyFile
from recovery.controller.cluster.gate import PlanRequest
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.watched.present_jobs import FILE_NAME as PRESENT_FILE
from recovery.controller.watched.present_jobs import AgentWordsFile, SavedWord
from recovery.journal.folder.heartbeat import read_heartbeat
from recovery.journal.limits import Policy
from recovery.journal.stored_journal import StoredJournal
from recovery.journal.watched_journal import FOLDER as WATCHED_FOLDER
from recovery.schedulers.slurm.requests import SchedulerRequest
from recovery.service.agent_readings import AgentReadings
from recovery.service.bmc.bmc_power import BmcPower, ServicePowerSwitch
from recovery.service.bmc.bmc_readings import BmcCheck
from recovery.service.bmc.bmcs import BmcDirectory
from recovery.service.controller_config import Config, controller_base, make_context
from recovery.service.desk_service import DeskService, SlurmService
from recovery.service.discovery import listed_nodes, rack_names, read_fleet_parts
from recovery.service.fleet.peers import OtherControllers
from recovery.service.http.access import Doorman
from recovery.service.http.audit import Audit
from recovery.service.http.authority import expires_unix_s, refuse_out_of_date
from recovery.service.http.backend import ANSWER_S_MAX, Backend
from recovery.service.http.guard import IDLE_S_MAX, ConnectionRoom, Entrance
from recovery.service.http.openapi import describe
from recovery.service.http.routes import BY_NAME, ROUTES
from recovery.service.http.web import Api
from recovery.service.jobs.job_registry import JobRegistry
from recovery.service.jobs.job_store import KUBERNETES, SLURM, JobStore
from recovery.service.jobs.known_incidents import KnownIncidents
from recovery.service.jobs.left_pods import LeftPods
from recovery.service.jobs.listening_clock import BEAT_S, Hearing
from recovery.service.jobs.newest_orders import NewestOrders
from recovery.service.jobs.postgres_jobs import PostgresJobs
from recovery.service.jobs.served_job import CoreMaker, Parts, make_core
from recovery.service.jobs.short_jobs import ShortJobs
from recovery.service.jobs.stored_jobs import StateFolder
from recovery.service.jobs.worker import Worker
from recovery.service.kubernetes_service import KubernetesService
from recovery.service.metrics.measures import Measures
from recovery.service.metrics.time_accounts import PastSizes, TimeAccounts
from recovery.service.metrics.watched_accounts import WatchedAccounts
from recovery.service.pager import Pager
from recovery.service.reconcile import AlertReader
from recovery.service.shared_words import SharedWords
from recovery.service.sign_in.console_door import ServiceDoor
from recovery.service.sign_in.console_sessions import ConsoleSessions
from recovery.service.sign_in.console_source import ServiceSource
from recovery.service.sign_in.identity_provider import open_provider
from recovery.service.tokens import Tokens

log = logging.getLogger(__name__)

STOP_S_MAX: Final = 10.0  # for the journals; systemd waits 15 s
BACKLOG: Final = 2048  # 2,000 launchers that come back at once; the kernel cuts it at somaxconn
START_S_MAX: Final = 30.0
# for which a drain of a node counts as an answer to what befell it
_INTEREST_S: Final = 7 * 86_400.0
_INTEREST_MAX: Final = 200  # nodes in one question to Slurm
RELOAD_S_MAX: Final = 15.0  # for the deciding thread; a disk that takes longer is broken
_QUIET: Final = logging.getLogger("recovery.service.http")
_QUIET.setLevel(logging.CRITICAL)  # aiohttp logs a traceback for each malformed request


def parts_of_service(desk: ClusterController, _join: Join) -> Parts:
    """Return what a job's controller works with where the service sees no checkpoint folder."""
    return Parts(desk, desk, hears_evidence=True)


class Service:
    """One controller, from its state folder to its port."""

    _words: SharedWords | None = None  # where there is a database

    def __init__(
        self,
        config: Config,
        clock: Clock,
        tokens: Tokens | None,
        policy: PolicyFile,
        *,
        parts_for: Callable[[ClusterController, Join], Parts] = parts_of_service,
        make_core: CoreMaker = make_core,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """``parts_for`` gives jobs checkpoints, a fence and budgets where this process sees them."""
        self.config = config
        self._context = context or (make_context(config.tls) if config.tls else None)
        ends_unix_s = self._ends_unix_s = _ends_unix_s(config)
        self._clock = clock
        state = Path(config.state_dir)
        self._store = open_store(config, clock)
        with contextlib.ExitStack() as undo:
            undo.callback(self._store.close)
            clock = self._clock = self._store.dating(clock)
            self._audit = Audit(state / "audit.jsonl", clock)
            undo.callback(self._audit.close)
            self._journal = self._store.open_cluster(clock)
            undo.callback(self._journal.close)
            self.policy = policy
            self.readings = AgentReadings(clock, lambda: self.config)
            self.measures = _measures(self.readings, ends_unix_s)
            self.measures.take_tokens(tokens)
            self.accounts = self.measures.account(_accounts(state, clock, self._ended_journals))
            self.board = NewestOrders()
            desk = ClusterController(self._journal, policy.cluster, clock, self._job_name)
            hearing = Hearing(clock)
            self._power: BmcPower | None = None
            self._bmc_check: BmcCheck | None = None
            if config.bmcs:
                directory, readings = BmcDirectory(config.bmcs), self.measures.bmcs
                self._power = BmcPower(directory, clock, readings, left_s=self._store.lease_left_s)
                undo.callback(self._power.close)
                self._bmc_check = BmcCheck(directory, readings, clock, self._known_nodes)
            self.slurm, self.kubernetes = self._open_managers(undo)
            self._connect(desk)
            desk.parts = read_fleet_parts(config.discovery)
            desk.listed = listed_nodes(config.discovery)
            jobs = JobRegistry(
                self._store,
                self.board,
                self.measures,
                clock,
                hearing,
                self._policy_for,
                self._parts_for(desk, parts_for),
                make_core=make_core,
                committer=self._store.committer(clock, self.measures.commit_s.observe),
                jobs_max=config.jobs.at_once_max,
                of_subject_percent=config.jobs.of_subject_percent,
                journal_bytes_per_day=config.limits.journal_bytes_per_day,
                ended_kept_s=config.jobs.ended_kept_days * 86400.0,
                # Another controller may have had the jobs since.
                alive=read_heartbeat(state / WATCHED_FOLDER) if config.journal is None else None,
                launchers=self._launchers,
            )
            self.worker = Worker(
                jobs,
                desk,
                self.board,
                self.measures,
                clock,
                hearing,
                self.accounts.watched,
                self._open_words(clock),
            )
            self.worker.on_present = self._use_word_of_agent
            self._serve_managers(jobs, desk)
            self.pager = Pager(self.worker, clock, config, lambda: self.config.discovery)
            self.reader = AlertReader(self.worker, config.alertmanagers)
            self.backend = Backend(
                worker=self.worker,
                board=self.board,
                measures=self.measures,
                config=config,
                clock=clock,
                describe=lambda: describe(ROUTES, RANKMEND_VERSION),
                connections=self._count_connections,
                read_alerts=self.reader.wake,
                pager=self.pager,
                slurm=None if self.slurm is None else self.slurm.desk,
                kubernetes=None if self.kubernetes is None else self.kubernetes.desk,
                review_pod=None if self.kubernetes is None else self.kubernetes.reviews.add,
                kubernetes_states=dict if self.kubernetes is None else self.kubernetes.states,
                incidents=KnownIncidents(self._store.written),
                url=controller_base(config, socket.gethostname()),
                database_away_s=self._store.away_s,
                peers=self._make_peers(),
            )
            self.api = Api(self.backend, Doorman(tokens, self._store.peer_secret), self._audit)
            self._door = self._make_door()
            self.console = self._make_console() if config.console.enabled else None
            undo.pop_all()
        self._runner: web.AppRunner | None = None
        self._room: ConnectionRoom | None = None
        self._socket: socket.socket | None = None
        self._entrance: Entrance | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.port = 0

    def _connect(self, desk: ClusterController) -> None:
        """Give the cluster's controller what it needs to judge whose word counts."""
        desk.on_leave = self._leave_nodes
        desk.owner_of = self._owner_of
        desk.is_only_subject = lambda owner: self._launchers() <= {owner}
        desk.is_on_node = self._is_on_node
        desk.is_seen_by_agent = self._is_seen_by_agent
        desk.is_confirmed = self._is_confirmed
        desk.is_lost_by_manager = lambda node: any(
            manager.desk.is_silent(node) for manager in self._managers()
        )
        desk.is_agent_silent = self._is_agent_silent
        desk.has_agents_word = lambda node: self.worker.present.speaks(
            node, self.worker.hearing.now_s()
        )

    def _parts_for(
        self, desk: ClusterController, parts_for: Callable[[ClusterController, Join], Parts]
    ) -> Callable[[Join], Parts]:
        power = self._power
        if power is None:
            return lambda join: parts_for(desk, join)
        switch = ServicePowerSwitch(power, desk, self._is_heard, self._ask_heard)
        return lambda join: replace(parts_for(desk, join), power=power, switch=switch)

    def _ended_journals(self) -> dict[tuple[str, str], StoredJournal]:
        """Return the journals of the jobs that have ended, by name and job id."""
        known = self.worker.jobs.known.items()
        return {
            (item.name, job_id): item.journal for job_id, item in known if item.outcome is not None
        }

    def _make_peers(self) -> OtherControllers | None:
        """Return what asks the other controllers; None where the jobs are in a folder."""
        if not self._store.peer_secret:
            return None
        title = f"{socket.gethostname()} ({controller_base(self.config, socket.gethostname())})"
        return OtherControllers(
            lambda: self.worker.jobs.fleet,
            BY_NAME.__getitem__,
            self._clock,
            title,
            lambda: self.worker.alerts.asks_for_nodes,
            self._learn_nodes,
        )

    def _learn_nodes(self, nodes: frozenset[str]) -> None:
        self.worker.desk.elsewhere = NodesElsewhere(nodes, self._clock.now_s())

    def _make_door(self) -> ServiceDoor:
        return ServiceDoor(
            self.api,
            lambda: self._context is not None,
            ConsoleSessions(self._store.sessions, self._clock),
            open_provider(self.config, socket.gethostname(), self._clock),
        )

    def _make_console(self) -> ConsoleSite:
        if importlib.util.find_spec("jinja2") is None:  # loaded with the first page
            log.warning("no console: Jinja2 is missing (pip install jinja2)")
        title = f"controller on {socket.gethostname()}"
        return ConsoleSite(
            ServiceSource(self.api, self._journal, self._store.read_cluster, read_boot_id(), title),
            self._door,
            self._clock,
            racks=lambda: rack_names(self.worker.desk.parts),
            wrap=self.api.serve_page,
        )

    def _known_nodes(self) -> set[str]:
        """Return the nodes of the jobs and those that are configured. Not for the deciding thread."""
        members = self.worker.call(self.worker.members).result(ANSWER_S_MAX)
        return members | set(self.config.discovery.nodes)

    def _take_alerts(self, alerts: Sequence[IncomingAlert]) -> None:
        """Take alerts in. Not for the deciding thread."""
        self.worker.call(lambda: self.worker.alerts.take(alerts)).result(ANSWER_S_MAX)

    def _is_heard(self, node: str) -> bool:
        return self.worker.jobs.is_heard(node)

    def _ask_heard(self, node: str) -> bool:
        """Ask the deciding thread; not for that thread."""
        return self.worker.call(lambda: self._is_heard(node)).result(ANSWER_S_MAX)

    def _open_managers(
        self, undo: contextlib.ExitStack
    ) -> tuple[SlurmService | None, KubernetesService | None]:
        """Open what gives out nodes here, as far as it is switched on."""
        state, config, clock = Path(self.config.state_dir), self.config, self._clock
        slurm: SlurmService | None = None
        kubernetes: KubernetesService | None = None
        if config.slurm.enabled:
            journal, lease = self._store.open_desk(SLURM, clock)
            slurm = SlurmService(
                state,
                journal,
                config.slurm,
                clock,
                self._may_act,
                self._is_off,
                self._why_observed,
                self._nodes_of_interest,
                lease,
            )
            undo.callback(slurm.stop)
            self.measures.slurm.watch(slurm.desk)
        if config.kubernetes.enabled:
            journal, lease = self._store.open_desk(KUBERNETES, clock)
            kubernetes = KubernetesService(
                journal,
                config.kubernetes,
                clock,
                self._may_act,
                self._why_observed,
                self._nodes_of_interest,
                lease,
            )
            undo.callback(kubernetes.stop)
            self.measures.kubernetes.watch(kubernetes.desk)
        return slurm, kubernetes

    def _serve_managers(self, jobs: JobRegistry, desk: ClusterController) -> None:
        """Have what jobs need of Slurm and Kubernetes asked there."""
        for manager in self._managers():
            manager.desk.named = lambda: desk.unconfirmed
        if self.slurm is not None:
            self.worker.watched.scheduler = self.slurm.desk
            self.worker.short_jobs = ShortJobs(
                jobs,
                desk,
                self.slurm.desk,
                self.config.slurm.requeue_after_s,
                lambda job: self._user_of(job.job_id),
            )
        if self.kubernetes is not None:
            self.worker.left_pods = LeftPods(
                jobs, self.kubernetes.desk, self._user_of, desk.shares_as
            )
            self.kubernetes.hear_signals(lambda: sorted(self._known_nodes()), self._take_alerts)

    def _managers(self) -> list[DeskService]:
        """Return what gives out nodes here, as far as it is switched on."""
        return [item for item in (self.slurm, self.kubernetes) if item is not None]

    def _leave_nodes(self, request: PlanRequest) -> None:
        desk = self.worker.desk
        owner = self._owner_of(request.job_id)
        vouched = {node for node in request.without if desk.is_vouched(request, node)}
        for manager in self._managers():
            manager.leave_nodes(request, owner, vouched, desk.sharer_of(request))

    def _owner_of(self, job_id: str) -> str:
        """Return the subject of a job; empty where there are no tokens, so everybody is the same one."""
        if self.api.doorman.tokens is None:
            return ""
        known = self.worker.jobs.everywhere.get(job_id)
        return known.owner if known is not None and known.owner else "nobody known"

    def _user_of(self, job_id: str) -> str:
        """Return whom Slurm or Kubernetes must confirm as a job's owner; empty where all users are one party."""
        return "" if self.worker.desk.policy.single_tenant else self._owner_of(job_id)

    def _launchers(self) -> frozenset[str]:
        """Return the subjects who may launch jobs; none where there are no tokens."""
        tokens = self.api.doorman.tokens
        now = datetime.fromtimestamp(self._clock.unix_s(), timezone.utc)
        return frozenset() if tokens is None else tokens.launchers(now)

    def _is_on_node(self, node: str, subject: str, at_unix_s: float) -> bool:
        """Return whether Slurm or Kubernetes, asked about that time, has had something of the subject's on the node."""
        return any(
            manager.desk.ledger.has_seen(node, subject, at_unix_s) for manager in self._managers()
        )

    def _open_words(self, clock: Clock) -> AgentWordsFile | SharedWords:
        """Return what keeps agents' words: a file, and the database where there is one."""
        path = Path(self.config.state_dir) / PRESENT_FILE
        file, stored = AgentWordsFile(path, clock, read_boot_id()), self._store.words
        if stored is None:
            return file
        self._words = SharedWords(file, stored, clock, self._take_words)
        return self._words

    def _take_words(self, words: Sequence[SavedWord]) -> None:
        """Take in what agents have said to another controller. Not for the deciding thread."""
        worker = self.worker

        def take() -> None:
            for node in worker.present.merge(words, worker.hearing.now_s()):
                self._use_word_of_agent(node)

        worker.call(take)

    def _use_word_of_agent(self, node: str) -> None:
        """Hold the newest report of a node's agent against what waits for its word. For the deciding thread."""
        worker = self.worker
        worker.desk.confirm_blames(node)
        for manager in self._managers():
            try:
                manager.desk.vouch(
                    node,
                    lambda job_id, subject: worker.present.is_on(
                        node, job_id, subject, worker.hearing.now_s()
                    ),
                )
            except RankmendError as error:  # its next report comes within a minute
                fields = {"node": node, "error": str(error)}
                log.warning("the word of a node's agent could not be recorded", extra=fields)

    def _is_seen_by_agent(self, node: str, job_id: str) -> bool:
        """Return whether the node's agent has reported this job there lately. For the deciding thread."""
        worker = self.worker
        return worker.present.is_on(node, job_id, self._owner_of(job_id), worker.hearing.now_s())

    def _is_agent_silent(self, node: str) -> bool:
        """Return whether the node's agent is known to be silent. For the deciding thread."""
        if self._words is not None:
            return False  # it may report to another controller of the database
        return self.worker.present.is_silent(node, self.worker.hearing.now_s())

    def _is_confirmed(self, node: str) -> bool:
        """Return whether somebody beside launchers knows the node. For the deciding thread."""
        is_known = self.worker.present.knows(node)
        return is_known or any(node in manager.desk.known for manager in self._managers())

    def _may_act(self, request: SchedulerRequest) -> str:
        """Return why a request to a manager of nodes waits, or nothing. For any thread: what it reads is replaced as a whole."""
        desk = self.worker.desk
        scopes = ("cluster", *(f"node:{node}" for node in request.nodes))
        paused = next((scope for scope in scopes if scope in desk.ledger.paused), None)
        if paused is not None:
            return f"{paused} is paused"
        return "the cluster's policy is a dry run" if desk.policy.is_dry else ""

    def _why_observed(self, request: SchedulerRequest) -> str | None:
        """Return why a request to a manager of nodes is not carried out. For any thread, as `_may_act`."""
        return self.worker.desk.policy.why_observed("", request.nodes)

    def _nodes_of_interest(self) -> tuple[str, ...]:
        """Return the nodes of causes of the last days. For any thread: what it reads is replaced as a whole."""
        desk = self.worker.desk
        since_s = desk.now_unix_s() - _INTEREST_S
        return desk.ledger.nodes_of_causes(since_s, _INTEREST_MAX)

    def _is_off(self, node: str, silence: object) -> bool:
        return self._power is not None and self._power.is_off(node, silence)

    def _job_name(self, job_id: str) -> str:
        known = self.worker.jobs.everywhere.get(job_id)
        return known.name if known is not None else job_id

    def _policy_for(self, name: str) -> Policy:
        return self.policy.policy_for(name)

    def _count_connections(self) -> tuple[int, int]:
        if self._room is None or self._entrance is None:
            return 0, 0
        return len(self._entrance), self._room.cut + self._entrance.refused

    async def start(self) -> None:
        """Resume the jobs and listen."""
        loop = asyncio.get_running_loop()
        self.board.attach(loop)
        self._socket = _listen(self.config.listen)
        self.port = int(self._socket.getsockname()[1])
        hide_versions()
        app = self.api.application()
        if self.console is not None:
            self.console.add_routes(app)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=IDLE_S_MAX,
            shutdown_timeout=2.0,
            auto_decompress=False,
            logger=_QUIET,
        )
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "set up"
        server.request_handler = self.api.straight(server.request_handler)
        self._room = ConnectionRoom(server, self.worker.hearing.listened_s)
        self._room.take_limits(self.config.limits.connections)
        self._beat(loop)
        self.worker.start()
        self.accounts.start()
        self.readings.start()
        self._entrance = Entrance(
            self._socket, self._room, self.config.limits, self._context, BACKLOG
        )
        if self.backend.peers is not None:
            self.backend.peers.start()
        self.pager.start()
        self.reader.start()
        if self._words is not None:
            self._words.start()
        if self._bmc_check is not None:
            self._bmc_check.start()
        for manager in self._managers():
            manager.start()
        name_milestone("controller", ProcessMilestone.READY)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.worker.hearing.beat()
        self._timer = loop.call_later(BEAT_S, self._beat, loop)

    async def reload(self, config: Config, tokens: Tokens | None, policy: PolicyFile) -> None:
        """Apply the settings that can change while running; they are already checked."""
        context = make_context(config.tls) if config.tls else None
        ends_unix_s = _ends_unix_s(config)
        if config.tls is not None and ends_unix_s != self._ends_unix_s:
            refuse_out_of_date(
                config.tls.cert_file, config.tls.client_ca_file, self._clock.unix_s()
            )
        loop = asyncio.get_running_loop()
        provider = open_provider(config, socket.gethostname(), self._clock)
        try:
            await loop.run_in_executor(None, self._store.tell_peers, config)
        except JournalError as error:
            log.warning(
                "other controllers do not know our certificate", extra={"error": str(error)}
            )
        parts = await loop.run_in_executor(None, read_fleet_parts, config.discovery)

        def take() -> None:
            self.worker.desk.take_policy(policy.cluster)
            self.worker.desk.parts = parts
            self.worker.desk.listed = listed_nodes(config.discovery)

        await asyncio.wait_for(asyncio.wrap_future(self.worker.call(take)), RELOAD_S_MAX)
        self.config = self.backend.config = config
        self.worker.jobs.journals.per_day_bytes = config.limits.journal_bytes_per_day
        self.api.doorman.tokens = tokens
        self._door.provider = provider
        self.measures.take_tokens(tokens)
        self.policy = policy
        self._context, self._ends_unix_s = context, ends_unix_s
        if self._entrance is not None:  # connections that are open stay as they are
            self._entrance.take_limits(config.limits)
            if self._room is not None:
                self._room.take_limits(config.limits.connections)
            self._entrance.context = context
        self.measures.certificate_s.set(ends_unix_s)

    @property
    def is_alive(self) -> bool:
        """Return whether the deciding thread goes round; the event loop asks, so it does, too."""
        return self.backend.is_alive()

    async def stop(self) -> None:
        """Answer what waits, close the journals, and leave training as it is."""
        self.backend.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.pager.stop()
        self.reader.stop()
        self.readings.stop()
        if self._bmc_check is not None:
            self._bmc_check.stop()
        if self._entrance is not None:
            self._entrance.close()
        if self.backend.peers is not None:
            await self.backend.peers.stop()
        self.board.wake_all()
        if self.console is not None:
            self.console.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._room is not None:
            self._room.close()
        if self._socket is not None:
            self._socket.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.pager.join)
        await loop.run_in_executor(None, self.worker.stop, STOP_S_MAX)
        if self._words is not None:  # with what the deciding thread has kept at its end
            await loop.run_in_executor(None, self._words.stop, STOP_S_MAX)
        await loop.run_in_executor(None, self.accounts.stop)
        if self._room is not None:  # last answers have had the time of these waits to leave
            self._room.cut_rest()
        await loop.run_in_executor(None, self.close)

    def close(self) -> None:
        """Let go of the state folder; for one that was never started, too."""
        self.backend.views.close()
        self.backend.disk.close()
        for manager in self._managers():
            manager.stop()
        if self._power is not None:
            self._power.close()
        self._door.sessions.stop()
        self._audit.close()
        self._journal.close()
        self._store.close()


def _ends_unix_s(config: Config) -> float:
    if config.tls is None:
        return 0.0
    return expires_unix_s(Path(config.tls.cert_file))


def _measures(readings: AgentReadings, ends_unix_s: float) -> Measures:
    measures = Measures()
    measures.readings = readings
    measures.certificate_s.set(ends_unix_s)
    return measures


def _accounts(
    state: Path, clock: Clock, ended: Callable[[], dict[tuple[str, str], StoredJournal]]
) -> TimeAccounts:
    boot_id = read_boot_id()
    return TimeAccounts(clock, boot_id, WatchedAccounts(state, clock, boot_id), PastSizes(ended))


def open_store(config: Config, clock: Clock) -> JobStore:
    """Open the place where the jobs are kept."""
    folder = StateFolder(Path(config.state_dir), keeps_jobs=config.journal is None)
    if config.journal is None:
        return folder
    try:
        return PostgresJobs(folder, config, clock)
    except BaseException:
        folder.close()
        raise


def _listen(listen: str) -> socket.socket:
    host, port = parse_listen(listen)
    try:
        listener = bind(host, port)
    except OSError as error:
        raise ConfigError(f"cannot listen on {listen}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


class ServiceThread:
    """A service with an event loop and a thread of its own."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)

    def start(self) -> int:
        """Return the port once the service listens, or raise what keeps it from that."""
        self._thread.start()
        if not self._is_up.wait(START_S_MAX):
            raise ConfigError(f"the controller's service is not up after {START_S_MAX:g} s")
        if self._error is not None:
            self._thread.join(START_S_MAX)
            raise self._error
        return self.service.port

    def stop(self) -> None:
        """Stop the service and wait for it."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it ended by itself in between
                asyncio.run_coroutine_threadsafe(self.service.stop(), self._loop).result(
                    2 * STOP_S_MAX
                )
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_S_MAX)

    def reload(self, config: Config, tokens: Tokens | None, policy: PolicyFile) -> None:
        """Apply another configuration to the service."""
        work = self.service.reload(config, tokens, policy)
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S_MAX)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self.service.start())
        except (RankmendError, OSError) as error:
            self._error = error
            self._loop.run_until_complete(self.service.stop())
            self._is_up.set()
        else:
            self._is_up.set()
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
