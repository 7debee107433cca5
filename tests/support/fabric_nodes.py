"""Runs fabric tests on test hosts: one interpreter, forked once for each host, so that 16 nodes start within a second.

    python -m tests.support.fabric_nodes < orders.json

Each line is an order, which names the hosts' PID 1 and the options. A line answers it: the report of the first node, or what nodes said.
"""

import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import msgspec

from recovery.lab.fabric.fabric_messages import TransportWish
from recovery.lab.fabric.fabric_options import FabricKind, FabricOptions
from recovery.lab.fabric.fabric_place import FabricPlace
from recovery.lab.fabric.fabric_report import FabricReport
from recovery.lab.fabric.fabric_test import run_fabric_test
from recovery.launcher.processes.prctl import die_with_parent
from tests.support.hosts.machine import CLONE_NEWNET, CLONE_NEWUTS, setns

PORT = 29_400  # in namespaces of their own


def main() -> int:
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as errors:
            children = [
                _start(order, rank, report.fileno(), errors.fileno())
                for rank in range(len(order["pids"]))  # the first listens before others come
            ]
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
            answer = {"code": max(codes, key=abs), "report": _read(report), "errors": _read(errors)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _start(order: dict[str, Any], rank: int, report_fd: int, errors_fd: int) -> int:
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        die_with_parent(parent)
        os.environ.update(order.get("environments", [{}] * (rank + 1))[rank])
        setns(os.pidfd_open(order["pids"][rank]), CLONE_NEWNET | CLONE_NEWUTS)
        report = _take_part(order, rank)
        if report is not None:
            os.write(report_fd, msgspec.json.encode(report))
        code = 0
    except BaseException as error:
        os.write(errors_fd, f"rank {rank}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _take_part(order: dict[str, Any], rank: int) -> FabricReport | None:
    place = FabricPlace(rank, len(order["pids"]), order["address"], PORT, "s" * 64)
    options = FabricOptions(
        FabricKind(order["kind"]),
        seconds=order["seconds"],
        rails=tuple(order.get("rails", ())),
        leaf_of=order.get("leaf_of", {}),
        ports=order.get("ports", 16),
        python=Path(sys.executable),
        transport=TransportWish(order.get("transport", "tcp")),
        sysfs=Path(order.get("sysfs", "/sys")),
        sizes_bytes=(1 << 16, 1 << 20),
    )
    return run_fabric_test(place, socket.gethostname(), options).report


if __name__ == "__main__":
    sys.exit(main())
