"""Who may come into the controller's console: tokens of the API, in sessions.

A token is typed into a form once and never kept; the session keeps its hash, and ends when the token does.
"""

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from aiohttp import web

from rankmend.errors import RankmendError
from rankmend.listening import plain_address
from recovery.console.sessions import AGE_S_MAX, SessionBook, SignedIn
from recovery.console.site import FORM_BYTES_MAX
from recovery.console.source import PageError, Viewer
from recovery.service.access import BURST_S, Rate, names_loopback
from recovery.service.body_reader import BodyReader
from recovery.service.error_answers import answer_error
from recovery.service.permission import may_act_on
from recovery.service.roles import LOOPBACK, READERS, Role, Subject, TooManyError
from recovery.service.tokens import hash_of
from recovery.service.web import Api

_OPEN: Final = Subject("visitor", frozenset({Role.FLEET_READ}), how="open console")
_LOOPBACK_KEY: Final = "loopback"


class ServiceDoor:
    """Belongs to the event loop."""

    def __init__(self, api: Api, is_encrypted: Callable[[], bool]) -> None:
        self._api = api
        self._is_encrypted = is_encrypted
        self._bodies = BodyReader()
        self.sessions = SessionBook()
        self._loopback_session: SignedIn | None = None

    @property
    def takes_tokens(self) -> bool:
        return self._api.doorman.tokens is not None

    def check_host(self, request: web.Request) -> None:
        """Without tokens every process of this machine may act, so no other name may lead a browser here (DNS rebinding)."""
        if not self.takes_tokens and not names_loopback(request.host):
            raise PageError(
                f"this console answers on localhost only, not as {request.host!r:.80}", 421
            )

    def viewer(self, request: web.Request) -> Viewer | None:
        clock, peer = self._api.backend.clock, plain_address(request.remote or "?")
        session = self._session(request)
        tokens = self._api.doorman.tokens
        if tokens is None:
            return _viewer(LOOPBACK, peer, self._loopback_csrf())
        if session is not None:
            now = datetime.fromtimestamp(clock.unix_s(), timezone.utc)
            subject = tokens.find_by_hash(session.key, now)
            if subject is not None:
                return _viewer(subject, peer, session.csrf, is_signed_in=True)
        return _viewer(_OPEN, peer) if self._api.backend.config.console.open else None

    def _loopback_csrf(self) -> str:
        """Return the secret of forms where nobody signs in: a page of another site can't read it."""
        now_s = self._api.backend.clock.now_s()
        session = self._loopback_session
        if session is None or now_s - session.opened_at_s > AGE_S_MAX:
            _text, session = SessionBook().open(_LOOPBACK_KEY, now_s)
            self._loopback_session = session
        return session.csrf

    def sign_in(self, request: web.Request, token: str, answer: web.Response) -> None:
        api, peer = self._api, plain_address(request.remote or "?")
        try:
            subject = api.admit(f"Bearer {token}", None, peer)
        except RankmendError as error:
            found = answer_error(error, "sign-in", is_stopping=False, is_taken_up=True)
            raise PageError(found.problem.error, found.status) from error
        if not subject.roles & {*READERS, Role.ACT}:
            raise PageError(
                f"the token of {subject.name} has none of the roles read, fleet-read and act", 403
            )
        text, _session = self.sessions.open(hash_of(token), api.backend.clock.now_s())
        answer.set_cookie(
            self._cookie(request),
            text,
            max_age=int(AGE_S_MAX),
            path="/",
            httponly=True,
            secure=self._is_secure(request),
            samesite="Strict",
        )

    def sign_out(self, request: web.Request, answer: web.Response) -> None:
        self.sessions.close(request.cookies.get(self._cookie(request), ""))
        answer.del_cookie(
            self._cookie(request), path="/", secure=self._is_secure(request), httponly=True
        )

    async def read_body(self, request: web.Request) -> bytes:
        backend = self._api.backend
        try:
            return await self._bodies.read(
                request, _OPEN, FORM_BYTES_MAX, backend.config.limits.bodies_bytes
            )
        except RankmendError as error:
            found = answer_error(error, "form", is_stopping=False, is_taken_up=True)
            raise PageError(found.problem.error, found.status) from error

    def spend(self, viewer: Viewer) -> None:
        backend = self._api.backend
        per_s = backend.config.limits.reads
        who = viewer.name if viewer.is_signed_in else viewer.peer
        try:
            rate = Rate(per_s, per_s * BURST_S)
            backend.rates.spend("pages", who, rate, backend.clock.now_s())
        except TooManyError as error:
            raise PageError(str(error), 429) from error

    def _is_secure(self, request: web.Request) -> bool:
        """Return whether the browser speaks TLS, to us or to a proxy. Whoever lies about it harms only himself."""
        forwarded = request.headers.get("X-Forwarded-Proto", "").lower()
        return self._is_encrypted() or forwarded == "https"

    def _cookie(self, request: web.Request) -> str:
        return "__Host-rankmend" if self._is_secure(request) else "rankmend"

    def _session(self, request: web.Request) -> SignedIn | None:
        text = request.cookies.get(self._cookie(request))
        if not text or len(text) > 200:
            return None
        return self.sessions.find(text, self._api.backend.clock.now_s())


def _viewer(subject: Subject, peer: str, csrf: str = "", *, is_signed_in: bool = False) -> Viewer:
    return Viewer(
        name=subject.name,
        peer=peer,
        sees=subject.sees,
        may_read=bool(subject.roles & READERS),
        has_act=Role.ACT in subject.roles,
        reach=may_act_on(subject),
        csrf=csrf,
        is_signed_in=is_signed_in,
        how=subject.how,
        subject=subject,
    )


def subject_of(viewer: Viewer) -> Subject:
    """Return whom the API knows as this viewer."""
    assert isinstance(viewer.subject, Subject), "made here"
    return viewer.subject
