"""What every journal offers that is open for writing, wherever it is kept.

`recovery.journal.store` keeps one in a file of SQLite, `recovery.journal.postgres.postgres_journal` in PostgreSQL.
"""

from collections.abc import Sequence
from typing import Protocol

from rankmend.errors import JournalError
from recovery.journal.pen import FoldKeeper
from recovery.journal.records import Entry, Record


class JournalMovedError(JournalError):
    """Another controller has written to this journal since it was read: read that, and decide anew."""


class JournalSetBackError(JournalError):
    """The journal lacks what was written to it: it was restored from a backup. What is known of it must be read anew."""


class OpenJournal(FoldKeeper, Protocol):
    opened: tuple[Entry, ...]
    """What the journal held behind its `foundation` when it was opened, and what opening added, oldest first. Whoever has folded it lets go of it."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what people must hear about how it was found."""
        ...

    @property
    def last_number(self) -> int: ...

    def append(self, record: Record, /) -> Entry:
        """Write one record and return it in its place once it is durable, else raise."""
        ...

    def append_many(self, records: Sequence[Record], /) -> tuple[Entry, ...]:
        """Write all of ``records`` or none, and return them once they are durable.

        Raises JournalError where nothing was written: the same call can be made again later. What else is raised means
        that the journal must be opened anew before anything is done.
        """
        ...

    def append_entries(self, entries: Sequence[Entry], /) -> None:
        """Do as `append_many` with entries that are numbered and dated already, behind the newest one."""
        ...

    def read_newer(self) -> tuple[Entry, ...]:
        """Return what other controllers have written since this one last read or wrote; it is known from now on."""
        ...

    def close(self) -> None: ...
