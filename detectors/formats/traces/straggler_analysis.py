"""Operation traces with the columns of ByteDance's StragglerAnalysis, as parquet or CSV.

One row an operation: dp_rank, stage, rank, step, optype, start_ts (s), duration (s), seq_id.
Own work is what no other worker can hold up: the compute operations. Sends, receives and
collectives contain the wait for the other side; the optimizer's gradient clipping, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.formats.traces.work_rows import (
    CELLS_MAX,
    Column,
    drop_partial,
    number_column,
    require,
    step_starts,
    tabulate,
    usable,
)
from detectors.slow.work_table import TracedWorker, WorkTable
from rankmend.errors import SourceError

COLUMNS: Final = ("dp_rank", "stage", "step", "optype", "duration")
KINDS: Final = ("forward-compute", "backward-compute")
PAUSE: Final = "gc"
ROWS_MAX: Final = 50_000_000
MICROBATCHES_MAX: Final = 4_096


def read_parquet(data: bytes) -> dict[str, Any]:
    """Return the columns of a parquet file. Needs pyarrow, of the extra ``traces``."""
    import pyarrow  # noqa: PLC0415 - an optional dependency
    from pyarrow import parquet  # noqa: PLC0415

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(data))
        if file.metadata.num_rows > ROWS_MAX:
            raise SourceError(f"{file.metadata.num_rows} rows: more than {ROWS_MAX}")
        table = file.read()
        return {name: _values(table.column(name)) for name in table.column_names}
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise SourceError(f"not a parquet file that can be read: {error}") from error


def _values(column: Any) -> Any:
    """Return numbers as an array, text as a list."""
    import pyarrow  # noqa: PLC0415

    if pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type):
        return column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


def read(columns: Mapping[str, Sequence[object]]) -> WorkTable:
    """Return the work table of a trace."""
    require(columns, COLUMNS, "an operation trace in the form of StragglerAnalysis")
    replica = number_column(columns["dp_rank"], "dp_rank")
    stage = number_column(columns["stage"], "stage")
    step = number_column(columns["step"], "step")
    duration = number_column(columns["duration"], "duration")
    rank = number_column(columns["rank"], "rank") if "rank" in columns else np.zeros(len(step))
    sequence = _numbers(columns)
    names, operation = np.unique(
        np.asarray([str(name) for name in columns["optype"]]), return_inverse=True
    )
    kinds = [kind for kind in KINDS if kind in names]
    if not kinds:
        raise SourceError(f"no operation is {' or '.join(KINDS)}; there are {', '.join(names)}")
    good, notes = usable((replica, stage, step, rank), duration)
    starts = number_column(columns["start_ts"], "start_ts") if "start_ts" in columns else None
    if starts is not None:
        repeated = _repeated((replica, stage, rank, step, operation, starts, duration), good)
        if repeated.any():
            good &= ~repeated
            notes = (*notes, f"{int(repeated.sum())} rows left out: they repeat others")
    order = np.stack([replica, stage, rank, step]).astype(np.int64)[:, good]
    operation, duration = operation[good], duration[good]
    ids, rows = np.unique(order[:3], axis=1, return_inverse=True)
    rows = rows.reshape(-1)
    steps, places = np.unique(order[3], return_inverse=True)
    shape = (ids.shape[1], len(steps))

    def matrix(kind: str) -> NDArray[np.float64]:
        chosen = operation == int(np.flatnonzero(names == kind)[0])
        return tabulate(rows[chosen], places[chosen], duration[chosen], shape)

    seconds = np.stack([drop_partial(matrix(kind)) for kind in kinds])
    microbatches = None
    if sequence is not None:
        codes = [int(np.flatnonzero(names == kind)[0]) for kind in kinds]
        microbatches = _microbatches(
            rows, places, sequence[good], duration, [operation == code for code in codes], shape
        )
    starts_s = None
    if starts is not None:
        starts_s = step_starts(places, starts[good], len(steps))
    counts = np.bincount(rows, minlength=shape[0])
    if counts.min() * 2 < counts.max() and len({(int(s)) for s in ids[1]}) == 1:
        notes = (*notes, "some workers have fewer than half the operations of others")
    return WorkTable(
        workers=_workers(ids, has_rank="rank" in columns),
        steps=tuple(int(value) for value in steps),
        kinds=tuple(kinds),
        seconds=seconds,
        microbatches=microbatches,
        starts_s=starts_s,
        pauses=np.nan_to_num(matrix(PAUSE)) if PAUSE in names else None,
        notes=notes,
    )


def _repeated(columns: Sequence[NDArray[Any]], good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows repeat: part of a trace was written or joined twice.

    Their work would count twice. Equal rows lie side by side once sorted.
    """
    *_more, starts, _duration = columns
    rows = np.flatnonzero(good & np.isfinite(starts))
    if not len(rows) or np.ptp(starts[rows]) == 0:
        return np.zeros(len(good), dtype=bool)  # not recorded: equal work is not the same work
    order = rows[np.lexsort([column[rows] for column in columns])]
    is_same = np.ones(max(0, len(order) - 1), dtype=bool)
    for column in columns:
        is_same &= column[order[1:]] == column[order[:-1]]
    repeated = np.zeros(len(good), dtype=bool)
    repeated[order[1:][is_same]] = True
    return repeated


def _numbers(columns: Mapping[str, Sequence[object]]) -> Column | None:
    """Return a number for each piece of a micro-batch, equal for its forward and backward.

    With interleaved stages (model chunks, mc) a micro-batch passes a stage several times, and
    backward goes through the chunks the other way round: seq_id, the order, pairs what doesn't
    belong together.
    """
    if "mb_id" in columns and "mc" in columns:
        batch, chunk = number_column(columns["mb_id"], "mb_id"), number_column(columns["mc"], "mc")
        known = chunk[np.isfinite(chunk)]
        chunks = max(1.0, float(known.max()) + 1) if len(known) else 1.0
        return np.where((batch >= 0) & (chunk >= 0), batch * chunks + chunk, -1.0)
    return number_column(columns["seq_id"], "seq_id") if "seq_id" in columns else None


def _workers(ids: NDArray[np.int64], *, has_rank: bool) -> tuple[TracedWorker, ...]:
    """Return the workers; those at the same place of the same stage are peers over replicas."""
    seen: dict[tuple[int, int], int] = {}
    workers = []
    for replica, stage, rank in ids.T.tolist():
        place = seen.get((replica, stage), 0)
        seen[replica, stage] = place + 1
        workers.append(
            TracedWorker(
                rank=rank if has_rank else None,
                stage=stage,
                dp_rank=replica,
                peers=("stage", stage, "place", place),
            )
        )
    return tuple(workers)


def _microbatches(
    rows: NDArray[np.intp],
    places: NDArray[np.intp],
    sequence: Column,
    duration: Column,
    chosen: Sequence[NDArray[np.bool_]],
    shape: tuple[int, int],
) -> NDArray[np.float64] | None:
    """Return durations by kind, worker, step and micro-batch; None where they are not numbered."""
    any_kind = np.logical_or.reduce(chosen)
    numbers = sequence[any_kind]
    if not np.isfinite(numbers).all() or numbers.min() < 0 or numbers.max() >= MICROBATCHES_MAX:
        return None
    count = int(numbers.max()) + 1
    if len(chosen) * shape[0] * shape[1] * count > CELLS_MAX:
        return None
    out = np.full((len(chosen), *shape, count), np.nan)
    for kind, mask in enumerate(chosen):
        out[kind, rows[mask], places[mask], sequence[mask].astype(np.intp)] = duration[mask]
    return out
