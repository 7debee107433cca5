"""The simple rules that the detectors are measured against."""

import warnings
from typing import Any

import numpy as np

from detectors.hang.flight_dump import FlightDump
from detectors.hang.standings import JobStandings
from detectors.slow.host_table import HostTable
from detectors.slow.peers import column_medians, group_rows
from detectors.slow.work_table import WorkTable, total_work

FASTEST_RATIO = 0.75  # NVRx straggler: default threshold of the relative score
SINGLE_STEP = 1.1
Z_SCORE = 3.0

Named = list[dict[str, Any]]


def fastest_ratio(table: WorkTable) -> Named:
    """Return workers whose median time is beyond the fastest worker's, in the manner of NVRx."""
    medians = np.nanmedian(total_work(table), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.nanmin(medians) / medians
    return _named(table, np.flatnonzero(score < FASTEST_RATIO), -score)


def single_step(table: WorkTable) -> Named:
    """Return workers that took 1.1 times their peers' median in any one step."""
    total = total_work(table)
    worst = np.zeros(len(total))
    for rows in group_rows([worker.peers for worker in table.workers]):
        middle = column_medians(total[rows]) if len(rows) > 2 else np.nanmean(total[rows], axis=0)
        worst[rows] = np.nanmax(total[rows] / middle, axis=1)
    return _named(table, np.flatnonzero(worst > SINGLE_STEP), worst)


def _named(table: WorkTable, rows: Any, strength: Any) -> Named:
    ordered = sorted(rows.tolist(), key=lambda row: -strength[row])
    return [
        {
            "rank": table.workers[row].rank,
            "stage": table.workers[row].stage,
            "dp_rank": table.workers[row].dp_rank,
            "worker": table.workers[row].worker,
        }
        for row in ordered
    ]


def z_score(table: HostTable) -> Named:
    """Return the node with the largest |z| of one metric and time, above 3: no continuity."""
    worst = np.zeros(len(table.nodes))
    for matrix in table.values.values():
        with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # about times without any sample
            score = np.abs(matrix - np.nanmean(matrix, axis=0)) / np.nanstd(matrix, axis=0)
        worst = np.fmax(worst, np.nanmax(np.where(np.isfinite(score), score, 0.0), axis=1))
    row = int(np.argmax(worst))
    return [{"host": table.nodes[row]}] if worst[row] > Z_SCORE else []


def lowest_of_job(job: JobStandings) -> Named:
    """Return the same as `lowest_last_enqueued` for a job in memory."""
    last: dict[str, dict[int, int]] = {}
    for view in job.views:
        for standing in view.standings:
            last.setdefault(standing.group, {})[view.rank] = standing.enqueued
    return _lowest(last)


def lowest_last_enqueued(dumps: dict[int, FlightDump]) -> Named:
    """Return ranks whose last launched collective is the lowest in some group of theirs."""
    last: dict[str, dict[int, int]] = {}
    for rank, dump in dumps.items():
        for operation in dump.operations:
            if operation.peer is None:
                members = last.setdefault(operation.group, {})
                members[rank] = max(members.get(rank, -1), operation.sequence)
    return _lowest(last)


def _lowest(last: dict[str, dict[int, int]]) -> Named:
    behind: dict[int, int] = {}
    for members in last.values():
        low, high = min(members.values()), max(members.values())
        for rank, sequence in members.items():
            if sequence == low < high:
                behind[rank] = max(behind.get(rank, 0), high - low)
    return [{"rank": rank} for rank in sorted(behind, key=lambda rank: -behind[rank])]
