"""What this node's check wrote where it took the node out: a JSON file, since only what we wrote may be taken back."""

from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import StorageError
from rankmend.files import read_if_there, replace_file

NAME: Final = "holds.json"
_BYTES_MAX: Final = 100_000


def read_hold(folder: Path, where: str) -> str | None:
    """Return the reason that we wrote there, or None."""
    return _read(folder).get(where)


def write_hold(folder: Path, where: str, reason: str | None) -> None:
    """Keep the reason, or forget it (None). Returns once it is on stable storage."""
    holds = {key: value for key, value in _read(folder).items() if key != where}
    if reason is not None:
        holds[where] = reason
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
    replace_file(folder / NAME, msgspec.json.encode(holds), StorageError, mode=0o644)


def _read(folder: Path) -> dict[str, str]:
    path = folder / NAME
    data = read_if_there(path, _BYTES_MAX, StorageError)
    if data is None:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} is not a record of holds: {error}") from error
