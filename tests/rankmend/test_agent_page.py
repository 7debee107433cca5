"""The pages of the node agent, and Prometheus, asked through a real socket."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rankmend.agent_page import read_agent
from rankmend.cli.diagnosis.diagnose_readings import Prometheus
from rankmend.errors import SourceError

pytestmark = pytest.mark.process

QUERY = "/api/v1/query_range"


class Answers(BaseHTTPRequestHandler):
    """Answers by path, and remembers what it was asked."""

    asked: list[tuple[str, str | None]]
    answers: dict[str, tuple[int, bytes]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = self.answers.get(self.path, (404, b"nothing here"))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - as http.server names it

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def server(
    answers: dict[str, tuple[int, bytes]],
) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    asked: list[tuple[str, str | None]] = []
    handler = type("Handler", (Answers,), {"asked": asked, "answers": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_address[1]}", asked
        finally:
            served.shutdown()
            thread.join()


def test_page_of_the_agent_is_read_up_to_a_bound() -> None:
    with server({"/metrics": (200, b"x" * 100)}) as (base, _asked):
        assert read_agent(f"{base}/metrics", bytes_max=100, timeout_s=30) == b"x" * 100
        with pytest.raises(SourceError, match=f"the page at {base}/metrics has more than 99 bytes"):
            read_agent(f"{base}/metrics", bytes_max=99, timeout_s=30)


def test_agent_that_does_not_answer_is_told_with_the_reason() -> None:
    with server({"/metrics": (503, b"busy"), "/moved": (302, b"")}) as (base, asked):
        with pytest.raises(SourceError, match=f"no node agent answers at {base}/metrics: HTTP 503"):
            read_agent(f"{base}/metrics", bytes_max=100, timeout_s=30)
        with pytest.raises(SourceError, match="HTTP 302"):
            read_agent(f"{base}/moved", bytes_max=100, timeout_s=30)

    assert [path for path, _token in asked] == ["/metrics", "/moved"], "no redirect is followed"
    with pytest.raises(SourceError, match=r"at http://127.0.0.1:9/x: \[Errno 111\] Connection ref"):
        read_agent("http://127.0.0.1:9/x", bytes_max=100, timeout_s=30)
    with pytest.raises(SourceError, match="no node agent answers at nonsense://x"):
        read_agent("nonsense://x", bytes_max=100, timeout_s=30)


def test_agent_that_hangs_is_given_up_after_the_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"

        with pytest.raises(SourceError, match=f"no node agent answers at {url}: .*timed out"):
            read_agent(url, bytes_max=100, timeout_s=0.2)


def test_prometheus_that_redirects_never_gets_the_token_there(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with server({QUERY: (302, b"")}) as (base, asked):
        prometheus = Prometheus(base, tmp_path / "token")

        with pytest.raises(SourceError, match=f"{base} answered 302 to "):
            prometheus.readings({"up": None}, 1.0, 2.0)

    assert asked == [(QUERY, "Bearer secret")]


def test_error_of_prometheus_is_told_with_its_text() -> None:
    with (
        server({QUERY: (422, b"query too long")}) as (base, _asked),
        pytest.raises(SourceError, match=f"^{base} answered 422 to .*: query too long$"),
    ):
        Prometheus(base).readings({"up": None}, 1.0, 2.0)
    with pytest.raises(SourceError, match=r"^cannot query http://127.0.0.1:9: \[Errno 111\] Conn"):
        Prometheus("http://127.0.0.1:9").readings({"up": None}, 1.0, 2.0)


def test_prometheus_is_asked_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server({f"http://prometheus.example:9090{QUERY}": (422, b"by proxy")}) as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy.replace("//", "//user:pass@"))

        with pytest.raises(SourceError, match="by proxy"):
            Prometheus("http://prometheus.example:9090").readings({"up": None}, 1.0, 2.0)

    assert len(asked) == 1
