"""The JSON of `dcgmi diag -j` of DCGM 2 to 4. Pure.

Format: NVIDIA/DCGM, dcgmi/Diag.cpp (`HelperJsonBuildOutput`), common/NvvsJsonStrings.h and the comment in
nvvs/include/NvvsCommon.h. One object, "DCGM GPU Diagnostic" (3) or "DCGM Diagnostic" (4), holds ``test_categories`` with
``tests``, each with ``results`` by ``gpu_id``/``gpu_ids`` (text) or ``entity_id``. Warnings are texts (2), or objects with
``error_severity`` (3.3 and later, dcgm_errors.h: 1 monitor, 2 isolate, 4 triage, 5 configuration, 6 reset).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rankmend.errors import SourceError

_ROOTS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_ROWS_MAX: Final = 10_000
_TEXT_MAX: Final = 300


class DiagStatus(Enum):
    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class DiagResult:
    """What one test found on one device."""

    test: str
    device: str  # "gpu 0", "cpu 1"; "node" where the test is of none
    status: DiagStatus
    texts: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()  # of dcgm_errors.h


def parse_dcgm_diag(text: str) -> list[DiagResult]:
    """Return every result; raise SourceError for what is no such output, and for an error of DCGM's own."""
    begin, end = text.find("{"), text.rfind("}")  # dcgmi may print a line before it
    try:
        document = json.loads(text[begin : end + 1])
    except ValueError as error:
        raise SourceError(f"dcgmi diag printed no JSON: {text[:120]!r}") from error
    found = next((document[name] for name in _ROOTS if isinstance(document.get(name), dict)), None)
    if found is None:
        raise SourceError(f"dcgmi diag: no table of results in {sorted(document)[:5]}")
    problem = found.get("runtime_error") or document.get("runtime_error")
    if problem:
        raise SourceError(f"dcgmi diag: {str(problem)[:_TEXT_MAX]}")
    results = []
    for number, result in enumerate(_results(found)):
        if number >= _ROWS_MAX:
            raise SourceError(f"dcgmi diag: more than {_ROWS_MAX} results")
        results.append(result)
    if not results:
        raise SourceError("dcgmi diag: it ran no test")
    return results


def _results(found: Mapping[str, Any]) -> Iterator[DiagResult]:
    for category in _dicts(found.get("test_categories")):
        for test in _dicts(category.get("tests")):
            for row in _dicts(test.get("results")):
                status = _status(row.get("status"))
                if status is not None:
                    texts, severities = _warnings(row.get("warnings"))
                    name = str(test.get("name"))[:_TEXT_MAX]
                    yield DiagResult(name, _device(row), status, texts, severities)


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _status(value: object) -> DiagStatus | None:
    """Return the status: ``Pass``, ``PASS``, ``Skip`` and ``Skipped`` are all written; None: it was not run."""
    written = str(value).strip().lower()
    return next((status for status in DiagStatus if written.startswith(status.value)), None)


def _device(row: Mapping[str, Any]) -> str:
    for key in ("gpu_id", "gpu_ids"):
        if key in row:
            return f"gpu {str(row[key])[:40]}"
    if "cpu_id" in row:
        return f"cpu {str(row['cpu_id'])[:40]}"
    if "entity_id" in row:
        return f"{str(row.get('entity_group', 'entity')).lower()[:20]} {str(row['entity_id'])[:40]}"
    return "node"


def _warnings(value: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
    rows = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    texts, severities = [], []
    for row in rows:
        if isinstance(row, dict):
            texts.append(str(row.get("warning", ""))[:_TEXT_MAX])
            severity = row.get("error_severity")
            if isinstance(severity, int):
                severities.append(severity)
        else:
            texts.append(str(row)[:_TEXT_MAX])
    return tuple(texts), tuple(severities)
