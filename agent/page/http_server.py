"""The agent's HTTP server: prometheus-client's threading server under our own pages.

A client that sends its head a byte at a time holds a thread. So each head has a total time, each address a share of the
threads, and this machine a few of its own: clients of one address can't keep Prometheus from being answered.
"""

import contextlib
import ipaddress
import socket
import ssl
import time
from collections import Counter
from dataclasses import dataclass
from threading import Event, Lock, Thread, get_ident
from typing import Any, Final
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
    ends_s: float  # when its head must be there

    def cut_off(self) -> None:
        with contextlib.suppress(OSError):  # it has hung up
            self.connection.shutdown(socket.SHUT_RDWR)


class RequestSlots:
    """The requests under way: who may begin one, and which take too long over their heads."""

    def __init__(self, head_s: float = HEAD_S_MAX) -> None:
        self._head_s = head_s
        self._lock = Lock()
        self._of_share: Counter[str] = Counter()
        self._heads: dict[int, _Request] = {}  # by thread

    def begin(self, connection: socket.socket, host: str) -> _Request | None:
        """Return the request of a new connection; None where there are too many."""
        share = _share_of(host)
        with self._lock:
            most = REQUESTS_MAX if share == "" else REQUESTS_MAX - FOR_LOOPBACK
            if self._of_share.total() >= most or self._of_share[share] >= OF_ADDRESS_MAX:
                return None
            self._of_share[share] += 1
        try:
            return _Request(share, connection.dup(), time.monotonic() + self._head_s)
        except BaseException:
            self._leave(share)
            raise

    def serve(self, request: _Request) -> None:
        """Note that this thread reads the request's head."""
        with self._lock:
            self._heads[get_ident()] = request

    def note_head(self) -> None:
        """Note that the head which this thread reads is there."""
        with self._lock:
            self._heads.pop(get_ident(), None)

    def end(self, request: _Request) -> None:
        self.note_head()
        with (
            self._lock
        ):  # `cut_off_late` never meets a descriptor that is another connection's by now
            request.connection.close()
        self._leave(request.share)

    def cut_off_late(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            for request in self._heads.values():
                if now_s >= request.ends_s:
                    request.cut_off()

    def _leave(self, share: str) -> None:
        with self._lock:
            self._of_share[share] -= 1
            if not self._of_share[share]:
                del self._of_share[share]


ServerHandler.server_software = "rankmend"  # of its answers, in place of Python's version


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX
    server_version, sys_version = "rankmend", ""  # of its refusals
    server: "_Server"

    def get_environ(self) -> dict[str, Any]:
        self.server.requests.note_head()
        return super().get_environ()

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing: a scrape is no change."""


class _Server(ThreadingWSGIServer):
    allow_reuse_address = True

    def __init__(self, listener: socket.socket, head_s: float) -> None:
        self._listener = listener
        self.address_family = listener.family
        self.requests = RequestSlots(head_s)
        self.tls: Renewed[ssl.SSLContext] | None = None
        super().__init__(listener.getsockname()[:2], _Handler)

    def server_bind(self) -> None:
        self.socket.close()  # TCPServer's own, in place of which comes the bound one
        self.socket = self._listener
        self.server_address = self.socket.getsockname()
        # without HTTPServer's look-up of our name in the DNS
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def service_actions(self) -> None:
        """Cut off who takes too long; called at least every 0.2 s."""
        self.requests.cut_off_late()

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

    ``head_s``: the time of a client from its connection to the end of its request's head.
    """

    def __init__(
        self,
        listen: str,
        app: Application,
        tls: EndpointTls | None = None,
        look_s: float = LOOK_S,
        head_s: float = HEAD_S_MAX,
    ) -> None:
        host, port = parse_listen(listen)
        renewed = renewed_context(tls)
        try:
            self._server = _Server(bind(host, port), head_s)
        except OSError as error:
            raise ConfigError(f"cannot listen on {listen}: {error.strerror or error}") from error
        self._server.set_app(app)
        self._server.tls = renewed
        self._thread = Thread(
            target=self._server.serve_forever, args=(0.2,), name="http", daemon=True
        )
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
        """Stop taking requests, within 0.2 s; answers under way are cut off at exit."""
        self._should_stop.set()
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
