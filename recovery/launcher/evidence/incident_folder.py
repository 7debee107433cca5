"""The folder for an incident's evidence: bounded, rotated, and never an obstacle to recovery."""

import shutil
from pathlib import Path
from typing import Final

from rankmend.errors import StorageError
from rankmend.files import replace_file

FILE_BYTES_MAX: Final = 16 << 20  # a dump of 2,000 entries with stacks takes 2 to 4 MB
TOTAL_BYTES_MAX: Final = 64 << 20  # per attempt: 8 ranks with 8 MB each
INCIDENTS_MAX: Final = 20  # per job; people look at a job before it fails this often
ALL_BYTES_MAX: Final = 512 << 20  # per job


class EvidenceFolder:
    """Accepts files until it is full. A file that can't be written becomes a note, never an error."""

    def __init__(self, incidents: Path, incident_id: str, attempt: int) -> None:
        self._incidents = incidents
        self.path = incidents / incident_id / f"attempt-{attempt}"
        self.size_bytes = 0
        self.files = 0
        self.notes: list[str] = []
        self._is_broken = False

    def open(self) -> None:
        """Make the folder and the room for it."""
        try:
            _rotate(self._incidents, keep=self.path.parent)
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._is_broken = True
            self.notes.append(f"nothing can be written to {self.path}: {error.strerror}")

    def write(self, name: str, body: bytes) -> None:
        if self._is_broken:
            return
        if len(body) > FILE_BYTES_MAX or self.size_bytes + len(body) > TOTAL_BYTES_MAX:
            self.notes.append(
                f"{name} of {len(body)} bytes left out: the folder would exceed its limit"
            )
            return
        path = self.path / name
        try:
            replace_file(path, body, StorageError, durable=False)
        except StorageError as error:
            self._is_broken = True  # full or gone: the next file would fail, too
            self.notes.append(str(error))
            return
        self.size_bytes += len(body)
        self.files += 1


def _rotate(incidents: Path, keep: Path) -> None:
    """Remove the oldest incidents' folders to make room for one more."""
    if not incidents.is_dir():
        return
    folders = [path for path in incidents.iterdir() if path.is_dir() and path != keep]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    sizes = [_size(path) for path in folders]
    left = ALL_BYTES_MAX - TOTAL_BYTES_MAX
    for number, (path, size) in enumerate(zip(folders, sizes, strict=True), start=1):
        left -= size
        if left < 0 or number >= INCIDENTS_MAX:
            shutil.rmtree(path, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
