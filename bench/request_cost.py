"""What a report and a poll cost the controller's event loop, without TLS, sockets and the deciding thread's work.

    python bench/request_cost.py [--nodes 200] [--rounds 16] [--output FILE]

Starts the service in this process with what `init` makes, and gives its connections' handlers the bytes that a socket would bring. The CPU
time of the loop's thread for each 16 requests is taken; the least tenth of these says most on a machine that others use. Making the bytes and
reading the answers is part of it (about 5 us).
"""

import argparse
import asyncio
import gc
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop
from controller_fleet import Connection, Fleet
from yardstick import measure_yardstick

from rankmend.clock import SystemClock
from recovery.messages.codec import encode_message
from recovery.service.daemon import read
from recovery.service.http.guard import ConnectionGuard
from recovery.service.server import Service
from recovery.service.setup import init

AT_ONCE = 16


class Wire(asyncio.Transport):
    """What a connection's handler writes to, in place of a socket."""

    _LENGTH = re.compile(rb"(?i)content-length: (\d+)")

    def __init__(self, guard: ConnectionGuard) -> None:
        super().__init__()
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._guard, self._written = guard, b""

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._guard

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written += bytes(data)
        head, ended, body = self._written.partition(b"\r\n\r\n")
        length = self._LENGTH.search(head)
        if ended and len(body) == (int(length[1]) if length else 0) and self.answer is not None:
            self.answer.set_result((int(head[9:12]), body))
            self._written, self.answer = b"", None

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Inside:
    """A launcher's connection to a service of this process."""

    def __init__(self, service: Service, head: str) -> None:
        assert service._room is not None, "started"
        self._guard, self._head = service._room.make(lambda: None), head
        self._wire = Wire(self._guard)
        self._guard.connection_made(self._wire)

    def send(
        self, method: str, path: str, body: bytes = b""
    ) -> "asyncio.Future[tuple[int, bytes]]":
        answer = self._wire.answer = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._guard.data_received(head.encode() + body)
        return answer

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        return await self.send(method, path, body)


class InsideFleet(Fleet):
    def __init__(self, options: argparse.Namespace, service: Service, folder: Path) -> None:
        self._service = service
        super().__init__(options, 0, folder)

    def connect(self) -> Connection:
        return cast(Connection, Inside(self._service, self._head))


async def start(base: Path) -> Service:
    made = init(base / "controller", ["localhost"], base / "state", None)
    text = made.config.read_text().replace('listen = ":9477"', 'listen = "127.0.0.1:0"')
    made.config.write_text(text)
    config, tokens, policy = read(made.config)
    service = Service(config, SystemClock(), tokens, policy)
    gc.collect()
    gc.freeze()
    gc.disable()  # as `recovery.service.daemon` does
    await service.start()
    return service


async def settle(fleet: Fleet) -> None:
    """Have all launchers join, get their first order and carry it out."""
    for one in fleet.launchers:
        fleet.job_id = await one.join()
    polls = [asyncio.create_task(one.listen()) for one in fleet.launchers]
    while not all(one.order is not None and one.order.ranks for one in fleet.launchers):
        await asyncio.gather(*(one.tell() for one in fleet.launchers))
        await asyncio.sleep(0.05)
    for _ in range(4):
        await asyncio.gather(*(one.tell() for one in fleet.launchers))
        await asyncio.sleep(0.2)
    for task in polls:
        task.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    for one in fleet.launchers:
        one.polls = fleet.connect()


async def time_all(requests: list[tuple[Inside, str, str, bytes]], wanted: int) -> list[float]:
    """Return the CPU time of the loop's thread in us a request, for each so many at once."""
    times_us = []
    for first in range(0, len(requests), AT_ONCE):
        part = requests[first : first + AT_ONCE]
        began_s = time.thread_time()
        answers = [one.send(method, path, body) for one, method, path, body in part]
        statuses = {(await answer)[0] for answer in answers}
        times_us.append(1e6 * (time.thread_time() - began_s) / len(part))
        assert statuses == {wanted}, statuses
    return times_us


async def measure(options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as base:
        service = await start(Path(base))
        fleet = InsideFleet(options, service, Path(base) / "controller")
        await settle(fleet)
        times_us: dict[str, list[float]] = {"report": [], "poll": []}
        for _ in range(options.rounds):
            path = f"/v1/jobs/{fleet.job_id}"
            reports = [
                (cast(Inside, one.reports), "POST", f"{path}/reports", encode_message(one.make_report()))
                for one in fleet.launchers
            ]  # fmt: skip
            times_us["report"] += await time_all(reports, 202)
            polls = [
                (
                    cast(Inside, one.polls), "GET",
                    f"{path}/orders/{one.node}?launcher={one.launcher_id}"
                    f"&after={order.revision}&epoch={order.epoch}&wait=0.02", b"",
                )
                for one in fleet.launchers
                if (order := one.order) is not None
            ]  # fmt: skip
            times_us["poll"] += await time_all(polls, 204)
            await asyncio.sleep(0.3)  # the deciding thread takes the reports in
        await service.stop()
    told: dict[str, object] = {"nodes": options.nodes, "ranks_per_node": options.ranks}
    for name, values in times_us.items():
        tenths = statistics.quantiles(values, n=10)
        told[name] = {"least_tenth_us": round(tenths[0], 1), "median_us": round(tenths[4], 1)}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=8, help="a node")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    parser.set_defaults(spares=0, every=5.0, job="load")
    options = parser.parse_args()
    sys.setswitchinterval(0.001)  # as `recovery.service.daemon`
    yardstick = measure_yardstick()
    print(yardstick, file=sys.stderr)
    told = {**uvloop.run(measure(options)), "yardstick": yardstick.as_dict()}
    print(json.dumps(told))
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1) + "\n")
    sys.stdout.flush()
    os._exit(0)  # connections without a socket don't end


if __name__ == "__main__":
    main()
