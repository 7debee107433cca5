"""A slow client holds a thread of the agent's page for a while; no client holds all of them."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agent.page.http_server import (
    FOR_LOOPBACK,
    OF_ADDRESS_MAX,
    REQUESTS_MAX,
    HttpServer,
    RequestSlots,
)
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process


def answer(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"page"]


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", answer, head_s=1.0)
    server.start()
    yield server
    server.stop()


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)


def is_over(client: socket.socket) -> bool:
    """Wait for the server's end of a connection; return whether it ended without an answer."""
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_head_that_never_ends_is_cut_off(server: HttpServer) -> None:
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\nX: ")

        assert is_over(client)


@pytest.mark.parametrize("head", [b"GET / HTTP/1.0", b"nonsense", b"BREW / HTTP/9.9"])
def test_no_answer_names_a_version(server: HttpServer, head: bytes) -> None:
    with connect(server) as client:
        client.sendall(head + b"\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))

    assert answer
    assert b"Python" not in answer
    assert b"WSGI" not in answer


def test_one_address_gets_its_share_and_is_answered_again_when_its_slow_requests_are_over(
    server: HttpServer,
) -> None:
    url = f"http://127.0.0.1:{server.port}/metrics"
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _client in range(OF_ADDRESS_MAX + 3)]

        assert all(map(is_over, clients))

    def is_answered() -> bool:
        try:
            return bool(urllib.request.urlopen(url, timeout=DEADLINE_S).read() == b"page")
        except OSError:
            return False

    assert eventually(is_answered, "an answer")


@pytest.mark.parametrize(("answer_s", "is_cut"), [(0.0, True), (1000.0, False)])
def test_client_that_reads_its_answer_too_slowly_is_cut_off(
    answer_s: float, *, is_cut: bool
) -> None:
    ours, client = socket.socketpair()
    with ours, client:
        client.setblocking(False)
        slots = RequestSlots(head_s=1000.0, answer_s=answer_s)
        request = slots.begin(ours, "192.0.2.7")
        assert request is not None
        slots.serve(request)
        slots.cut_off_late()
        with pytest.raises(BlockingIOError):
            client.recv(1)  # its head still has time

        slots.note_head()
        slots.cut_off_late()

        if is_cut:
            assert client.recv(1) == b""
        else:
            with pytest.raises(BlockingIOError):
                client.recv(1)
        slots.end(request)


def test_client_that_does_not_read_is_no_error_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    def large(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"p" * 50_000_000]

    server = HttpServer("127.0.0.1:0", large, answer_s=0.5)
    server.start()
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually(lambda: not server._server.requests.is_busy, "the slow client is cut off")
    server.stop()

    assert "Traceback" not in capfd.readouterr().err


def exchange(client: socket.socket, request: bytes) -> bytes:
    """Send a request and return the answer up to the body of the page."""
    client.sendall(request)
    got = b""
    while not got.endswith(b"page") and (data := client.recv(65536)):
        got += data
    return got


def test_connection_is_kept_for_the_next_request(server: HttpServer) -> None:
    with connect(server) as client:
        answers = [exchange(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") for _request in range(3)]

    assert all(got.startswith(b"HTTP/1.1 200 OK\r\n") for got in answers)
    assert all(b"Connection: close" not in got for got in answers)


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_connection_that_can_not_be_kept_is_closed_after_its_answer(
    server: HttpServer, request_head: bytes
) -> None:
    with connect(server) as client:
        got = exchange(client, request_head)

        assert b"\r\nConnection: close\r\n" in got
        assert is_over(client)


def test_kept_connection_that_rests_gives_way_to_a_new_client(server: HttpServer) -> None:
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    with ExitStack() as stack:
        kept = [stack.enter_context(connect(server)) for _client in range(OF_ADDRESS_MAX)]
        for client in kept:
            exchange(client, request)

        def is_answered() -> bool:
            with connect(server) as late:
                try:
                    return exchange(late, request).endswith(b"page")
                except OSError:
                    return False

        assert eventually(is_answered, "room for a client more")
        assert is_over(kept[0])


def test_slow_head_on_a_kept_connection_is_cut_off(server: HttpServer) -> None:
    with connect(server) as client:
        exchange(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        client.sendall(b"GET / HTTP/1.1\r\nX: ")

        assert is_over(client)


def test_no_number_of_addresses_takes_what_is_kept_for_this_machine() -> None:
    slots = RequestSlots()
    with ExitStack() as stack:

        def begins(host: str) -> bool:
            here, _there = map(stack.enter_context, socket.socketpair())
            begun = slots.begin(here, host)
            if begun is not None:
                stack.callback(slots.end, begun)
            return begun is not None

        from_outside = [begins(f"10.0.0.{number % 250}") for number in range(2 * REQUESTS_MAX)]
        assert sum(from_outside) == REQUESTS_MAX - FOR_LOOPBACK
        assert [begins("127.0.0.1") for _client in range(FOR_LOOPBACK + 1)] == [
            *[True] * FOR_LOOPBACK,
            False,
        ]


@pytest.mark.parametrize(
    "hosts",
    [
        ("10.0.0.7",),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::ffff", "2001:db8::1:2"),
        ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"),
        ("fe80::1%eth0",),
    ],
)
def test_addresses_of_one_machine_share_its_slots(hosts: tuple[str, ...]) -> None:
    slots = RequestSlots()
    with ExitStack() as stack:
        begun = []
        for number in range(OF_ADDRESS_MAX + 1):
            here, _there = map(stack.enter_context, socket.socketpair())
            begun.append(slots.begin(here, hosts[number % len(hosts)]))

        assert [one is not None for one in begun] == [*[True] * OF_ADDRESS_MAX, False]
        for one in begun[:-1]:
            assert one is not None
            slots.end(one)
        here, _there = map(stack.enter_context, socket.socketpair())
        last = slots.begin(here, hosts[0])
        assert last is not None
        slots.end(last)
