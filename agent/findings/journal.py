"""The agent's findings on disk: a journal for people, and the state for a restart.

<folder>/findings.jsonl      one line a change, durable before the alert goes out; rotated by size
<folder>/findings.jsonl.1    ... up to KEEP, the oldest last
<folder>/state.json          the state of all checks, replaced as a whole
<folder>/release/<id>        a person's word that a latched finding is over, see `released`
<folder>/lock                held while an agent runs: two agents on one folder are refused
"""

import errno
import fcntl
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from detectors.node.node_state import NodeState
from rankmend.errors import ConfigError, StorageError
from rankmend.files import read_if_there, replace_file
from rankmend.own_folder import open_to_append, refuse_foreign_link

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 1_000_000  # about 1,500 changes; quiet nodes have a few a day
KEEP: Final = 4
STATE_BYTES_MAX: Final = 16_000_000
RELEASES_MAX: Final = 100  # read at once
VERSION: Final = 1
_DISK_TROUBLE: Final = frozenset((errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO))


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    boot_id: str
    now_s: float  # the monotonic clock of that boot when it was saved
    unix_s: float
    state: NodeState


class FindingStore:
    """The folder of one agent. Raises ConfigError where it can't be used.

    A disk that is full or has become read-only, as after an error, keeps no agent from its start: the node needs
    one more than ever. Then each write tries to open the folder again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._releases = folder / "release"
        self._lock = -1
        try:
            self._open()
        except StorageError as error:
            log.error("findings are not saved on disk", extra={"error": str(error)})  # noqa: TRY400

    @property
    def is_open(self) -> bool:
        return self._lock >= 0

    def _open(self) -> None:
        folder = self.folder
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._releases.mkdir(mode=0o755, exist_ok=True)
            for place in (folder, self._releases):
                refuse_foreign_link(place, ConfigError)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(folder / "lock", flags, 0o644)
        except OSError as error:
            text = f"cannot use {folder} for findings: {error.strerror}"
            if error.errno in _DISK_TROUBLE:
                raise StorageError(text) from error
            raise ConfigError(text) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise ConfigError(f"another agent uses {folder}") from error
        self._lock = lock

    def _reopen(self) -> None:
        """Open the folder where its disk did not take anything at the start, or raise StorageError."""
        if self.is_open:
            return
        try:
            self._open()
        except ConfigError as error:
            raise StorageError(str(error)) from error

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def append(self, records: list[Mapping[str, Any]]) -> None:
        """Write the records and return once they are on stable storage."""
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        data = lines.encode("utf-8", "backslashreplace")
        path = self.folder / "findings.jsonl"
        self._reopen()
        try:
            self._rotate(path, len(data))
            with os.fdopen(open_to_append(path), "ab") as file:
                if _is_torn(path):
                    data = b"\n" + data  # after a crash in mid-line: that line stays by itself
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}") from error

    def _rotate(self, path: Path, more_bytes: int) -> None:
        if not path.exists() or path.stat().st_size + more_bytes <= FILE_BYTES_MAX:
            return
        for number in range(KEEP, 0, -1):
            older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number}"))

    def save(self, saved: SavedState) -> None:
        """Replace the state as a whole: a crash leaves the old one or the new one."""
        self._reopen()
        body = msgspec.json.encode(saved)
        replace_file(self.folder / "state.json", body, StorageError, mode=0o644)

    def load(self) -> SavedState | None:
        """Return the saved state; None at the first start. Raises StorageError for a broken one."""
        path = self.folder / "state.json"
        data = read_if_there(path, STATE_BYTES_MAX, StorageError)
        if data is None:
            return None
        try:
            saved = msgspec.json.decode(data, type=SavedState)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StorageError(f"{path}: {error}") from error
        if saved.version != VERSION:
            raise StorageError(f"{path} has version {saved.version}, not {VERSION}")
        return saved

    def released(self) -> list[str]:
        """Return the findings that a person has released since the last call."""
        if not self.is_open:
            return []
        found = []
        try:
            with os.scandir(self._releases) as entries:
                for entry in entries:
                    Path(entry.path).unlink()
                    found.append(unquote(entry.name))
                    if len(found) == RELEASES_MAX:
                        break
        except OSError as error:
            raise StorageError(f"cannot read {self._releases}: {error.strerror}") from error
        return found


def ask_release(folder: Path, finding_id: str) -> None:
    """Leave word for the agent of this folder that a finding is over."""
    path = folder / "release" / quote(finding_id, safe="")
    try:
        path.touch()
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
