"""Reaches the launcher that hosts the controller of a meeting, whichever it is at the moment."""

import threading

from rankmend.errors import RankmendError
from recovery.api.contact import Contact
from recovery.api.controller_errors import UnreachableError
from recovery.api.launcher_client import LauncherClient
from recovery.api.wire import WAIT_S_SAFE, Accepted, Join, JoinAnswer
from recovery.messages.exchange import Order, Report
from recovery.run.meeting_site import Site, url_of
from recovery.service.meeting_secret import Identity


class MeetingClient:
    """A client of the current host (`recovery.launcher.membership.remote.Client`)."""

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
        """Have whoever waits for a host give up, unless there has been one."""
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
