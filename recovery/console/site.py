"""The console over HTTP: who looks, security headers, pages, forms, live updates and files.

Reading pages hold no form, so that all viewers with the same sight share them. Each act has a page of its own, which says
what will happen; its form carries the session's secret, and the request must come from a page of this site.
"""

import asyncio
import gzip
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec
from aiohttp import web

from rankmend.clock import Clock
from rankmend.errors import ConfigError
from rankmend.version import RANKMEND_VERSION
from recovery.console.acts import REASON_CHARACTERS_MAX, AskedAct, MayAct
from recovery.console.fleet import RackFinder
from recovery.console.incident import check_command
from recovery.console.live import Live, LiveFullError
from recovery.console.manual import INDEX, PICTURES, pictures, read_page, sections
from recovery.console.pages import Page, Pages, read_act
from recovery.console.rendering import render
from recovery.console.source import PageError, Source, Viewer

log = logging.getLogger(__name__)

FORM_BYTES_MAX: Final = 16 * 1024
_STATIC: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_LEVEL: Final = (
    1  # of compression: four times as fast as the default, and the answer a tenth larger
)
_WRITE_S_MAX: Final = 10.0  # a page that takes an event more slowly has gone
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# A page that is open asks for what is in its frame, and not for the frame, which differs from viewer to viewer. Every answer
# has this header, so that a page can tell those that a proxy gave in our place.
PART_HEADER: Final = "Rankmend-Part"

# A proxy passes each event on at once, where it would collect them; nginx goes by the first of these, others by the second.
_STREAM_HEADERS: Final = {
    **HEADERS,
    PART_HEADER: "events",
    "X-Accel-Buffering": "no",
    "Cache-Control": "no-store, no-transform",
}

_LACKS_ACT: Final = "{} may read, and not act: its sign-in lacks the role act"
_SAFE_IN_PATH: Final = "/?&=%:@+,-._~"

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door(Protocol):
    """Who may come in."""

    @property
    def takes_tokens(self) -> bool:
        """Return whether people sign in with a token."""
        ...

    def check_host(self, request: web.Request) -> None:
        """Raise PageError where the address in the request isn't one of this server."""
        ...

    @property
    def provider_title(self) -> str:
        """Return what people call the identity provider at which they sign in; empty: there is none."""
        ...

    async def viewer(self, request: web.Request) -> Viewer | None:
        """Return who looks; None: nobody known, and reading isn't open to everybody."""
        ...

    async def sign_in(self, request: web.Request, token: str, answer: web.Response) -> None:
        """Put a new session's cookie into ``answer``, or raise PageError."""
        ...

    async def begin_sign_in(self, request: web.Request, there: str, answer: web.Response) -> str:
        """Return the address at the identity provider; put what its answer needs into ``answer``. Or raise PageError."""
        ...

    async def finish_sign_in(self, request: web.Request, answer: web.Response) -> str:
        """Put a new session's cookie into ``answer`` and return the page to go on with, or raise PageError."""
        ...

    async def sign_out(self, request: web.Request, answer: web.Response) -> None: ...

    async def read_body(self, request: web.Request) -> bytes:
        """Return the body of a form, at most `FORM_BYTES_MAX`, or raise PageError."""
        ...

    def spend(self, viewer: Viewer) -> None:
        """Count a request, or raise PageError where there are too many."""
        ...


class ConsoleSite:
    """The pages of one source."""

    def __init__(
        self,
        source: Source,
        door: Door,
        clock: Clock,
        *,
        racks: RackFinder = lambda: None,
        wrap: Callable[[_Handler], _Handler] = lambda handler: handler,
    ) -> None:
        """``wrap`` is put around each handler, by who serves it."""
        self._source = source
        self._door = door
        self._clock = clock
        self._wrap = wrap
        # One thread: pages must not take the interpreter from the deciding thread more than one at a time.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="console")
        self._pages = Pages(source, clock, racks, self._threads)
        self._live = Live(source.revision, self._pages.shared.pace_s)
        self._files = {
            path.relative_to(_STATIC).as_posix(): path
            for path in _STATIC.rglob("*")
            if path.suffix in _KINDS
        }

    def add_routes(self, app: web.Application) -> None:
        pages = self._pages

        def page(path: str, make: Callable[[web.Request, Viewer], Awaitable[Page]]) -> None:
            app.router.add_get(path, self.serve(partial(self._show, make)))

        page("/", lambda request, viewer: pages.fleet(viewer, request.query))
        page("/jobs", lambda request, viewer: pages.jobs(viewer, request.query))
        page("/jobs/{job}", lambda request, viewer: pages.job(viewer, request.match_info["job"]))
        page(
            "/watched/{job}",
            lambda request, viewer: pages.watched(viewer, request.match_info["job"]),
        )
        page("/incidents", lambda _request, viewer: pages.incidents(viewer))
        page("/incidents/{incident}",
             lambda request, viewer: pages.incident(viewer, request.match_info["incident"]))  # fmt: skip
        page(
            "/nodes/{node}", lambda request, viewer: pages.node(viewer, request.match_info["node"])
        )
        page("/journal", lambda request, viewer: pages.journal(viewer, request.query))
        get, post = app.router.add_get, app.router.add_post
        get("/jobs/{job}/ranks.json", self.serve(self._ranks))
        get("/act", self.serve(self._act_form))
        post("/act", self.serve(self._act))
        get("/sign-in", self.serve(self._sign_in_form))
        post("/sign-in", self.serve(self._sign_in))
        get("/sign-in/oidc", self.serve(self._begin_sign_in))
        get("/sign-in/oidc/callback", self.serve(self._finish_sign_in))
        post("/sign-out", self.serve(self._sign_out))
        get("/live", self.serve(self._stream))
        get("/static/{name:.+}", self.serve(self._file))
        get("/docs", self.serve(self._manual_index))
        get("/docs/{name:.*}", self.serve(self._manual))

    def close(self) -> None:
        self._live.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def streams(self) -> int:
        return len(self._live)

    # Every request.

    def serve(self, handler: _Handler) -> _Handler:
        """Return the handler with headers and error pages."""

        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                self._door.check_host(request)
                answer = await handler(request)
            except PageError as error:
                answer = self._problem(request, str(error), error.status)
            except ConfigError as error:  # Jinja2 is missing
                answer = web.Response(status=503, text=f"{error}\n")
            except (asyncio.TimeoutError, TimeoutError):
                answer = self._problem(request, "The controller does not answer. Try again.", 503)
            except ConnectionError:
                raise  # the browser has gone
            except Exception:
                log.exception("page failed", extra={"path": request.path[:200]})
                text = "This page failed. The log of the controller has the traceback."
                answer = self._problem(request, text, 500)
            if not answer.prepared:
                for name, value in HEADERS.items():
                    answer.headers.setdefault(name, value)
                answer.headers.setdefault(PART_HEADER, "whole")
            return answer

        return self._wrap(serve)

    def _problem(self, request: web.Request, text: str, status: int) -> web.Response:
        return self._answer(
            request,
            None,
            Page("problem.html.j2", "Problem", {"text": text, "status": status}),
            status,
        )

    def _answer(
        self, request: web.Request, viewer: Viewer | None, page: Page, status: int = 200
    ) -> web.Response:
        body = self._body_of(page, viewer, root_of(request))
        return self._framed(request, viewer, page.title, body, status)

    def _body_of(self, page: Page, viewer: Viewer | None, root: str) -> str:
        return render(
            page.template,
            root=root,
            may=MayAct() if viewer is None else viewer.may,
            check=partial(check_command, own_node=self._source.own_node),
            csrf="" if viewer is None else viewer.csrf,
            is_controller=self._source.is_controller,
            now_unix_s=self._clock.unix_s(),
            **page.values,
        )

    def _framed(
        self, request: web.Request, viewer: Viewer | None, title: str, body: str, status: int = 200
    ) -> web.Response:
        """Return a whole page: what all share, in the frame that names the viewer."""
        text = render(
            "frame.html.j2",
            root=root_of(request),
            title=title,
            body=body,
            viewer=viewer,
            path=request.path,
            source_title=self._source.title,
            takes_tokens=self._door.takes_tokens,
            version=RANKMEND_VERSION,
            # A page that asks for something must not change under the person's hands.
            is_live=status == 200
            and request.method == "GET"
            and request.path not in ("/act", "/sign-in", "/sign-in/oidc", "/sign-in/oidc/callback")
            and not request.path.startswith("/docs"),
            revision=self._source.revision(),
            now_unix_s=self._clock.unix_s(),
        )
        return web.Response(text=text, status=status, content_type="text/html")

    async def _known(self, request: web.Request) -> Viewer | None:
        viewer = await self._door.viewer(request)
        if viewer is not None:
            self._door.spend(viewer)
        return viewer if viewer is not None and viewer.may_read else None

    def _turned_away(self, request: web.Request) -> web.Response:
        """Answer who isn't signed in."""
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and request.method == "GET":
            # A link in a message: the browser keeps a SameSite=Strict cookie back until the page itself asks.
            answer = web.Response(text="", content_type="text/html")
            answer.headers["Refresh"] = "0"
            return answer
        if request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate":
            raise PageError("sign in", 401)
        there = quote(request.path_qs[:500], safe="")
        return web.Response(
            status=303, headers={"Location": f"{root_of(request)}/sign-in?next={there}"}
        )

    # Pages.

    async def _show(
        self, make: Callable[[web.Request, Viewer], Awaitable[Page]], request: web.Request
    ) -> web.StreamResponse:
        viewer = await self._known(request)
        if viewer is None:
            return self._turned_away(request)

        async def read() -> _Shown:
            page = await make(request, viewer)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._threads, self._shown, page, viewer, root_of(request)
            )

        key = ("page", request.path_qs[:1000], viewer.sight)
        shown = await self._pages.shared.get(key, read)
        if request.headers.get(PART_HEADER) == "page":
            answer = _packed(request, shown.packed, "text/html")
            answer.headers[PART_HEADER] = "page"
            return answer
        return self._framed(request, viewer, shown.title, shown.body)

    def _shown(self, page: Page, viewer: Viewer, root: str) -> "_Shown":
        body = self._body_of(page, viewer, root)
        return _Shown(page.title, body, gzip.compress(body.encode(), _LEVEL))

    async def _ranks(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._known(request)
        if viewer is None:
            raise PageError("sign in", 401)
        job_id = request.match_info["job"]

        async def read() -> bytes:
            found = await self._pages.ranks(viewer, job_id)
            loop = asyncio.get_running_loop()
            # Of 16,000 ranks these are 700 kB: made once for all viewers, and not in the event loop.
            return await loop.run_in_executor(
                self._threads, lambda: gzip.compress(msgspec.json.encode(found), _LEVEL)
            )

        packed = await self._pages.shared.get(("ranks.json", job_id, viewer.sight), read)
        return _packed(request, packed, "application/json")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = self._files.get(request.match_info["name"])
        if path is None:
            raise PageError(f"no file {request.path[:80]}", 404)
        text = await asyncio.get_running_loop().run_in_executor(self._threads, path.read_bytes)
        answer = web.Response(body=text, content_type=_KINDS[path.suffix], charset="utf-8")
        # The page asks for it by version: another version is another address.
        answer.headers["Cache-Control"] = "public, max-age=86400"
        return answer

    # The documentation: the same for all who may read.

    async def _manual_index(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=303, headers={"Location": f"{root_of(request)}/docs/{INDEX}"})

    async def _manual(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._known(request)
        if viewer is None:
            return self._turned_away(request)
        name = request.match_info["name"]
        loop = asyncio.get_running_loop()
        if picture := pictures().get(name):
            content = await loop.run_in_executor(self._threads, picture.read_bytes)
            return web.Response(body=content, content_type=PICTURES[picture.suffix])
        if not name:
            return await self._manual_index(request)

        def make() -> _Shown | None:
            found = read_page(name)
            if found is None:
                return None
            above = "/".join([".."] * name.count("/")) or "."
            values = {"page": found, "path": name, "above": above, "sections": sections()}
            page = Page("manual.html.j2", found.title, values)
            return self._shown(page, viewer, root_of(request))

        shown = await loop.run_in_executor(self._threads, make)
        if shown is None:
            raise PageError(f"no page {request.path[:80]}", 404)
        return self._framed(request, viewer, shown.title, shown.body)

    # Acts.

    async def _act_form(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._known(request)
        if viewer is None or not viewer.may_act:
            if viewer is not None and not self._door.takes_tokens:
                raise PageError("This console only reads: use the commands.", 403)
            if viewer is not None and viewer.is_signed_in:
                raise PageError(_LACKS_ACT.format(viewer.name), 403)
            return self._turned_away(request)
        page = await self._pages.act_form(viewer, request.query, secrets.token_hex(16))
        return self._answer(request, viewer, page)

    async def _act(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._known(request)
        if viewer is None:
            raise PageError("sign in first", 401)
        form = await self._read_form(request)
        self._check_csrf(form, viewer)
        if not viewer.may_act:
            raise PageError(_LACKS_ACT.format(viewer.name), 403)
        name, about = read_act(form)
        reason = form.get("reason", "").strip()
        if not reason:
            raise PageError("Say why: the journal keeps the reason.", 400)
        if len(reason) > REASON_CHARACTERS_MAX:
            raise PageError(
                f"the reason has {len(reason)} characters; the limit is {REASON_CHARACTERS_MAX}",
                400,
            )
        done = await self._source.act(
            viewer, AskedAct(name, about, reason, form.get("key", "")[:64])
        )
        self._pages.shared.forget()
        back = about.get("incident") and f"/incidents/{quote(about['incident'], safe='')}"
        back = back or (about.get("node") and f"/nodes/{quote(about['node'], safe='')}")
        kind, _colon, scoped = about.get("scope", "").partition(":")
        if not back and scoped:
            back = f"/{kind}s/{quote(scoped, safe='')}"
        back = back or (f"/jobs/{about['job']}" if about.get("job") else "/")
        return self._answer(
            request, viewer, Page("done.html.j2", "Done", {"text": done, "back": back})
        )

    async def _read_form(self, request: web.Request) -> dict[str, str]:
        _check_origin(request)
        if request.content_type != "application/x-www-form-urlencoded":
            raise PageError("this takes a form", 415)
        body = await self._door.read_body(request)
        try:
            return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=32))
        except (UnicodeDecodeError, ValueError) as error:
            raise PageError(f"cannot read the form: {error}", 400) from error

    def _check_csrf(self, form: Mapping[str, str], viewer: Viewer) -> None:
        given = form.get("csrf", "")
        if not viewer.csrf or not secrets.compare_digest(given.encode(), viewer.csrf.encode()):
            raise PageError(
                "This form is not from your present session. Open the page again, and nothing was done.",
                403,
            )

    # Signing in and out.

    async def _sign_in_form(self, request: web.Request) -> web.StreamResponse:
        there = _own_path(request.query.get("next", "/"))
        if not self._door.takes_tokens:
            return web.Response(status=303, headers={"Location": f"{root_of(request)}{there}"})
        return self._answer(request, None, self._sign_in_page(there))

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        form = await self._read_form(request)
        there = _own_path(form.get("next", "/"))
        answer = web.Response(status=303, headers={"Location": f"{root_of(request)}{there}"})
        try:
            await self._door.sign_in(request, form.get("token", "").strip(), answer)
        except PageError as error:
            page = self._sign_in_page(there, str(error))
            return self._answer(request, None, page, error.status)
        return answer

    async def _begin_sign_in(self, request: web.Request) -> web.StreamResponse:
        there, answer = _own_path(request.query.get("next", "/")), web.Response(status=303)
        try:
            answer.headers["Location"] = await self._door.begin_sign_in(request, there, answer)
        except PageError as error:
            page = self._sign_in_page(there, str(error))
            return self._answer(request, None, page, error.status)
        return answer

    async def _finish_sign_in(self, request: web.Request) -> web.StreamResponse:
        answer = web.Response(text="", content_type="text/html")
        try:
            there = _own_path(await self._door.finish_sign_in(request, answer))
        except PageError as error:
            page = self._sign_in_page("/", str(error))
            refused = self._answer(request, None, page, error.status)
            refused.cookies.update(answer.cookies)
            return refused
        # Not a redirect: the browser would count the next page as the provider's link, and keep a SameSite=Strict cookie back.
        answer.headers["Refresh"] = f"0; url={root_of(request)}{quote(there, safe=_SAFE_IN_PATH)}"
        return answer

    def _sign_in_page(self, there: str, problem: str = "") -> Page:
        values = {"next": there, "problem": problem, "provider": self._door.provider_title}
        return Page("sign_in.html.j2", "Sign in", values)

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._door.viewer(request)
        form = await self._read_form(request)
        if viewer is not None and viewer.is_signed_in:
            self._check_csrf(form, viewer)
        answer = web.Response(status=303, headers={"Location": f"{root_of(request)}/sign-in"})
        await self._door.sign_out(request, answer)
        return answer

    # Live.

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        viewer = await self._known(request)
        if viewer is None:
            raise PageError("sign in", 401)
        events = self._live.events(
            viewer.name if viewer.is_signed_in else viewer.peer, partial(_has_left, request)
        )
        try:
            first = await anext(events)
        except LiveFullError as error:
            raise PageError("too many pages are open", 503) from error
        answer = web.StreamResponse(headers=_STREAM_HEADERS)
        answer.content_type, answer.charset = "text/event-stream", "utf-8"
        try:
            await answer.prepare(request)
            await answer.write(first)
            async for event in events:
                if await self._door.viewer(request) is None:
                    break  # signed out, or the token is revoked
                await asyncio.wait_for(answer.write(event), _WRITE_S_MAX)
        except (ConnectionError, asyncio.TimeoutError):
            pass
        finally:
            await events.aclose()
        return answer


@dataclass(frozen=True, slots=True)
class _Shown:
    """What all viewers of a page share: it holds no secret of any of them, so it may be compressed."""

    title: str
    body: str
    packed: bytes


def root_of(request: web.Request) -> str:
    """Return the way from this page to the fleet's, without its last slash.

    Every address on a page begins with it, so that a proxy may serve the console below any path and say so to nobody.
    """
    return "/".join([".."] * (request.rel_url.raw_path.count("/") - 1)) or "."


def _has_left(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _packed(request: web.Request, packed: bytes, content_type: str) -> web.Response:
    """Return what is compressed already; unpacked for whoever does not take that."""
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return web.Response(
            body=gzip.decompress(packed), content_type=content_type, charset="utf-8"
        )
    headers = {"Content-Encoding": "gzip"}
    return web.Response(body=packed, content_type=content_type, charset="utf-8", headers=headers)


def _own_path(text: str) -> str:
    """Return the path to go on with: one of this site, never another site's."""
    parts = urlsplit(text)
    is_own = (
        not parts.scheme
        and not parts.netloc
        and text.startswith("/")
        and text[1:2] not in ("/", "\\")
    )
    return text if is_own and text.isprintable() and len(text) < 1000 else "/"


def _check_origin(request: web.Request) -> None:
    """Raise PageError where a page of another site sends this form.

    `Sec-Fetch-Site` decides where there is one: with `Referrer-Policy: no-referrer` browsers send `Origin: null`.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        is_own = site == "same-origin"
    else:
        is_own = origin is None or urlsplit(origin).netloc == request.host
    if not is_own:
        raise PageError("This form comes from another site. Nothing was done.", 403)
