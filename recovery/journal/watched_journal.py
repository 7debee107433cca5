"""The journal of watched jobs: the usual form (`recovery.journal.store`), in several files, so that it can be bounded.

    <state>/watched/alive              when the controller was last alive (`recovery.journal.folder.heartbeat`)
    <state>/watched/000001/journal.db  the oldest file that is kept; each begins with all jobs that had not ended

A file that can't be read is left out: the next file marks the time before as unreported for each job.
"""

import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import ConfigError, JournalError, RankmendError
from rankmend.own_folder import make_private
from recovery.journal.records import Entry
from recovery.journal.store import Journal, open_readonly
from recovery.journal.watched_records import WatchedTimeRecord

log = logging.getLogger(__name__)

FOLDER: Final = "watched"
RECORDS_MAX: Final = 20_000  # of one file: 8 MB
FILES_MAX: Final = 50  # a million records: 500 jobs write as many in half a year
_DB: Final = "journal.db"


class WatchedJournal:
    def __init__(self, state: Path, clock: Clock, boot_id: str) -> None:
        """Open the newest file, or the next one where that can't be read; a disk that fails raises."""
        self.folder = state / FOLDER
        make_private(self.folder, ConfigError)
        self._clock = clock
        self._boot_id = boot_id
        numbers = _numbers(self.folder)
        self._number = numbers[-1] if numbers else 1
        try:
            self._journal = self._open()
        except JournalError as error:
            log.warning("journal of watched jobs is damaged", extra={"error": str(error)})
            self._number += 1
            self._journal = self._open()
        self._count = self._journal.last_number
        self._journal.opened = ()  # `read` gives it, file by file

    def read(self) -> Iterator[Entry]:
        """Return what all files hold, oldest first."""
        return read_watched(self.folder)

    @property
    def is_full(self) -> bool:
        return self._count >= RECORDS_MAX

    def append(self, records: Sequence[WatchedTimeRecord]) -> tuple[Entry, ...]:
        """Write the records, or raise JournalError."""
        entries = self._journal.append_many(records)
        self._count += len(entries)
        return entries

    def begin_file(self) -> None:
        """Go on in a new file, and remove the oldest where there are too many."""
        self._journal.close()
        self._number += 1
        self._journal = self._open()
        self._count = 0
        for number in _numbers(self.folder)[:-FILES_MAX]:
            shutil.rmtree(_path(self.folder, number), ignore_errors=True)

    def close(self) -> None:
        self._journal.close()

    def _open(self) -> Journal:
        folder = _path(self.folder, self._number)
        make_private(folder, ConfigError)
        return Journal(folder / _DB, self._clock, self._boot_id)


def read_watched(folder: Path) -> Iterator[Entry]:
    """Return what the journal in this folder holds, oldest first; a file that can't be read is left out."""
    for number in _numbers(folder):
        try:
            yield from open_readonly(_path(folder, number) / _DB).entries
        except RankmendError as error:
            log.warning("journal of watched jobs left out", extra={"error": str(error)})


def _numbers(folder: Path) -> list[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"
