"""A BMC that serves recorded pages of Redfish, and answers some of them as a test likes."""

import base64
import json
import ssl
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from tests.support.agent import ROOT

FIXTURES = ROOT / "tests" / "fixtures" / "redfish"
TOKEN = "Basic " + base64.b64encode(b"monitor:s3cret").decode()
Special = Callable[[BaseHTTPRequestHandler], None]


def load(name: str) -> dict[str, Any]:
    pages = json.loads((FIXTURES / name).read_text())
    assert isinstance(pages, dict)
    return pages


class Bmc:
    """A BMC that serves pages; a callable in place of a page answers as it likes."""

    def __init__(self, pages: dict[str, Any], context: ssl.SSLContext | None = None) -> None:
        self.pages = pages
        self.asked: list[str] = []
        self.released = Event()  # lets handlers that hang end
        bmc = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                bmc.asked.append(self.path)
                page = bmc.pages.get(self.path)
                if callable(page):
                    page(self)
                elif self.headers["Authorization"] != TOKEN:
                    respond(self, 401, b"{}")
                elif page is None:
                    respond(self, 404, b"{}")
                else:
                    respond(self, 200, json.dumps(page).encode())

            def log_message(self, *_arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_arguments: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.port = self.server.server_address[1]

    def __enter__(self) -> "Bmc":
        self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
