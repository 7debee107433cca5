"""What one job's controller costs for many nodes: its core alone, without HTTP or decoding.

    python bench/controller_core.py [--nodes 250 500 1000 2000] [--slots 8] [--seconds 10] [--output FILE]

For each size: a job on so many nodes is started, then every node reports once a simulated second
(each rank a step further), with ten ticks a second. Printed: CPU seconds of this process a
simulated second for reports and for ticks, reports a second that one core would carry, ms of one
tick, ms of the tick that starts the attempt (all orders made), and what the process has grown by.
"""

import argparse
import gc
import json
import time
from dataclasses import replace
from pathlib import Path

import psutil

from recovery.controller.job.controller import Controller
from recovery.controller.job.settings import JobSettings
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.journal_rows import GENESIS, make_row
from recovery.journal.limits import Policy
from recovery.journal.records import Entry, Record
from recovery.messages.exchange import Endpoint, Order, RankReport, Report, StepTiming

JOB_ID = "0c1d6a52-0000-4000-8000-000000000003"
TICKS = 10  # a second


class Bench:
    """Clock, journal (encoded, not written) and orders of the controller."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.opened: tuple[Entry, ...] = ()
        self.entries: list[Entry] = []
        self.orders: dict[str, Order] = {}

    def now_s(self) -> float:
        return self.time_s

    def unix_s(self) -> float:
        return 1.7e9 + self.time_s

    def append_many(self, records: list[Record]) -> tuple[Entry, ...]:
        entries = []
        for record in records:
            entry = Entry(len(self.entries) + 1, self.unix_s(), self.time_s, "boot", record)
            make_row(entry, GENESIS)  # what encoding and the checksum cost is part of it
            self.entries.append(entry)
            entries.append(entry)
        return tuple(entries)

    def send(self, order: Order) -> None:
        self.orders[order.node] = order


def report_of(node: int, order: Order | None, second: int) -> Report:
    name = f"node-{node:05d}"
    has_ranks = order is not None and bool(order.ranks)
    timing = StepTiming(second, second, 0.1, 0.5, 0.3, 0.0, 0.0)
    ranks = tuple(
        RankReport(
            rank,
            local,
            1000 + local,
            "S",
            attached_age_s=10.0,
            step=second,
            step_age_s=0.1,
            steps_done=second,
            section="compute",
            section_age_s=0.1,
            sections_entered=3 * second,
            timings=(timing,),
        )
        for local, rank in enumerate(order.ranks if order is not None and has_ranks else ())
    )
    return Report(
        version=1,
        node=name,
        boot_id=f"boot-{node}",
        job_id=JOB_ID,
        revision=0 if order is None else order.revision,
        attempt=order.attempt if order is not None and has_ranks else 0,
        ranks=ranks,
        empty_through=0,
        launcher_id=f"launcher-{node}",
        number=second + 1,
        slots=8,
        rendezvous=Endpoint(name, 29500),
        peer_endpoint=Endpoint(name, 7000),
    )


def measure(nodes: int, slots: int, seconds: int) -> dict[str, float]:
    process = psutil.Process()
    bench = Bench()
    settings = JobSettings(
        JOB_ID, "bench", "0", policy=Policy(), nodes_min=nodes, nodes_max=nodes, slots=slots
    )
    control = Controller(bench, bench, None, None, None, bench, settings)
    control.start()
    for node in range(nodes):
        control.handle_report(report_of(node, None, 0))
    bench.time_s += 0.1
    at = time.process_time()
    control.tick()
    start_ms = 1000 * (time.process_time() - at)
    assert len(bench.orders) == nodes
    assert fold_all(bench.entries).attempt == 1
    reports_s = ticks_s = 0.0
    tick_max_s = 0.0
    before = 0
    for second in range(1, seconds + 6):
        reports = [
            report_of(node, bench.orders[f"node-{node:05d}"], second) for node in range(nodes)
        ]
        if second == 6:  # the first steps settle, the attempt is verified
            reports_s = ticks_s = tick_max_s = 0.0
            before = process.memory_info().rss
        for part in range(TICKS):
            bench.time_s += 1.0 / TICKS
            at = time.process_time()
            for report in reports[part * nodes // TICKS : (part + 1) * nodes // TICKS]:
                control.handle_report(report)
            between = time.process_time()
            control.tick()
            after = time.process_time()
            reports_s += between - at
            ticks_s += after - between
            tick_max_s = max(tick_max_s, after - between)
    assert control.ledger.is_verified
    assert control.outcome is None
    grown_mib = (process.memory_info().rss - before) / 2**20
    # What a stand-still costs: one look at every rank.
    bench.time_s += 400.0
    for node in range(nodes):
        told = report_of(node, bench.orders[f"node-{node:05d}"], seconds + 6)
        ranks = tuple(replace(rank, section="idle", timings=()) for rank in told.ranks)
        control.handle_report(replace(told, ranks=ranks))
    bench.time_s += 9.0
    at = time.process_time()
    control.tick()
    look_ms = 1000 * (time.process_time() - at)
    told = {
        "nodes": nodes,
        "ranks": nodes * slots,
        "reports_percent": 100 * reports_s / seconds,
        "ticks_percent": 100 * ticks_s / seconds,
        "reports_per_s": nodes * seconds / reports_s,
        "tick_ms": 1000 * ticks_s / seconds / TICKS,
        "tick_max_ms": 1000 * tick_max_s,
        "start_ms": start_ms,
        "look_ms": look_ms,
        "grown_mib": grown_mib,
    }
    print(
        f"{nodes:6d} {nodes * slots:7d} {told['reports_percent']:8.1f} % {told['ticks_percent']:8.1f} %"
        f" {told['reports_per_s']:10.0f} {told['tick_ms']:8.2f} {told['tick_max_ms']:8.2f}"
        f" {start_ms:9.0f} {look_ms:8.0f} {grown_mib:8.1f}"
    )
    return {name: round(value, 3) for name, value in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    gc.disable()  # as the service does (recovery.service.daemon)
    print(
        " nodes   ranks    reports      ticks  reports/s  ms/tick   at most  start ms  look ms  grown MiB"
    )
    told = [measure(nodes, options.slots, options.seconds) for nodes in options.nodes]
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
