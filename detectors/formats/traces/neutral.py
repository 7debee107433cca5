"""The neutral form: CSV or JSON lines, one row a piece of own work (docs/use/diagnose-slow.md).

Needed: step, seconds, and rank or worker. Optional: kind (compute, io, ... ; communication is
waiting for others and left out), stage, dp_rank, tp_rank, group (ranks of one group do the same
work; without it: same stage and tp_rank), host, device, nic, tokens, at (unix seconds).
Delays between pairs have src, dst and seconds (step optional) in place of rank.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from detectors.formats.traces.work_rows import (
    drop_partial,
    number_column,
    require,
    step_starts,
    tabulate,
    usable,
)
from detectors.slow.work_table import Matrix, TracedWorker, WorkTable
from rankmend.errors import SourceError

ROWS_MAX: Final = 20_000_000
NODES_MAX: Final = 4_096
WAITING: Final = frozenset({"communication", "idle", "wait"})
_FIELD_CHARS_MAX: Final = 4_096


def read_csv(text: str) -> dict[str, list[str]]:
    """Return the columns of a CSV with a header line; lines with nothing in them are left out."""
    reader = csv.reader(text.splitlines())
    before = csv.field_size_limit(_FIELD_CHARS_MAX)  # process-wide, restored below
    try:
        header = next(reader, None)
        if not header:
            raise SourceError("the table is empty")
        header = [name.strip() for name in header]
        if len(set(header)) != len(header):
            raise SourceError(f"a column occurs twice: {', '.join(header)}")
        rows = list(islice(reader, ROWS_MAX + 1))
    except csv.Error as error:
        raise SourceError(f"not a CSV table: {error}") from error
    finally:
        csv.field_size_limit(before)
    if len(rows) > ROWS_MAX:
        raise SourceError(f"more than {ROWS_MAX} rows")
    for number, row in enumerate(rows):
        if row and len(row) != len(header):
            raise SourceError(f"line {number + 2}: {len(row)} fields, the header has {len(header)}")
    rows = [row for row in rows if row]
    if not rows:
        raise SourceError(f"the table has a header and no row: {', '.join(header)}")
    return {
        name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)
    }


def read_lines(text: str) -> dict[str, list[Any]]:
    """Return the columns of JSON lines; a key that a line lacks is empty there."""
    columns: dict[str, list[Any]] = {}
    count = 0
    for number, line in enumerate(text.splitlines()):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"line {number + 1}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise SourceError(f"line {number + 1}: not an object: {line[:80]!r}")
        if count >= ROWS_MAX:
            raise SourceError(f"more than {ROWS_MAX} rows")
        for name, value in row.items():
            columns.setdefault(name, [None] * count).append(value)
        count += 1
        for column in columns.values():
            if len(column) < count:
                column.append(None)
    if not count:
        raise SourceError("the file is empty")
    return columns


def read(columns: Mapping[str, Sequence[object]]) -> WorkTable:
    """Return the work table of step records."""
    require(columns, ("step", "seconds"), "step records in the neutral form")
    key = "rank" if "rank" in columns else "worker"
    require(columns, (key,), "step records in the neutral form")
    step = number_column(columns["step"], "step")
    seconds = number_column(columns["seconds"], "seconds")
    number = number_column(columns[key], key)
    kind = np.asarray([str(name or "step") for name in columns.get("kind", ["step"] * len(step))])
    good, notes = usable((step, number), seconds)
    good &= ~np.isin(kind, sorted(WAITING))
    if not good.any():
        raise SourceError("only waiting is recorded: own work (compute, io) is needed")
    chosen = np.flatnonzero(good)
    ids, first, rows = np.unique(
        number[chosen].astype(np.int64), return_index=True, return_inverse=True
    )
    steps, places = np.unique(step[chosen].astype(np.int64), return_inverse=True)
    kinds, codes = np.unique(kind[chosen], return_inverse=True)
    shape = (len(ids), len(steps))
    notes = (*notes, *_check_places(columns, chosen, rows, key, ids))
    seconds = seconds[chosen]
    matrices = [
        drop_partial(
            tabulate(rows[codes == code], places[codes == code], seconds[codes == code], shape)
        )
        for code in range(len(kinds))
    ]
    tokens = None
    if "tokens" in columns:
        tokens = _tokens(number_column(columns["tokens"], "tokens")[chosen], rows, places, shape)
    starts_s = None
    if "at" in columns:
        at_s = number_column(columns["at"], "at")[chosen]
        starts_s = step_starts(places, at_s, len(steps))
    return WorkTable(
        workers=tuple(
            _worker(columns, int(chosen[place]), key, int(value))
            for value, place in zip(ids, first, strict=True)
        ),
        steps=tuple(int(value) for value in steps),
        kinds=tuple(str(name) for name in kinds),
        seconds=np.stack(matrices),
        tokens=tokens,
        starts_s=starts_s,
        notes=notes,
    )


def _check_places(
    columns: Mapping[str, Sequence[object]],
    chosen: np.ndarray[Any, np.dtype[np.intp]],
    rows: np.ndarray[Any, np.dtype[np.intp]],
    key: str,
    ids: np.ndarray[Any, np.dtype[np.int64]],
) -> tuple[str, ...]:
    """Raise where a rank has two places in the layout; return a note where it has two hosts."""
    notes = []
    for name in ("group", "stage", "dp_rank", "tp_rank", "host", "device"):
        if name not in columns:
            continue
        texts = np.asarray([str(columns[name][row]) for row in chosen.tolist()])
        _values, codes = np.unique(texts, return_inverse=True)
        first = np.empty(len(ids), dtype=np.intp)
        first[rows] = codes
        moved = sorted({int(ids[row]) for row in rows[codes != first[rows]].tolist()})
        if not moved:
            continue
        named = f"{key} {', '.join(map(str, moved[:8]))} has several values of {name}"
        if name not in ("host", "device"):
            raise SourceError(f"{named}: groups overlap, and who its peers are is not known")
        notes.append(f"{named}; only the first one is reported")
    return tuple(notes)


def _tokens(
    values: Matrix,
    rows: np.ndarray[Any, np.dtype[np.intp]],
    places: np.ndarray[Any, np.dtype[np.intp]],
    shape: tuple[int, int],
) -> Matrix | None:
    """Return the tokens of each worker and step; the rows of one step repeat its number."""
    if not (np.isfinite(values) & (values > 0)).all():
        return None
    out = np.full(shape, np.nan)
    out[rows, places] = values
    return out


def _worker(
    columns: Mapping[str, Sequence[object]], row: int, key: str, number: int
) -> TracedWorker:
    def text(name: str) -> str | None:
        value = columns[name][row] if name in columns else None
        return None if value is None or value == "" else str(value)

    def whole(name: str) -> int | None:
        value = text(name)
        try:
            return None if value is None else int(float(value))
        except (ValueError, OverflowError) as error:
            raise SourceError(f"column {name}: not a whole number: {value!r}") from error

    stage, place = whole("stage"), whole("tp_rank")
    group = text("group")
    return TracedWorker(
        rank=number if key == "rank" else None,
        worker=number if key == "worker" else None,
        stage=stage,
        dp_rank=whole("dp_rank"),
        host=text("host"),
        device=text("device"),
        nic=text("nic"),
        peers=("group", group) if group else ("stage", stage or 0, "place", place or 0),
    )


def read_delays(columns: Mapping[str, Sequence[object]]) -> tuple[tuple[str, ...], Matrix]:
    """Return the names and the median delay from each (row) to each (column), NaN where none."""
    require(columns, ("src", "dst", "seconds"), "delays between pairs")
    seconds = number_column(columns["seconds"], "seconds")
    good, _notes = usable((), seconds)
    names = sorted({str(name) for side in ("src", "dst") for name in columns[side]}, key=_natural)
    if len(names) > NODES_MAX:
        raise SourceError(f"{len(names)} senders and receivers: more than {NODES_MAX}")
    index = {name: place for place, name in enumerate(names)}
    values: dict[tuple[int, int], list[float]] = {}
    for row in np.flatnonzero(good).tolist():
        pair = (index[str(columns["src"][row])], index[str(columns["dst"][row])])
        values.setdefault(pair, []).append(float(seconds[row]))
    out = np.full((len(names), len(names)), np.nan)
    for (source, target), taken in values.items():
        if source != target:
            out[source, target] = np.median(taken)
    return tuple(names), out


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (1 << 40, name)
