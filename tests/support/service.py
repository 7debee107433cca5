"""A controller's service in this process, with its files, and launchers that only speak."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankmend.clock import SystemClock
from recovery.api import wire
from recovery.api.launcher_client import LauncherClient
from recovery.api.operator_client import OperatorClient
from recovery.messages.exchange import Endpoint, Order, RankError, RankExit, RankReport, Report
from recovery.messages.outside import NodeEvidence
from recovery.service import controller_config as configuration
from recovery.service.daemon import read
from recovery.service.roles import Role
from recovery.service.server import Service, ServiceThread
from recovery.service.setup import init
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import eventually

_PORTS = itertools.count(20001)  # no rendezvous is used twice
_ECC = "CUDA error: uncorrectable ECC error encountered"


class FullClient(LauncherClient, OperatorClient):
    """Asks for all that the API has; the token decides what it gets."""


@dataclass
class Running:
    """A service that runs, and the folder that `rankmend controller init` made for it."""

    folder: Path
    thread: ServiceThread
    port: int
    clients: list[FullClient] = field(default_factory=list)

    @property
    def service(self) -> Service:
        return self.thread.service

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def client(self, name: str = "launch", **options: Any) -> FullClient:
        named: dict[str, Any] = {"ca_file": self.ca}
        if name:
            named["token_file"] = self.folder / f"{name}.token"
        client = FullClient([self.url], **(named | options))
        self.clients.append(client)
        return client


def make_folder(folder: Path) -> Path:
    """Make what a controller on this machine needs, and return its configuration."""
    made = init(folder, ["127.0.0.1", "localhost"], folder / "state", None)
    text = made.config.read_text().replace('listen = ":9477"', 'listen = "127.0.0.1:0"')
    made.config.write_text(text)
    return made.config


def add_subject(folder: Path, subject: str, role: Role = Role.LAUNCH) -> None:
    """Give a subject a token with a role, in the file that `Running.client` reads."""
    secret, entry = make_token(subject, [role])
    add_token(folder / "tokens.toml", entry)
    path = folder / f"{subject}.token"
    path.write_text(f"{secret}\n")
    path.chmod(0o600)


@contextmanager
def running(
    folder: Path,
    change: Callable[[configuration.Config], configuration.Config] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """Run a service with the files in ``folder``."""
    config, tokens, policy = read(folder / "controller.toml")
    if change is not None:
        config = change(config)
    thread = ServiceThread(Service(config, SystemClock(), tokens, policy, **options))
    port = thread.start()
    up = Running(folder, thread, port)
    try:
        eventually(lambda: thread.service.worker.is_taken_up, "jobs taken up")
        yield up
    finally:
        for client in up.clients:
            client.close()
        thread.stop()


def join_of(node: str, **changes: Any) -> wire.Join:
    """Return the join of a job of two nodes with two ranks each."""
    values = {
        "key": "job:train",
        "name": "train",
        "node": node,
        "launcher_id": f"launcher-{node}",
        "nodes_min": 2,
        "nodes_max": 2,
        "slots": 2,
    }
    return wire.Join(**(values | changes))


@dataclass
class Speaker:
    """A launcher that starts nothing and says what it is told to say."""

    client: FullClient
    node: str
    job_id: str
    launcher_id: str = ""
    report: Report | None = None
    order: Order | None = None

    def __post_init__(self) -> None:
        number = int("".join(char for char in self.node if char.isdigit()) or 0)
        self.launcher_id = self.launcher_id or f"launcher-{self.node}"
        self.report = Report(
            version=1,
            node=self.node,
            boot_id=f"boot-{self.node}",
            job_id=self.job_id,
            revision=0,
            attempt=0,
            ranks=(),
            empty_through=0,
            launcher_id=self.launcher_id,
            slots=2,
            rendezvous=Endpoint("127.0.0.1", next(_PORTS)),
            peer_endpoint=Endpoint("127.0.0.1", 21000 + number),
        )

    def say(self, **changes: Any) -> wire.Accepted:
        assert self.report is not None
        self.report = replace(self.report, number=self.report.number + 1, **changes)
        return self.client.report(self.report)

    def ask(self, wait_s: float = 20.0) -> Order | None:
        """Return the next order and remember it."""
        known = self.order
        order = self.client.order(
            self.job_id,
            self.node,
            self.launcher_id,
            after=known.revision if known else 0,
            epoch=known.epoch if known else 0,
            wait_s=wait_s,
        )
        self.order = order or known
        return order

    def wait_order(self, what: str = "an order") -> Order:
        """Return the next order, however long it takes a busy machine."""
        eventually(lambda: self.ask() is not None, what)
        assert self.order is not None
        return self.order

    def obey(self) -> None:
        """Say that the newest order is carried out."""
        order = self.order
        assert order is not None
        if order.ranks:
            ranks = tuple(
                RankReport(rank, place, 1000 + rank, "R", steps_done=3, step=3, step_age_s=0.1,
                           attached_age_s=1.0, first_section_age_s=0.5)
                for place, rank in enumerate(order.ranks)
            )  # fmt: skip
            self.say(revision=order.revision, attempt=order.attempt, ranks=ranks)
        else:
            self.say(revision=order.revision, ranks=(), empty_through=order.attempt)

    def finish(self) -> None:
        """Say that every rank has ended with exit code 0."""
        assert self.report is not None
        done = RankExit(0.1, 0, None, False, False, None, ())
        ranks = tuple(replace(rank, process_state="", exit=done) for rank in self.report.ranks)
        self.say(ranks=ranks, empty_through=self.report.attempt)


def two_speakers(client: FullClient, **changes: Any) -> list[Speaker]:
    """Join a job of two nodes and have its first attempt ordered."""
    joined = [client.join(join_of(node, **changes)) for node in ("n1", "n2")]
    speakers = [
        Speaker(client, node, one.job_id, changes.get("launcher_id", ""))
        for node, one in zip(("n1", "n2"), joined, strict=True)
    ]
    for speaker in speakers:
        speaker.say()
    for speaker in speakers:
        speaker.wait_order("an order for the first attempt")
    return speakers


class Forger:
    """Launchers of a subject that obey orders and report device faults of a node, on which they may not run at all."""

    def __init__(self, up: Running, subject: str, node: str, others: tuple[str, ...]) -> None:
        client = up.client(subject)
        key = f"job:{subject}-{node}"
        self.node = node
        self.died: set[int] = set()
        self.speakers = {}
        for name in (node, *others):
            request = join_of(name, key=key, name="llama", nodes_max=3, launcher_id=f"L-{name}")
            self.speakers[name] = Speaker(client, name, client.join(request).job_id, f"L-{name}")
            self.speakers[name].say()

    def turn(self) -> None:
        """Obey what is ordered, take a step, and let rank 0 on the node die once in each attempt."""
        for one in self.speakers.values():
            self._obey(one)
        victim = self.speakers[self.node].report
        if victim is None or not victim.ranks or victim.attempt in self.died:
            return
        if victim.ranks[0].steps_done > 8:
            self.died.add(victim.attempt)
            text = f"RuntimeError: {_ECC}"
            ended = RankExit(0.1, 1, None, False, False, RankError("RuntimeError", _ECC, text), ())
            dead = replace(victim.ranks[0], process_state="", exit=ended)
            self.speakers[self.node].say(ranks=(dead, *victim.ranks[1:]))

    def _obey(self, one: Speaker) -> None:
        order, report = one.ask(wait_s=0.1), one.report
        assert report is not None
        if order is None:
            if report.ranks and report.attempt not in self.died:
                stepped = tuple(
                    replace(
                        rank,
                        step=(rank.step or 0) + 1,
                        steps_done=rank.steps_done + 1,
                        step_age_s=0.05,
                        first_section_age_s=1.0,
                    )
                    for rank in report.ranks
                )
                one.say(ranks=stepped)
            else:
                one.say()
        elif order.ranks and report.attempt != order.attempt:
            ranks = tuple(
                RankReport(rank, place, 1000 + rank, "R", attached_age_s=0.1)
                for place, rank in enumerate(order.ranks)
            )
            one.say(revision=order.revision, attempt=order.attempt, ranks=ranks)
        elif not order.ranks:
            one.say(
                revision=order.revision,
                ranks=(),
                empty_through=max(order.attempt, report.empty_through),
                rendezvous=Endpoint("127.0.0.1", next(_PORTS)),
            )
        else:
            one.say(revision=order.revision)


def job_on(client: FullClient, *nodes: str, key: str = "names", spares: int = 0) -> list[Speaker]:
    """Join a job on these nodes, each with an address of its own, and have its ranks run."""
    count = len(nodes) - spares
    changes: dict[str, Any] = {"key": key, "nodes_min": count, "nodes_max": count}
    speakers = [
        Speaker(client, node, client.join(join_of(node, **changes)).job_id) for node in nodes
    ]
    for number, speaker in enumerate(speakers, 1):
        speaker.say(peer_endpoint=Endpoint(f"10.9.0.{number}", 21000))
    for speaker in speakers[:count]:
        while speaker.ask() is None or not speaker.order or not speaker.order.ranks:
            speaker.say()
        speaker.obey()
    return speakers


def evidence_of(up: Running, job_id: str) -> list[NodeEvidence]:
    """Return the evidence from outside that the running job has journaled."""
    job = up.service.worker.jobs.running[job_id]
    assert job.controller is not None
    return [kept.evidence for kept in job.controller.ledger.evidence.values()]
