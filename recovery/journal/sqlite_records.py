"""The rows of a journal in a file of SQLite, for its readers."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankmend.errors import JournalError
from recovery.journal.journal_reader import JournalReader
from recovery.journal.journal_rows import WAY_OUT
from recovery.journal.journal_table import (
    APPLICATION_ID,
    BUSY_TIMEOUT_S,
    journal_error,
    refuse_other_version,
)


class SqliteRecords:
    """One state of a journal's file."""

    way_out = WAY_OUT
    can_be_torn = True

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.name = str(path)
        self._path = path
        self._connection = connection
        self._is_empty = False
        self._begin()

    def _begin(self) -> None:
        ask = self._connection.execute
        ask("BEGIN")  # all that follows sees one state of the file
        application_id = ask("PRAGMA application_id").fetchone()[0]
        if application_id == 0 and ask("PRAGMA schema_version").fetchone()[0] == 0:
            self._is_empty = True  # it is being made at this moment
            return
        if application_id != APPLICATION_ID:
            raise JournalError(f"{self._path} is not a journal of rankmend")
        refuse_other_version(self._connection, self._path)

    def ask(self, question: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        if self._is_empty:
            return
        try:
            # Not the cursor itself: a generator that is left would close it, maybe after its connection.
            yield from map(tuple, self._connection.execute(question, values))
        except sqlite3.Error as error:
            raise journal_error(self._path, "read", error) from error

    def whole_number(self, field: str) -> str:
        return f"json_extract(CAST(body AS TEXT), '$.{field}')"


@contextmanager
def reading(path: Path) -> Iterator[JournalReader]:
    """Give a reader of the journal at ``path``; raise JournalError if it can't be read."""
    try:
        is_there = path.is_file()
    except OSError as error:  # of another user
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    if not is_there:
        raise JournalError(f"there is no journal at {path}")
    connection = None
    try:
        try:
            connection = _connect(path, "ro")
            records = SqliteRecords(path, connection)
        except sqlite3.OperationalError:
            # Whoever made it was killed before it became a WAL database: only a writer can undo what was begun.
            if connection is None or not path.with_name(f"{path.name}-journal").exists():
                raise
            connection.close()
            connection = _connect(path, "rw")
            records = SqliteRecords(path, connection)
        yield JournalReader(records)
    except sqlite3.Error as error:
        raise journal_error(path, "read", error) from error
    finally:
        if connection is not None:
            connection.close()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # we say BEGIN
    )
