"""Reads the recorded work of ranks in any known file format, for `rankmend diagnose slow`."""

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankmend.errors import SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from detectors.slow.work_table import WorkTable

FILE_BYTES_MAX = 2_000_000_000
ALL_BYTES_MAX = 8_000_000_000
FILES_MAX = 20_000
SUFFIXES = frozenset({".parquet", ".csv", ".json", ".jsonl", ".log", ".gz"})


class Delays:
    """Median delays between pairs: from each row to each column."""

    def __init__(self, names: Sequence[str], matrix: "NDArray[Any]") -> None:
        self.names = tuple(names)
        self.matrix = matrix


def load(file: Path) -> "WorkTable | Delays":
    """Return the content of a file or folder in any known format."""
    from detectors.formats.traces import kineto, nccl_inspector

    files = _files(file)
    traces: list[Any] = []
    records: list[Any] = []
    for item in files:
        data = _bytes(item)
        if data[:4] == b"PAR1":
            return _from_columns(_parquet(data), files, item)
        text = _decode(data, item)
        if not text.lstrip("\ufeff \r\n\t").startswith(("{", "[")):
            from detectors.formats.traces.neutral import read_csv

            return _from_columns(read_csv(text.lstrip("\ufeff")), files, item)
        document = _json(text)
        if kineto.is_trace(document):
            traces.append(document)
            continue
        if isinstance(document, dict) and len(text.strip().splitlines()) > 1:
            keys = ", ".join(map(str, list(document)[:8]))
            raise SourceError(f"{item}: one JSON object of {keys}: neither a trace nor records")
        rows = document if isinstance(document, list) else _rows(text, item)
        if not all(isinstance(row, dict) for row in rows):
            raise SourceError(f"{item}: neither a trace nor records")
        if rows and nccl_inspector.is_record(rows[0]):
            records.extend(rows)
            continue
        from detectors.formats.traces.neutral import read_lines

        return _from_columns(read_lines(text), files, item)
    if traces and records:
        raise SourceError(
            f"{len(traces)} profiler traces and {len(records)} NCCL records are mixed; give one kind"
        )
    return kineto.read(traces) if traces else nccl_inspector.read(records)


def _files(file: Path) -> list[Path]:
    try:
        if not file.is_dir():
            return [file]
        files = sorted(
            path for path in file.iterdir() if path.suffix in SUFFIXES and path.is_file()
        )
    except OSError as error:
        raise SourceError(f"cannot read: {error.strerror or error}") from error
    tables = [item for item in files if item.suffix in (".parquet", ".csv")]
    if len(tables) == 1:
        return tables
    if len(tables) > 1:
        raise SourceError(
            f"several tables; name one: {', '.join(table.name for table in tables[:8])}"
        )
    if not files or len(files) > FILES_MAX:
        raise SourceError(f"{len(files)} files with a known suffix; expected 1 to {FILES_MAX}")
    if sum(item.stat().st_size for item in files) > ALL_BYTES_MAX:
        raise SourceError(f"more than {ALL_BYTES_MAX} bytes")
    return files


def _bytes(file: Path) -> bytes:
    """Return a file's decompressed bytes, up to the bound."""
    try:
        if not file.is_file():
            raise SourceError(f"no such file: {file}")
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(file) as packed:
                data = packed.read(FILE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"cannot read {file}: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise SourceError(f"{file}: more than {FILE_BYTES_MAX} bytes")
    if not data:
        raise SourceError(f"{file}: the file is empty")
    return data


def read_text(file: Path) -> str:
    return _decode(_bytes(file), file)


def _decode(data: bytes, file: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{file}: neither parquet nor text: {error}") from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _rows(text: str, file: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines()):
        if line.strip():
            row = _json(line)
            if row is None:
                raise SourceError(f"{file}, line {number + 1}: not JSON: {line[:80]!r}")
            rows.append(row)
    return rows


def _parquet(data: bytes) -> dict[str, Any]:
    from detectors.formats.traces.straggler_analysis import read_parquet
    from rankmend.packages import Extra, require

    require(Extra.TRACES, "a parquet file")
    return read_parquet(data)


def _from_columns(columns: dict[str, Any], files: list[Path], file: Path) -> "WorkTable | Delays":
    """Return the table in these columns, recognised by their names."""
    from detectors.formats.traces import neutral, pai, straggler_analysis

    if len(files) > 1:
        raise SourceError(f"{len(files)} files, and {file.name} holds all ranks: name one")
    if "batch_time_norm" in columns:
        return pai.read(columns)
    if "optype" in columns or "duration" in columns:
        return straggler_analysis.read(columns)
    if "src" in columns and "dst" in columns:
        return Delays(*neutral.read_delays(columns))
    return neutral.read(columns)
