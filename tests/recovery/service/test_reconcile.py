"""What fires is read at the start: until there is an answer, bounded, and once more when asked."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmend.alerting import AlertError, make_get
from recovery.controller.cluster.incoming_alerts import AlertsError, IncomingAlert, decode_active
from recovery.service.controller_config import Alertmanagers
from recovery.service.reconcile import AlertReader
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service_bench import ACTIVE

pytestmark = pytest.mark.process


class Worker:
    """Takes alerts in, as the deciding thread would."""

    def __init__(self) -> None:
        self.is_taken_up = False
        self.taken: list[tuple[IncomingAlert, ...]] = []

    def call(self, act: Callable[[], Any]) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(act())
        return done

    @property
    def alerts(self) -> "Worker":
        return self

    def take(self, alerts: tuple[IncomingAlert, ...]) -> None:
        self.taken.append(alerts)


@contextmanager
def reading(worker: Worker, get: Callable[[str, int], bytes], *urls: str) -> Iterator[AlertReader]:
    config = Alertmanagers(urls=urls or ("http://am:9093",), receiver="rankmend controller")
    reader = AlertReader(worker, config, get)  # type: ignore[arg-type]
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


def test_active_alerts_are_understood_as_alertmanager_tells_them() -> None:
    (alert,) = decode_active(json.dumps([ACTIVE]).encode())

    assert alert == IncomingAlert(ACTIVE["labels"], ACTIVE["annotations"], 1_799_999_940.5, True)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'[{"labels": {"a": 1}}]', b"[" * 100_000, b"\xff"]
)
def test_what_is_no_list_of_alerts_is_refused(body: bytes) -> None:
    with pytest.raises(AlertsError, match="active alerts"):
        decode_active(body)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_answer_is_alerts_or_an_error_with_a_name(body: bytes) -> None:
    with contextlib.suppress(AlertsError):
        decode_active(body)


def test_nothing_is_read_before_the_jobs_are_taken_up_and_then_it_is_asked_until_it_answers() -> (
    None
):
    worker, asked = Worker(), []

    def get(url: str, bytes_max: int) -> bytes:
        assert worker.is_taken_up
        asked.append(url)
        if len(asked) == 1:
            raise AlertError("connection refused")
        return json.dumps([ACTIVE]).encode()

    with reading(worker, get):
        worker.is_taken_up = True
        eventually(lambda: bool(worker.taken), "alerts that were read")

    assert [one.labels["node"] for one in worker.taken[0]] == ["n1"]
    assert asked[0] == (
        "http://am:9093/api/v2/alerts?active=true&silenced=false&inhibited=false&"
        "unprocessed=false&receiver=rankmend%20controller"
    )


def test_one_alertmanager_that_says_nonsense_or_hangs_holds_up_no_other() -> None:
    worker, let_go = Worker(), threading.Event()
    worker.is_taken_up = True

    def get(url: str, bytes_max: int) -> bytes:
        if "hangs" in url:
            let_go.wait(DEADLINE_S)
            raise AlertError("let go")
        return b"<html>" if "nonsense" in url else b"[]"

    urls = ("http://hangs:1", "http://nonsense:1", "http://good:1")
    with reading(worker, get, *urls):
        eventually(lambda: worker.taken == [()], "the good one's answer")
        let_go.set()


def test_it_is_read_once_more_when_a_webhook_has_left_alerts_out() -> None:
    worker = Worker()
    worker.is_taken_up = True

    with reading(worker, lambda _url, _max: b"[]") as reader:
        eventually(lambda: len(worker.taken) == 1, "the first answer")
        reader.wake()
        eventually(lambda: len(worker.taken) == 2, "the second answer")


def test_an_answer_is_bounded_and_the_token_is_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] == "Bearer secret"
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(b"x" * 100)

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/"
            get = make_get(token_file=str(token))

            assert get(url, 100) == b"x" * 100
            with pytest.raises(AlertError, match="more than 99 bytes"):
                get(url, 99)
            with pytest.raises(AlertError, match="Unauthorized"):
                make_get()(url, 100)
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(AlertError, match=str(server.server_address[1])):
        get(url, 100)
