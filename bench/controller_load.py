"""Load on the controller's service: simulated launchers over real TLS and HTTP, each with its long poll.

Starts `rankmend controller` with what `init` makes, joins NODES launchers to one job, has them report at
a steady pace (open loop: a late answer delays no other report), then has a person restart the job and measures how
long the new orders take to reach all of them.

    .venv/bin/python bench/controller_load.py --nodes 2000 --ranks 8 --every 1 --seconds 30

The generator is a process of its own, so its cost is not the controller's; both are shown. Raise the limit of
descriptors first (ulimit -n 20000).
"""

import argparse
import asyncio
import json
import random
import re
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from recovery.codec import encode_message
from recovery.gate import PersonAct
from recovery.messages import Endpoint, RankReport, Report, StepTiming
from recovery.service import wire
from recovery.service.client import ControllerClient
from recovery.service.setup import init

_LENGTH = re.compile(rb"(?i)content-length: (\d+)")


class Connection:
    """One HTTP/1.1 connection that is kept, without what a real client does beside."""

    def __init__(self, port: int, context: ssl.SSLContext, head: str) -> None:
        self._port, self._context, self._head = port, context, head
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._context, server_hostname="localhost"
            )
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(answer)
        rest = await self._reader.readexactly(int(length[1])) if length else b""
        return int(answer[9:12]), rest

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


class Launcher:
    def __init__(self, number: int, ranks: int, reports: Connection, polls: Connection) -> None:
        self.node, self.launcher_id = f"n{number}", f"launcher-{number}"
        self.number, self.ranks_count = number, ranks
        self.reports, self.polls = reports, polls
        self.job_id = ""
        self.order: dict[str, object] = {}
        self.ordered_at_s = 0.0
        self.report: Report | None = None
        self.step = 0

    async def join(self, nodes: int) -> None:
        join = wire.Join(
            key="load", name="load", node=self.node, launcher_id=self.launcher_id,
            nodes_min=nodes, nodes_max=nodes, slots=self.ranks_count,
        )  # fmt: skip
        while True:
            status, body = await self.reports.ask("POST", "/v1/jobs", msgspec.json.encode(join))
            if status == 200:
                break
            await asyncio.sleep(random.uniform(0.2, 1.0))
        self.job_id = json.loads(body)["job_id"]
        self.report = Report(
            version=1, node=self.node, boot_id=f"boot-{self.number}", job_id=self.job_id, revision=0,
            attempt=0, ranks=(), empty_through=0, launcher_id=self.launcher_id, slots=self.ranks_count,
            rendezvous=Endpoint("127.0.0.1", 20000), peer_endpoint=Endpoint("127.0.0.1", 21000),
        )  # fmt: skip

    async def tell(self, latencies: list[float], statuses: dict[int, int]) -> None:
        assert self.report is not None
        before, order = self.report, self.order
        self.step += 1
        ranks: tuple[RankReport, ...] = ()
        changes: dict[str, object] = {"number": before.number + 1}
        if order:
            named = order["ranks"]
            assert isinstance(named, list)
            timing = StepTiming(
                self.step, self.step, 0.1, 0.7 * self.step, 0.2 * self.step, 0.0, 0.0
            )
            ranks = tuple(
                RankReport(
                    rank, place, 1000 + place, "R", 60.0, None, 50.0, self.step, 0.1, self.step,
                    section="compute", section_age_s=0.05, sections_entered=3 * self.step,
                    collectives_entered=9 * self.step, collectives_completed=9 * self.step, timings=(timing,),
                )
                for place, rank in enumerate(named)
            )  # fmt: skip
            changes |= {"revision": order["revision"], "ranks": ranks}
            changes |= (
                {"attempt": order["attempt"]} if named else {"empty_through": order["attempt"]}
            )
            if not named:
                port = 20000 + random.randrange(40000)
                changes |= {"rendezvous": Endpoint("127.0.0.1", port), "attempt": before.attempt}
        self.report = replace(before, **changes)  # type: ignore[arg-type]
        began_s = time.perf_counter()
        status, _body = await self.reports.ask(
            "POST", f"/v1/jobs/{self.job_id}/reports", encode_message(self.report)
        )
        latencies.append(time.perf_counter() - began_s)
        statuses[status] = statuses.get(status, 0) + 1

    async def listen(self) -> None:
        while True:
            after, epoch = self.order.get("revision", 0), self.order.get("epoch", 0)
            path = f"/v1/jobs/{self.job_id}/orders/{self.node}?launcher={self.launcher_id}&after={after}&epoch={epoch}&wait=25"
            status, body = await self.polls.ask("GET", path)
            if status == 200:
                self.order, self.ordered_at_s = json.loads(body), time.perf_counter()
            elif status != 204:
                await asyncio.sleep(1.0)


async def measure(
    options: argparse.Namespace, port: int, folder: Path, server: psutil.Process
) -> dict[str, object]:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    token = (folder / "launch.token").read_text().strip()
    head = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"

    def connect() -> Connection:
        return Connection(port, context, head)

    launchers = [Launcher(n, options.ranks, connect(), connect()) for n in range(options.nodes)]
    told: dict[str, object] = {
        "nodes": options.nodes,
        "ranks": options.ranks,
        "every_s": options.every,
    }
    began_s = time.perf_counter()
    room = asyncio.Semaphore(64)

    async def join(one: Launcher) -> None:
        async with room:
            await one.join(options.nodes)

    await asyncio.gather(*(join(one) for one in launchers))
    told["join_s"] = round(time.perf_counter() - began_s, 2)
    polls = [asyncio.create_task(one.listen()) for one in launchers]
    latencies: list[float] = []
    statuses: dict[int, int] = {}

    async def pace(one: Launcher) -> None:
        due_s = time.perf_counter() + random.uniform(0, options.every)
        while True:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await one.tell(latencies, statuses)
            due_s += options.every

    paces = [asyncio.create_task(pace(one)) for one in launchers]

    async def all_at(attempt: int) -> None:
        while not all(
            one.order.get("attempt") == attempt and one.order["ranks"] for one in launchers
        ):
            await asyncio.sleep(0.02)

    await asyncio.wait_for(all_at(1), 120)
    told["first_order_s"] = round(time.perf_counter() - began_s, 2)
    await asyncio.sleep(5)
    latencies.clear()
    statuses.clear()
    own, began_s = psutil.Process(), time.perf_counter()
    before, own_before, rss_before = server.cpu_times(), own.cpu_times(), server.memory_info().rss
    await asyncio.sleep(options.seconds)
    took_s = time.perf_counter() - began_s
    after, own_after = server.cpu_times(), own.cpu_times()
    ordered = sorted(latencies)
    told |= {
        "reports_per_s": round(len(ordered) / took_s),
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 2),
        "p99_ms": round(1000 * ordered[int(0.99 * len(ordered))], 2),
        "statuses": statuses.copy(),
        "controller_cpu_percent": round(100 * (sum(after[:2]) - sum(before[:2])) / took_s),
        "generator_cpu_percent": round(100 * (sum(own_after[:2]) - sum(own_before[:2])) / took_s),
        "controller_rss_mib": round(server.memory_info().rss / 2**20),
        "growth_mib": round((server.memory_info().rss - rss_before) / 2**20, 1),
    }
    admin = ControllerClient(
        [f"https://localhost:{port}"], token_file=folder / "admin.token", ca_file=folder / "ca.crt"
    )
    loop = asyncio.get_running_loop()
    stopped_s = time.perf_counter()
    await loop.run_in_executor(
        None, lambda: admin.command(launchers[0].job_id, PersonAct.RESTART, reason="bench")
    )

    async def all_stopped() -> None:
        while not all(one.ordered_at_s > stopped_s for one in launchers):
            await asyncio.sleep(0.005)

    await asyncio.wait_for(all_stopped(), 60)
    heard = sorted(one.ordered_at_s - stopped_s for one in launchers)
    told["order_to_all_s"] = round(heard[-1], 3)
    told["order_to_half_s"] = round(heard[len(heard) // 2], 3)
    for task in [*polls, *paces]:
        task.cancel()
    await asyncio.gather(*polls, *paces, return_exceptions=True)
    for one in launchers:
        one.reports.close()
        one.polls.close()
    admin.close()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two reports")
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "controller"
        made = init(folder, ["localhost", "127.0.0.1"], folder / "state", None)
        text = made.config.read_text().replace('listen = ":9477"', 'listen = "127.0.0.1:0"')
        made.config.write_text(text)
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "rankmend.cli",
                    "controller",
                    "run",
                    "--config",
                    str(made.config),
                ],
                stderr=output,
            )
        try:
            while not (found := re.search(r"controller started.* port=(\d+)", log.read_text())):
                if process.poll() is not None:
                    sys.exit(log.read_text())
                time.sleep(0.05)
            port, server = int(found[1]), psutil.Process(process.pid)
            print(json.dumps(asyncio.run(measure(options, port, folder, server)), indent=1))
        finally:
            process.terminate()
            process.wait(30)
            warnings = [line for line in log.read_text().splitlines() if "level=info" not in line]
            print(*warnings[:10], sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
