"""How long a hang verdict takes over what the dumps of all ranks say, and how it grows.

    python bench/hang_verdict.py [--ranks 1024,4096,16384,65536] [--output FILE]

Each rank stands in a world, a tensor, a pipeline and a data parallel group (tensor 8, pipeline 8);
one host has stopped and everybody waits for it. Parsing is measured apart, on one dump of 2,000
entries. Medians of 5.
"""

import argparse
import json
import pickle
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from detectors.formats.traces.flight_recorder import parse_dump
from detectors.hang.flight_dump import CollectiveShape, Operation, OperationState
from detectors.hang.from_dumps import diagnose_hang
from detectors.hang.standings import GroupStanding, JobStandings, RankStandings
from detectors.parallel_groups import Parallelism, Sizes, layout_groups

REPEATS = 5


def hung_job(ranks: int) -> JobStandings:
    """Return a job in which one rank in the middle has stopped launching."""
    groups = layout_groups(Sizes(tensor=8, pipeline=8, data=ranks // 64))
    stopped = ranks // 2 + 3
    mine: list[list[tuple[str, bool]]] = [[] for _rank in range(ranks)]
    for group in groups:
        if group.parallelism is Parallelism.PIPELINE:
            continue  # sends and receives
        waits = group.parallelism is not Parallelism.WORLD and stopped in group.ranks
        for rank in group.ranks:
            mine[rank].append((group.name, waits and rank != stopped))
    shape = CollectiveShape(((4096, 1, 5120),), ((4096, 1, 5120),), ("BFloat16", "BFloat16"))
    views = []
    for rank, places in enumerate(mine):
        standings = []
        for number, (name, waits) in enumerate(places):
            first = None
            if waits or (rank != stopped and number == len(places) - 1):
                state = OperationState.ENQUEUED
                first = Operation(name, 101, "all_reduce", 5000 + number, state, shape)
            standings.append(GroupStanding(name, 101 if first else 100, 100, first))
        views.append(RankStandings(rank, tuple(standings), ()))
    return JobStandings(groups, tuple(views))


def large_dump(entries: int) -> bytes:
    """Return a dump as large as PyTorch's default buffer makes it, without stacks."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(16)))}}
    rows = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + number,
            "input_sizes": [[4096, 1, 5120]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[4096, 1, 5120]],
            "output_dtypes": ["BFloat16"],
            "state": "completed",
            "retired": True,
            "is_p2p": False,
            "timeout_ms": 600_000,
        }
        for number in range(entries)
    ]
    return pickle.dumps({"version": "2.9", "pg_config": config, "entries": rows}, protocol=2)


def median_s(action: Callable[[], object]) -> float:
    times_s = []
    for _repeat in range(REPEATS):
        began_s = time.perf_counter()
        action()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="1024,4096,16384,65536")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    for ranks in (int(word) for word in options.ranks.split(",")):
        job = hung_job(ranks)
        verdict_s = median_s(lambda job=job: diagnose_hang(job))  # type: ignore[misc]
        tracemalloc.start()
        diagnosis = diagnose_hang(job)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [culprit.rank for culprit in diagnosis.culprits] == [ranks // 2 + 3], diagnosis
        rows.append({"ranks": ranks, "verdict_s": verdict_s, "peak_bytes": peak_bytes})
        print(f"{ranks:>7} ranks: {verdict_s * 1e3:8.1f} ms, {peak_bytes / 2**20:7.1f} MiB more")
    data = large_dump(2000)
    parse_s = median_s(lambda: parse_dump(data))
    print(f"one dump of 2000 entries, {len(data) / 1024:.0f} KiB: {parse_s * 1e3:.1f} ms to parse")
    if options.output:
        page = {"verdicts": rows, "parse_s": parse_s, "parse_bytes": len(data)}
        options.output.write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
