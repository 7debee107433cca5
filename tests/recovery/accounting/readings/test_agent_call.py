"""Asking an agent over real HTTP, also one that means harm."""

import asyncio
import gzip
import socket
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from rankmend.alerting import make_client_context
from rankmend.errors import SourceError
from recovery.accounting.readings.agent_call import AgentAddress, read_agent_page
from recovery.service.http import authority
from tests.support.agent_server import Handler, serve_agent
from tests.support.eventually import DEADLINE_S, fault_lasts

pytestmark = pytest.mark.process

PAGE = b"rankmend_host_cpus 8\n"


async def honest(_request: web.Request) -> web.StreamResponse:
    return web.Response(body=PAGE, content_type="text/plain")


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b"rankmend_host_cpus 8\n" * 1000)


async def trickling(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b"#")
        await asyncio.to_thread(fault_lasts, 0.01)


async def silent(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def leading_away(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def failing(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="<script>alert(1)</script>")


async def promising_more(_request: web.Request) -> web.StreamResponse:
    return web.Response(body=PAGE, headers={"Content-Length": "1000"})


def ask(handler: Handler, limit_s: float = DEADLINE_S) -> tuple[bytes, list[str]]:
    with serve_agent(handler) as server:
        try:
            page = read_agent_page(
                AgentAddress("127.0.0.1", server.port), bytes_max=100_000, answer_s_max=limit_s
            )
        finally:
            assert server.asked in ([], ["/metrics"])
        return page, server.asked


def test_page_of_an_agent_is_read_whole() -> None:
    assert ask(honest) == (PAGE, ["/metrics"])


@pytest.mark.parametrize(
    ("handler", "limit_s", "reason"),
    [
        (endless, DEADLINE_S, "sent more than 100000 bytes"),
        (trickling, 0.5, "did not answer within 0.5 s"),
        (silent, 0.5, "did not answer within 0.5 s"),
        (leading_away, DEADLINE_S, "answered HTTP 302"),
        (failing, DEADLINE_S, "answered HTTP 500"),
        (promising_more, 1.0, "did not answer"),
    ],
)
def test_agent_that_means_harm_gets_a_reason_and_no_second_look(
    handler: Handler, limit_s: float, reason: str
) -> None:
    with pytest.raises(SourceError, match=reason):
        ask(handler, limit_s)


def test_agent_with_a_certificate_is_read_and_one_of_another_authority_is_not(
    tmp_path: Path,
) -> None:
    for name in ("ours", "theirs"):
        authority.make_authority(tmp_path / f"{name}.crt", tmp_path / f"{name}.key", name)
    ours = (tmp_path / "ours.crt", tmp_path / "ours.key")
    authority.make_server(ours, tmp_path / "s.crt", tmp_path / "s.key", ["localhost"])
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(tmp_path / "s.crt", tmp_path / "s.key")

    with serve_agent(honest, server_context) as server:
        address = AgentAddress("localhost", server.port)
        trusting = make_client_context(str(tmp_path / "ours.crt"), None, None)
        assert read_agent_page(address, trusting, answer_s_max=DEADLINE_S) == PAGE
        for ca, host in (("theirs", "localhost"), ("ours", "127.0.0.1")):
            context = make_client_context(str(tmp_path / f"{ca}.crt"), None, None)
            with pytest.raises(SourceError, match="did not answer"):
                read_agent_page(AgentAddress(host, server.port), context)
        with pytest.raises(SourceError):
            read_agent_page(address)  # http


def test_compressed_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"\n" * 50_000_000)

    async def packed(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    page, _asked = ask(packed)

    assert page == bomb


def test_port_without_a_listener_and_unknown_host_are_told_apart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(SourceError, match=r"127\.0\.0\.1:\d+ did not answer"):
            read_agent_page(AgentAddress("127.0.0.1", port))
    with pytest.raises(SourceError, match="cannot find the host"):
        read_agent_page(AgentAddress("no-such-host.invalid", 9476))
