"""`rankmend run --nnodes N --rdzv-endpoint HOST:PORT`: the launcher on HOST hosts the controller.

It is the same service as `rankmend controller`, with one job, in threads of this launcher. The
launchers share a secret: it lies beside the checkpoints (`meeting_note`), or in a token file. What
follows from it is in `meeting_secret`.

When the host is gone another launcher takes over (docs/internals/design/0003-cluster.md). The times are
such that two hosts never both have ranks that run: a host that can't refresh its note for
`lease_s` serves no more; who takes over waits until the note has stood still for twice as long.
"""

import logging
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import psutil

from rankmend.clock import Clock, SystemClock
from rankmend.errors import ConfigError, JobHeldError, RankmendError
from rankmend.foreign_links import make_private
from recovery.api.contact import Contact, is_loopback
from recovery.api.controller_errors import UnreachableError
from recovery.api.launcher_client import LauncherClient
from recovery.api.wire import Accepted, Join, JoinAnswer
from recovery.checkpoints.budget_writer import BudgetWriter
from recovery.checkpoints.marks import BESIDE, BudgetCopy, check_writable
from recovery.cluster.cluster import ClusterController
from recovery.cluster.cluster_limits_file import PolicyFile
from recovery.job.nodes import Orders
from recovery.job.settings import JobSettings
from recovery.journal.job_key import JobKey, key_of_meeting
from recovery.journal.job_records import JobOutcome
from recovery.journal.limits import Policy
from recovery.journal.records import Entry
from recovery.journal.saved_budgets import decode_budgets
from recovery.journal.store import Journal
from recovery.launcher.early_stop import exit_on
from recovery.launcher.rendezvous.ports import reserve
from recovery.messages.exchange import Order, Report
from recovery.ownership.claim import OwnerKind
from recovery.run.assembly import port_range, say
from recovery.run.many_nodes import (
    Node,
    begin_logging,
    checked_node_name,
    route_address,
)
from recovery.run.meeting_note import HostFolder, HostNote
from recovery.run.node_launcher import own_folder, state_folder
from recovery.run.one_node import tell
from recovery.run.options import Meeting, RunOptions, make_policy, parse_meeting, stop_signals
from recovery.service.controller_config import Config, Limits
from recovery.service.meeting_secret import Identity, new_secret, read_secret
from recovery.service.served_job import Core, Parts, make_core
from recovery.service.server import Service, ServiceThread
from recovery.service.tokens import Tokens

log = logging.getLogger(__name__)

REFRESH_S: Final = 2.0  # of the note: small against the lease
STAGGER_S: Final = 5.0  # between the launchers that may take over, so that the first one does
LINGER_S: Final = 15.0  # for the others to hear of the end; their pause after a failure at most
_LINGER_LOOK_S: Final = 0.1
_REIGNS_KEPT: Final = 3


def run_meeting(options: RunOptions, environment: Mapping[str, str]) -> int:
    """Run this node's part of a job whose launchers host the controller themselves."""
    begin_logging()
    meeting = parse_meeting(options)
    key = _job_key(options, environment, meeting)
    shared = _shared_folder(options, environment, meeting)
    site = Site(
        meeting=meeting,
        key=key,
        folder=HostFolder(shared) if shared is not None else None,
        secret=read_secret(options.token_file) if options.token_file else None,
        name=checked_node_name(options, environment),
        state=state_folder(options, environment) / "hosts" / _folder_name(options, key, meeting),
        policy=make_policy(options),
        budgets=_budgets(options),
        quiet=options.quiet,
        address=options.local_addr or route_address(meeting.host, meeting.port),
    )
    with exit_on(stop_signals(options)):
        ownership = own_folder(options, OwnerKind.MEETING, key, environment)
        if ownership.is_copy and site.folder is not None:
            site.folder.forget()
        client = MeetingClient(site)
        guard = HostGuard(site, client, options)
        try:
            guard.open()
            where = (meeting.host, meeting.port)
            known = None if ownership.is_copy else _known_job(site)
            node = Node(options, environment, key, where, {}, known, ownership)
            guard.node = node
            guard.start()
            return node.run(client)
        finally:
            ownership.end()
            guard.close()
            client.close()
            if site.budgets is not None:
                site.budgets.close()


@dataclass(frozen=True, slots=True)
class Site:
    """What all of this launcher's meeting is about."""

    meeting: Meeting
    key: JobKey
    folder: HostFolder | None  # None: there is no shared storage, and nobody takes over
    secret: str | None  # of a token file
    name: str
    address: str
    state: Path
    policy: Policy
    budgets: BudgetWriter | None
    quiet: bool


def _job_key(options: RunOptions, environment: Mapping[str, str], meeting: Meeting) -> JobKey:
    key = key_of_meeting(options.job, options.rdzv_id, environment, options.checkpoint_dir)
    if not key.is_anonymous:
        return key
    return JobKey(f"meeting:{meeting}", f"meeting-{meeting.port}", "where its nodes meet")


def _folder_name(options: RunOptions, key: JobKey, meeting: Meeting) -> str:
    """Return the name of the folder for this node's journals as host of the job.

    --rdzv-id and SLURM_JOB_ID may be those of other jobs, too, which meet elsewhere.
    """
    if options.job or options.checkpoint_dir is not None:
        return key.folder_name
    return replace(key, text=f"{key.text}@{meeting}").folder_name


def _shared_folder(
    options: RunOptions, environment: Mapping[str, str], meeting: Meeting
) -> Path | None:
    """Return where the note lies, or raise ConfigError where the launchers share no secret."""
    if options.checkpoint_dir is not None:
        check_writable(options.checkpoint_dir.absolute())
        return options.checkpoint_dir.absolute() / BESIDE
    if options.token_file is not None:
        return None
    if is_loopback(meeting.host):  # all of them are on this machine
        folder = state_folder(options, environment) / f"meeting-{meeting.port}"
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(folder, ConfigError)
        return folder
    raise ConfigError(
        f"--rdzv-endpoint {meeting} is open to the network, and the launchers share no secret. Give "
        f"--checkpoint-dir, a folder that all nodes share (rankmend creates a secret in it that only "
        f"you can read), or give each node the same --token-file (RANKMEND_TOKEN_FILE, mode 0600); "
        f"to create one: openssl rand -hex 32"
    )


def _budgets(options: RunOptions) -> BudgetWriter | None:
    if options.checkpoint_dir is None:
        return None
    return BudgetWriter(BudgetCopy(options.checkpoint_dir.absolute() / BESIDE / "budgets.json"))


def _known_job(site: Site) -> uuid.UUID | None:
    """Return the job's id as it lies beside the checkpoints."""
    try:
        body = site.budgets.load() if site.budgets is not None else None
        return uuid.UUID(decode_budgets(body).job_id) if body is not None else None
    except (RankmendError, ValueError) as error:
        log.warning("the copy of the budgets beside the checkpoints is unusable: %s", error)
        return None


def has_address(host: str) -> bool:
    """Return whether an address of ``host`` is one of this machine's."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
    }
    return bool(found & own) or any(is_loopback(address) for address in found)


def url_of(host: str, port: int) -> str:
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _bind_address(address: str) -> str:
    return address if is_loopback(address) else ""


class MeetingClient:
    """The way to whoever is host now (`recovery.launcher.membership.remote.Client`)."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._client: LauncherClient | None = None
        self._target: tuple[str, str] | None = None
        if site.folder is None:
            assert site.secret is not None, "one of both is there"
            self.point(url_of(site.meeting.host, site.meeting.port), site.secret)

    def point(self, url: str, secret: str) -> bool:
        """Talk to this host from now on; return whether it is another one than before."""
        with self._lock:
            if self._target == (url, secret):
                return False
            old, self._target = self._client, (url, secret)
            identity = Identity(secret)
            self._client = LauncherClient(
                [url], token=identity.token, fingerprint=identity.fingerprint
            )
        if old is not None:
            old.close()
        return True

    @property
    def url(self) -> str:
        client = self._client
        return client.url if client is not None else str(self._site.meeting)

    @property
    def contact(self) -> Contact | None:
        client = self._client
        return None if client is None else client.contact

    @property
    def has_choice(self) -> bool:
        return False

    def leave(self, _request: Join) -> bool:
        return False

    def join(self, request: Join) -> JoinAnswer:
        return self._now().join(request)

    def report(self, report: Report) -> Accepted:
        return self._now().report(report)

    def order(
        self, job_id: str, node: str, launcher_id: str, *, after: int, epoch: int, wait_s: float
    ) -> Order | None:
        return self._now().order(job_id, node, launcher_id, after=after, epoch=epoch, wait_s=wait_s)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _now(self) -> LauncherClient:
        client = self._client
        if client is None:
            folder = self._site.folder
            assert folder is not None, "without one the host is known from the start"
            raise UnreachableError(
                f"no host has left a note in {folder.folder} yet (is the folder shared by all "
                f"nodes, and does a launcher run on {self._site.meeting.host}?)"
            )
        return client


class Host:
    """The controller's service in this launcher, for one job."""

    def __init__(self, site: Site, identity: Identity, epoch: int, port: int, state: Path) -> None:
        self._site = site
        self._epoch = epoch
        bind = _bind_address(site.address)
        listen = f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        clock = SystemClock()
        config = Config(listen=listen, state_dir=str(state), limits=Limits(reports_per_node=50.0))
        self.service = Service(
            config,
            clock,
            Tokens([identity.entry()]),
            PolicyFile(policy=site.policy),
            parts_for=self._parts,
            make_core=self._make_core,
            context=identity.context(),
        )
        self._thread = ServiceThread(self.service)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    @property
    def outcome(self) -> JobOutcome | None:
        """How the job ended, once it has."""
        ended = [one.outcome for one in self.service.worker.jobs.known.values()]
        return next((outcome for outcome in ended if outcome is not None), None)

    @property
    def is_awaited(self) -> bool:
        """Whether a launcher waits for an answer about orders."""
        return self.service.board.waiting > 0

    def _parts(self, desk: ClusterController, join: Join) -> Parts:
        if join.key != self._site.key.text:
            raise ConfigError(
                f"this controller manages job {self._site.key.name!r}, identified by "
                f"{self._site.key.reason}, not {join.name!r}"
            )
        return Parts(desk, desk, budget_copy=self._site.budgets, epoch_min=self._epoch)

    def _make_core(
        self,
        journal: Journal,
        orders: Orders,
        settings: JobSettings,
        parts: Parts,
        clock: Clock,
        on_entry: Callable[[Entry], None],
    ) -> Core:
        def heard(entry: Entry) -> None:
            on_entry(entry)
            if not self._site.quiet:
                tell(entry)

        return make_core(journal, orders, settings, parts, clock, heard)


class HostGuard:
    """Keeps the note, and takes over where another host has fallen silent.

    One thread does what reaches the storage; another one does nothing but stop a host whose note was
    not refreshed in time, because storage can hang.
    """

    def __init__(self, site: Site, client: MeetingClient, options: RunOptions) -> None:
        self._site = site
        self._client = client
        self._options = options
        self.node: Node | None = None
        self._lock = threading.Lock()
        self._host: Host | None = None
        self._note: HostNote | None = None  # ours as host, else the one that was read last
        self._epoch = 0  # of the host that we follow
        self._refreshed_at_s = 0.0
        self._moved_at_s = time.monotonic()  # when the note was last seen to change
        self._has_explained = False
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_note, name="host-note", daemon=True),
            threading.Thread(target=self._watch_note, name="host-watch", daemon=True),
        ]

    @property
    def is_hosting(self) -> bool:
        return self._host is not None

    @property
    def _stale_s(self) -> float:
        return 2 * self._site.policy.lease_s

    def open(self) -> None:
        """Become the host where that is ours to be, else find out who is."""
        site = self._site
        is_ours = site.meeting.is_host
        if is_ours is None:
            is_ours = has_address(site.meeting.host)
        if site.folder is None:
            say(
                "no shared folder: if the node that hosts the controller dies, no other node can "
                "take over, and the job waits for it; give a shared folder with --checkpoint-dir"
            )
        if not is_ours:
            if site.folder is not None:
                self._follow(site.folder.read())
            return
        if site.folder is not None and not self._is_free(site.folder):
            return
        self._begin(site.meeting.port, is_sure=site.meeting.is_host is True)

    def _is_free(self, folder: HostFolder) -> bool:
        """Return whether no other node hosts the job; wait until that is certain."""
        note = folder.read()
        if note is None or note.outcome is not None or note.node == self._site.name:
            return True
        say(f"{note.node} hosted this job last; checking whether it still does")
        first, began_s = note, time.monotonic()
        while time.monotonic() - began_s < self._stale_s:
            time.sleep(REFRESH_S / 2)
            note = folder.read()
            if note is not None and (note.epoch, note.beat) != (first.epoch, first.beat):
                say(f"{note.node} hosts this job")
                self._follow(note)
                return False
        return True

    def _begin(self, port: int | None, *, is_sure: bool) -> bool:
        """Become the host; return whether it came to that."""
        site, folder = self._site, self._site.folder
        before = folder.read() if folder is not None else None
        secret = site.secret or (before.secret if before is not None else new_secret())
        identity = Identity(secret)
        if port is None:
            free = reserve(port_range(self._options), _bind_address(site.address))
            free.release()  # whoever takes it meanwhile has us try again at the next look
            port = free.port
        epoch = 1
        if folder is not None:
            epoch = max(folder.newest_claim(), before.epoch if before is not None else 0) + 1
        is_ours = before is None or before.node == site.name
        state = _reign(site.state, epoch, is_continued=is_ours)
        try:
            host = Host(site, identity, epoch, port, state)
            host.start()  # of two launchers on one machine, whoever has the port is the host
        except (ConfigError, JobHeldError) as error:
            if is_sure:
                raise
            say(f"another launcher hosts the controller here: {error}")
            return False
        if folder is not None and not folder.claim(epoch, site.name):
            host.stop()
            return False
        url = url_of(site.address, port)
        note = HostNote(
            key=site.key.text,
            node=site.name,
            url=url,
            secret=secret,
            fingerprint=identity.fingerprint,
            epoch=epoch,
            beat=0,
        )
        began_s = time.monotonic()
        try:
            if folder is not None:
                folder.write(note)
        except BaseException:
            host.stop()
            raise
        with self._lock:
            self._host, self._note, self._epoch = host, note, epoch
            self._refreshed_at_s = self._moved_at_s = began_s
        say(f"this node hosts the controller at {url} (epoch {epoch})")
        if self._client.point(url, secret):
            self._hurry()
        return True

    def _follow(self, note: HostNote | None) -> None:
        """Talk to the host of the note from now on."""
        if note is None or note.epoch < self._epoch:
            return
        if note.key != self._site.key.text:
            raise ConfigError(
                f"{note.node} hosts another job ({note.key}) in the same folder; this job is "
                f"{self._site.key.text}: give each job its own --checkpoint-dir"
            )
        if self._note is None or (note.epoch, note.beat) != (self._note.epoch, self._note.beat):
            self._moved_at_s = time.monotonic()
        self._epoch, self._note = note.epoch, note
        if self._client.point(note.url, self._site.secret or note.secret):
            self._hurry()

    def _hurry(self) -> None:
        link = self.node.link if self.node is not None else None
        if link is not None:
            link.hurry()

    def start(self) -> None:
        if self._site.folder is not None:
            for thread in self._threads:
                thread.start()

    def close(self) -> None:
        """Stay until the others have heard how the job ended, and stop hosting."""
        host = self._host
        if host is not None:
            outcome = host.outcome
            if outcome is not None:
                self._leave_word(outcome)
                until_s = time.monotonic() + LINGER_S
                while time.monotonic() < until_s and not self._have_all_left(host):
                    time.sleep(_LINGER_LOOK_S)
            with self._lock:
                self._host = None
            host.stop()
        self._ending.set()

    def _have_all_left(self, host: Host) -> bool:
        """Return whether nobody can be waiting for the end any more."""
        if self._site.folder is not None:
            return not host.is_awaited
        return False  # without a note there is no other way to hear of it

    def _leave_word(self, outcome: JobOutcome) -> None:
        with self._lock:
            note = self._note
            if note is None or self._site.folder is None:
                return
            self._note = note = msgspec.structs.replace(note, beat=note.beat + 1, outcome=outcome)
            try:
                self._site.folder.write(note)
            except RankmendError as error:
                log.warning("the end of the job cannot be recorded: %s", error)

    # The thread of the storage.

    def _keep_note(self) -> None:
        folder = self._site.folder
        assert folder is not None, "started with one"
        while not self._ending.wait(REFRESH_S):
            try:
                if self._host is not None:
                    self._refresh(folder)
                else:
                    self._look(folder)
            except (OSError, RankmendError) as error:
                log.warning("the note of the host: %s", error)

    def _refresh(self, folder: HostFolder) -> None:
        began_s = time.monotonic()
        found = (
            folder.read()
        )  # opened anew, which a network file system does not answer from memory
        newest = max(folder.newest_claim(), found.epoch if found is not None else 0)
        if newest > self._epoch:
            self._retire("another node has taken over")
            return
        with self._lock:
            note = self._note
            if note is None or note.outcome is not None or self._host is None:
                return
            self._note = note = msgspec.structs.replace(note, beat=note.beat + 1)
        folder.write(note)
        self._refreshed_at_s = began_s

    def _look(self, folder: HostFolder) -> None:
        note = folder.read()
        was_ours = note is not None and note.node == self._site.name and note.epoch == self._epoch
        if was_ours and folder.newest_claim() == self._epoch:
            self._begin(None, is_sure=False)  # we had stopped because the storage was away
            return
        self._follow(note)
        link = self.node.link if self.node is not None else None
        if note is None or link is None or link.launcher is None:
            return
        if note.outcome is not None and link.newest is not None:
            if link.newest.epoch == note.epoch:
                link.ended(note.outcome)
            return
        stale_s = time.monotonic() - self._moved_at_s
        if stale_s >= self._stale_s and not self._has_explained:
            self._has_explained = True
            say(f"{note.node}, which hosts the controller, has been silent for {stale_s:.0f} s")
        if stale_s >= self._stale_s + STAGGER_S * self._place(link.newest):
            self._has_explained = False
            say(f"{self._site.name} takes over hosting the controller")
            self._begin(None, is_sure=False)
        elif stale_s < self._stale_s:
            self._has_explained = False

    def _place(self, order: Order | None) -> int:
        """Return how many launchers come before this one when a host is to be found."""
        peers = order.peers if order is not None else ()
        names = [peer.node for peer in peers if self._note is None or peer.node != self._note.node]
        return names.index(self._site.name) if self._site.name in names else len(names)

    # The thread that waits for nothing.

    def _watch_note(self) -> None:
        while not self._ending.wait(REFRESH_S / 4):
            late_s = time.monotonic() - self._refreshed_at_s
            if self._host is not None and late_s >= self._site.policy.lease_s:
                self._retire(f"its note could not be refreshed for {late_s:.0f} s")

    def _retire(self, reason: str) -> None:
        with self._lock:
            host, self._host = self._host, None
            self._moved_at_s = time.monotonic()  # whoever has claimed it has time to say so
        if host is not None and host.outcome is None:
            say(f"this node no longer hosts the controller: {reason}")
        if host is not None:
            host.stop()


def _reign(state: Path, epoch: int, *, is_continued: bool) -> Path:
    """Return the folder for the journals of a host: its own last one, or a new one.

    What another host has decided since is not in ours: then the budgets beside the checkpoints
    are what the job goes on from.
    """
    known = sorted(
        int(path.name)
        for path in (state.iterdir() if state.is_dir() else ())
        if path.name.isdigit()
    )
    if is_continued and known:
        return state / str(known[-1])
    for old in known[: -_REIGNS_KEPT + 1]:
        shutil.rmtree(state / str(old), ignore_errors=True)
    return state / str(epoch)
