"""The JSON of `nvbandwidth -j`. Pure.

Format: NVIDIA/nvbandwidth 0.5 and later, json_output.cpp: ``nvbandwidth.testcases``, each with ``name``, ``status`` (Passed,
Waived, Error, Not Found) and ``bandwidth_matrix``, rows of texts in GB/s (10^9 bytes) or ``N/A``; ``error`` of the whole.
"""

import json
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from rankmend.errors import SourceError

_ROOT: Final = "nvbandwidth"
_CELLS_MAX: Final = 65_536
_PASSED: Final = "Passed"
_WAIVED: Final = "Waived"


@dataclass(frozen=True, slots=True)
class BandwidthCell:
    """One copy of one test: from or to device ``row``, ``column`` (of tests with the host the row is 0)."""

    test: str
    row: int
    column: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class BandwidthResults:
    cells: tuple[BandwidthCell, ...]
    failed: tuple[str, ...]  # tests that ended with an error, with its text


def parse_nvbandwidth(text: str) -> BandwidthResults:
    """Return the cells of all matrices; raise SourceError for what is no such output."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[begin : end + 1])[_ROOT]
        cases = found.get("testcases", [])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"nvbandwidth printed no JSON of its own: {text[:120]!r}") from error
    if not isinstance(cases, list) or (not cases and "error" not in found):
        raise SourceError("nvbandwidth: it ran no test")
    failed = [str(found["error"])[:300]] if "error" in found else []
    cells: list[BandwidthCell] = []
    for case in cases:
        name = str(case.get("name")) if isinstance(case, dict) else ""
        status = case.get("status") if isinstance(case, dict) else None
        if status == _PASSED:
            cells += _cells(name, case.get("bandwidth_matrix"))
        elif status != _WAIVED:
            failed.append(
                f"{name}: {case.get('error', status) if isinstance(case, dict) else case}"[:300]
            )
    if len(cells) > _CELLS_MAX:
        raise SourceError(f"nvbandwidth: more than {_CELLS_MAX} figures")
    return BandwidthResults(tuple(cells), tuple(failed))


def _cells(name: str, matrix: Any) -> list[BandwidthCell]:
    cells = []
    for row, values in enumerate(matrix if isinstance(matrix, list) else []):
        for column, value in enumerate(values if isinstance(values, list) else []):
            try:
                rate = float(value) * 1e9
            except (TypeError, ValueError):
                continue  # N/A: a device and itself, or no peer access
            if isfinite(rate) and rate > 0:
                cells.append(BandwidthCell(name, row, column, rate))
    return cells
