"""The journal of a job as its readers have it, whether the job runs or has ended, and wherever it is kept."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from recovery.journal.journal_reader import JournalReader
from recovery.journal.records import Entry
from recovery.journal.store import reading

_FILES: Final = ("journal.db", "journal.db-wal")


class StoredJournal(Protocol):
    """For any thread. Raises JournalError where it can't be read."""

    @property
    def folder(self) -> Path:
        """Return the folder for what belongs to the job beside its journal."""
        ...

    def read(self) -> tuple[Entry, ...]:
        """Return all entries."""
        ...

    def reading(self) -> AbstractContextManager[JournalReader]:
        """Give a reader of what is requested."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """How far a journal was written."""

    at_unix_ns: int  # when it was written last
    extent: tuple[int, ...]  # differs as soon as more was written
    is_exact: bool  # if not: what was written within one tick of the system's clock may not show


@dataclass(frozen=True, slots=True)
class JournalFile:
    """The journal in a job's folder."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / _FILES[0]

    def read(self) -> tuple[Entry, ...]:
        with self.reading() as reader:
            return tuple(reader.entries())

    def reading(self) -> AbstractContextManager[JournalReader]:
        return reading(self.path)

    def written(self) -> Written:
        """Return when the files were written last, and their sizes; zeros for one that is not there.

        An empty log proves nothing: a reader of a journal that no process has open makes one.
        """
        found: list[int] = []
        for name in _FILES:
            try:
                status = (self.folder / name).stat()
            except OSError:
                found += (0, 0)
            else:
                found += (status.st_mtime_ns if status.st_size else 0, status.st_size)
        return Written(max(found[::2]), tuple(found), is_exact=False)


def written_files(journals: Iterable[StoredJournal]) -> list[Written]:
    """Return how far each of these journals was written; all are files."""
    found = []
    for journal in journals:
        assert isinstance(journal, JournalFile), "of a state folder"
        found.append(journal.written())
    return found
