"""The journal in a file of SQLite: records are durable before they take effect (contract 5).

WAL mode with full sync: a commit is one fdatasync, 0.25 ms on the measured disk, and kill -9 of the
writer loses nothing that was acknowledged. Records are numbered without gaps, and each carries a
checksum over itself and its predecessor's checksum, so that opening the file finds every record
that was changed, torn or lost afterwards. docs/reference/journal.md has the form.

One thread writes; a caller of append waits until its records are durable. Records that arrive
together share one commit.
"""

import errno
import logging
import os
import queue
import sqlite3
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rankmend.clock import Clock
from rankmend.errors import JournalError
from rankmend.files import sync_folder
from recovery.journal import fold_snapshot
from recovery.journal.fold_snapshot import Foundation
from recovery.journal.folder.network_storage import refuse_network_file_system
from recovery.journal.job_records import TailCut
from recovery.journal.journal_reader import JournalReader
from recovery.journal.journal_rows import (
    GROUP_ROWS_MAX,
    WAY_OUT,
    JournalRow,
    RowChain,
    entry_of,
    make_row,
)
from recovery.journal.ledger import Ledger
from recovery.journal.records import MAJOR, Entry, Record

log = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x524D4E44  # "RMND", SQLite's application_id
BUSY_TIMEOUT_S: Final = 5.0  # for the lock of a reader that copies the log back
_COLUMNS: Final = ", ".join(JournalRow._fields)

# What SQLite's result codes (sqlite.org/rescode.html) mean to the system. Python 3.10 has no
# code on the exception, so the fixed text of sqlite3_errstr() identifies them.
_ERRNO_BY_TEXT: Final = (
    ("database or disk is full", errno.ENOSPC),
    ("disk I/O error", errno.EIO),
    ("readonly database", errno.EROFS),
    ("unable to open", errno.EACCES),
    ("locked", errno.EAGAIN),
)

_QUEUE_MAX = 1024  # appends that wait for the writer; the controller has one at a time
_APPEND_TIMEOUT_S = 30.0  # a disk that takes longer for one commit counts as broken
_CLOSE_TIMEOUT_S = 10.0


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
        isolation_level=None,  # we execute BEGIN
    )


def count_wal_frames(path: Path) -> int:
    """Return how many frames of the current cycle, whole or not, the write-ahead log holds up to its last commit.

    Form: sqlite.org/fileformat2.html section 4. A frame belongs to the current cycle when it
    carries the two salts of the file's header, and ends a transaction when it has how large the
    database then is. Where SQLite finds fewer, a commit is torn. What follows the last commit was
    never acknowledged: a disk was full, or the writer died.
    """
    try:
        with path.with_name(path.name + "-wal").open("rb") as wal:
            header = wal.read(32)
            if len(header) < 32:
                return 0
            page_size, salts = struct.unpack_from(">I", header, 8)[0], header[16:24]
            if not 512 <= page_size <= 65536:
                return 0
            frames = committed = 0
            while True:
                frame = wal.read(24)
                if len(frame) < 24 or frame[8:16] != salts:
                    return committed
                frames += 1
                if frame[4:8] != bytes(4):
                    committed = frames
                wal.seek(page_size, os.SEEK_CUR)
    except OSError:
        return 0


def open_index(path: Path) -> int:
    """Return a descriptor of the log's index, to be closed only after every connection of this process to the database.

    Closing any descriptor of a file drops all POSIX locks that the process holds on it, those of SQLite, too. The next
    reader would then take itself for the only one and cut the index off, under this process's mapping of it: SIGBUS.
    """
    try:
        return os.open(path.with_name(path.name + "-shm"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"cannot read the index of {path}'s log: {error.strerror}") from error


def count_sound_frames(index: int) -> int:
    """Return how many frames SQLite found to be whole and committed when it opened the log.

    Its index (sqlite.org/walformat.html, mxFrame) shows it; a checkpoint would, too, but not on a full disk.
    """
    header = os.pread(index, 20, 0)
    return int(struct.unpack_from("=I", header, 16)[0]) if len(header) == 20 else 0


@dataclass(slots=True)
class _Append:
    """One caller's records on their way to the writer thread."""

    records: Sequence[Record]
    given: Sequence[Entry] = ()  # the same, where they are numbered and dated already
    is_written: threading.Event = field(default_factory=threading.Event)
    is_abandoned: bool = False  # its caller was answered that nothing was written
    entries: tuple[Entry, ...] = ()
    error: JournalError | None = None


class Journal:
    """The open journal of one job. The job's lock keeps it to one process at a time."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        boot_id: str,
        *,
        mountinfo: Path = Path("/proc/self/mountinfo"),
        uses_snapshot: bool = False,
    ) -> None:
        """Read the journal. ``uses_snapshot``: only what follows the snapshot of its fold, if there is one; `foundation` has that."""
        self.foundation: Foundation | None = None
        self._held_fold: Foundation | None = None
        self._uses_snapshot = uses_snapshot
        self.path = path
        self._clock = clock
        self._boot_id = boot_id
        refuse_network_file_system(path, mountinfo)
        self._index: int | None = None
        lost_frames = 0
        wal_frames = count_wal_frames(path)
        self._connection = self._connect()
        try:
            known = self.foundation
            chain = (
                RowChain(str(path))
                if known is None
                else RowChain(str(path), known.number, known.checksum)
            )
            rows = read_rows(self._connection, path, "number > ?", (chain.number,))
            entries = [entry_of(row, str(path)) for row in chain.sound(rows)]
            if wal_frames:
                self._index = open_index(path)
                lost_frames = max(0, wal_frames - count_sound_frames(self._index))
        except BaseException:
            self._connection.close()
            self._close_index()
            raise
        self.opened = tuple(entries)
        """What the journal held when it was opened behind its `foundation`, and what opening added; oldest first."""
        self.began_unix_s = known.began_unix_s if known is not None else None
        if entries and known is None:
            self.began_unix_s = entries[0].unix_s
        self._acknowledged = chain.number
        self._head = chain.checksum
        self._must_reopen = False
        self._lock = threading.Lock()
        self._queue: queue.Queue[_Append | None] = queue.Queue(_QUEUE_MAX)
        self._thread = threading.Thread(target=self._write_forever, name="journal", daemon=True)
        self._thread.start()
        self.warnings = self._cut_notices(chain.torn, lost_frames)

    @property
    def last_number(self) -> int:
        with self._lock:
            return self._acknowledged

    def append(self, record: Record) -> Entry:
        """Write one record and return it in its place once it is durable, else raise."""
        return self.append_many([record])[0]

    def append_many(self, records: Sequence[Record]) -> tuple[Entry, ...]:
        """Write all of ``records`` or none, and return them once they are durable.

        Raises JournalError where the disk is full or fails: nothing was written then, and the
        same call can be made again later.
        """
        return self._append(_Append(records))

    def append_entries(self, entries: Sequence[Entry]) -> None:
        """Do so with entries that are numbered and dated already, behind the newest one."""
        self._append(_Append([entry.record for entry in entries], entries))

    def _append(self, wanted: _Append) -> tuple[Entry, ...]:
        if not 0 < len(wanted.records) <= GROUP_ROWS_MAX:
            raise JournalError(
                f"{len(wanted.records)} records in one write; 1 to {GROUP_ROWS_MAX} are allowed"
            )
        if not self._thread.is_alive():
            raise JournalError(f"{self.path} is closed")
        try:
            self._queue.put(wanted, timeout=_APPEND_TIMEOUT_S)
        except queue.Full:
            raise JournalError(
                f"{self.path}: {_QUEUE_MAX} records wait for the disk, none was written for "
                f"{_APPEND_TIMEOUT_S:.0f} s"
            ) from None
        if not wanted.is_written.wait(_APPEND_TIMEOUT_S):
            with self._lock:
                wanted.is_abandoned = not wanted.is_written.is_set()
            if wanted.is_abandoned:
                raise JournalError(
                    f"{self.path}: not durable after {_APPEND_TIMEOUT_S:.0f} s: the disk hangs"
                )
        if wanted.error is not None:
            raise wanted.error
        return wanted.entries

    def read_newer(self) -> tuple[Entry, ...]:
        """Return nothing: no other process writes this file."""
        return ()

    def hold_fold(self, ledger: Ledger) -> None:
        """Hold the ledger of what is written now, so that the next start folds only what follows."""
        with self._lock:
            if ledger.number == self._acknowledged and self.began_unix_s is not None:
                self._held_fold = Foundation(ledger, self._head, self.began_unix_s)

    @property
    def owes_fold(self) -> bool:
        return self._held_fold is not None

    def save_fold(self) -> None:
        """Write the ledger that is held beside the journal."""
        with self._lock:
            held, self._held_fold = self._held_fold, None
        if held is not None:
            fold_snapshot.keep(self.path.parent, held)

    def close(self) -> None:
        """Finish what is queued and close the file."""
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=_CLOSE_TIMEOUT_S)
        except queue.Full:
            log.warning("journal not closed: its disk hangs", extra={"path": str(self.path)})
            return
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _close_index(self) -> None:
        """Close the log's index, after the connection (see `open_index`)."""
        if self._index is not None:
            os.close(self._index)
            self._index = None

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,  # we execute BEGIN and COMMIT
                check_same_thread=False,  # made by the opener, then used by the writer alone
            )
        except sqlite3.Error as error:
            raise journal_error(self.path, "open", error) from error
        try:
            self._prepare(connection)
        except sqlite3.Error as error:
            connection.close()
            raise journal_error(self.path, "open", error) from error
        except JournalError:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if found != APPLICATION_ID and not is_empty:
            raise JournalError(
                f"{self.path} is not a journal of rankmend: another program's database"
            )
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise JournalError(f"{self.path}: SQLite can't use a write-ahead log here ({mode})")
        connection.execute("PRAGMA synchronous=FULL")
        if is_empty:
            connection.executescript(
                f"BEGIN; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={MAJOR};"
                " CREATE TABLE IF NOT EXISTS record (number INTEGER PRIMARY KEY,"
                " kind TEXT NOT NULL, major INTEGER NOT NULL, minor INTEGER NOT NULL,"
                " unix_s REAL NOT NULL, monotonic_s REAL NOT NULL, boot_id TEXT NOT NULL,"
                " body BLOB NOT NULL, checksum BLOB NOT NULL); COMMIT;"
            )
            sync_folder(self.path.parent)
        refuse_other_version(connection, self.path)
        if self._uses_snapshot:
            self._uses_snapshot = False  # at the start
            self.foundation = fold_snapshot.find(
                self.path.parent, lambda number: _checksum_of(connection, number)
            )
        if self.foundation is not None:
            return  # a check of all pages reads all of the file
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise JournalError(f"{self.path} is damaged ({verdict}). {WAY_OUT}")

    def _cut_notices(self, torn: int, lost_frames: int) -> tuple[str, ...]:
        if not torn and not lost_frames:
            return ()
        first = self._acknowledged + 1
        reason = (
            f"{self.path}: the end was unfinished: {torn} records from number {first} on and "
            f"{lost_frames} frames of the write-ahead log were cut off"
        )
        log.warning("journal tail cut", extra={"path": str(self.path), "rows": torn})
        try:
            self.opened += (self.append(TailCut(first, torn, lost_frames, reason)),)
        except JournalError as error:  # such as the full disk that left the end unfinished
            log.warning("the cut cannot be recorded now", extra={"error": str(error)})
        return (reason,)

    def _write_forever(self) -> None:
        try:
            is_open = True
            while is_open:
                first = self._queue.get()
                group, is_open = self._take_group(first)
                if group:
                    self._write_group(group)
        finally:
            self._connection.close()
            self._close_index()

    def _take_group(self, first: _Append | None) -> tuple[list[_Append], bool]:
        """Return the appends that share the next commit, and whether to go on after it."""
        if first is None:
            return [], False
        group, rows = [first], len(first.records)
        while rows < GROUP_ROWS_MAX:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return group, False
            group.append(following)
            rows += len(following.records)
        return group, True

    def _write_group(self, group: list[_Append]) -> None:
        with self._lock:
            group = [append for append in group if not append.is_abandoned]
        error: JournalError | None = None
        written: list[tuple[Entry, ...]] = []
        try:
            written, head = self._commit(group)
        except sqlite3.Error as failure:
            error = journal_error(self.path, "write", failure)
            error.__cause__ = failure
        except JournalError as failure:  # a record that is too large
            error = failure
        if error is not None and len(group) > 1:  # each for itself: one must not fail the others
            for append in group:
                self._write_group([append])
            return
        with self._lock:
            if error is None and any(append.is_abandoned for append in group):
                # It was written after all, but its caller was answered "not written": the next commit
                # deletes these rows first.
                error = JournalError(f"{self.path}: the disk hung over this write")
            if error is None:
                self._acknowledged += sum(len(entries) for entries in written)
                self._head = head
                if self.began_unix_s is None and written:
                    self.began_unix_s = written[0][0].unix_s
            for place, append in enumerate(group):
                append.error = error
                append.entries = written[place] if error is None else ()
                append.is_written.set()

    def _commit(self, group: list[_Append]) -> tuple[list[tuple[Entry, ...]], bytes]:
        """Write the group in one transaction; return its entries and the new last checksum."""
        head, number = self._head, self._acknowledged
        rows: list[JournalRow] = []
        written: list[tuple[Entry, ...]] = []
        for append in group:
            entries = list(append.given)
            for record in () if entries else append.records:
                stamps = (self._clock.unix_s(), self._clock.now_s(), self._boot_id)
                entries.append(Entry(number + len(entries) + 1, *stamps, record))
            for entry in entries:
                number += 1
                if entry.number != number:
                    raise JournalError(
                        f"{self.path}: record {entry.number} would follow {number - 1}"
                    )
                row = make_row(entry, head)
                head = row.checksum
                rows.append(row)
            written.append(tuple(entries))
        if self._must_reopen:
            # After a failed commit it is open what of it reached the disk; a new connection
            # reads the log again, and what was never acknowledged goes.
            self._connection.close()
            self._connection = self._connect_again()
        try:
            self._insert(rows)
        except sqlite3.Error:
            self._must_reopen = True
            raise
        return written, head

    def _connect_again(self) -> sqlite3.Connection:
        connection = self._connect()
        self._must_reopen = False
        return connection

    def _insert(self, rows: list[JournalRow]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("DELETE FROM record WHERE number > ?", (self._acknowledged,))
            self._connection.executemany(
                "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _checksum_of(connection: sqlite3.Connection, number: int) -> bytes | None:
    found = connection.execute("SELECT checksum FROM record WHERE number = ?", (number,)).fetchone()
    return found[0] if found is not None and isinstance(found[0], bytes) else None


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal as a reader sees it."""

    entries: tuple[Entry, ...]
    torn: int  # rows at the end that do not fit; the next start of the job cuts them


def open_readonly(path: Path) -> JournalView:
    """Return the current content of the journal at ``path``, also while another process writes it."""
    with reading(path) as reader:
        return JournalView(tuple(reader.entries()), reader.torn)


def read_sound_rows(path: Path) -> list[JournalRow]:
    """Return the rows of the journal at ``path`` as they are stored, without an unfinished end."""
    with reading(path) as reader:
        return list(reader.sound_rows())
