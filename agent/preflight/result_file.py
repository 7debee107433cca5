"""The newest result of a node's pre-flight check, as a JSON file that the agent, people and scripts read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.preflight import baseline_file
from detectors.preflight.baseline import EMPTY, add
from detectors.preflight.figures import LoadFigure
from detectors.preflight.verdicts import CheckVerdict, FlightOutcome
from rankmend.errors import SourceError, StorageError
from rankmend.files import read_capped, replace_file

SERVICE_FOLDER: Final = Path("/var/lib/rankmend/preflight")
NEWEST: Final = "last.json"
VERSION: Final = 1
BYTES_MAX: Final = 8_000_000


@dataclass(frozen=True, slots=True)
class FlightResult:
    """One pre-flight check of one node."""

    node: str
    level: str
    outcome: FlightOutcome
    began_unix_s: float
    took_s: float
    bound_s: float
    rounds: int
    checks: tuple[CheckVerdict, ...]
    figures: tuple[LoadFigure, ...] = ()
    left_behind: tuple[str, ...] = ()  # processes that hang in the kernel
    host_model: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"rankmend_preflight": VERSION, **_plain(asdict(self))}


class SavedCheck(msgspec.Struct, frozen=True):
    name: str
    part: str
    standing: str
    reason: str = ""
    action: str = "none"


class SavedFigure(msgspec.Struct, frozen=True):
    name: str
    value: float
    part: str
    model: str


class SavedResult(msgspec.Struct, frozen=True):
    """What others read of a result."""

    rankmend_preflight: int
    node: str
    level: str
    outcome: str
    began_unix_s: float
    took_s: float
    checks: list[SavedCheck]
    figures: list[SavedFigure] = []


def save_result(folder: Path, result: FlightResult) -> None:
    """Write the newest result; a folder that is missing is made."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
    data = json.dumps(result.to_json(), indent=1).encode()
    replace_file(folder / NEWEST, data, StorageError, mode=0o644)


def keep(folder: Path, result: FlightResult) -> None:
    """Save a result and, of a node that passed, its figures for the baseline."""
    save_result(folder, result)
    if result.outcome is FlightOutcome.PASSED:
        path = folder / f"{result.node}.baseline.json"
        known = baseline_file.load([path]) if path.is_file() else EMPTY
        added = add(known, result.node, result.began_unix_s, result.figures)
        baseline_file.save(path, added)


def read_result(path: Path) -> SavedResult:
    """Return a result; raise SourceError for what is none."""
    data = read_capped(path, BYTES_MAX, SourceError)
    try:
        result = msgspec.json.decode(data, type=SavedResult)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{path} is not a result of a pre-flight check: {error}") from error
    if result.rankmend_preflight != VERSION:
        raise SourceError(
            f"{path} is a result of version {result.rankmend_preflight}, not {VERSION}"
        )
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
