"""The daemon `rankmend agent`: collectors, the socket for launchers and the page, until a signal ends it."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config import AgentConfig
from agent.control_socket import ControlSocket, control_path
from agent.daemon import memory
from agent.daemon.main_loop import STOPPING, MainLoop
from agent.daemon.node_agent import NodeAgent, Stoppable
from agent.findings.journal import FindingStore
from agent.inventory_commands import inventory_commands
from agent.nvml.monitor import gpu_commands
from agent.page.application import Application, make_app
from agent.page.http_server import HttpServer, renewed_context
from agent.ranks.launcher_socket import RankSocket
from agent.ranks.table import RankTable
from rankmend.agent_socket import socket_paths
from rankmend.alerting import AlertmanagerTarget, make_ask, make_post, target_url
from rankmend.clock import Clock, SystemClock
from rankmend.errors import ConfigError
from rankmend.notify import Notifier
from rankmend.signals import SignalInbox
from rankmend.version import RANKMEND_VERSION
from rankmend.watched_report import report_url

if TYPE_CHECKING:
    from agent.watch.sender import WatchSender

log = logging.getLogger(__name__)


def run(config: AgentConfig, read_config: Callable[[], AgentConfig], inbox: SignalInbox) -> None:
    """Run the agent until SIGTERM or SIGINT; SIGHUP reads the configuration again.

    ``inbox`` catches SIGHUP already: one that comes while the agent starts must not end it.
    """
    inbox.catch(STOPPING)
    memory.use_one_arena()  # before any thread
    clock = SystemClock()
    agent = NodeAgent(config, clock)
    targets = _alert_targets(config, clock)
    agent.findings.tell(targets, config.alerts.runbooks)
    store = _open_store(config, agent)
    notifier = Notifier.from_environment(os.environ, os.getpid())
    server = HttpServer(config.listen, _make_page(config, agent, clock), config.tls)
    try:
        rank_socket = _open_socket(config, agent.table, clock)
        control = _open_control(rank_socket, agent)
    except ConfigError:
        server.stop()
        raise
    agent.runner.start()
    server.start()
    senders = _start_senders(config, agent, clock, targets)
    if rank_socket is not None:
        rank_socket.start()
    if control is not None:
        control.start()
    _log_start(config, agent, server, rank_socket)

    def reload() -> None:
        wanted = read_config()
        tls = renewed_context(wanted.tls)  # refused: nothing has changed
        agent.reload(wanted)
        server.use(tls)

    memory.settle()
    agent.schedule.repeat("tidy memory", memory.TIDY_S, memory.tidy)
    try:
        MainLoop(agent.runner, server, notifier, clock, reload).run(inbox)
    finally:
        agent.runner.stop()
        _stop(*senders, control)
        agent.stop()
        if store is not None:
            store.close()
        _stop(rank_socket, server)
        notifier.close()
    log.info("agent stopped")


def _open_store(config: AgentConfig, agent: NodeAgent) -> FindingStore | None:
    """Go on from the findings of an earlier agent, where there is a folder for them."""
    if not config.state_dir:
        return None
    store = FindingStore(Path(config.state_dir) / "findings")
    agent.findings.keep_in(store)
    return store


def _make_page(config: AgentConfig, agent: NodeAgent, clock: Clock) -> Application:
    return make_app(
        agent.node,
        agent.runner.views,
        agent.ranks,
        clock.now_s,
        agent.families,
        agent.findings,
        agent.demand,
        config.page,
    )


def _start_senders(
    config: AgentConfig, agent: NodeAgent, clock: Clock, targets: Sequence[AlertmanagerTarget]
) -> list[Stoppable]:
    senders: list[AlertmanagerTarget | WatchSender] = [
        *targets,
        *_watch_senders(config, agent, clock),
    ]
    for sender in senders:
        sender.start()
    return list(senders)


def _log_start(
    config: AgentConfig, agent: NodeAgent, server: HttpServer, rank_socket: RankSocket | None
) -> None:
    fields = {
        "version": RANKMEND_VERSION,
        "node": agent.node,
        "listen": config.listen,
        "port": server.port,
        "socket": rank_socket.path if rank_socket else "none",
    }
    log.info("agent started", extra=fields)


def _stop(*parts: Stoppable | None) -> None:
    for part in parts:
        if part is not None:
            part.stop()


def _open_socket(config: AgentConfig, table: RankTable, clock: Clock) -> RankSocket | None:
    """Return the socket that is configured, or the first usable one of the usual places."""
    if config.socket is not None:
        return RankSocket(Path(config.socket), table, clock)
    problems = []
    for path in socket_paths(os.environ):
        try:
            return RankSocket(path, table, clock)
        except ConfigError as error:
            problems.append(str(error))
    log.warning("no socket for launchers", extra={"error": "; ".join(problems)})
    return None


def _open_control(rank_socket: RankSocket | None, agent: NodeAgent) -> ControlSocket | None:
    """Return the socket of the operator, beside that of the launchers."""
    if rank_socket is None:
        return None
    commands = {**gpu_commands(agent.gpus), **inventory_commands(agent.inventory)}
    return ControlSocket(control_path(rank_socket.path), commands)


def _alert_targets(config: AgentConfig, clock: Clock) -> list[AlertmanagerTarget]:
    alerts = config.alerts
    if not alerts.urls:
        return []
    post = make_post(alerts.ca_file, alerts.cert_file, alerts.key_file)
    return [AlertmanagerTarget(target_url(url), clock, post) for url in alerts.urls]


def _watch_senders(config: AgentConfig, agent: NodeAgent, clock: Clock) -> "list[WatchSender]":
    """Return what tells a controller of the jobs of other launchers, if one is named."""
    if config.watch.controller is None:
        return []
    from agent.watch.job_logs import JobLogs, parse_patterns  # noqa: PLC0415 - memory
    from agent.watch.present_jobs import FILE_NAME, PresentJobsFile  # noqa: PLC0415 - memory
    from agent.watch.sender import WatchSender  # noqa: PLC0415 - memory

    alerts, folder = config.alerts, config.state_dir
    sender = WatchSender(
        agent.node,
        report_url(config.watch.controller),
        clock,
        make_ask(alerts.ca_file, alerts.cert_file, alerts.key_file),
        lambda: agent.ranks.newest_watched,
        agent.runner.views,
        Path(config.procfs),
        owners=agent.table.owners,
        kept=None if folder is None else PresentJobsFile(Path(folder) / FILE_NAME, clock),
        logs=JobLogs(parse_patterns(config.watch.logs)) if config.watch.logs else None,
    )
    return [sender]
