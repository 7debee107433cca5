"""A fabric test on hosts out of namespaces, with links that all carry the same, and faults of some."""

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from recovery.lab.fabric.fabric_report import FabricReport
from tests.support.hosts import Fleet, Host
from tests.support.hosts.fleet import ROOT

LIMIT_S = 240
LINK_BYTES_PER_S = 4e6  # far below what a busy processor moves, so that the links decide
SLOW_BYTES_PER_S = 1e6
# What a sender may hold: a slow cable is empty soon after a test, and few frames are dropped before it.
SEND_BUFFER_BYTES = 65536


class NodesFailedError(AssertionError):
    """What the nodes said."""


class NodeStarter:
    """Runs fabric tests on hosts, all from one interpreter; see `start_nodes`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run_on(self, pids: list[int], address: str, kind: str, **options: Any) -> FabricReport:
        """Return the first node's report; AssertionError with what nodes said where one failed."""
        order = {"pids": pids, "address": address, "kind": kind, "seconds": 0.3, **options}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], LIMIT_S)[0], "no node has ended"
        answer = json.loads(self._process.stdout.readline())
        if answer["code"]:
            raise NodesFailedError(answer["errors"])
        return msgspec.json.decode(answer["report"], type=FabricReport)


@contextlib.contextmanager
def slow(fleet: Fleet, *hosts: Host, plane: str | None = None) -> Iterator[None]:
    """Have the cables of these hosts carry a quarter of what all others do."""
    with contextlib.ExitStack() as stack:
        for name in fleet.planes:
            bad = hosts if plane in (None, name) else ()
            good = [host for host in fleet if host not in bad]
            stack.enter_context(fleet.slow(*good, bytes_per_s=LINK_BYTES_PER_S, plane=name))
            if bad:
                stack.enter_context(fleet.slow(*bad, bytes_per_s=SLOW_BYTES_PER_S, plane=name))
        yield


def bound_send_buffers(fleet: Fleet) -> None:
    for host in fleet:
        host.run(["sysctl", "-q", "-w", f"net.ipv4.tcp_wmem=4096 {SEND_BUFFER_BYTES} {SEND_BUFFER_BYTES}"])  # fmt: skip


@contextlib.contextmanager
def start_nodes() -> Iterator[NodeStarter]:
    """Keep an interpreter that forks the nodes of one test after another: a start costs a busy machine seconds."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.fabric_nodes"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            yield NodeStarter(process)
        finally:
            process.kill()


def run_on(pids: list[int], address: str, kind: str, **options: Any) -> FabricReport:
    """Return the first node's report of a single test."""
    with start_nodes() as nodes:
        return nodes.run_on(pids, address, kind, **options)
