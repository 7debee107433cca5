"""Who may come into the controller's console: tokens of the API and people whom an identity provider knows, in sessions.

A token is typed into a form once and never kept; the session keeps its hash, and ends when the token does. A person's session keeps
what the provider said, and what that allows is decided anew at each request, by the settings then.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final, Literal

import msgspec
from aiohttp import web

from rankmend.errors import RankmendError
from rankmend.listening import plain_address
from recovery.console.sessions import (
    AGE_S_MAX,
    COOKIE_CHARACTERS_MAX,
    SessionBook,
    SignedIn,
    name_of,
)
from recovery.console.site import FORM_BYTES_MAX
from recovery.console.source import PageError, Viewer
from recovery.service.http.access import BURST_S, Rate, names_loopback
from recovery.service.http.call import BodyReader
from recovery.service.http.error_answers import answer_error
from recovery.service.http.permission import may_act_on
from recovery.service.http.web import Api
from recovery.service.roles import LOOPBACK, READERS, Role, Subject, TooManyError
from recovery.service.sign_in.console_sessions import ConsoleSessions
from recovery.service.sign_in.identity_provider import (
    SIGN_IN_S_MAX,
    IdentityProvider,
    ProvenPerson,
    SignInRefusedError,
    subject_of_identity,
)
from recovery.service.tokens import hash_of

log = logging.getLogger(__name__)

_OPEN: Final = Subject("visitor", frozenset({Role.FLEET_READ}), how="open console")
_LOOPBACK_KEY: Final = "loopback"
_SIGN_INS: Final = Rate(
    1.0, 100.0
)  # of one address, begun at the provider: all people may come from a proxy's


class ServiceDoor:
    """Belongs to the event loop."""

    def __init__(
        self,
        api: Api,
        is_encrypted: Callable[[], bool],
        sessions: ConsoleSessions,
        provider: IdentityProvider | None,
    ) -> None:
        self._api = api
        self._is_encrypted = is_encrypted
        self._bodies = BodyReader()
        self.sessions = sessions
        self.provider = provider  # a reload replaces it
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

    @property
    def provider_title(self) -> str:
        return "" if self.provider is None else self.provider.section.title

    async def viewer(self, request: web.Request) -> Viewer | None:
        peer = plain_address(request.remote or "?")
        if self._api.doorman.tokens is None:
            return _viewer(LOOPBACK, peer, self._loopback_csrf())
        session = await self._session(request)
        subject = None if session is None else self._subject_of(session)
        if session is not None and subject is not None:
            return _viewer(subject, peer, session.csrf, is_signed_in=True)
        return _viewer(_OPEN, peer) if self._api.backend.config.console.open else None

    def _subject_of(self, session: SignedIn) -> Subject | None:
        """Return whose session it is, while what it was opened with is in force."""
        clock, tokens = self._api.backend.clock, self._api.doorman.tokens
        if session.identity:
            section = None if self.provider is None else self.provider.section
            if (
                section is None
                or clock.now_s() - session.opened_at_s > section.session_hours * 3600
            ):
                return None
            return subject_of_identity(_decode(session.identity), section)
        if tokens is None:
            return None
        return tokens.find_by_hash(
            session.key, datetime.fromtimestamp(clock.unix_s(), timezone.utc)
        )

    def _loopback_csrf(self) -> str:
        """Return the secret of forms where nobody signs in: a page of another site can't read it."""
        now_s = self._api.backend.clock.now_s()
        session = self._loopback_session
        if session is None or now_s - session.opened_at_s > AGE_S_MAX:
            _text, session = SessionBook().open(_LOOPBACK_KEY, now_s)
            self._loopback_session = session
        return session.csrf

    async def sign_in(self, request: web.Request, token: str, answer: web.Response) -> None:
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
        text = await self.sessions.open(hash_of(token))
        self._set_cookie(request, answer, self._cookie(request), text, AGE_S_MAX, "Strict")

    async def begin_sign_in(self, request: web.Request, there: str, answer: web.Response) -> str:
        provider, backend = self._demand_provider(), self._api.backend
        peer = plain_address(request.remote or "?")
        try:
            backend.rates.spend("sign-ins", peer, _SIGN_INS, backend.clock.now_s())
            begun = await provider.begin(there)
        except TooManyError as error:
            raise PageError(str(error), 429) from error
        except SignInRefusedError as error:
            raise PageError(str(error), error.status) from error
        # The provider's page leads back here, which is when a browser keeps a Strict cookie to itself.
        name = f"{self._cookie(request)}-sign-in"
        self._set_cookie(request, answer, name, begun.cookie, SIGN_IN_S_MAX, "Lax")
        return begun.url

    async def finish_sign_in(self, request: web.Request, answer: web.Response) -> str:
        provider = self._demand_provider()
        name, peer = f"{self._cookie(request)}-sign-in", plain_address(request.remote or "?")
        answer.del_cookie(name, path="/", secure=self._is_secure(request), httponly=True)
        try:
            self._api.refuse_after_failures(peer)
            done = await provider.finish(
                request.query, request.cookies.get(name, ""), self.sessions.use_sign_in
            )
        except TooManyError as error:
            raise PageError(str(error), 429) from error
        except SignInRefusedError as error:
            self._api.count_failure(peer)
            log.warning("sign-in refused", extra={"peer": peer, "error": str(error)})
            raise PageError(str(error), error.status) from error
        identity = done.identity
        key = name_of(f"oidc {provider.section.issuer} {identity.subject}")
        text = await self.sessions.open(key, msgspec.json.encode(identity))
        self._set_cookie(request, answer, self._cookie(request), text, AGE_S_MAX, "Strict")
        log.info("signed in", extra={"person": identity.name, "how": f"oidc {identity.subject}"})
        return done.there

    def _demand_provider(self) -> IdentityProvider:
        if self.provider is None:
            raise PageError("this controller has no identity provider: sign in with a token", 404)
        return self.provider

    async def sign_out(self, request: web.Request, answer: web.Response) -> None:
        await self.sessions.close(request.cookies.get(self._cookie(request), ""))
        answer.del_cookie(
            self._cookie(request), path="/", secure=self._is_secure(request), httponly=True
        )

    def _set_cookie(
        self,
        request: web.Request,
        answer: web.Response,
        name: str,
        text: str,
        age_s: float,
        same_site: Literal["Strict", "Lax"],
    ) -> None:
        answer.set_cookie(
            name,
            text,
            max_age=int(age_s),
            path="/",
            httponly=True,
            secure=self._is_secure(request),
            samesite=same_site,
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

    async def _session(self, request: web.Request) -> SignedIn | None:
        text = request.cookies.get(self._cookie(request))
        if not text or len(text) > COOKIE_CHARACTERS_MAX:
            return None
        return await self.sessions.find(text)


def _decode(identity: bytes) -> ProvenPerson:
    """Return what a controller of this database has stored; another version of rankmend may have."""
    try:
        return msgspec.json.decode(identity, type=ProvenPerson)
    except msgspec.DecodeError as error:
        raise PageError(
            "Your session is of another version of rankmend: sign in again.", 401
        ) from error


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
