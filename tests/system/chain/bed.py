"""The whole chain with real daemons: exporters, Prometheus, Alertmanager, controller, launchers.

Configurations and rules are those of deploy/, with other addresses and shorter intervals; whatever is
replaced must be there. Nodes are addresses of this machine's loopback network, so that the controller's
http_sd tells Prometheus where their exporters are.
"""

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import urllib3
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from recovery.api.controller_errors import ControllerError
from recovery.api.operator_client import OperatorClient
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.bound_to_test import BOUND_TO_TEST
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port
from tests.support.service import make_folder

ROOT = Path(__file__).resolve().parents[3]
NODES = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
# Short, so that the tests are; in the proportions of the defaults.
POLICY = """
[quarantine]
blames = 100
[people]
stands_s = 3
[policy]
node_silent_s = 4
lease_s = 6
kill_bound_s = 2
lease_margin_s = 1
evidence_wait_s = 1
retry_pause_s = 0.2
[hang]
stopped_floor_s = 2
"""


def deployed(path: str, *changes: tuple[str, str]) -> str:
    """Return a file of deploy/ with other addresses and intervals."""
    text = (ROOT / "deploy" / path).read_text()
    for old, new in changes:
        assert old in text, f"deploy/{path} has no {old!r}"
        text = text.replace(old, new)
    return text


class Receiver:
    """Takes what Alertmanager sends: keeps it, and does with it what the test says."""

    def __init__(self, take: Callable[[str, bytes, dict[str, str]], int], tls: Path | None) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver._take(self.path, body, dict(self.headers))
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._take = take
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "server.crt", tls / "server.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class Wire:
    """What lies between Alertmanager and the controller, and can misbehave."""

    bed: "Bed"
    refuse: int = 0  # so many messages are answered 503
    is_lost: bool = False  # messages are taken and never arrive
    copies: int = 1  # each message arrives so often
    arrived: list[tuple[dict[str, Any], int]] = field(default_factory=list)

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        if self.is_lost:
            return 200
        if self.refuse:
            self.refuse -= 1
            return 503
        kept = {"Authorization": headers["Authorization"], "Content-Type": "application/json"}
        status = 503
        for _copy in range(self.copies):
            try:
                answer = self.bed.http.request(
                    "POST", f"{self.bed.url}{path}", body=body, headers=kept, timeout=DEADLINE_S
                )
                status = answer.status
            except urllib3.exceptions.HTTPError:
                status = 503
            self.arrived.append((json.loads(body), status))
        return status

    def heard(self, status: str, node: str) -> int:
        """Return how many alerts of this status have arrived about a node."""
        return sum(alert["status"] == status for alert in self._about(node))

    def about(self, node: str) -> list[dict[str, str]]:
        """Return the labels of all alerts that have arrived about a node."""
        return [alert["labels"] for alert in self._about(node)]

    def _about(self, node: str) -> list[dict[str, Any]]:
        return [
            alert
            for message, answered in list(self.arrived)
            if answered == 200
            for alert in message["alerts"]
            if alert["labels"].get("node") == node
        ]


class Bed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "controller"
        make_folder(self.files)
        for name, roles in (("alerts", [Role.ALERT]), ("reader", [Role.FLEET_READ])):
            text, entry = make_token(name, roles)
            add_token(self.files / "tokens.toml", entry)
            path = self.files / f"{name}.token"
            path.write_text(text)
            path.chmod(0o600)
        self.http = urllib3.PoolManager(ca_certs=str(self.files / "ca.crt"), retries=False)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.people: list[dict[str, Any]] = []
        self.wire = Wire(self)
        self.receivers = (
            Receiver(self.wire.take, self.files),
            Receiver(lambda _path, body, _headers: self._hear(body), None),
        )
        self.controller_port, self.agent_port = free_port(), free_port(NODES[0])
        self.prometheus_port, self.alertmanager_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.controller_port}"
        self.alertmanager = f"http://127.0.0.1:{self.alertmanager_port}"
        self.client: OperatorClient | None = None
        self.exporters: list[Any] = []
        self.faults: dict[str, Gauge] = {}

    def _hear(self, body: bytes) -> int:
        self.people.append(json.loads(body))
        return 200

    # Daemons.

    def start(self) -> None:
        for node in NODES:
            registry = CollectorRegistry()
            labels = ["check", "component", "uuid", "device", "severity", "action"]
            self.faults[node] = Gauge("rankmend_finding_active", "-", labels, registry=registry)
            self.exporters.append(start_http_server(self.agent_port, node, registry))
        self._configure()
        self.start_controller()
        self.spawn(
            "alertmanager",
            "prometheus-alertmanager",
            f"--config.file={self.folder}/alertmanager.yml",
            f"--storage.path={self.folder}/alertmanager",
            f"--web.listen-address=127.0.0.1:{self.alertmanager_port}",
            "--cluster.listen-address=",
        )
        for name in NODES:
            self.start_launcher(name)
        self.start_prometheus()

    def spawn(self, name: str, *argv: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as out:
            self.running[name] = subprocess.Popen(
                [*BOUND_TO_TEST, *argv],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_controller(self) -> None:
        argv = ("-m", "rankmend.cli", "controller", "run", "--config")
        self.spawn("service", sys.executable, *argv, f"{self.files}/controller.toml")
        eventually(self._is_ready, lambda: f"controller ready:\n{self.log('service')}")
        if self.client is None:
            self.client = OperatorClient(
                [self.url], ca_file=self.files / "ca.crt", token_file=self.files / "admin.token"
            )

    def _is_ready(self) -> bool:
        try:
            return self.http.request("GET", f"{self.url}/readyz", timeout=DEADLINE_S).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def start_prometheus(self) -> None:
        self.spawn(
            "prometheus",
            "prometheus",
            f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/prometheus",
            f"--web.listen-address=127.0.0.1:{self.prometheus_port}",
            "--rules.alert.resend-delay=1s",
            "--log.level=warn",
        )
        eventually(self._scrapes, lambda: f"Prometheus reads all nodes:\n{self.log('prometheus')}")

    def _scrapes(self) -> bool:
        """Return whether the exporters of all nodes that the controller knows are read."""
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/targets"
        try:
            answer = json.loads(self.http.request("GET", url, timeout=DEADLINE_S).data)
        except (urllib3.exceptions.HTTPError, ValueError):
            return False
        up = [one for one in answer["data"]["activeTargets"] if one["health"] == "up"]
        return len(up) == len(NODES) + 1

    def start_launcher(self, node: str) -> None:
        self.spawn(
            node,
            *(sys.executable, "-m", "rankmend.cli", "run", f"--controller={self.url}"),
            *(f"--ca-file={self.files}/ca.crt", f"--token-file={self.files}/launch.token"),
            *(
                "--nnodes=3",
                "--spares=1",
                "--nproc-per-node=1",
                "--job=chain",
                f"--node-name={node}",
            ),
            *(f"--state-dir={self.folder}/state-{node}", f"--agent-socket={self.folder}/none"),
            *("--local-addr=127.0.0.1", f"{ROOT}/tests/system/chain/job.py", str(self.folder)),
        )

    def _configure(self) -> None:
        toml = self.files / "controller.toml"
        text = toml.read_text().replace('"127.0.0.1:0"', f'"127.0.0.1:{self.controller_port}"')
        for old, new in (
            ("#policy_file = ", f'policy_file = "{self.files}/policy.toml" # '),
            ("#agent_port = ", f"agent_port = {self.agent_port} # "),
            ("#urls = ", f'urls = ["{self.alertmanager}"] # '),
            ("#report_s = ", "report_s = 0.5 # "),
            ('#receiver = "rankmend-controller"', 'receiver = "rankmend-controller"'),
        ):
            assert old in text, old
            text = text.replace(old, new)
        toml.write_text(text)
        (self.files / "policy.toml").write_text(POLICY)
        controller = ("controller.example:9477", f"127.0.0.1:{self.controller_port}")
        secrets = (
            ("/etc/prometheus/rankmend.token", f"{self.files}/reader.token"),
            ("/etc/prometheus/rankmend-ca.crt", f"{self.files}/ca.crt"),
        )
        prometheus = deployed(
            "prometheus/rankmend-controller.yml",
            controller,
            *secrets,
            ("alertmanager.example:9093", f"127.0.0.1:{self.alertmanager_port}"),
            ("scrape_interval: 5s", "scrape_interval: 500ms"),
            ("scrape_timeout: 4s", "scrape_timeout: 400ms"),
            ("evaluation_interval: 5s", "evaluation_interval: 500ms"),
            ("refresh_interval: 30s", "refresh_interval: 1s"),
        )
        (self.folder / "prometheus.yml").write_text(prometheus)
        for path in (ROOT / "deploy" / "prometheus").glob("rankmend-*rules.yml"):
            shutil.copy(path, self.folder)
        alertmanager = deployed(
            "alertmanager/rankmend.yml",
            ("controller.example:9477", f"127.0.0.1:{self.receivers[0].port}"),
            ("pager.example:8080", f"127.0.0.1:{self.receivers[1].port}"),
            ("/etc/alertmanager/rankmend.token", f"{self.files}/alerts.token"),
            ("/etc/alertmanager/rankmend-ca.crt", f"{self.files}/ca.crt"),
            ("group_wait: 10s", "group_wait: 1s"),
            ("group_wait: 15s", "group_wait: 1s"),
            ("group_interval: 1m", "group_interval: 1s"),
            ("group_interval: 5s", "group_interval: 1s"),
        )
        (self.folder / "alertmanager.yml").write_text(alertmanager)
        shutil.copy(ROOT / "deploy" / "alertmanager" / "rankmend.tmpl", self.folder)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait(DEADLINE_S)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    @property
    def logs(self) -> str:
        return "\n".join(f"== {name}\n{self.log(name)}" for name in self.running)

    def close(self) -> None:
        (self.folder / "finish").touch()
        for node in NODES:
            if node in self.running and "service" in self.running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.running[node].wait(DEADLINE_S)
        for name in list(self.running):
            self.kill(name)
        for server, thread in self.exporters:
            server.shutdown()
            server.server_close()
            thread.join()
        for receiver in self.receivers:
            receiver.close()
        if self.client is not None:
            self.client.close()
        self.http.clear()

    # The job.

    @property
    def job_id(self) -> str:
        assert self.client is not None
        return eventually(lambda: self.client and self.client.jobs(), "a job")[0].job_id

    def placed(self) -> tuple[int, tuple[str, ...]]:
        """Return the newest attempt and its nodes."""
        assert self.client is not None
        nodes = [one for one in self.client.job(self.job_id).nodes if not one.is_spare]
        return max((one.attempt for one in nodes), default=0), tuple(one.node for one in nodes)

    def wait_trains(self, attempt: int = 1) -> tuple[int, tuple[str, ...]]:
        """Wait until this attempt or a later one makes steps on two nodes; return it with them."""
        assert self.client is not None
        client, job_id = self.client, self.job_id

        def trains() -> bool:
            try:
                story = client.story(job_id)
                is_running = client.job(job_id).job.state == "running"
            except ControllerError:
                return False
            return is_running and any(
                line.kind == "attempt_verified"
                and json.loads(bytes(line.record))["attempt"] >= attempt
                for line in story.lines
            )

        eventually(trains, lambda: f"attempt {attempt} trains:\n{self.story()}\n{self.logs}")
        return self.placed()

    def story(self) -> str:
        assert self.client is not None
        with contextlib.suppress(ControllerError):
            lines = self.client.story(self.job_id).lines
            told = "\n".join(line.text or line.kind for line in lines[-40:])
            return f"{told}\n{self.client.job(self.job_id)}"
        return "no story"

    def records(self, kind: str) -> list[dict[str, Any]]:
        assert self.client is not None
        lines = self.client.story(self.job_id).lines
        return [json.loads(bytes(line.record)) for line in lines if line.kind == kind]

    def policy(self) -> dict[str, Any]:
        token = (self.files / "reader.token").read_text()
        headers = {"Authorization": f"Bearer {token}"}
        answer = self.http.request(
            "GET", f"{self.url}/v1/policy", headers=headers, timeout=DEADLINE_S
        )
        assert answer.status == 200, answer.data
        told: dict[str, Any] = json.loads(answer.data)
        return told

    # Faults.

    def hang(self, attempt: int) -> None:
        (self.folder / f"broken-{attempt}").touch()

    def break_gpu(self, node: str) -> None:
        self._gpu(node).set(1)

    def _gpu(self, node: str) -> Any:
        return self.faults[node].labels("gpu_lost", "gpu", "GPU-0", "", "critical", "drain")

    def repair(self, node: str) -> None:
        """End the fault, wait until nobody tells of it, and give the node back to the job."""
        assert self.client is not None
        self._gpu(node).set(0)
        eventually(lambda: not self.accusing(node), f"nothing is active about {node}")

    def active(self, node: str) -> list[dict[str, Any]]:
        answer = self.http.request("GET", f"{self.alertmanager}/api/v2/alerts", timeout=DEADLINE_S)
        alerts = json.loads(answer.data)
        return [one for one in alerts if one["labels"].get("node") == node]

    def accusing(self, node: str) -> list[dict[str, Any]]:
        """Return the active alerts about a node, but for the controller's own messages and marks."""
        return [one for one in self.active(node) if "to" not in one["labels"]]

    def post(self, alerts: list[dict[str, Any]]) -> None:
        """Tell Alertmanager of alerts, as a Prometheus would."""
        body = json.dumps(alerts).encode()
        answer = self.http.request(
            "POST",
            f"{self.alertmanager}/api/v2/alerts",
            body=body,
            headers={"Content-Type": "application/json"},
            timeout=DEADLINE_S,
        )
        assert answer.status == 200, answer.data


def missing_daemons() -> list[str]:
    wanted = ("prometheus", "prometheus-alertmanager")
    return [name for name in wanted if shutil.which(name, path=os.environ["PATH"]) is None]
