"""Reads a journal, also while another process writes it, and no more of it than is asked for.

A row is sound if its checksum fits itself and the checksum stored in the row before, so that a row can be
checked without those before. What ends a journal is its last sound row: those behind it were torn by a crash.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rankmend.errors import JournalError
from recovery.journal.journal_rows import (
    GENESIS,
    GROUP_ROWS_MAX,
    WAY_OUT,
    JournalRow,
    RowChain,
    entry_of,
    fits,
    too_many_torn,
)
from recovery.journal.journal_table import (
    APPLICATION_ID,
    BUSY_TIMEOUT_S,
    journal_error,
    read_rows,
    refuse_other_version,
)
from recovery.journal.records import Entry

_END: Final = 2**63 - 1  # of the numbers that SQLite has
_COLUMNS: Final = ", ".join(f"r.{name}" for name in JournalRow._fields)


class JournalReader:
    """One state of a journal's file. A part that is damaged, and not by a crash, raises JournalError."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.name = str(path)
        self._path = path
        self._connection = connection
        self._is_empty = False
        self.torn = 0  # rows at the end, once `entries` has come there
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

    def entries(self, after: int = 0, through: int = _END) -> Iterator[Entry]:
        """Return the entries behind the record ``after``, which has to be sound, through another."""
        for row in self._chained(after, through):
            yield entry_of(row, self.name)

    def _chained(self, after: int, through: int) -> Iterator[JournalRow]:
        if self._is_empty:
            return
        chain = RowChain(self.name, after, self.checksum_of(after))
        where = "number > ? AND number <= ?"
        yield from chain.sound(read_rows(self._connection, self._path, where, (after, through)))
        self.torn = chain.torn

    def rows(self, where: str, values: Sequence[object] = ()) -> Iterator[JournalRow]:
        """Return rows in their order, each checked by itself.

        ``where``: an SQL condition of ours on `r`, with a question mark for each of the ``values``.
        """
        for row, before in self._pairs(where, values):
            if not fits(row, before):
                raise JournalError(
                    f"{self.name}: record {row.number} is damaged, or the one before it is "
                    f"missing: a crash cannot cause that. {WAY_OUT}"
                )
            yield row

    def _pairs(self, where: str, values: Sequence[object]) -> Iterator[tuple[JournalRow, bytes]]:
        """Return rows, each with the checksum of the row before."""
        found = self.ask(
            f"SELECT {_COLUMNS}, p.checksum FROM record r"  # noqa: S608 - all of it is ours
            " LEFT JOIN record p ON p.number = r.number - 1"
            f" WHERE {where} ORDER BY r.number",
            values,
        )
        for fields in found:
            row = JournalRow._make(fields[:-1])
            before = GENESIS if row.number == 1 else fields[-1]
            yield row, before if isinstance(before, bytes) else b""

    def ask(self, question: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Return what SQLite answers; the question is ours."""
        if self._is_empty:
            return
        try:
            yield from self._connection.execute(question, values)
        except sqlite3.Error as error:
            raise journal_error(self._path, "read", error) from error

    def row(self, number: int) -> JournalRow | None:
        return next(self.rows("r.number = ?", (number,)), None)

    def checksum_of(self, number: int) -> bytes:
        """Return the stored checksum of a record; 0 is the one before the first."""
        if number == 0:
            return GENESIS
        found = next(self.ask("SELECT checksum FROM record WHERE number = ?", (number,)), None)
        return found[0] if found is not None and isinstance(found[0], bytes) else b""

    def last_number(self, after: int = 0) -> int:
        """Return the number of the last sound row; ``after``: one that is known to be sound, or 0."""
        if self._is_empty:
            return 0
        counted = "SELECT count(*), ifnull(max(number), ?) FROM record WHERE number > ?"
        count, number = next(self.ask(counted, (after, after)))
        if count != number - after:
            missing = number - after - count
            raise JournalError(f"{self.name}: {missing} records are missing. {WAY_OUT}")
        for torn in range(count):
            row, before = next(self._pairs("r.number = ?", (number - torn,)))
            if fits(row, before):
                return int(number - torn)
            if torn == GROUP_ROWS_MAX:
                raise too_many_torn(self.name, torn + 1)
        return after


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
            reader = JournalReader(path, connection)
        except sqlite3.OperationalError:
            # Whoever made it was killed before it became a WAL database: only a writer can undo what was begun.
            if connection is None or not path.with_name(f"{path.name}-journal").exists():
                raise
            connection.close()
            connection = _connect(path, "rw")
            reader = JournalReader(path, connection)
        yield reader
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
