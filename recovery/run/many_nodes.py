"""`rankmend run` as one launcher of several: joins a job, runs what it is ordered, leaves.

The controller is a service (--controller), or is hosted by the launcher at the rendezvous
endpoint (`recovery.run.meeting`); towards either this is the same client of docs/reference/api.md.
"""

import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

from rankmend import logs
from rankmend.clock import Clock, SystemClock
from rankmend.errors import ConfigError, JobHeldError, LaunchError
from rankmend.node import node_name
from rankmend.printable import printable
from recovery.api.connection import pause_s
from recovery.api.contact import Contact, check_url, is_loopback
from recovery.api.controller_errors import ControllerError, RefusedError, UnreachableError
from recovery.api.launcher_client import LauncherClient
from recovery.api.tls_fault import TlsFault
from recovery.api.wire import (
    NAME_PATTERN,
    POLICY_OVERRIDES,
    Accepted,
    ClaimNews,
    Join,
    JoinAnswer,
)
from recovery.checkpoints.marks import FenceFile
from recovery.journal.job_folder import JobFolder, open_job
from recovery.journal.job_key import JobKey, key_at_service
from recovery.journal.job_records import JobOutcome
from recovery.journal.limits import Policy
from recovery.launcher.decision.pace import REMOTE_REPORT_S_MIN
from recovery.launcher.early_stop import exit_on
from recovery.launcher.guardian.last_word import LAUNCHER_S_MAX, say_within
from recovery.launcher.launcher import Launcher
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.node_membership import Membership
from recovery.launcher.membership.peers import Peers, PeerWord
from recovery.launcher.membership.remote import Client, Remote
from recovery.launcher.ranks.runtime_folder import RuntimeFolder, default_root
from recovery.messages.exchange import EPOCH_MAX, Order, StopReason
from recovery.ownership.claim import OwnerKind
from recovery.ownership.ownership import Ownership
from recovery.run.assembly import (
    clear_former,
    clear_leftovers,
    make_watch,
    port_range,
    say,
)
from recovery.run.error_file import write_error_file
from recovery.run.limits_file import read_policy
from recovery.run.node_launcher import (
    JobOnNode,
    NodeLauncher,
    NodeSetup,
    own_folder,
    say_rank_error,
)
from recovery.run.options import (
    RunOptions,
    grace_s,
    parse_nodes,
    stop_signals,
)

log = logging.getLogger(__name__)

WAITING_SAID_AFTER_S: Final = 10.0
# Between two looks whether the job has begun at another controller of the list; one look costs
# each of them a request.
SEEK_EVERY_S: Final = 10.0
WAITS: Final = (
    "joined, and there is nothing to run yet: other nodes have to come, or the job has all the nodes that "
    "--nnodes allows"
)
_ATTRIBUTES: Final = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT")


class JoiningClient(Client, Protocol):
    @property
    def has_choice(self) -> bool: ...
    def leave(self, request: Join) -> bool: ...
    @property
    def contact(self) -> Contact | None: ...
    def join(self, request: Join) -> JoinAnswer: ...


def run_with_service(options: RunOptions, environment: Mapping[str, str]) -> int:
    """Run this node's part of a job that a `rankmend controller` looks after."""
    begin_logging()
    assert options.controller is not None, "chosen by it"
    urls = [check_url(url, has_token=True) for url in options.controller.split(",") if url]
    client = LauncherClient(urls, token_file=options.token_file, ca_file=options.ca_file)
    key = key_at_service(options.job, options.rdzv_id, environment, options.checkpoint_dir)
    if key.is_anonymous:
        raise ConfigError(
            "the launchers of a job find each other by its name: give --job or --rdzv-id, or "
            "--checkpoint-dir"
        )
    parts = urlsplit(urls[0])
    where = (parts.hostname or "", parts.port or 443)
    overrides = _policy_overrides(options)
    with exit_on(stop_signals(options)):
        ownership = own_folder(options, OwnerKind.SERVICE, key, environment)
        try:
            node = Node(options, environment, key, where, overrides, ownership=ownership)
            return node.run(client)
        finally:
            ownership.end()
            client.close()


def begin_logging() -> None:
    logs.configure(logs.LogShape.LAUNCHER)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its warnings are errors of ours


def _policy_overrides(options: RunOptions) -> dict[str, float]:
    """Return the limits that the user asks a service for, and say what it does not hear."""
    policy, default = read_policy(options.config_path), Policy()
    changed = {
        name: float(getattr(policy, name))
        for name in POLICY_OVERRIDES
        if getattr(policy, name) != getattr(default, name)
    }
    if options.max_restarts is not None:
        changed["restarts_max"] = float(options.max_restarts)
    unheard = [
        flag
        for flag, value in (
            ("--hang-min", options.hang_min_s),
            ("--hang-max", options.hang_max_s),
            ("--hang-multiple", options.hang_multiple),
            ("--hang-stopped", options.hang_stopped_s),
            ("--no-hang-detection", options.no_hang_detection or None),
        )
        if value is not None
    ]
    if unheard:
        say(f"{', '.join(unheard)}: the controller's own configuration decides when ranks are hung")
    return changed


def checked_node_name(options: RunOptions, environment: Mapping[str, str]) -> str:
    name = node_name(options.node_name, environment)
    if re.search(NAME_PATTERN, name) is None:
        raise ConfigError(f"node name {name!r}: letters, digits and ._:- only (--node-name)")
    return name


def _title(name: str) -> str:
    """Return a job's name as a controller takes it; a folder may be called anything."""
    return printable(name.encode(errors="replace").decode())[:128].strip() or "job"


def route_address(host: str, port: int) -> str:
    """Return the address of this machine on its route to ``host``. Nothing is sent."""
    try:
        family, kind, _protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"no route to {host}: {error}; name this node's address with --local-addr"
        ) from error


def join(
    client: JoiningClient, request: Join, said_after_s: float = WAITING_SAID_AFTER_S
) -> JoinAnswer:
    """Join the job, and wait for the controller as long as it takes.

    What time alone does not heal is said at once, all else when it lasts.
    """
    failures, began_s = 0, time.monotonic()
    said: list[str] | None = None
    while True:
        try:
            return client.join(request)
        except RefusedError:
            raise
        except ControllerError as error:
            failures += 1
            text, hint = str(error), hint_for(error)
            reasons = sorted(error.problems) if isinstance(error, UnreachableError) else [text]
            lasts = time.monotonic() - began_s >= said_after_s
            if reasons != said and (hint is not None or lasts):
                said = reasons
                say(f"waiting for the controller: {text}" + (f"; {hint}" if hint else ""))
            wait_s = pause_s(failures)
            if isinstance(error, UnreachableError) and error.retry_after_s is not None:
                wait_s = max(wait_s, error.retry_after_s)
            time.sleep(wait_s)


def hint_for(error: ControllerError) -> str | None:
    """Return what a person can do about a controller that can't be reached, where that is known."""
    fault = error.tls_fault if isinstance(error, UnreachableError) else None
    return None if fault is None else _TLS_HINTS.get(fault)


_TLS_HINTS: Final = {
    TlsFault.WRONG_NAME: "name the controller by a name that is in its certificate",
    TlsFault.WRONG_TIME: (
        "its certificate is not valid by this machine's clock: is the clock right? "
        "A new one is made by rankmend controller server-cert"
    ),
    TlsFault.UNKNOWN_AUTHORITY: (
        "--ca-file names the authority of its certificate (ca.crt of rankmend controller init)"
    ),
    TlsFault.NO_TLS: "what answers there does not speak TLS",
}


class _Link:
    """What the controller says, brought to the launcher (`recovery.launcher.membership.remote.Heard`)."""

    def __init__(self, client: JoiningClient, request: Join, peers: Peers, *, quiet: bool) -> None:
        self.client = client
        self._request = request
        self._peers = peers
        self._quiet = quiet
        self._told = (0, False)  # attempt, and whether ranks of it were to run here
        self._has_told = False
        self.launcher: Launcher | None = None
        self.newest: Order | None = None
        self.is_moving = False  # to another controller, before the job has begun
        self.outcome: JobOutcome | None = None
        self.replaced_by: str | None = None

    def order(self, order: Order) -> None:
        self.newest = order
        told = (order.attempt, bool(order.ranks))
        if (told != self._told or not self._has_told) and not self._quiet:
            say(describe(order, is_over=self._told == (order.attempt, True)))
            self._told, self._has_told = told, True
        if self.launcher is not None:
            self.launcher.send(order)

    def tell_waiting(self) -> None:
        """Say that no order has come, where none has."""
        if self.newest is None and not self._quiet:
            say(WAITS)

    def seek(self, ending: threading.Event) -> None:
        """Leave, as long as the job has not begun, for a controller where all its launchers meet."""
        while not ending.wait(SEEK_EVERY_S):
            if self.newest is not None and self.newest.attempt > 0:
                return
            try:
                self.is_moving = self.client.leave(self._request)
            except ControllerError as error:
                log.debug("no other controller was found: %s", error)
            if self.is_moving:
                say(
                    f"{self.client.url}: leaving it, because the job meets at another controller of the list"
                )
                if self.launcher is not None:
                    self.launcher.finish()
                return

    def taken(self, asked_at_s: float, accepted: Accepted) -> None:
        self._peers.note_controller(asked_at_s)
        if self.launcher is not None:
            self.launcher.note_answer(accepted.epoch, accepted.controller_id)

    def ended(self, outcome: JobOutcome) -> None:
        self.outcome = self.outcome or outcome
        if self.launcher is not None:
            self.launcher.finish()

    def replaced(self, reason: str) -> None:
        self.replaced_by = reason
        if self.launcher is not None:
            self.launcher.finish()

    def unknown(self) -> None:
        if self.launcher is not None:
            self._request.epoch = min(self.launcher.epoch, EPOCH_MAX)
        joined = self.client.join(self._request)
        self._peers.take_secret(joined.secret)
        if joined.job_id != self._request.job_id:
            raise ControllerError(f"the controller knows this job as {joined.job_id} now")


def describe(order: Order, *, is_over: bool) -> str:
    """Return an order in a few words; ``is_over``: ranks of its attempt were running here."""
    if not order.ranks and not order.attempt:
        return "waiting for other nodes: this node has nothing to run"
    if not order.ranks and is_over:
        return f"attempt {order.attempt} is over: this node has nothing to run"
    if not order.ranks:
        return f"attempt {order.attempt} needs no ranks of this node: it is a spare"
    first, last = order.ranks[0], order.ranks[-1]
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    source = order.restore.path if order.restore is not None else "the beginning"
    return f"attempt {order.attempt}: {ranks} of {order.world_size} run here, from {source}"


class Node:
    """One node's run of a job, from joining to the exit code."""

    def __init__(
        self,
        options: RunOptions,
        environment: Mapping[str, str],
        key: JobKey,
        controller: tuple[str, int],
        overrides: Mapping[str, float],
        job_id: uuid.UUID | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        """``controller``: any address of it, for the route. ``job_id``: known from the storage."""
        self._options = options
        self._environment = environment
        self._clock: Clock = SystemClock()
        self._key = key
        self._ownership = ownership or Ownership()
        self.name = checked_node_name(options, environment)
        self.address = options.local_addr or route_address(*controller)
        self.launcher_id = str(uuid.uuid4())
        self._setup = NodeSetup.read(options, environment, is_one_node=False)
        self.slots = self._setup.slots
        self.request = self._make_request(overrides, job_id)
        self.link: _Link | None = None
        self.remote: Remote | None = None

    def _make_request(self, overrides: Mapping[str, float], job_id: uuid.UUID | None) -> Join:
        options, environment = self._options, self._environment
        least, most = parse_nodes(options.nnodes)
        slurm = [environment.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT")]
        return Join(
            key=self._key.text,
            name=_title(self._key.name),
            node=self.name,
            launcher_id=self.launcher_id,
            run=printable(":".join(slurm)) if slurm[0] else "",
            nodes_min=least,
            nodes_max=most,
            slots=self.slots,
            shrink_multiple=options.shrink_multiple,
            grace_s=grace_s(options, environment),
            policy=dict(overrides),
            attributes={
                name: printable(environment[name][:256])
                for name in _ATTRIBUTES
                if environment.get(name)
            },
            job_id=str(job_id) if job_id is not None else None,
            has_checkpoints=options.checkpoint_dir is not None,
            budgets_reset_by=f"uid {os.getuid()}" if options.reset_budgets else None,
            claim_taken=self._claim_news(),
        )

    def _claim_news(self) -> ClaimNews | None:
        taken = self._ownership.record
        return None if taken is None else ClaimNews(taken.owner, taken.proof, taken.by)

    def run(self, client: JoiningClient) -> int:
        """Join, serve until the job has ended or this node leaves, and return the exit code."""
        # Launchers that join different controllers for a moment keep one identity of the job.
        self.request.job_id = self.request.job_id or self._ownership.job_id
        while True:
            joined = join(client, self.request)
            self.request.job_id = joined.job_id
            self._ownership.name_job(joined.job_id)
            folder = self._open_folder(joined.job_id)
            try:
                runtime = RuntimeFolder(default_root(), folder.job_id, self.name)
                with self._ownership.clearing():
                    clear_former(self._ownership.former_job_id, joined.job_id, self._clock)
                    clear_leftovers(joined.job_id, self._clock, runtime, self.name)
                code = self._serve(client, joined, folder, runtime)
            finally:
                os.close(folder.lock_descriptor)
            if self.link is None or not self.link.is_moving:
                return code
            self.launcher_id = self.request.launcher_id = str(uuid.uuid4())

    def _open_folder(self, job_id: str) -> JobFolder:
        """Open this node's own folder of the job: one launcher of a node and job at a time."""
        key = JobKey(f"{self._key.text}|{job_id}", self._key.name, self._key.reason)
        known = uuid.UUID(job_id)
        try:
            return open_job(
                self._setup.state / "nodes" / self.name, key, known, self._clock.unix_s()
            )
        except JobHeldError as error:
            raise JobHeldError(
                f"{error}; a second launcher of the job on one machine needs a --node-name"
            ) from error

    def _serve(
        self, client: JoiningClient, joined: JoinAnswer, folder: JobFolder, runtime: RuntimeFolder
    ) -> int:
        options, clock = self._options, self._clock
        job = JobOnNode(
            job_id=joined.job_id,
            job_name=self._key.name,
            node=self.name,
            folder=folder,
            runtime=runtime,
            address=self.address,
            bind_address=self.address if is_loopback(self.address) else "",
            ports=port_range(options),
            mark_node=self.name,
        )
        made = NodeLauncher(self._setup, job, clock)
        word = PeerWord(joined.job_id, self.name, self.launcher_id, 0, 0)
        peers = Peers(joined.secret, word, self.address, port_range(options), job.bind_address)
        fence = FenceFile(job.fence_path(self._setup))
        self._ownership.keep_fence(fence.restore)
        storage = Storage(fence, make_watch(options, clock))
        link = self.link = _Link(client, self.request, peers, quiet=options.quiet)
        remote = self.remote = Remote(
            client, joined.job_id, self.name, self.launcher_id, link, clock
        )
        launcher = made.make(
            remote.put,
            Membership(
                self.launcher_id,
                self.slots,
                peers,
                storage,
                lambda: client.contact,
                REMOTE_REPORT_S_MIN,
            ),
        )
        link.launcher = launcher
        remote.start()
        waiting = threading.Timer(WAITING_SAID_AFTER_S, link.tell_waiting)
        waiting.daemon = True
        waiting.start()
        ending = threading.Event()
        if client.has_choice:
            threading.Thread(target=link.seek, args=(ending,), name="seek", daemon=True).start()
        try:
            self._ownership.begin(launcher.finish)
            launcher.run(0)
            if link.outcome is None and link.replaced_by is None:
                remote.flush()
        finally:
            ending.set()
            waiting.cancel()
            remote.close()
            is_empty = launcher.close()
            if is_empty and link.outcome is None and link.replaced_by is None:
                self._say_end(client, launcher)
            made.close()
            if is_empty and link.outcome is not None:
                self._ownership.note_empty()  # and so are the others: the job has ended
        self._ownership.check()
        return self._exit_code(link, launcher.stop_requested)

    @staticmethod
    def _say_end(client: JoiningClient, launcher: Launcher) -> None:
        """Have the controller know at once that this node is empty, and no spare any more."""
        report = launcher.last_report()
        if report is not None:
            say_within(client.report, report, LAUNCHER_S_MAX)

    def _exit_code(self, link: _Link, stop_requested: StopReason | None) -> int:
        if link.outcome is not None:
            write_error_file(link.outcome, self._environment, self._clock.unix_s())
            return exit_code(link.outcome)
        link.is_moving = link.is_moving and stop_requested is None
        if link.is_moving:
            return 0  # nothing ran here
        if link.replaced_by is not None:
            raise JobHeldError(f"this launcher was replaced: {link.replaced_by}")
        said = "nobody" if stop_requested is None else stop_requested.value
        say(f"{said}: this node leaves the job")
        return 1 if stop_requested is None else stop_requested.exit_code


def exit_code(outcome: JobOutcome) -> int:
    """Say how the job ended, and return the code for the shell."""
    say(f"the job has ended ({outcome.kind.value}): {outcome.reason}")
    say_rank_error(outcome)
    return outcome.exit_code
