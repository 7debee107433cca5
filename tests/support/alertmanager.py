"""Real Alertmanagers with the shipped configuration, and what a person would receive from them."""

import contextlib
import itertools
import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.bound_to_test import BOUND_TO_TEST
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port

ROOT = Path(__file__).resolve().parents[2]
MARK = "RankmendMarkOfATest"  # an alert by which a test knows what is due by now
# Shorter, in the proportions of what is shipped: a group's interval is longer than members wait for each other.
_SHORTER = (
    ("group_wait: 15s", "group_wait: 2s"),
    ("group_wait: 10s", "group_wait: 1s"),
    ("group_interval: 5s", "group_interval: 1s"),
    ("group_interval: 1m", "group_interval: 5s"),
)


_SERIAL = itertools.count(1)


@dataclass
class People:
    """What a pager and a mailbox have received: messages as Alertmanager sends them, by path."""

    pages: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)  # messages about `MARK`

    def groups(self) -> set[str]:
        """Return which threads of messages there are: a pager has one incident for each."""
        return {str(one["groupKey"]) for one in self.pages}

    def statuses(self) -> list[str]:
        return [str(one["status"]) for one in self.pages]


@dataclass
class Alerting:
    urls: list[str]
    people: People

    def settle(self) -> None:
        """Wait until whatever was due when this was called has been sent.

        An alert of its own begins and ends: it takes the wait and then the interval that every group
        of messages to people has, and the same way, so that its second message comes after theirs.
        """
        name = f"mark-{next(_SERIAL)}"
        mark = {
            "labels": {"alertname": MARK, "incident": name, "to": "people", "severity": "critical"},
            "annotations": {"summary": name},
        }

        def has_come(status: str) -> bool:
            return any(
                one["status"] == status and one["groupLabels"]["incident"] == name
                for one in list(self.people.marks)
            )

        self.post([mark])
        eventually(lambda: has_come("firing"), lambda: self.people.marks)
        self.post([{**mark, "endsAt": datetime.now(timezone.utc).isoformat()}])
        eventually(lambda: has_come("resolved"), lambda: self.people.marks)

    def active(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.urls[0]}/api/v2/alerts", timeout=DEADLINE_S) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())
        return found

    def post(self, alerts: list[dict[str, Any]]) -> None:
        """Tell each Alertmanager of alerts, as Prometheus and agents do."""
        for url in self.urls:
            request = urllib.request.Request(
                f"{url}/api/v2/alerts",
                data=json.dumps(alerts).encode(),
                headers={"Content-Type": "application/json"},
            )
            urllib.request.urlopen(request, timeout=DEADLINE_S).close()


def _receiver(people: People) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept = people.records if self.path == "/record" else people.pages
            if message["groupLabels"].get("alertname") == MARK:
                kept = people.marks
            kept.append({**message, "at_s": time.monotonic()})
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextmanager
def alerting(folder: Path, members: int = 1) -> Iterator[Alerting]:
    """Run a cluster of Alertmanagers with the shipped configuration, and a receiver."""
    people = People()
    server = _receiver(people)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    text = (ROOT / "deploy/alertmanager/rankmend.yml").read_text()
    for old, new in (*_SHORTER, ("pager.example:8080", f"127.0.0.1:{server.server_address[1]}")):
        assert old in text, old
        text = text.replace(old, new)
    controller = text.index("    webhook_configs:\n      - url: https://controller.example")
    end = text.index("  # Put your pager", controller)
    config = folder / "rankmend.yml"
    config.write_text(text[:controller] + "\n" + text[end:])
    shutil.copy(ROOT / "deploy/alertmanager/rankmend.tmpl", folder)
    ports = [free_port() for _member in range(members)]
    mesh = [free_port() for _member in range(members)]
    running = []
    with contextlib.ExitStack() as undo:
        undo.callback(thread.join)
        undo.callback(server.server_close)
        undo.callback(server.shutdown)
        for number, port in enumerate(ports):
            others = [f"--cluster.peer=127.0.0.1:{one}" for one in mesh if one != mesh[number]]
            log = undo.enter_context((folder / f"alertmanager-{number}.log").open("wb"))
            argv = [
                *BOUND_TO_TEST,
                "prometheus-alertmanager",
                f"--config.file={config}",
                f"--storage.path={folder}/data-{number}",
                f"--web.listen-address=127.0.0.1:{port}",
                *(
                    (f"--cluster.listen-address=127.0.0.1:{mesh[number]}", *others)
                    if members > 1
                    else ("--cluster.listen-address=",)
                ),
                "--cluster.settle-timeout=0s",
                "--cluster.peer-timeout=2s",
            ]
            running.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            undo.callback(running[-1].wait)
            undo.callback(running[-1].kill)
            peers = number + 1 if members > 1 else 0  # one after the other, so that they meet
            _wait_ready(f"http://127.0.0.1:{port}", peers, folder / f"alertmanager-{number}.log")
        yield Alerting([f"http://127.0.0.1:{port}" for port in ports], people)


def _wait_ready(url: str, peers: int, log: Path) -> None:
    eventually(lambda: _peers(url) >= peers, lambda: log.read_text()[-2000:])


def _peers(url: str) -> int:
    """Return how many members of its cluster it knows; -1: it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/api/v2/status", timeout=DEADLINE_S) as answer:
            return len(json.loads(answer.read())["cluster"].get("peers", []))
    except OSError:
        return -1
