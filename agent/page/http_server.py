"""The agent's HTTP server: prometheus-client's threading server under our own pages."""

import socket
import ssl
from threading import BoundedSemaphore, Event, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

from agent.config import EndpointTls
from agent.page.application import Application
from rankmend.errors import ConfigError
from rankmend.listening import bind, make_server_context, parse_listen
from rankmend.renewed_files import LOOK_S, Renewed

REQUESTS_MAX: Final = 32  # at once; two Prometheus replicas and a person need 3
REQUEST_S_MAX: Final = 10.0  # idle time of a connection: Prometheus' default scrape timeout


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


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing: a scrape is no change."""


class _Server(ThreadingWSGIServer):
    allow_reuse_address = True

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.address_family = listener.family
        self._slots = BoundedSemaphore(REQUESTS_MAX)
        self.tls: Renewed[ssl.SSLContext] | None = None
        super().__init__(listener.getsockname()[:2], _Handler)

    def server_bind(self) -> None:
        self.socket.close()  # TCPServer's own, in place of which comes the bound one
        self.socket = self._listener
        self.server_address = self.socket.getsockname()
        # without HTTPServer's look-up of our name in the DNS
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()  # no thread could be started
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if (tls := self.tls) is not None:  # not in accept: a slow client holds up itself
                request.settimeout(REQUEST_S_MAX)
                request = tls.value.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # no TLS, or no certificate that we accept
            self.shutdown_request(request)
        finally:
            self._slots.release()

    def handle_error(self, *_arguments: Any) -> None:
        """Ignore a client that hangs up in mid-answer."""


class HttpServer:
    """Serves an application in daemon threads; one of them looks for renewed certificates every ``look_s``."""

    def __init__(
        self,
        listen: str,
        app: Application,
        tls: EndpointTls | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        host, port = parse_listen(listen)
        renewed = renewed_context(tls)
        try:
            self._server = _Server(bind(host, port))
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
