"""Carries reports and polls past aiohttp's search for a route, and writes their answers in one piece.

They are nearly all of a controller's requests. The search, its match and the middlewares around the
handler took a tenth of the event loop. A request that is not plain (another method, an escaped
character, `Expect`) goes through the application, to the same handler.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import Final, TypeAlias

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Serve: TypeAlias = Callable[[web.BaseRequest, Mapping[str, str]], Awaitable[web.StreamResponse]]

_PART: Final = r"[A-Za-z0-9._-]+"  # what means the same escaped or not
_REPORT: Final = re.compile(rf"/v1/jobs/(?P<job>{_PART})/reports")
_ORDER: Final = re.compile(rf"/v1/jobs/(?P<job>{_PART})/orders/(?P<node>{_PART})(?:\?[^#]*)?")


def takes_plain(request: web.BaseRequest) -> bool:
    """Return whether a request's client understands a plain answer."""
    return request.version == HttpVersion11 and request.keep_alive


class PlainAnswer(web.StreamResponse):
    """An answer that is laid out already."""

    def __init__(self, status: int, whole: bytes) -> None:
        super().__init__(status=status)
        self.whole = whole
        self._writer: AbstractStreamWriter | None = None

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        self._writer = request.writer
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        assert not data, "all of it is laid out already"
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.write(self.whole)
            await writer.drain()


class PlainAnswers:
    """Writes head and body of answers in one piece of bytes, and keeps the heads of the present second.

    aiohttp makes a dict of headers for each answer, fills in what is missing and writes it out: a
    fifth of what a report costs the event loop. The heads of these answers differ only in the
    length of the body and in the second. Only for a client that speaks HTTP/1.1 and keeps its
    connection; `web.Response` answers all others.
    """

    def __init__(self) -> None:
        self._now: datetime | None = None
        self._heads: dict[tuple[int, str], bytes] = {}

    def make(
        self, now: datetime, status: int, content_type: str, body: bytes | None
    ) -> PlainAnswer:
        """Return the answer. ``now``: the present second in UTC; the same object while it lasts. No body: 204."""
        if now is not self._now:
            self._now = now
            self._heads.clear()
        if body is None:
            status = HTTPStatus.NO_CONTENT
        head = self._heads.get((status, content_type))
        if head is None:
            head = self._heads[status, content_type] = _head(now, status, content_type)
        if body is None:
            return PlainAnswer(status, head)
        return PlainAnswer(status, b"%b%d\r\n\r\n%b" % (head, len(body), body))


def _head(now: datetime, status: int, content_type: str) -> bytes:
    """Return the head of an answer, as far as the length of its body; of one without a body, all of it."""
    head = f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}\r\nDate: {format_datetime(now, usegmt=True)}\r\n"
    if status == HTTPStatus.NO_CONTENT:
        return f"{head}\r\n".encode()
    return f"{head}Content-Type: {content_type}\r\nContent-Length: ".encode()


def make_straight(report: Serve, order: Serve, application: Handler) -> Handler:
    """Return the handler of all requests of a server."""
    ways = {"POST": (_REPORT, report), "GET": (_ORDER, order)}

    def handle(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        pattern, serve = ways.get(request.method, (None, None))
        if pattern is not None and serve is not None:
            found = pattern.fullmatch(request.raw_path)
            if found is not None and hdrs.EXPECT not in request.headers:
                return serve(request, found.groupdict())
        return application(request)

    return handle
