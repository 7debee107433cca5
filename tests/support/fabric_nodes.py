"""Runs a fabric test on test hosts: one interpreter, forked once for each host, so that 16 nodes start within a second.

    python -m tests.support.fabric_nodes < order.json

The order names the hosts' PID 1 and the options; the report of the first node comes as JSON on standard output.
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from recovery.fabric.fabric_place import FabricPlace
from recovery.fabric.fabric_report import FabricReport
from recovery.fabric.fabric_test import FabricKind, FabricOptions, run_fabric_test
from recovery.launcher.processes.prctl import die_with_parent
from tests.support.hosts.machine import CLONE_NEWNET, CLONE_NEWUTS, setns

PORT = 29_400  # in namespaces of their own


def main() -> int:
    order = json.load(sys.stdin)
    children = [_start(order, rank) for rank in reversed(range(len(order["pids"])))]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    return max(codes)


def _start(order: dict[str, Any], rank: int) -> int:
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        die_with_parent(parent)
        setns(os.pidfd_open(order["pids"][rank]), CLONE_NEWNET | CLONE_NEWUTS)
        report = _take_part(order, rank)
        if report is not None:
            sys.stdout.write(msgspec.json.encode(report).decode())
            sys.stdout.flush()
        code = 0
    except BaseException as error:
        sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
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
        sizes_bytes=(1 << 16, 1 << 20),
    )
    return run_fabric_test(place, socket.gethostname(), options).report


if __name__ == "__main__":
    sys.exit(main())
