"""The readings of an incident on disk: `readings/<incident>.json` in the job's folder, which goes with the job."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import StorageError
from rankmend.files import read_if_there, replace_file
from recovery.accounting.readings.reading import KEPT_CHARACTERS_MAX, NodeReading

FOLDER: Final = "readings"
NODES_MAX: Final = 4  # of one incident that are read
READINGS_MAX: Final = 2 * NODES_MAX  # of one incident: each node when it opens and when it is over
FILES_MAX: Final = 200  # of one job; the oldest go
_FILE_BYTES_MAX: Final = READINGS_MAX * 2 * KEPT_CHARACTERS_MAX
_INCIDENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _Kept(msgspec.Struct, frozen=True):
    readings: tuple[NodeReading, ...]
    version: int = 1


def read_readings(job_folder: Path, incident_id: str) -> tuple[NodeReading, ...]:
    """Return the readings of an incident, oldest first; none where there are none. Raises StorageError."""
    path = _path_of(job_folder, incident_id)
    data = None if path is None else read_if_there(path, _FILE_BYTES_MAX, StorageError)
    if data is None:
        return ()
    try:
        return msgspec.json.decode(data, type=_Kept).readings
    except msgspec.MsgspecError as error:
        raise StorageError(f"cannot read the readings in {path}: {error}") from error


def add_reading(job_folder: Path, incident_id: str, reading: NodeReading) -> None:
    """Keep one more reading of an incident, while there is room for it. Raises StorageError."""
    path = _path_of(job_folder, incident_id)
    if path is None:
        raise StorageError(f"{incident_id!r} is not the id of an incident")
    try:
        retained: Sequence[NodeReading] = read_readings(job_folder, incident_id)
    except StorageError:
        retained = ()  # a torn file is worth less than a new reading
    if len(retained) >= READINGS_MAX:
        return
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _make_room(path)
    except OSError as error:
        raise StorageError(f"cannot use {path.parent}: {error.strerror}") from error
    replace_file(
        path, msgspec.json.encode(_Kept((*retained, reading))), StorageError, durable=False
    )


def _make_room(path: Path) -> None:
    others = [item for item in path.parent.glob("*.json") if item != path]
    if len(others) >= FILES_MAX:
        others.sort(key=lambda other: other.stat().st_mtime)
        for other in others[: len(others) - FILES_MAX + 1]:
            other.unlink(missing_ok=True)


def _path_of(job_folder: Path, incident_id: str) -> Path | None:
    if not _INCIDENT.fullmatch(incident_id):
        return None
    return job_folder / FOLDER / f"{incident_id}.json"
