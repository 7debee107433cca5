"""The agent's HTTP server: prometheus-client's threading server under our own pages.

A client that sends its head or reads its answer a byte at a time holds a thread. So each head and each answer has a total time, each address a share of the
threads, and this machine a few of its own: clients of one address can't keep Prometheus from being answered.

Connections are kept (RFC 9112 section 9.3), so that a scrape over TLS needs no new handshake. A kept one that rests
gives way to a client for whom there is no room.
"""

import contextlib
import ipaddress
import select
import socket
import ssl
import sys
import time
from collections import Counter
from dataclasses import dataclass
from threading import Event, Lock, Thread, get_ident, local
from typing import IO, Any, Final, cast
from wsgiref.headers import Headers
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

from agent.config import EndpointTls
from agent.page.application import Application
from rankmend.errors import ConfigError
from rankmend.listening import bind, make_server_context, parse_listen
from rankmend.renewed_files import LOOK_S, Renewed

REQUESTS_MAX: Final = 32  # at once; two Prometheus replicas and a person need 3
OF_ADDRESS_MAX: Final = 8  # of one address, or of one /64 of IPv6
FOR_LOOPBACK: Final = 4  # of REQUESTS_MAX, which only clients of this machine may take
REQUEST_S_MAX: Final = 10.0  # idle time of a connection: Prometheus' default scrape timeout
HEAD_S_MAX: Final = 10.0  # from the connection to the end of the request's head, with TLS
ANSWER_S_MAX: Final = (
    60.0  # from the head to the last byte: Prometheus' longest usual scrape timeout
)
REST_S_MAX: Final = 150.0  # of a kept connection: two scrapes at 60 s, and one late
LINE_BYTES_MAX: Final = 65_536  # of the request line, as in Python's own server
_CUT_S: Final = 0.2  # between two looks at clients that are slow with their head


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of text such as ``127.0.0.1:9476``, ``[::1]:9476`` or ``:9476``, for who asks."""
    host, port = parse_listen(text)
    return host or "0.0.0.0", port  # noqa: S104 - asked for by ":PORT"


def make_context(tls: EndpointTls) -> ssl.SSLContext:
    """Return the context of these files, or raise ConfigError that names the one at fault."""
    return make_server_context(tls, ssl.CERT_REQUIRED)


def renewed_context(tls: EndpointTls | None) -> Renewed[ssl.SSLContext] | None:
    """Return the context of these files as they are at each look; None: without TLS."""
    if tls is None:
        return None
    files = (tls.cert_file, tls.key_file, tls.client_ca_file)
    return Renewed([file for file in files if file is not None], lambda: make_context(tls))


def _share_of(host: str) -> str:
    """Return whose share of the requests a client takes; "": this machine's."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    if address.is_loopback:
        return ""
    bits = 64 if address.version == 6 else 32
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))


@dataclass(slots=True)
class _Request:
    share: str
    connection: socket.socket  # of its own descriptor: TLS takes the other one away
    ends_s: float  # when its head must be there, and then its answer be read
    rests_since_s: float | None = None  # a kept connection, between two requests
    gave_way: bool = False  # another has its place

    def cut_off(self) -> None:
        with contextlib.suppress(OSError):  # it has hung up
            self.connection.shutdown(socket.SHUT_RDWR)


class RequestSlots:
    """The requests under way: who may begin one, and which take too long over their heads or answers."""

    def __init__(self, head_s: float = HEAD_S_MAX, answer_s: float = ANSWER_S_MAX) -> None:
        self._head_s, self._answer_s = head_s, answer_s
        self._lock = Lock()
        self._of_share: Counter[str] = Counter()
        self._timed: dict[int, _Request] = {}  # by thread
        self._resting: dict[int, _Request] = {}  # by thread
        self._begun = 0  # connections that are there and do not rest

    def begin(self, connection: socket.socket, host: str) -> _Request | None:
        """Return the request of a new connection; None where there are too many."""
        share = _share_of(host)
        with self._lock:
            if not self._has_room(share):
                self._end_a_rest(share)
            if not self._has_room(share):
                return None
            self._of_share[share] += 1
            self._begun += 1
        try:
            return _Request(share, connection.dup(), time.monotonic() + self._head_s)
        except BaseException:
            with self._lock:
                self._leave(share)
                self._begun -= 1
            raise

    def _has_room(self, share: str) -> bool:
        most = REQUESTS_MAX if share == "" else REQUESTS_MAX - FOR_LOOPBACK
        return self._of_share.total() < most and self._of_share[share] < OF_ADDRESS_MAX

    def _end_a_rest(self, share: str) -> None:
        """Cut off who has rested longest: of this share where it is full, else of any."""
        is_own = self._of_share[share] >= OF_ADDRESS_MAX
        resting = [
            (request.rests_since_s or 0.0, thread)
            for thread, request in self._resting.items()
            if not is_own or request.share == share
        ]
        if resting:
            request = self._resting.pop(min(resting)[1])
            request.gave_way = True
            request.cut_off()
            self._leave(request.share)  # its thread may take a moment; its place is free now

    def serve(self, request: _Request) -> None:
        """Record that this thread reads the request's head."""
        with self._lock:
            self._timed[get_ident()] = request

    def note_head(self) -> None:
        """Record that the head which this thread reads is complete: its answer follows."""
        with self._lock:
            request = self._timed.get(get_ident())
            if request is not None:
                request.ends_s = time.monotonic() + self._answer_s

    @property
    def is_busy(self) -> bool:
        """Return whether any client may be slow."""
        return self._begun > 0

    def rest(self, request: _Request) -> None:
        """Note that this thread waits for the next request of a kept connection."""
        with self._lock:
            self._timed.pop(get_ident(), None)
            request.rests_since_s = time.monotonic()
            self._resting[get_ident()] = request
            self._begun -= 1

    def wake(self, request: _Request) -> bool:
        """Note that the next request begins; False: the connection has had to give way."""
        with self._lock:
            self._begun += 1
            request.rests_since_s = None
            if self._resting.pop(get_ident(), None) is None:
                return False
            request.ends_s = time.monotonic() + self._head_s
            self._timed[get_ident()] = request
        return True

    def end(self, request: _Request) -> None:
        with (
            self._lock
        ):  # `cut_off_late` never meets a descriptor that is another connection's by now
            self._timed.pop(get_ident(), None)
            request.connection.close()
            self._begun -= 1
            if not request.gave_way:
                self._leave(request.share)

    def cut_off_late(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            for request in self._timed.values():
                if now_s >= request.ends_s:
                    request.cut_off()

    def _leave(self, share: str) -> None:
        self._of_share[share] -= 1
        if not self._of_share[share]:
            del self._of_share[share]


class _Answer(ServerHandler):
    http_version = "1.1"
    server_software = "rankmend"  # in place of Python's version
    request_handler: "_Handler"
    headers: Headers
    headers_sent: bool

    def cleanup_headers(self) -> None:
        super().cleanup_headers()
        if self.request_handler.close_connection:
            self.headers["Connection"] = "close"

    def handle_error(self) -> None:
        self.request_handler.close_connection = True
        if self.headers_sent and isinstance(sys.exc_info()[1], OSError):
            return  # the client does not read
        super().handle_error()


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece: a kept connection would wait for an acknowledgement
    disable_nagle_algorithm = True
    server_version, sys_version = "rankmend", ""  # of its refusals
    server: "_Server"

    def handle(self) -> None:
        """Answer requests until one of the two sides closes the connection."""
        self._answer_one()
        while not self.close_connection and self._waits_for_next():
            self._answer_one()

    def _waits_for_next(self) -> bool:
        request = self.server.request_of_thread()
        self.server.requests.rest(request)
        self.connection.settimeout(REST_S_MAX)
        try:
            has_next = bool(self.rfile.peek(1))  # type: ignore[attr-defined]
        except OSError:
            has_next = False
        if not self.server.requests.wake(request) or not has_next:
            return False
        self.connection.settimeout(REQUEST_S_MAX)
        self.server.wake_up()  # to watch over this head
        return True

    def _answer_one(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(LINE_BYTES_MAX + 1)
        if len(self.raw_requestline) > LINE_BYTES_MAX:
            self.requestline = self.request_version = self.command = ""
            self.send_error(414)
            return
        if not self.parse_request():  # it has answered
            self.wfile.flush()
            return
        has_body = "transfer-encoding" in self.headers or self.headers.get(
            "content-length", "0"
        ) not in ("", "0")
        if has_body or self.request_version < "HTTP/1.1":
            self.close_connection = True  # nobody reads a body here: it is not the next request
        answer = _Answer(
            cast(IO[bytes], self.rfile),
            cast(IO[bytes], self.wfile),
            self.get_stderr(),
            self.get_environ(),
            multithread=True,
        )
        answer.request_handler = self
        app = self.server.get_app()
        assert app is not None, "the server is started with its application"
        answer.run(app)
        self.wfile.flush()

    def get_environ(self) -> dict[str, Any]:
        self.server.requests.note_head()
        return super().get_environ()

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing: a scrape is no change."""


class _Server(ThreadingWSGIServer):
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, listener: socket.socket, head_s: float, answer_s: float) -> None:
        self._listener = listener
        self.address_family = listener.family
        self.requests = RequestSlots(head_s, answer_s)
        self.tls: Renewed[ssl.SSLContext] | None = None
        self._request = local()
        self._is_stopping = False
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        super().__init__(listener.getsockname()[:2], _Handler)

    def server_bind(self) -> None:
        self.socket.close()  # TCPServer's own, in place of which comes the bound one
        self.socket = self._listener
        self.server_address = self.socket.getsockname()
        # without HTTPServer's look-up of our name in the DNS
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def serve_forever(self, _poll_interval: float = _CUT_S) -> None:
        """Accept clients until `shutdown`. Sleeps while nobody is slow: nothing is polled for."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while not self._is_stopping:
            found = [
                fd for fd, _events in poll.poll(_CUT_S * 1000 if self.requests.is_busy else None)
            ]
            if self._woken.fileno() in found:
                self._woken.recv(64)
            if self.socket.fileno() in found and not self._woken_to_stop():
                self._handle_request_noblock()  # type: ignore[attr-defined]
            self.requests.cut_off_late()

    def _woken_to_stop(self) -> bool:
        return self._is_stopping

    def wake_up(self) -> None:
        """Let the loop look at what has changed."""
        with contextlib.suppress(OSError):  # full: it is about to look; closed: it has ended
            self._waker.send(b"1")

    def server_close(self) -> None:
        super().server_close()
        self._waker.close()
        self._woken.close()

    def shutdown(self) -> None:
        """Let `serve_forever` return. Does not wait for it."""
        self._is_stopping = True
        self.wake_up()

    def request_of_thread(self) -> _Request:
        """Return what this thread serves."""
        request: _Request = self._request.now
        return request

    def process_request(self, request: Any, client_address: Any) -> None:
        begun = self.requests.begin(request, client_address[0])
        if begun is None:
            self.shutdown_request(request)
            return
        thread = Thread(target=self._serve, args=(begun, request, client_address), daemon=True)
        try:
            thread.start()
        except BaseException:
            self.requests.end(begun)
            raise

    def _serve(self, begun: _Request, request: Any, client_address: Any) -> None:
        self.requests.serve(begun)
        self._request.now = begun
        try:
            if (tls := self.tls) is not None:  # not in accept: a slow client holds up itself
                request.settimeout(REQUEST_S_MAX)
                request = tls.value.wrap_socket(request, server_side=True)
            self.process_request_thread(request, client_address)
        except OSError:  # no TLS, or no certificate that we accept
            self.shutdown_request(request)
        finally:
            self.requests.end(begun)

    def handle_error(self, *_arguments: Any) -> None:
        """Ignore a client that hangs up in mid-answer."""


class HttpServer:
    """Serves an application in daemon threads; one of them looks for renewed certificates every ``look_s``.

    ``head_s``: the time of a client from its connection to the end of its request's head; ``answer_s``: from there to the end of its answer.
    """

    def __init__(
        self,
        listen: str,
        app: Application,
        tls: EndpointTls | None = None,
        look_s: float = LOOK_S,
        head_s: float = HEAD_S_MAX,
        answer_s: float = ANSWER_S_MAX,
    ) -> None:
        host, port = parse_listen(listen)
        renewed = renewed_context(tls)
        try:
            self._server = _Server(bind(host, port), head_s, answer_s)
        except OSError as error:
            raise ConfigError(f"cannot listen on {listen}: {error.strerror or error}") from error
        self._server.set_app(app)
        self._server.tls = renewed
        self._thread = Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._look_s = look_s
        self._should_stop = Event()
        self._looking = Thread(target=self._look, name="certificates", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def is_serving(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()
        self._looking.start()

    def use(self, tls: Renewed[ssl.SSLContext] | None) -> None:
        """Meet new connections with these certificates; None: without TLS."""
        self._server.tls = tls

    def _look(self) -> None:
        while not self._should_stop.wait(self._look_s):
            if (tls := self._server.tls) is not None:
                tls.look()

    def stop(self) -> None:
        """Stop taking requests at once; answers under way are cut off at exit."""
        self._should_stop.set()
        self._server.shutdown()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._server.server_close()
