"""From rows of (worker, step, kind, seconds) to a work table, with the checks all formats share."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.slow.work_table import Matrix, TracedWorker, WorkTable
from rankmend.errors import SourceError

Column = NDArray[np.float64]

CELLS_MAX: Final = 200_000_000  # 1.6 GB of float64
BAD_SHARE_MAX: Final = 0.1  # more unusable rows than this and the file is not to be believed
UNIX_S_MIN: Final = 1e9  # in 2001; smaller values count from the start of a trace
SECONDS_MAX: Final = 86_400.0  # an operation of a day is a clock that jumped


def require(columns: Mapping[str, object], names: Sequence[str], form: str) -> None:
    """Raise unless all columns are there."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise SourceError(
            f"not {form}: no column {', '.join(missing)}; there are {', '.join(map(str, columns))}"
        )


def number_column(values: Sequence[object] | NDArray[np.generic], name: str) -> Column:
    """Return a column as numbers, NaN where a value is empty; text that is no number is an error."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    out = np.empty(len(values))
    for number, value in enumerate(values):
        try:
            out[number] = np.nan if value is None or value == "" else float(str(value))
        except ValueError as error:
            raise SourceError(
                f"column {name}, row {number + 1}: not a number: {value!r}"
            ) from error
    return out


def usable(checked: Sequence[Column], seconds: Column) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Return which rows can be used, and a note where some can't."""
    good = np.isfinite(seconds) & (seconds >= 0) & (seconds <= SECONDS_MAX)
    for column in checked:
        good &= np.isfinite(column) & (np.abs(column) < 2**53)
    bad = int(len(good) - good.sum())
    if not good.any():
        raise SourceError(f"no usable row among {len(good)}")
    if bad > BAD_SHARE_MAX * len(good):
        raise SourceError(
            f"{bad} of {len(good)} rows are unusable: empty, negative or longer than a day"
        )
    if not bad:
        return good, ()
    return good, (f"{bad} of {len(good)} rows left out: empty, negative or longer than a day",)


def tabulate(
    rows: NDArray[np.intp], columns: NDArray[np.intp], seconds: Column, shape: tuple[int, int]
) -> Matrix:
    """Return the sums by worker and step, NaN where there is nothing."""
    if shape[0] * shape[1] > CELLS_MAX:
        raise SourceError(f"{shape[0]} workers x {shape[1]} steps: more than {CELLS_MAX} cells")
    place = rows * shape[1] + columns
    size = shape[0] * shape[1]
    total: Matrix = np.bincount(place, weights=seconds, minlength=size).astype(np.float64)
    total[np.bincount(place, minlength=size) == 0] = np.nan
    return total.reshape(shape)


def step_starts(places: NDArray[np.intp], at_s: Column, count: int) -> Column | None:
    """Return when each step was first seen, or None where these are no unix times.

    Only to find what else happened then: clocks of two hosts are never compared by it.
    """
    known = np.isfinite(at_s) & (at_s >= UNIX_S_MIN)
    if not known.any():
        return None
    out = np.full(count, np.inf)
    np.minimum.at(out, places[known], at_s[known])
    return np.where(np.isfinite(out), out, np.nan)


def drop_partial(table: Matrix) -> Matrix:
    """Return the table; steps of which only part of a worker's work is seen can't be judged."""
    return np.where(table > 0, table, np.nan)


def single_kind(
    workers: Sequence[TracedWorker],
    steps: Sequence[int],
    matrix: Matrix,
    kind: str,
    *,
    does_same_work: bool = True,
    notes: tuple[str, ...] = (),
    starts_s: Column | None = None,
) -> WorkTable:
    """Return a work table of one kind of work."""
    return WorkTable(
        workers=tuple(workers),
        steps=tuple(steps),
        kinds=(kind,),
        seconds=drop_partial(matrix)[None],
        does_same_work=does_same_work,
        starts_s=starts_s,
        notes=notes,
    )
