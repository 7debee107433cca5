"""NCCL Inspector (NCCL 2.28 and later, plugins/profiler/inspector): JSON lines, one a collective.

Used: header.id (communicator), header.rank, coll_perf.coll, coll_perf.coll_sn and
coll_perf.coll_exec_time_us, metadata.hostname. A collective ends for all members together, so
who took the *least* time came last: lateness = longest - own. What members do before a
collective may differ by design, so one that was always late accuses nobody.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from detectors.formats.traces.work_rows import UNIX_S_MIN, single_kind
from detectors.slow.work_table import TracedWorker, WorkTable
from rankmend.errors import SourceError

CELLS_MAX: Final = 20_000_000
BASE_S_MIN: Final = 1e-3  # lateness is compared with at least this: jitter is tens of microseconds
KIND: Final = "arrival at communication"


def is_record(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("coll_perf"), dict) and isinstance(row.get("header"), dict)


def read(rows: Sequence[Mapping[str, Any]]) -> WorkTable:
    """Return the work table of all records, of all ranks together."""
    times: dict[tuple[str, int, int], float] = {}
    hosts: dict[int, str] = {}
    seen_s: dict[int, float] = {}
    bad = 0
    for row in rows:
        try:
            rank = int(row["header"]["rank"])
            key = (str(row["header"]["id"]), rank, int(row["coll_perf"]["coll_sn"]))
            took = float(row["coll_perf"]["coll_exec_time_us"]) * 1e-6
        except (KeyError, TypeError, ValueError, OverflowError):
            bad += 1
            continue
        if not 0 < took < 86_400 or rank < 0:
            bad += 1
            continue
        times[key] = took
        metadata = row.get("metadata")
        if not isinstance(metadata, dict):
            continue
        if metadata.get("hostname"):
            hosts[rank] = str(metadata["hostname"])[:256]
        stamp = metadata.get("dump_timestamp_us")
        if isinstance(stamp, (int, float)) and UNIX_S_MIN <= stamp * 1e-6 < np.inf:
            seen_s[key[2]] = min(seen_s.get(key[2], np.inf), stamp * 1e-6)
    if not times or bad > 0.1 * len(rows):
        raise SourceError(f"{bad} of {len(rows)} records of NCCL Inspector are unusable")
    members = sorted({(group, rank) for group, rank, _number in times})
    numbers = sorted({number for _group, _rank, number in times})
    if len(members) * len(numbers) > CELLS_MAX:
        raise SourceError(f"{len(members)} members x {len(numbers)} collectives: too many")
    place = {member: row for row, member in enumerate(members)}
    column = {number: index for index, number in enumerate(numbers)}
    took_s = np.full((len(members), len(numbers)), np.nan)
    for (group, rank, number), value in times.items():
        took_s[place[group, rank], column[number]] = value
    work = np.full(took_s.shape, np.nan)
    for group in sorted({group for group, _rank in members}):
        own = [place[member] for member in members if member[0] == group]
        work[own] = _arrival(took_s[own])
    notes = (f"{bad} of {len(rows)} records left out",) if bad else ()
    return single_kind(
        [
            TracedWorker(rank=rank, host=hosts.get(rank), peers=("communicator", group))
            for group, rank in members
        ],
        numbers,
        work,
        KIND,
        does_same_work=False,
        notes=notes,
        starts_s=np.array([seen_s.get(n, np.nan) for n in numbers]) if seen_s else None,
    )


def _arrival(took_s: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    """Return how late each member came, on top of the time of a usual collective.

    A collective that not all members have recorded says nothing.
    """
    complete = np.isfinite(took_s).all(axis=0)
    out = np.full(took_s.shape, np.nan)
    if not complete.any() or len(took_s) < 2:
        return out
    known = took_s[:, complete]
    base = max(float(np.median(known)), BASE_S_MIN)
    out[:, complete] = base + known.max(axis=0) - known
    return out
