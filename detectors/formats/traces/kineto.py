"""Traces of the PyTorch profiler (Kineto, the Chrome trace format), one a rank.

Used: distributedInfo.rank, the annotations ProfilerStep#N, and the complete events ("ph": "X",
ts and dur in microseconds) of categories kernel and gpu_memcpy, or cpu_op where there is no
device. Own work of a step is the time covered by events that are not communication.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from detectors.formats.traces.work_rows import UNIX_S_MIN, single_kind
from detectors.slow.work_table import TracedWorker, WorkTable
from rankmend.errors import SourceError

EVENTS_MAX: Final = 20_000_000
DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
HOST: Final = frozenset({"cpu_op"})
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,12})$")
_WAITING: Final = re.compile(r"nccl|rccl|gloo|c10d::|all_?reduce|all_?gather|reduce_?scatter", re.I)
_REPLICAS: Final = re.compile(r"^(?:data_parallel|dp)(?:_group)?$|DATA_PARALLEL_GROUP$", re.I)


def is_trace(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("traceEvents"), list)


def read(traces: Sequence[Mapping[str, Any]]) -> WorkTable:
    """Return the work table of one trace a rank."""
    works: dict[int, dict[int, float]] = {}
    starts: dict[int, float] = {}
    workers: dict[int, TracedWorker] = {}
    notes: list[str] = []
    for number, trace in enumerate(traces):
        info = trace.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank = info.get("rank", number)
        if not isinstance(rank, int) or rank < 0:
            raise SourceError(f"trace {number}: distributedInfo.rank is {rank!r}")
        if rank in works:
            raise SourceError(f"two traces of rank {rank}")
        if "rank" not in info and len(traces) > 1:
            notes.append(f"trace {number} does not say its rank")
        works[rank], begins, bad = _steps(trace["traceEvents"])
        if (base_s := _base_s(trace)) is not None:
            for step, begin in begins.items():
                starts[step] = min(starts.get(step, np.inf), base_s + begin * 1e-6)
        if bad:
            notes.append(f"rank {rank}: {bad} events left out: no number or a negative duration")
        peers, is_clear = _peers(info.get("pg_config"), rank)
        if not is_clear:
            notes.append(f"rank {rank} is in several data parallel groups; which are its peers?")
        host = trace.get("hostname") or info.get("hostname")
        workers[rank] = TracedWorker(
            rank=rank,
            host=str(host)[:256] if host else None,
            peers=peers,
        )
    ranks = sorted(works)
    steps = sorted({step for work in works.values() for step in work})
    matrix = np.array([[works[rank].get(step, np.nan) for step in steps] for rank in ranks])
    matrix = matrix.reshape(len(ranks), len(steps))
    ordered = [workers[rank] for rank in ranks]
    starts_s = np.array([starts.get(step, np.nan) for step in steps]) if starts else None
    return single_kind(
        ordered, steps, matrix, "compute", notes=tuple(notes[:16]), starts_s=starts_s
    )


def _base_s(trace: Mapping[str, Any]) -> float | None:
    """Return the unix time from which a trace's ts counts, where it tells."""
    base = trace.get("baseTimeNanoseconds")
    is_known = isinstance(base, (int, float)) and np.isfinite(base) and base * 1e-9 >= UNIX_S_MIN
    return float(base) * 1e-9 if is_known else None  # type: ignore[arg-type]


def _peers(groups: object, rank: int) -> tuple[tuple[int | str, ...], bool]:
    """Return the data-parallel group of a rank where the trace names it, and whether it is the only one."""
    found: set[tuple[int, ...]] = set()
    if isinstance(groups, list):
        for group in groups:
            if not isinstance(group, dict) or not isinstance(group.get("ranks"), list):
                continue
            ranks = group["ranks"]
            described = str(group.get("pg_desc", ""))
            if rank in ranks and len(ranks) > 1 and _REPLICAS.search(described):
                found.add(tuple(sorted(int(item) for item in ranks if isinstance(item, int))))
    if not found:
        return ("all",), True
    # the smallest of several: it is within one stage and tensor parallel place
    return ("replicas", *min(found, key=lambda item: (len(item), item))), len(found) == 1


def _steps(events: list[Any]) -> tuple[dict[int, float], dict[int, float], int]:
    """Return the seconds of own work and the begin (ts) of each step, and how many events are bad."""
    if len(events) > EVENTS_MAX:
        raise SourceError(f"{len(events)} events: more than {EVENTS_MAX}")
    marks: dict[int, tuple[float, float]] = {}
    spans: dict[str, list[tuple[float, float]]] = {"device": [], "host": []}
    bad = 0
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        start, took = event.get("ts"), event.get("dur")
        name, category = str(event.get("name", "")), str(event.get("cat"))
        mark = _STEP.search(name)
        if mark is None and category not in DEVICE and category not in HOST:
            continue
        try:
            begin, length = float(start), float(took)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            bad += 1
            continue
        if not (np.isfinite(begin) and np.isfinite(length)) or length < 0:
            bad += 1
        elif mark is not None:
            if category != "gpu_user_annotation":
                marks.setdefault(int(mark[1]), (begin, begin + length))
        elif not _WAITING.search(name):
            spans["device" if category in DEVICE else "host"].append((begin, begin + length))
    if not marks:
        raise SourceError("no annotation ProfilerStep#N: call profiler.step() after each step")
    begins = {step: begin for step, (begin, _end) in marks.items()}
    return _covered(marks, spans["device"] or spans["host"]), begins, bad


def _covered(
    marks: Mapping[int, tuple[float, float]], spans: list[tuple[float, float]]
) -> dict[int, float]:
    """Return the time covered by spans that begin in each step, overlaps counted once."""
    ordered = sorted((begin, step) for step, (begin, _end) in marks.items())
    begins = np.array([begin for begin, _step in ordered])
    covered = dict.fromkeys(marks, 0.0)
    until = -np.inf
    for begin, end in sorted(spans):
        place = int(np.searchsorted(begins, begin, side="right")) - 1
        fresh = end - max(begin, until)
        until = max(until, end)
        if place >= 0 and fresh > 0:
            covered[ordered[place][1]] += fresh * 1e-6
    return covered
