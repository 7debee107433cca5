"""For how long a launcher's polls may wait, at the controller that it joined and at one that takes the job over."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from recovery.api.controller_errors import UnreachableError
from recovery.api.launcher_client import LauncherClient
from recovery.api.wire import WAIT_S_MAX, WAIT_S_SAFE, Accepted, JoinAnswer
from recovery.messages.exchange import Report
from tests.support.service import join_of

pytestmark = pytest.mark.process

JOB = "00000000-0000-0000-0000-000000000007"


@contextmanager
def controller(epoch: int, wait_s: float) -> Iterator[str]:
    """Serve joins and reports as a controller of any version."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            joined = JoinAnswer(JOB, is_new=True, report_s=1.0, wait_s=wait_s, secret="00")
            accepted = Accepted(1, epoch, "c", 1)
            is_report = self.path.endswith("/reports")
            body = msgspec.json.encode(accepted if is_report else joined)
            self.send_response(202 if is_report else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("told_s", "wait_s"), [(25.0, 25.0), (WAIT_S_MAX, WAIT_S_MAX), (300.0, WAIT_S_MAX)]
)
def test_polls_wait_no_longer_than_the_controller_and_this_version_allow(
    told_s: float, wait_s: float
) -> None:
    with controller(1, told_s) as url:
        client = LauncherClient([url])
        assert client.wait_s == WAIT_S_SAFE
        client.join(join_of("n1"))
        client.close()

    assert client.wait_s == wait_s


def test_polls_at_a_controller_that_takes_the_job_over_wait_as_long_as_every_version_allows() -> (
    None
):
    with controller(2, 25.0) as other:
        with controller(1, WAIT_S_MAX) as home:
            client = LauncherClient([home, other])
            client.join(join_of("n1", begins=False))
        client.report(Report(1, "n1", "boot-1", JOB, 1, 1, (), 0))
        client.close()

    assert (client.home, client.wait_s) == (other, WAIT_S_SAFE)


def test_an_address_where_nothing_listens_is_said_in_few_words() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        client = LauncherClient([f"http://{place}"])

        with pytest.raises(UnreachableError) as raised:
            client.join(join_of("n1"))
        client.close()

    assert str(raised.value) == f"{place}: Connection refused"
