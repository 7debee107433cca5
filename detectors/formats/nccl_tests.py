"""The text that the programs of nccl-tests print, such as `all_reduce_perf`. Pure.

Format: NVIDIA/nccl-tests, src/common.cu, and doc/PERFORMANCE.md for the meaning of bus bandwidth. A row without ``#``: size in bytes,
count, type, for reductions the operation, root, then out of place and in place each time (us), algorithm and bus
bandwidth (GB/s, 10^9 bytes) and ``#wrong``, how many elements were wrong (N/A where that was not checked). Comments begin with ``#``.
"""

import re
from dataclasses import dataclass
from typing import Final

from rankmend.errors import SourceError

_ROWS_MAX: Final = 10_000
_OUT_OF_BOUNDS: Final = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_WAYS: Final = 2  # out of place and in place
_COLUMNS: Final = 4  # of each: time, algorithm bandwidth, bus bandwidth, wrong
_NOT_CHECKED: Final = "N/A"


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One size, of the better of both ways."""

    size_bytes: int
    kind: str
    bus_bytes_per_s: float
    wrong: int | None  # elements, of both ways together; None: not checked


@dataclass(frozen=True, slots=True)
class CollectiveResults:
    rows: tuple[CollectiveRow, ...]
    out_of_bounds: int | None  # as the program sums up; None: it did not get that far

    @property
    def wrong(self) -> int:
        return max(self.out_of_bounds or 0, sum(row.wrong or 0 for row in self.rows))

    @property
    def best_bus_bytes_per_s(self) -> float:
        return max(row.bus_bytes_per_s for row in self.rows)


def parse_nccl_tests(text: str) -> CollectiveResults:
    """Return the rows; lines of NCCL's own log between them are left out. Raise SourceError if there is none."""
    rows: list[CollectiveRow] = []
    summed = _OUT_OF_BOUNDS.search(text)
    for line in text.splitlines():
        row = _row(line)
        if row is not None:
            rows.append(row)
        if len(rows) > _ROWS_MAX:
            raise SourceError(f"nccl-tests: more than {_ROWS_MAX} rows")
    if not rows:
        raise SourceError(f"nccl-tests printed no row of results: {text[-200:]!r}")
    return CollectiveResults(tuple(rows), int(summed[1]) if summed else None)


def _row(line: str) -> CollectiveRow | None:
    words = line.split()
    if len(words) < 3 + _WAYS * _COLUMNS or not words[0].isdigit() or not words[1].isdigit():
        return None
    figures = words[-_WAYS * _COLUMNS :]
    try:
        rates = [float(figures[way * _COLUMNS + 2]) * 1e9 for way in range(_WAYS)]
        reported = [figures[way * _COLUMNS + 3] for way in range(_WAYS)]
        wrong = [int(float(item)) for item in reported if item != _NOT_CHECKED]
    except ValueError:
        return None
    return CollectiveRow(int(words[0]), words[2], max(rates), sum(wrong) if wrong else None)
