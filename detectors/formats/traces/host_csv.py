"""Host metrics as CSV: rows of node, time, metric, value; or of time and one column a node.

Times are unix seconds on an even grid (samples fall to the nearest place of it). Values are levels and
rates, not counters. Names of metrics that are quantities of `detectors.slow.odd_nodes` keep their figures.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from detectors.formats.traces.work_rows import number_column, require
from detectors.slow.host_table import CELLS_MAX, NODES_MAX, HostTable
from rankmend.errors import SourceError


def read(columns: Mapping[str, Sequence[object]], name: str) -> HostTable:
    """Return the table of a CSV; ``name`` is the metric of one that names none."""
    require(columns, ("time",), "host metrics")
    times = number_column(columns["time"], "time")
    if "node" in columns:
        require(columns, ("node", "value"), "host metrics")
        nodes = [str(node) for node in columns["node"]]
        metrics = [str(column) for column in columns.get("metric", [name] * len(nodes))]
        value = number_column(columns["value"], "value")
    else:
        named = [column for column in columns if column != "time"]
        nodes = [column for column in named for _time in times]
        metrics = [name] * len(nodes)
        value = np.concatenate(
            [number_column(columns[column], column) for column in named] or [times[:0]]
        )
        times = np.tile(times, len(named))
    good = np.isfinite(times) & (np.abs(times) < 2**53)
    if not good.any():
        raise SourceError("no row of the host metrics has a time")
    seen = np.unique(times[good])
    step = float(np.median(np.diff(seen))) if len(seen) > 1 else 1.0
    count = round(float(seen[-1] - seen[0]) / step) + 1
    names = sorted(set(nodes))
    if len(names) > NODES_MAX or len(names) * count > CELLS_MAX:
        raise SourceError(f"{len(names)} nodes x {count} times: more than {CELLS_MAX} values")
    row_of = {node: row for row, node in enumerate(names)}
    values = {metric: np.full((len(names), count), np.nan) for metric in sorted(set(metrics))}
    for row in np.flatnonzero(good & np.isfinite(value)).tolist():
        place = round(float(times[row] - seen[0]) / step)
        values[metrics[row]][row_of[nodes[row]], place] = value[row]
    grid = seen[0] + step * np.arange(count, dtype=np.float64)
    return HostTable(tuple(names), grid, values)
