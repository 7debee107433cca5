"""A message of Alertmanager that is too large to be taken: what fires is read from Alertmanager instead."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
import urllib3

from recovery.service.controller_config import Alertmanagers
from recovery.service.http.routes import ALERT_BYTES_MAX
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import make_folder, running
from tests.support.service_bench import ACTIVE

pytestmark = pytest.mark.process


class Asked:
    """An Alertmanager, in so far as it is asked what fires."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.times = 0
        self.active: list[object] = []


@contextmanager
def running_alertmanager() -> Iterator[Asked]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(asked.active).encode()
            asked.times += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        asked = Asked(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def test_alerts_of_a_webhook_that_is_too_large_are_read_from_alertmanager(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    make_folder(folder)
    with running_alertmanager() as asked:
        people = Alertmanagers(urls=(asked.url,))
        with running(
            folder, lambda config: msgspec.structs.replace(config, alertmanagers=people)
        ) as up:
            eventually(lambda: asked.times >= 1, "the look at the start")
            asked.active = [ACTIVE]
            token = (folder / "admin.token").read_text().strip()
            with urllib3.PoolManager(
                ca_certs=str(up.ca), retries=False, timeout=DEADLINE_S
            ) as pool:
                refused = pool.request(
                    "POST",
                    f"{up.url}/v1/alertmanager",
                    headers={
                        "Authorization": f"Bearer {token}",
                        "Content-Length": str(ALERT_BYTES_MAX + 1),
                    },
                    body=b"",
                )

            assert refused.status == 413
            worker = up.service.worker
            eventually(
                lambda: (
                    worker.call(lambda: len(list(worker.desk.alerts.active))).result(DEADLINE_S)
                    == 1
                ),
                "the alert that fires",
            )
