"""The table of a journal's SQLite file: what its writer and its readers share."""

import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankmend.errors import JournalError
from recovery.journal.journal_rows import WAY_OUT, JournalRow
from recovery.journal.records import MAJOR

APPLICATION_ID: Final = 0x524D4E44  # "RMND", SQLite's application_id
BUSY_TIMEOUT_S: Final = 5.0  # for the lock of a reader that copies the log back
_COLUMNS: Final = ", ".join(JournalRow._fields)


def read_rows(
    connection: sqlite3.Connection, path: Path, where: str = "", values: tuple[object, ...] = ()
) -> Iterator[JournalRow]:
    """Return rows in the order of their numbers; a damaged one may hold anything.

    ``where``: an SQL condition of ours, with a question mark for each of the ``values``.
    """
    condition = f" WHERE {where}" if where else ""
    try:
        found = connection.execute(
            f"SELECT {_COLUMNS} FROM record{condition} ORDER BY number",  # noqa: S608 - all of it is ours
            values,
        )
        yield from map(JournalRow._make, found)
    except sqlite3.Error as error:
        raise journal_error(path, "read", error) from error


def refuse_other_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raise JournalError for a journal of another major version."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != MAJOR:
        raise JournalError(
            f"{path} has journal version {version}, this rankmend reads {MAJOR}: use the version "
            f"that wrote it"
        )


# What SQLite's result codes (sqlite.org/rescode.html) mean to the system. Python 3.10 has no
# code on the exception, so they are told by the fixed text of sqlite3_errstr().
_ERRNO_BY_TEXT: Final = (
    ("database or disk is full", errno.ENOSPC),
    ("disk I/O error", errno.EIO),
    ("readonly database", errno.EROFS),
    ("unable to open", errno.EACCES),
    ("locked", errno.EAGAIN),
)


def journal_error(path: Path, doing: str, error: sqlite3.Error) -> JournalError:
    """Return what a failure of SQLite means to the system."""
    text = str(error)
    if "malformed" in text or "not a database" in text:
        return JournalError(f"{path} is damaged ({text}). {WAY_OUT}")
    for part, number in _ERRNO_BY_TEXT:
        if part in text:
            name = errno.errorcode[number]
            return JournalError(f"cannot {doing} {path}: {text} ({name} {number})")
    return JournalError(f"cannot {doing} {path}: {text}")
