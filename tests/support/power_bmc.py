"""A BMC that serves Redfish over HTTP or HTTPS, with the power of one node behind it."""

import base64
import json
import ssl
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from recovery.service.bmc.bmc_readings import BmcReadings

USER, PASSWORD = "fencer", "s3cret-of-the-bmc"
TOKEN = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
Answer = Callable[[BaseHTTPRequestHandler], None]


class PowerBmc:
    """``power`` is what `PowerState` says; ``states``, if not empty, come first, one a reading.

    ``answer`` takes the place of every answer: a BMC that is broken in some way.
    """

    def __init__(
        self, power: str = "On", context: ssl.SSLContext | None = None, answer: Answer | None = None
    ) -> None:
        self.power = power
        self.states: list[str] = []
        self.answer = answer
        self.readings = 0  # of the power state
        self.asked: list[str] = []  # method and path
        self.resets: list[object] = []  # bodies of resets that were taken
        self.on_reset: Callable[[], None] = lambda: setattr(self, "power", "Off")
        self.released = Event()  # lets answers that hang end
        self._lock = Lock()
        bmc = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                bmc._serve(self)

            def do_POST(self) -> None:
                bmc._serve(self)

            def log_message(self, *_arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_arguments: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._scheme = "http" if context is None else "https"
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self._scheme == "http" else "localhost"
        return f"{self._scheme}://{host}:{self._server.server_address[1]}"

    def __enter__(self) -> "PowerBmc":
        return self

    def __exit__(self, *_error: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.asked.append(f"{handler.command} {handler.path}")
        if self.answer is not None:
            self.answer(handler)
        elif handler.headers["Authorization"] != TOKEN:
            respond(handler, 401, {})
        elif handler.path == "/redfish/v1/Systems":
            respond(handler, 200, {"Members": [{"@odata.id": SYSTEM}]})
        elif handler.path == SYSTEM:
            respond(handler, 200, {"Id": "1", "PowerState": self._read()})
        elif handler.command == "POST" and handler.path == RESET:
            length = int(handler.headers["Content-Length"])
            self.resets.append(json.loads(handler.rfile.read(length)))
            self.on_reset()
            respond(handler, 204, b"")
        else:
            respond(handler, 404, {})

    def _read(self) -> str:
        with self._lock:
            self.readings += 1
            return self.states.pop(0) if self.states else self.power


def respond(handler: BaseHTTPRequestHandler, status: int, page: Any, **headers: str) -> None:
    """Answer with a page, or with bytes that are none."""
    body = page if isinstance(page, bytes) else json.dumps(page).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def samples(readings: BmcReadings) -> dict[tuple[str, ...], float]:
    """Return the metrics of the readings: name without its prefix, label values -> value."""
    return {
        (sample.name.removeprefix("rankmend_controller_"), *sample.labels.values()): sample.value
        for family in readings.collect()
        for sample in family.samples
    }


def write_credentials(folder: Path, password: str = PASSWORD) -> Path:
    """Write the file with the BMC's user and password, and return its path."""
    path = folder / "bmc-credentials.toml"
    path.write_text(f'user = "{USER}"\npassword = "{password}"\n')
    path.chmod(0o600)
    return path
