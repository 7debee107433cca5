"""Mini-batch times of Alibaba PAI jobs (cluster-trace-gpu-v2020, mini-batch-time): CSV.

Columns: worker, gpu, time (iteration), batch_time_norm (0 to 1000, a share of the longest). The
workers of such a job may have unequal GPUs, hosts and neighbours, so a difference that was
always there accuses nobody.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from detectors.formats.traces.work_rows import number_column, require, single_kind, tabulate, usable
from detectors.slow.work_table import TracedWorker, WorkTable

COLUMNS = ("worker", "time", "batch_time_norm")


def read(columns: Mapping[str, Sequence[object]]) -> WorkTable:
    """Return the work table of one job."""
    require(columns, COLUMNS, "a PAI mini-batch table")
    worker, step, took = (number_column(columns[name], name) for name in COLUMNS)
    good, notes = usable((worker, step), took)
    numbers, rows = np.unique(worker[good].astype(np.int64), return_inverse=True)
    steps, places = np.unique(step[good].astype(np.int64), return_inverse=True)
    count = np.zeros((len(numbers), len(steps)))
    np.add.at(count, (rows, places), 1)
    matrix = tabulate(rows, places, took[good], count.shape) / np.maximum(count, 1)
    return single_kind(
        [TracedWorker(worker=int(number), peers=("all",)) for number in numbers],
        [int(value) for value in steps],
        matrix,
        "mini-batch",
        does_same_work=False,
        notes=notes,
    )
