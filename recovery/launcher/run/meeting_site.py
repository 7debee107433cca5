"""The place where the launchers of a job meet: its settings and addresses, and the note that names its host.

    <checkpoint folder>/.rankmend/host.json     the host, its address, the secret; 0600, replaced each 2 s
    <checkpoint folder>/.rankmend/host-<epoch>  claims: the launcher that makes one (O_EXCL) is host of that epoch

A host's beat is a growing number; a reader measures by its own clock how long it has not changed.
"""

import os
import re
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from rankmend.errors import ConfigError, LaunchError, RankmendError, SourceError
from rankmend.files import create_file, list_numbers, read_if_there, replace_file
from rankmend.own_folder import refuse_foreign_link
from recovery.api.contact import Contact, is_loopback
from recovery.api.controller_errors import UnreachableError
from recovery.api.launcher_client import LauncherClient
from recovery.api.wire import WAIT_S_SAFE, Accepted, Join, JoinAnswer
from recovery.checkpoints.budget_writer import BudgetWriter
from recovery.checkpoints.marks import BESIDE
from recovery.journal.folder.job_key import JobKey
from recovery.journal.job_records import JobOutcome
from recovery.journal.limits import Policy
from recovery.launcher.run.options import Meeting
from recovery.launcher.run.slurm.own_allocation import OwnSlurm
from recovery.messages.exchange import Order, Report
from recovery.service.meeting_secret import Identity

BYTES_MAX: Final = 64 * 1024
CLAIMS_KEPT: Final = 10
_CLAIM: Final = re.compile(r"host-(\d{1,9})")


class HostNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note beside the checkpoints that names the host of a job's controller, without a service."""

    key: str  # the job's key
    node: str
    url: str
    secret: str
    fingerprint: str
    epoch: int
    beat: int
    outcome: JobOutcome | None = None  # the job's outcome under this host
    slurm_run: str = ""  # start of the Slurm step whose launchers meet; "": not named by Slurm


class HostFolder:
    """The note and the claims. Every call accesses the storage and may wait for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "host.json"

    def read(self) -> HostNote | None:
        """Return the note, or None if there is none."""
        body = read_if_there(
            self._path, BYTES_MAX, SourceError, follow_link=False, check=self._refuse_unless_private
        )
        if body is None:
            return None
        try:
            return msgspec.json.decode(body, type=HostNote)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SourceError(f"{self._path} is not a host's note: {error}") from error

    def _refuse_unless_private(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"{self._path} belongs to uid {status.st_uid} with mode "
                f"{status.st_mode & 0o777:04o}: it must be yours and unreadable for others"
            )

    def write(self, note: HostNote) -> None:
        """Replace the note; return once it is on stable storage."""
        self._make_folder()
        replace_file(self._path, msgspec.json.encode(note), LaunchError)

    def forget(self) -> None:
        """Remove the note, which came with a copy of another job's folder."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise LaunchError(f"cannot remove {self._path}: {error.strerror}") from error

    def newest_claim(self) -> int:
        """Return the highest claimed epoch; 0 for none."""
        return max(self._claims(), default=0)

    def claim(self, epoch: int, node: str) -> bool:
        """Claim this epoch; return False if another node already has."""
        self._make_folder()
        try:
            create_file(self.folder / f"host-{epoch}", f"{node}\n".encode(), LaunchError)
        except FileExistsError:
            return False
        for old in self._claims():
            if old <= epoch - CLAIMS_KEPT:
                (self.folder / f"host-{old}").unlink(missing_ok=True)
        return True

    def _claims(self) -> list[int]:
        return list_numbers(self.folder, _CLAIM, SourceError)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            refuse_foreign_link(self.folder, LaunchError)
        except OSError as error:
            raise LaunchError(f"cannot make {self.folder}: {error.strerror}") from error


def find_host(checkpoint_dir: Path) -> HostNote:
    """Return the note of the host of the job with these checkpoints, or raise with why there is none."""
    note = HostFolder(checkpoint_dir / BESIDE).read()
    if note is None:
        raise ConfigError(
            f"no launcher has left a note in {checkpoint_dir / BESIDE}: either no job of rankmend run "
            f"--rdzv-endpoint uses this checkpoint folder, or none of its launchers has started yet"
        )
    if note.outcome is not None:
        raise ConfigError(f"the job of {checkpoint_dir} has ended: {note.outcome.reason}")
    return note


@dataclass(frozen=True, slots=True)
class Site:
    """The meeting, as this launcher's command line and node describe it."""

    meeting: Meeting
    key: JobKey
    folder: HostFolder | None  # None: no shared storage, so no other launcher can take over
    secret: str | None  # from a token file
    name: str
    address: str
    state: Path
    policy: Policy
    budgets: BudgetWriter | None
    slurm: OwnSlurm | None = None  # the Slurm job in which the nodes meet


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


def bind_address(address: str) -> str:
    """Return the address on which to listen: only loopback stays loopback, all else is every address."""
    return address if is_loopback(address) else ""


class MeetingClient:
    """Reaches the launcher that hosts the controller at the moment (`recovery.launcher.membership.remote.Client`)."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._client: LauncherClient | None = None
        self._target: tuple[str, str] | None = None
        self._refusal: RankmendError | None = None
        if site.folder is None:
            assert site.secret is not None, "without a folder there is a token file"
            self.point(url_of(site.meeting.host, site.meeting.port), site.secret)

    def point(self, url: str, secret: str) -> bool:
        """Use this host from now on; return whether it has changed."""
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

    def refuse(self, reason: RankmendError) -> None:
        """Have callers that wait for a host give up, unless there has been one."""
        self._refusal = reason

    def check(self) -> None:
        """Raise the reason to give up, if there is one and there has been no host."""
        if self._client is None and self._refusal is not None:
            raise self._refusal

    @property
    def url(self) -> str:
        client = self._client
        return client.url if client is not None else str(self._site.meeting)

    @property
    def wait_s(self) -> float:
        client = self._client
        return WAIT_S_SAFE if client is None else client.wait_s

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
        self.check()
        client = self._client
        if client is None:
            folder = self._site.folder
            assert folder is not None, "without a folder the host is known from the start"
            raise UnreachableError(
                f"no host has left a note in {folder.folder} yet (is the folder shared by all "
                f"nodes, and does a launcher run on {self._site.meeting.host}?)"
            )
        return client
