"""Who may come into the console of a state folder: the browser that was given the printed address, and no other.

The address holds a secret that works once. The browser gets a cookie for it; whoever opens the address again, from a
shell's history or a proxy's log, gets nothing.
"""

import secrets
from collections.abc import Callable
from typing import Final

from aiohttp import web

from rankmend.clock import Clock
from recovery.api.contact import is_loopback
from recovery.console.sessions import AGE_S_MAX, SessionBook
from recovery.console.site import FORM_BYTES_MAX
from recovery.console.source import PageError, Viewer

_KEY: Final = "local"
_FAILURES_MAX: Final = (
    100  # wrong secrets; then no address works any more, and the command must be started again
)


class LocalDoor:
    """Belongs to the event loop."""

    takes_tokens = False
    provider_title = ""

    def __init__(self, clock: Clock, told: Callable[[str], None], user: str) -> None:
        """``told`` gets each new secret."""
        self._clock = clock
        self._told = told
        self._user = user
        self._sessions = SessionBook()
        self._secret = ""
        self._failures = 0
        self.port = 0

    def begin(self) -> None:
        """Make a secret and tell it."""
        self._secret = secrets.token_urlsafe(24)
        self._told(self._secret)

    async def open(self, request: web.Request) -> web.StreamResponse:
        """Take a secret, and give a cookie for it."""
        given = request.match_info["secret"].encode()
        if self._failures >= _FAILURES_MAX or not secrets.compare_digest(
            given, self._secret.encode()
        ):
            self._failures += 1
            raise PageError(
                "This address was used already, or is not the one that rankmend console has printed last.",
                403,
            )
        text, _session = self._sessions.open(_KEY, self._clock.now_s())
        answer = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store"})
        answer.set_cookie(
            self._cookie, text, max_age=int(AGE_S_MAX), path="/", httponly=True, samesite="Strict"
        )
        self.begin()
        return answer

    def check_host(self, request: web.Request) -> None:
        """Refuse every other name: a page of another site could have its own name lead here (DNS rebinding)."""
        name, _colon, port = request.host.rpartition(":")
        if not is_loopback(name) or port != str(self.port):
            raise PageError(
                f"this console answers on 127.0.0.1 only, not as {request.host!r:.80}", 421
            )

    async def viewer(self, request: web.Request) -> Viewer | None:
        text = request.cookies.get(self._cookie, "")
        session = self._sessions.find(text, self._clock.now_s()) if text else None
        if session is None:
            raise PageError("Open the address that rankmend console has printed last.", 401)
        return Viewer(self._user, request.remote or "?", _KEY, csrf=session.csrf)

    async def sign_in(self, request: web.Request, token: str, answer: web.Response) -> None:
        del request, token, answer
        raise PageError("this console has no sign-in", 404)

    async def begin_sign_in(self, request: web.Request, there: str, answer: web.Response) -> str:
        del request, there, answer
        raise PageError("this console has no sign-in", 404)

    async def finish_sign_in(self, request: web.Request, answer: web.Response) -> str:
        del request, answer
        raise PageError("this console has no sign-in", 404)

    async def sign_out(self, request: web.Request, answer: web.Response) -> None:
        self._sessions.close(request.cookies.get(self._cookie, ""))
        answer.del_cookie(self._cookie, path="/")

    async def read_body(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > FORM_BYTES_MAX:
            raise PageError("the form is too large", 413)
        return await request.content.read(FORM_BYTES_MAX)

    def spend(self, viewer: Viewer) -> None:
        """Count nothing: there is one viewer, and the machine is his."""

    @property
    def _cookie(self) -> str:
        return f"rankmend-{self.port}"  # cookies don't tell ports apart
