"""Answers that are laid out in one piece: what a client reads, and which clients get them."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import RawTestServer

from recovery.service.http.fast_path import PlainAnswers, takes_plain

pytestmark = pytest.mark.process

NOW = datetime(2026, 11, 26, 22, 5, 7, tzinfo=timezone.utc)
KIND = "application/json; charset=utf-8"


def test_client_reads_status_date_kind_and_body_and_keeps_its_connection() -> None:
    answers, peers = PlainAnswers(), set()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert takes_plain(request)
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        await request.read()
        if request.method == "GET":
            return answers.make(NOW + timedelta(seconds=1), 200, KIND, None)
        return answers.make(NOW, 202, KIND, b'{"revision":7}')

    async def ask() -> None:
        async with RawTestServer(handle) as server, ClientSession() as session:
            for _ in range(2):
                async with session.post(server.make_url("/"), data=b"x" * 7000) as answer:
                    assert (answer.status, answer.reason) == (202, "Accepted")
                    assert await answer.json() == {"revision": 7}
                    assert answer.headers["Date"] == "Thu, 26 Nov 2026 22:05:07 GMT"
                    assert answer.headers["Content-Type"] == KIND
                    assert answer.headers["Content-Length"] == "14"
                async with session.get(server.make_url("/")) as answer:
                    assert (answer.status, await answer.read()) == (204, b"")
                    assert answer.headers["Date"] == "Thu, 26 Nov 2026 22:05:08 GMT"
                    assert "Content-Length" not in answer.headers

    asyncio.run(ask())
    assert len(peers) == 1


def test_only_clients_of_http_1_1_that_keep_their_connection_get_plain_answers() -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=str(takes_plain(request)))

    async def ask() -> list[bytes]:
        async with RawTestServer(handle) as server:
            found = []
            for head in (
                b"GET / HTTP/1.0\r\n\r\n",
                b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection(server.host, server.port)
                writer.write(head)
                await reader.readuntil(b"\r\n\r\n")
                found.append(await reader.readexactly(4))
                writer.close()
            return found

    assert asyncio.run(ask()) == [b"Fals", b"Fals", b"Fals", b"True"]
