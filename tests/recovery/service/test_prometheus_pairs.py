"""A pair of real Prometheus and a cluster of two real Alertmanagers, of which one member flaps, and the real controller."""

import contextlib
import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from recovery.journal.incident_records import Decided, IncidentOpened
from recovery.messages.exchange import RankExit
from recovery.service.controller_config import Alertmanagers, Config
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.bound_to_test import BOUND_TO_TEST
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port
from tests.support.service import Running, Speaker, evidence_of, job_on, make_folder, running
from tests.system.chain.bed import Receiver, deployed

PROGRAMS = ("prometheus", "prometheus-alertmanager")
pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="not installed"),
]

REPLICAS = ("a", "b")
NODE = "gpu-1"


@dataclass
class Pair:
    """Each Prometheus reads an exporter of its own about the same node, as one that loses its way to it does."""

    folder: Path
    is_dropped: bool  # what tells the replicas apart, before an Alertmanager sees it
    target: Callable[[bytes], int] = lambda _body: 503
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    faults: dict[str, Gauge] = field(default_factory=dict)
    prometheus: dict[str, str] = field(default_factory=dict)
    alertmanagers: list[str] = field(default_factory=list)

    def take(self, _path: str, body: bytes, _headers: dict[str, str]) -> int:
        answer = self.target(body)
        self.messages.append(json.loads(body))
        self.answers.append(answer)
        return answer

    def set(self, replica: str, value: int) -> None:
        labels = ("gpu_lost", "gpu", "GPU-0", "", "critical", "drain")
        self.faults[replica].labels(*labels).set(value)

    def fires(self, replica: str) -> bool:
        alerts = read(f"{self.prometheus[replica]}/api/v1/alerts")["data"]["alerts"]
        return any(alert["labels"]["node"] == NODE for alert in alerts)

    def ends(self) -> int:
        """Return how many ends have come."""
        return sum(
            alert["status"] == "resolved"
            for message in list(self.messages)
            for alert in message["alerts"]
        )


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read())


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=DEADLINE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def pair_of(folder: Path, *, is_dropped: bool) -> Iterator[Pair]:
    pair = Pair(folder, is_dropped)
    with contextlib.ExitStack() as undo:
        receiver = Receiver(pair.take, None)
        undo.callback(receiver.close)

        def spawn(name: str, *argv: str) -> None:
            log = undo.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [*BOUND_TO_TEST, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            undo.callback(process.wait)
            undo.callback(process.kill)

        _configure_alertmanagers(folder, receiver.port)
        ports, mesh = [free_port(), free_port()], [free_port(), free_port()]
        pair.alertmanagers = [f"http://127.0.0.1:{port}" for port in ports]
        for place, port in enumerate(ports):
            spawn(
                f"alertmanager-{place}",
                "prometheus-alertmanager",
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/alertmanager-{place}",
                f"--web.listen-address=127.0.0.1:{port}",
                f"--cluster.listen-address=127.0.0.1:{mesh[place]}",
                f"--cluster.peer=127.0.0.1:{mesh[1 - place]}",
                "--cluster.peer-timeout=2s",
                "--cluster.settle-timeout=0s",
            )
        for url in pair.alertmanagers:
            eventually(lambda url=url: is_up(url), f"{url} answers")  # type: ignore[misc]
        shutil.copy("deploy/prometheus/rankmend-rules.yml", folder)
        for replica in REPLICAS:
            registry = CollectorRegistry()
            names = ["check", "component", "uuid", "device", "severity", "action"]
            pair.faults[replica] = Gauge("rankmend_finding_active", "-", names, registry=registry)
            exporter, port = free_port(), free_port()
            server, thread = start_http_server(exporter, "127.0.0.1", registry)
            undo.callback(thread.join)
            undo.callback(server.server_close)
            undo.callback(server.shutdown)
            pair.prometheus[replica] = f"http://127.0.0.1:{port}"
            config = folder / f"prometheus-{replica}.yml"
            config.write_text(json.dumps(_configure_prometheus(replica, ports, exporter, pair)))
            spawn(
                f"prometheus-{replica}",
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder}/prometheus-{replica}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--rules.alert.resend-delay=5s",
            )
        for url in pair.prometheus.values():
            eventually(lambda url=url: is_up(url), f"{url} answers")  # type: ignore[misc]
        yield pair


def _configure_alertmanagers(folder: Path, port: int) -> None:
    text = deployed(
        "alertmanager/rankmend.yml",
        ("https://controller.example:9477/v1/alertmanager", f"http://127.0.0.1:{port}/v1"),
        ("/etc/alertmanager/rankmend.token", "token"),
        ("          tls_config:\n            ca_file: /etc/alertmanager/rankmend-ca.crt\n", ""),
        ("group_interval: 5s", "group_interval: 1s"),
    )
    (folder / "alertmanager.yml").write_text(text)
    (folder / "token").write_text("for nobody\n")
    shutil.copy("deploy/alertmanager/rankmend.tmpl", folder)


def _configure_prometheus(
    replica: str, alertmanagers: list[int], exporter: int, pair: Pair
) -> dict[str, Any]:
    drop = [{"regex": "replica", "action": "labeldrop"}] if pair.is_dropped else []
    labels = {"node": NODE, "instance": f"{NODE}:9476"}
    target = {"targets": [f"127.0.0.1:{exporter}"], "labels": labels}
    return {
        "global": {
            "scrape_interval": "500ms",
            "scrape_timeout": "400ms",
            "evaluation_interval": "500ms",
            "external_labels": {"replica": replica},
        },
        "rule_files": ["rankmend-rules.yml"],
        "alerting": {
            "alert_relabel_configs": drop,
            "alertmanagers": [
                {"static_configs": [{"targets": [f"127.0.0.1:{port}" for port in alertmanagers]}]}
            ],
        },
        "scrape_configs": [{"job_name": "rankmend-agent", "static_configs": [target]}],
    }


@contextlib.contextmanager
def controller_of(folder: Path, pair: Pair) -> Iterator[Running]:
    make_folder(folder)
    token, entry = make_token("alerts", [Role.ALERT])
    add_token(folder / "tokens.toml", entry)

    def change(config: Config) -> Config:
        urls = Alertmanagers(urls=tuple(pair.alertmanagers), receiver="rankmend-controller")
        return msgspec.structs.replace(config, alertmanagers=urls)

    with running(folder, change) as up:
        pair.target = lambda body: post(up, token, body)
        yield up
        pair.target = lambda _body: 503


def post(up: Running, token: str, body: bytes) -> int:
    request = urllib.request.Request(
        f"{up.url}/v1/alertmanager",
        body,
        {"Authorization": f"Bearer {token.strip()}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(up.ca))
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 503


class Crew:
    """A job of two nodes and a spare, whose launchers obey until the test ends."""

    def __init__(self, up: Running) -> None:
        self.up = up
        self.speakers: list[Speaker] = job_on(up.client(), "gpu-1", "gpu-2", "gpu-3", spares=1)
        self.job_id = self.speakers[0].job_id

    def turn(self) -> None:
        for speaker in self.speakers:
            if speaker.ask(0.05) is not None:
                speaker.obey()
            else:
                speaker.say()

    def accused(self) -> list[str]:
        """Return the nodes about which an alert is active now, by the controller's book."""
        alerts = self.up.service.worker.alerts._desk.alerts
        return self.up.service.worker.call(
            lambda: [active.node for active in alerts.active if active.is_firing]
        ).result(DEADLINE_S)

    def wait(self, look: Callable[[], Any], what: str | Callable[[], object]) -> None:
        def turned() -> bool:
            self.turn()
            return bool(look())

        eventually(turned, what, pause_s=0.1)

    def records(self, kind: type) -> list[Any]:
        stored = self.up.service.worker.jobs.running[self.job_id].hold.stored_journal
        return [entry.record for entry in stored.read() if isinstance(entry.record, kind)]

    def kill(self, speaker: Speaker) -> None:
        assert speaker.report is not None
        killed = RankExit(0.1, None, 9, False, False, None, ())
        dead = tuple(replace(rank, process_state="", exit=killed) for rank in speaker.report.ranks)
        speaker.say(ranks=dead)

    def placed(self) -> set[str]:
        controller = self.up.service.worker.jobs.running[self.job_id].controller
        assert controller is not None
        return {place.node for place in controller.ledger.placement}


@pytest.mark.parametrize("is_dropped", [False, True], ids=["own labels", "equal labels"])
def test_a_flapping_member_of_a_pair_neither_ends_what_the_other_says_nor_makes_two_incidents(
    tmp_path: Path, is_dropped: bool
) -> None:
    with (
        pair_of(tmp_path, is_dropped=is_dropped) as pair,
        controller_of(tmp_path / "c", pair) as up,
    ):
        crew = Crew(up)
        for replica in REPLICAS:
            pair.set(replica, 1)
        crew.wait(lambda: evidence_of(up, crew.job_id), lambda: f"evidence: {pair.messages}")
        crew.wait(lambda: all(map(pair.fires, REPLICAS)), "both fire")

        for value in (0, 1, 0):
            pair.set("a", value)
            crew.wait(lambda value=value: pair.fires("a") == bool(value), "one has flapped")  # type: ignore[misc]
            assert pair.fires("b")
            if not value and not is_dropped:
                crew.wait(pair.ends, "its end comes")
        crew.wait(lambda: crew.accused() == [NODE], lambda: f"it is active: {pair.messages[-5:]}")
        crew.kill(crew.speakers[0])
        crew.wait(lambda: crew.placed() == {"gpu-2", "gpu-3"}, "the spare takes its place")

        assert len(crew.records(IncidentOpened)) == 1
        assert [record.plan.without for record in crew.records(Decided)] == [(NODE,)]
        if not is_dropped:  # one message has the end by one and the word of the other
            assert set(pair.answers) == {200}
        pair.set("b", 0)
        crew.wait(lambda: crew.accused() == [], "the last of the two ends it")
