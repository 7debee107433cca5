"""The process of one node's part in a probe of the network: `recovery.launcher.host.node_probe` starts it, within bounds of its own.

It reads one order (`ProbeOrder`, a line of JSON) from standard input, runs the test as `rankmend fabric test find` does, and writes a line for each
piece of news (`ProbeTold`). It ends with its launcher, at the end of its input, and at its time limit, whatever it is doing: then the kernel
closes its connections, and nothing is sent any more.
"""

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from rankmend.errors import RankmendError
from recovery.checkpoints.priority import yield_to_training
from recovery.lab.fabric.fabric_options import FabricKind, FabricOptions
from recovery.lab.fabric.fabric_place import FabricPlace
from recovery.lab.fabric.fabric_test import FabricRun, run_fabric_test
from recovery.lab.fabric.send_bounds import SendBounds
from recovery.launcher.processes.prctl import die_with_parent
from recovery.messages.probing import ORDER_BYTES_MAX, ProbeOrder, ProbeState, ProbeTold

JOIN_SHARE: Final = 0.5  # of the time limit: for the others to come
UNCONFIRMED_MAX: Final = 100  # of cells that are told


def main(_arguments: Sequence[str]) -> int:
    parent = os.getppid()
    die_with_parent(parent)
    line = sys.stdin.buffer.readline(ORDER_BYTES_MAX + 1)
    order = msgspec.json.decode(line, type=ProbeOrder)
    _end_after(order.limit_s)
    threading.Thread(target=_end_with_input, daemon=True).start()
    if order.is_beside_ranks:
        yield_to_training()
    try:
        run = run_fabric_test(_place_of(order), order.node, _options_of(order))
    except RankmendError as error:
        _print_result(ProbeTold(order.probe_id, ProbeState.FAILED, failure=str(error)[:500]))
        return 1
    _print_result(_done(order, run))
    return 0


def _end_after(limit_s: float) -> None:
    late = threading.Timer(limit_s, os._exit, [1])
    late.daemon = True
    late.start()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _place_of(order: ProbeOrder) -> FabricPlace:
    return FabricPlace(order.place, order.count, order.address, order.port, order.secret)


def _options_of(order: ProbeOrder) -> FabricOptions:
    return FabricOptions(
        FabricKind.FIND,
        seconds=order.seconds,
        join_s=JOIN_SHARE * order.limit_s,
        limit_s=order.limit_s,
        rails=order.rails,
        leaf_of=order.leaf_of,
        bounds=SendBounds(order.bytes_per_s, order.bytes_max),
        on_listening=lambda port: _print_result(
            ProbeTold(order.probe_id, ProbeState.RUNNING, port)
        ),
    )


def _done(order: ProbeOrder, run: FabricRun) -> ProbeTold:
    """Return the coordinator's verdict; the others only say that they are done."""
    reported = ProbeTold(order.probe_id, ProbeState.DONE)
    report, verdict = run.report, run.verdict
    if report is None or verdict is None:
        return reported
    amiss = [f"{node} reported nothing" for node in report.absent] + list(report.problems)
    bounded = replace(verdict, unconfirmed=verdict.unconfirmed[:UNCONFIRMED_MAX])
    return replace(reported, verdict=bounded, failure="; ".join(amiss)[:500])


def _print_result(reported: ProbeTold) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reported) + b"\n")
    sys.stdout.buffer.flush()
