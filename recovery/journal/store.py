"""The journal: records are durable before they take effect (contract 5).

SQLite in WAL mode with full sync: a commit is one fdatasync, 0.25 ms on the measured disk,
and kill -9 of the writer loses nothing that was acknowledged. Records are numbered without
gaps, and each carries a checksum over itself and its predecessor's checksum, so that what was
changed, torn or lost afterwards is seen when the file is opened. docs/reference/journal.md has the form.

One thread writes; whoever appends waits until its records are durable. Records that arrive
together share one commit.
"""

import errno
import hashlib
import logging
import os
import queue
import re
import sqlite3
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Final

from rankmend.clock import Clock
from rankmend.errors import JournalError
from rankmend.files import sync_folder
from recovery.journal.job_records import TailCut
from recovery.journal.older_records import read_record
from recovery.journal.records import MAJOR, MINOR, Entry, Record, encode_record, kind_of

log = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x524D4E44  # "RMND", SQLite's application_id
GENESIS: Final = hashlib.sha256(b"rankmend journal 1").digest()[:16]

_QUEUE_MAX = 1024  # appends that wait for the writer; the controller has one at a time
# Rows in one commit, and so the longest tail that one crash can tear: a plan and a record for each of the
# 10,000 nodes that it leaves, when a hall loses its power.
_GROUP_ROWS_MAX = 16_384
_APPEND_TIMEOUT_S = 30.0  # a disk that takes longer for one commit counts as broken
_BUSY_TIMEOUT_S = 5.0  # a reader's checkpoint lock
_CLOSE_TIMEOUT_S = 10.0

# Type names of /proc/self/mountinfo. File locks and fdatasync of these are a server's or a
# cluster's affair, and SQLite's WAL needs shared memory (sqlite.org/wal.html, "does not work
# over a network filesystem").
_NETWORK = """
    nfs nfs3 nfs4 cifs smb3 smbfs afs ncpfs lustre gpfs mmfs beegfs ceph glusterfs orangefs
    pvfs2 panfs wekafs daos ocfs2 gfs2 coda 9p vboxsf
"""
_NETWORK_FUSE = """
    sshfs ceph glusterfs s3fs goofys gcsfuse blobfuse blobfuse2 rclone juicefs cvmfs cvmfs2
    beegfs moosefs mfs dfuse davfs mountpoint-s3 weed alluxio curlftpfs
"""
NETWORK_TYPES: Final = frozenset(_NETWORK.split())
NETWORK_FUSE_TYPES: Final = frozenset(f"fuse.{name}" for name in _NETWORK_FUSE.split())


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A record in its stored form."""

    number: int
    kind: str
    major: int
    minor: int
    unix_s: float
    monotonic_s: float
    boot_id: str
    body: bytes
    checksum: bytes


def make_row(entry: Entry, previous: bytes) -> JournalRow:
    """Return the stored form of ``entry`` behind a row with the checksum ``previous``."""
    row = JournalRow(
        entry.number,
        kind_of(entry.record),
        MAJOR,
        MINOR,
        entry.unix_s,
        entry.monotonic_s,
        entry.boot_id,
        encode_record(entry.record),
        b"",
    )
    return replace(row, checksum=_checksum(row, previous))


def _checksum(row: JournalRow, previous: bytes) -> bytes:
    kind, boot = row.kind.encode(), row.boot_id.encode()
    head = struct.pack(
        "<QIIddQQQ",
        row.number,
        row.major,
        row.minor,
        row.unix_s,
        row.monotonic_s,
        len(kind),
        len(boot),
        len(row.body),
    )
    return hashlib.sha256(previous + head + kind + boot + row.body).digest()[:16]


def _fits(row: JournalRow, previous: bytes) -> bool:
    try:
        return row.checksum == _checksum(row, previous)
    except (AttributeError, TypeError, ValueError, struct.error):
        return False  # SQLite columns have no fixed type: a damaged row can hold anything


def verify_rows(rows: Sequence[JournalRow], name: str) -> tuple[list[Entry], int]:
    """Return the entries of the sound rows, and how many torn rows follow them.

    Torn are rows at the end whose checksums don't fit. A sound row behind an unsound one, or
    a gap in the numbers, is damage that no crash explains, and raises.
    """
    entries: list[Entry] = []
    previous, first_bad = GENESIS, 0
    for place, row in enumerate(rows, start=1):
        if row.number != place:
            raise JournalError(
                f"{name}: record {place} is missing (record {row.number} follows {place - 1}). "
                f"{_WAY_OUT}"
            )
        is_sound = _fits(row, previous)
        if is_sound and first_bad:
            raise JournalError(
                f"{name}: record {first_bad} is damaged and record {place} behind it is not: no "
                f"crash does that. {_WAY_OUT}"
            )
        if not is_sound:
            first_bad = first_bad or place
        else:
            entries.append(_decode_row(row, name))
        previous = row.checksum if isinstance(row.checksum, bytes) else b""
    torn = len(rows) - len(entries)
    if torn > _GROUP_ROWS_MAX:
        raise JournalError(
            f"{name}: its last {torn} records are damaged, a crash tears {_GROUP_ROWS_MAX} at "
            f"most. {_WAY_OUT}"
        )
    return entries, torn


_WAY_OUT: Final = (
    "Restore the file from a copy, or move it away: the job then starts with the budgets that "
    "lie beside its checkpoints"
)


def _decode_row(row: JournalRow, name: str) -> Entry:
    try:
        record = read_record(row.kind, row.major, row.minor, row.body)
    except JournalError as error:
        raise JournalError(f"{name}: record {row.number}: {error}") from error
    return Entry(row.number, row.unix_s, row.monotonic_s, row.boot_id, record)


def refuse_network_file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Raise where ``path`` lies on a network file system, by the kernel's list of mounts.

    Form of a line: proc(5), /proc/pid/mountinfo: fields 5 (mount point) and, behind a lone
    dash, the type.
    """
    try:
        text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return  # no /proc: nothing to judge by
    target = path.resolve()
    found_point, found_type = Path("/"), ""
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if not dash or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        covers = target == point or point in target.parents
        if covers and len(point.parts) >= len(found_point.parts):  # of equals the last is on top
            found_point, found_type = point, kind
    if found_type in NETWORK_TYPES or found_type in NETWORK_FUSE_TYPES:
        raise JournalError(
            f"{path} lies on {found_type} (mounted at {found_point}): a journal on a network file "
            f"system can't promise what it acknowledges. Give a folder on a local disk with "
            f"--state-dir"
        )


@dataclass(slots=True)
class _Append:
    """One caller's records on their way to the writer thread."""

    records: Sequence[Record]
    is_written: threading.Event = field(default_factory=threading.Event)
    is_abandoned: bool = False  # its caller was told that nothing was written
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
    ) -> None:
        self.path = path
        self._clock = clock
        self._boot_id = boot_id
        refuse_network_file_system(path, mountinfo)
        wal_frames = _count_wal_frames(path)
        self._connection = self._connect()
        try:
            rows = _read_rows(self._connection, path)
            entries, torn = verify_rows(rows, str(path))
            lost_frames = max(0, wal_frames - _count_sound_frames(path)) if wal_frames else 0
        except BaseException:
            self._connection.close()
            raise
        self.opened = tuple(entries)
        """What the journal held when it was opened, and what opening added; oldest first."""
        self._acknowledged = len(entries)
        self._head = rows[len(entries) - 1].checksum if entries else GENESIS
        self._must_reopen = False
        self._lock = threading.Lock()
        self._queue: queue.Queue[_Append | None] = queue.Queue(_QUEUE_MAX)
        self._thread = threading.Thread(target=self._write_forever, name="journal", daemon=True)
        self._thread.start()
        self.warnings = self._tell_of_cut(torn, lost_frames)

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
        if not 0 < len(records) <= _GROUP_ROWS_MAX:
            raise JournalError(
                f"{len(records)} records at once: 1 to {_GROUP_ROWS_MAX} can be written"
            )
        wanted = _Append(records)
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

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=_BUSY_TIMEOUT_S,
                isolation_level=None,  # we say BEGIN and COMMIT
                check_same_thread=False,  # made by the opener, then used by the writer alone
            )
        except sqlite3.Error as error:
            raise _journal_error(self.path, "open", error) from error
        try:
            self._prepare(connection)
        except sqlite3.Error as error:
            connection.close()
            raise _journal_error(self.path, "open", error) from error
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
        _refuse_other_version(connection, self.path)
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise JournalError(f"{self.path} is damaged ({verdict}). {_WAY_OUT}")

    def _tell_of_cut(self, torn: int, lost_frames: int) -> tuple[str, ...]:
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

    def _take_group(self, first: _Append | None) -> tuple[list[_Append], bool]:
        """Return the appends that share the next commit, and whether to go on after it."""
        if first is None:
            return [], False
        group, rows = [first], len(first.records)
        while rows < _GROUP_ROWS_MAX:
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
            error = _journal_error(self.path, "write", failure)
            error.__cause__ = failure
        except JournalError as failure:  # a record that is too large
            error = failure
        if error is not None and len(group) > 1:  # each for itself: one must not fail the others
            for append in group:
                self._write_group([append])
            return
        with self._lock:
            if error is None and any(append.is_abandoned for append in group):
                # It was written after all, but its caller was told "not written": the next commit
                # deletes these rows first.
                error = JournalError(f"{self.path}: the disk hung over this write")
            if error is None:
                self._acknowledged += sum(len(entries) for entries in written)
                self._head = head
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
            entries: list[Entry] = []
            for record in append.records:
                number += 1
                stamps = (self._clock.unix_s(), self._clock.now_s(), self._boot_id)
                entry = Entry(number, *stamps, record)
                row = make_row(entry, head)
                head = row.checksum
                rows.append(row)
                entries.append(entry)
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
                map(astuple, rows),
            )
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal as a reader sees it."""

    entries: tuple[Entry, ...]
    torn: int  # rows at the end that do not fit; the next start of the job cuts them


def open_readonly(path: Path) -> JournalView:
    """Return the current content of the journal at ``path``, also while another process writes it."""
    if not path.is_file():
        raise JournalError(f"there is no journal at {path}")
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S
        )
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        if application_id == 0 and connection.execute("PRAGMA schema_version").fetchone()[0] == 0:
            return JournalView((), 0)  # it is being made at this moment
        if application_id != APPLICATION_ID:
            raise JournalError(f"{path} is not a journal of rankmend")
        _refuse_other_version(connection, path)
        entries, torn = verify_rows(_read_rows(connection, path), str(path))
    except sqlite3.Error as error:
        raise _journal_error(path, "read", error) from error
    finally:
        if connection is not None:
            connection.close()
    return JournalView(tuple(entries), torn)


def _read_rows(connection: sqlite3.Connection, path: Path) -> list[JournalRow]:
    try:
        found: Iterable[tuple[object, ...]] = connection.execute(
            "SELECT number, kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum"
            " FROM record ORDER BY number"
        )
        return [JournalRow(*fields) for fields in found]  # type: ignore[arg-type]  # checked by _fits
    except sqlite3.Error as error:
        raise _journal_error(path, "read", error) from error


def _refuse_other_version(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != MAJOR:
        raise JournalError(
            f"{path} has journal version {version}, this rankmend reads {MAJOR}: use the version "
            f"that wrote it"
        )


def _count_wal_frames(path: Path) -> int:
    """Return how many frames of the current cycle, whole or not, the write-ahead log holds up to its last commit.

    Form: sqlite.org/fileformat2.html section 4. A frame belongs to the current cycle when it
    carries the two salts of the file's header, and ends a transaction when it says how large the
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


def _count_sound_frames(path: Path) -> int:
    """Return how many frames SQLite found to be whole and committed when it opened the log.

    Its index (sqlite.org/walformat.html, mxFrame) tells; a checkpoint would, too, but not on a full disk.
    """
    try:
        with path.with_name(path.name + "-shm").open("rb") as index:
            header = index.read(20)
    except OSError as error:
        raise JournalError(f"cannot read the index of {path}'s log: {error.strerror}") from error
    return int(struct.unpack_from("=I", header, 16)[0]) if len(header) == 20 else 0


# What SQLite's result codes (sqlite.org/rescode.html) mean to the system. Python 3.10 has no
# code on the exception, so they are told by the fixed text of sqlite3_errstr().
_ERRNO_BY_TEXT: Final = (
    ("database or disk is full", errno.ENOSPC),
    ("disk I/O error", errno.EIO),
    ("readonly database", errno.EROFS),
    ("unable to open", errno.EACCES),
    ("locked", errno.EAGAIN),
)


def _journal_error(path: Path, doing: str, error: sqlite3.Error) -> JournalError:
    text = str(error)
    if "malformed" in text or "not a database" in text:
        return JournalError(f"{path} is damaged ({text}). {_WAY_OUT}")
    for part, number in _ERRNO_BY_TEXT:
        if part in text:
            name = errno.errorcode[number]
            return JournalError(f"cannot {doing} {path}: {text} ({name} {number})")
    return JournalError(f"cannot {doing} {path}: {text}")
