"""A real controller, and the simulated launchers that load it, for the benchmarks of the controller's service.

Not a benchmark itself. A launcher reports over real TLS and HTTP at an even pace, and holds its long poll all the while.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import resource
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import psutil

from recovery.api import wire
from recovery.api.connection import pause_s
from recovery.api.operator_client import OperatorClient
from recovery.launcher.membership.node_membership import spread_s
from recovery.messages.codec import encode_message
from recovery.messages.exchange import Endpoint, RankReport, Report, StepTiming
from recovery.service.setup import init

START_S_MAX = 60.0
STEP_S = 1.0
LOST = (OSError, asyncio.IncompleteReadError, ssl.SSLError)
# What differs between two reports of a launcher, and what stands for it in its template: number, step, age, sections, collectives, seconds of
# computing and of sending.
MARK_NAMES = (b"number", b"step", b"age", b"sections", b"collectives", b"computed", b"sent")
MARKS = (700000001, 700000002, 700000003.25, 700000004, 700000005, 700000006.25, 700000007.25)


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection that is kept, without what a real client does beside."""

    _LENGTH = re.compile(rb"(?i)content-length: (\d+)")

    def __init__(self, port: int, context: ssl.SSLContext, head: str) -> None:
        self._port, self._context, self._head = port, context, head
        self._transport: asyncio.Transport | None = None
        self._read = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def open(self) -> asyncio.Transport:
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._read = b""
            self._transport, _ = await loop.create_connection(
                lambda: self, "127.0.0.1", self._port, ssl=self._context, server_hostname="localhost"
            )  # fmt: skip
        return self._transport

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        transport = await self.open()
        self._answer = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        transport.write(head.encode() + body)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, ended, body = self._read.partition(b"\r\n\r\n")
        length = self._LENGTH.search(head)
        if ended and len(body) == (int(length[1]) if length else 0):
            self._read = b""
            if self._answer is not None and not self._answer.done():
                self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._transport = None


class Told(msgspec.Struct):
    """What of an order counts here."""

    epoch: int
    revision: int
    attempt: int
    ranks: list[int]


TOLD = msgspec.json.Decoder(Told)


@dataclass
class Seen:
    """What all launchers together have seen since it was last emptied."""

    latencies_s: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    def count(self, what: object) -> None:
        self.statuses[str(what)] = self.statuses.get(str(what), 0) + 1


class Launcher:
    def __init__(self, number: int, fleet: "Fleet") -> None:
        self.node, self.launcher_id = f"n{number}", f"launcher-{number}"
        self.number, self.fleet = number, fleet
        self.reports, self.polls = fleet.connect(), fleet.connect()
        self.order: Told | None = None
        self.wait_s = wire.WAIT_S_SAFE  # of a poll
        self.stopped_unix_s = self.started_unix_s = 0.0  # when it was last told to
        self.accepted_s = self.polled_s = 0.0  # perf_counter
        self.step = self.told = 0  # its newest step, and how often it has reported
        self.report: Report | None = None
        self._template: bytes | None = None
        self._template_of: object = None

    async def join(self) -> str:
        slots, nodes = self.fleet.ranks, self.fleet.nodes
        join = wire.Join(
            key=self.fleet.job, name=self.fleet.job, node=self.node, launcher_id=self.launcher_id, nodes_min=nodes,
            nodes_max=nodes + self.fleet.spares, slots=slots, policy={"join_wait_s": 300.0},
        )  # fmt: skip
        while True:
            status, body = await self.reports.ask("POST", "/v1/jobs", msgspec.json.encode(join))
            if status == 200:
                break
            await asyncio.sleep(random.uniform(0.2, 1.0))
        answer = msgspec.json.decode(body, type=wire.JoinAnswer)
        job_id, self.wait_s = answer.job_id, answer.wait_s
        self.report = Report(
            version=1, node=self.node, boot_id=f"boot-{self.number}", job_id=job_id, revision=0,
            attempt=0, ranks=(), empty_through=0, launcher_id=self.launcher_id, slots=slots,
            rendezvous=self._place(), peer_endpoint=Endpoint("127.0.0.1", 21000),
        )  # fmt: skip
        return job_id

    def _place(self) -> Endpoint:
        return Endpoint(f"{self.node}.example", 20000 + random.randrange(40000))

    def make_report(self) -> Report:
        """Return what a launcher of healthy ranks says that carries out its order at once."""
        assert self.report is not None, "joined"
        self._count()
        self.report = replace(
            self._report(self.step, self._still_s(), 3 * self.step, 9 * self.step, 0.7 * self.step, 0.2 * self.step),
            number=self.told,
        )  # fmt: skip
        return self.report

    def make_body(self) -> bytes:
        """Return the same as a body, from one that differs in a few numbers: making it anew takes longer than its answer."""
        order, is_still = self.order, self.fleet.stands_still
        if self._template is None or self._template_of != (order, is_still):
            self.report = replace(self._report(*MARKS[1:]), number=MARKS[0])
            text = encode_message(self.report).replace(b"%", b"%%")
            for name, mark in zip(MARK_NAMES, MARKS, strict=True):
                text = text.replace(json.dumps(mark).encode(), b"%%(%b)b" % name)
            self._template, self._template_of = text, (order, is_still)
        self._count()
        step = self.step
        values = (self.told, step, self._still_s(), 3 * step, 9 * step, 0.7 * step, 0.2 * step)
        texts = (json.dumps(value).encode() for value in values)
        return self._template % dict(zip(MARK_NAMES, texts, strict=True))

    def _count(self) -> None:
        self.told += 1
        if not self.fleet.stands_still:
            self.step += 1

    def _still_s(self) -> float:
        fleet = self.fleet
        return time.perf_counter() - fleet.still_since_s if fleet.stands_still else 0.1

    def _report(
        self, step: int, age_s: float, sections: int, collectives: int, compute_s: float, sent_s: float
    ) -> Report:  # fmt: skip
        assert self.report is not None, "joined"
        changes: dict[str, object] = {}
        if (order := self.order) is not None:
            timing = StepTiming(step, step, age_s, compute_s, sent_s, 0.0, 0.0, 0.0, STEP_S)
            changes["ranks"] = tuple(
                RankReport(
                    rank, place, 1000 + place, "S", 60.0, None, 50.0, step, age_s, step,
                    section="communication", section_age_s=age_s, sections_entered=sections,
                    collectives_entered=collectives, collectives_completed=collectives,
                    timings=() if self.fleet.stands_still else (timing,),
                )
                for place, rank in enumerate(order.ranks)
            )  # fmt: skip
            changes["revision"] = order.revision
            if order.ranks:
                changes["attempt"] = order.attempt
            else:
                changes |= {"empty_through": order.attempt, "rendezvous": self._place()}
        return replace(self.report, **changes)  # type: ignore[arg-type]

    async def tell(self) -> bool:
        """Report once; return whether it was taken."""
        seen, body = self.fleet.seen, self.make_body()
        seen.bytes += len(body)
        began_s = time.perf_counter()
        try:
            status, _ = await self.reports.ask(
                "POST", f"/v1/jobs/{self.fleet.job_id}/reports", body
            )
        except LOST as error:
            seen.count(type(error).__name__)
            return False
        now_s = time.perf_counter()
        seen.latencies_s.append(now_s - began_s)
        seen.count(status)
        if status == 202:
            self.accepted_s = now_s
        return status == 202

    async def keep_telling(self) -> None:
        every_s, failures = self.fleet.every_s, 0
        due_s = time.perf_counter() + random.uniform(0, every_s)
        while True:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            failures = 0 if await self.tell() else failures + 1
            due_s += every_s
            if failures:
                due_s = time.perf_counter() + self.fleet.pause_s(failures)

    async def listen(self) -> None:
        failures = 0
        while True:
            known = self.order
            after, epoch = (0, 0) if known is None else (known.revision, known.epoch)
            path = (
                f"/v1/jobs/{self.fleet.job_id}/orders/{self.node}"
                f"?launcher={self.launcher_id}&after={after}&epoch={epoch}&wait={self.wait_s:g}"
            )
            try:
                status, body = await self.polls.ask("GET", path)
            except LOST as error:
                self.fleet.seen.count(f"poll {type(error).__name__}")
                status, body = 0, b""
            if status in {200, 204}:
                failures, self.polled_s = 0, time.perf_counter()
                self.fleet.seen.count(f"poll {status}")
            else:
                failures += 1
                await asyncio.sleep(self.fleet.pause_s(failures))
            if status == 200:
                order = TOLD.decode(body)
                if order.ranks:
                    self.started_unix_s = time.time()
                else:
                    self.stopped_unix_s = time.time()
                self.order = order


class Fleet:
    """All launchers of the job."""

    def __init__(self, options: argparse.Namespace, port: int, folder: Path) -> None:
        self.nodes, self.ranks, self.spares = options.nodes, options.ranks, options.spares
        self.every_s, self.job = options.every, options.job
        self._port = port
        self._context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        token = (folder / "launch.token").read_text().strip()
        self._head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self.seen = Seen()
        self.job_id = ""
        self.stands_still, self.still_since_s = False, 0.0
        self.is_patient = True  # after a failure, as `recovery.launcher.membership.remote` is
        self.launchers = [Launcher(n, self) for n in range(self.nodes + self.spares)]
        self._tasks: list[asyncio.Task[None]] = []

    def connect(self) -> Connection:
        return Connection(self._port, self._context, self._head)

    def pause_s(self, failures: int) -> float:
        if not self.is_patient:
            return 0.1
        return pause_s(failures) + random.random() * spread_s(len(self.launchers))

    async def start(self) -> None:
        room = asyncio.Semaphore(64)

        async def join(one: Launcher) -> None:
            async with room:
                self.job_id = await one.join()
                await one.polls.open()
            self._tasks.append(asyncio.create_task(one.keep_telling()))
            self._tasks.append(asyncio.create_task(one.listen()))

        await asyncio.gather(*(join(one) for one in self.launchers))

    async def run_through(self, attempt: int) -> None:
        """Return once the attempt was ordered from as many launchers as the job has nodes."""

        def ordered() -> int:
            return sum(
                (order := one.order) is not None and order.attempt == attempt and bool(order.ranks)
                for one in self.launchers
            )

        await until(lambda: ordered() == self.nodes, f"attempt {attempt} on all nodes", 300)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self.launchers:
            one.reports.close()
            one.polls.close()


class Server:
    """The controller: a process that can be killed and started again."""

    def __init__(self, base: Path, core: int | None, journal: str | None = None) -> None:
        self.folder, self._core, self._log = base / "controller", core, base / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        made = init(self.folder, ["localhost", "127.0.0.1"], base / "state", None)
        text = made.config.read_text().replace(
            'listen = ":9477"', f'listen = "127.0.0.1:{self.port}"'
        )
        # All launchers are in one process here, as they are behind one NAT gateway.
        text = text.replace("#shared_addresses = []", 'shared_addresses = ["127.0.0.0/8"]')
        # Its storm of alerts accuses most of the fleet, and would be doubted.
        policy = base / "policy.toml"
        policy.write_text("[budgets]\nnodes_held_percent = 100\n")
        text = text.replace("#policy_file = ", f'policy_file = "{policy}" # ')
        if journal is not None:
            text = text.replace("\nstate_dir", f'\njournal = "{journal}"\nstate_dir', 1)
        made.config.write_text(text)
        self._command = [sys.executable, "-m", "rankmend.cli", "controller", "run"]
        self._command += ["--config", str(made.config)]
        self.start()
        self.admin = OperatorClient(
            [f"https://localhost:{self.port}"],
            token_file=made.admin_token,
            ca_file=made.authority,
        )

    def start(self) -> None:
        """Return once the controller listens."""
        self._log.write_bytes(b"")
        with self._log.open("ab") as output:
            self._running = subprocess.Popen(self._command, stderr=output)
        self.process = psutil.Process(self._running.pid)
        if self._core is not None:
            self.process.cpu_affinity([self._core])
        until_s = time.monotonic() + START_S_MAX
        while "controller started" not in self._log.read_text():
            if self._running.poll() is not None or time.monotonic() > until_s:
                sys.exit(self._log.read_text())
            time.sleep(0.02)

    def kill(self) -> None:
        self._running.kill()
        self._running.wait()

    def close(self) -> None:
        self.admin.close()
        self._running.terminate()
        self._running.wait(30)

    @property
    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    @property
    def waited_s(self) -> float:
        """How long its threads could have run and did not, for others were on the core."""
        waited_ns = 0
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                waited_ns += int(path.read_text().split()[1])
        return waited_ns / 1e9

    @property
    def rss_mib(self) -> float:
        return self.process.memory_info().rss / 2**20

    @property
    def warnings(self) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if "level=info" not in line]


async def until(is_so: object, what: str, within_s: float) -> None:
    assert callable(is_so)
    deadline_s = time.perf_counter() + within_s
    while not is_so():
        if time.perf_counter() > deadline_s:
            sys.exit(f"not after {within_s:g} s: {what}")
        await asyncio.sleep(0.05)  # a look at 10,000 launchers takes 1 ms


async def in_thread(act: object, *arguments: object, **named: object) -> object:
    assert callable(act)
    return await asyncio.to_thread(act, *arguments, **named)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def raise_descriptors(launchers: int) -> None:
    """Raise the limit of descriptors, or end where it is too low for two a launcher."""
    hard, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[1], 2 * launchers + 100
    if needed > hard:
        sys.exit(f"{needed} descriptors are needed, the hard limit is {hard} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
