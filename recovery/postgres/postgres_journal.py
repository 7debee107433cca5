"""A journal in PostgreSQL: the rows and checksums of `recovery.journal.journal_rows`, appended by one statement each.

A write ends in one of three ways. Durable: its entries are returned. Refused, or the server was away before: nothing was
written, and JournalError says so. Unknown: the answer was lost, or came with a warning. Then the journal reads back
on the present primary, and writes something there, which is durable only after the record is; if that gives no answer
within `DOUBT_S_MAX`, CommitUnknownError is raised and this object writes nothing more. Whoever opens the journal again takes a
new lease, behind which the write that is still on its way is refused.
"""

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from rankmend.clock import Clock
from rankmend.errors import JournalError
from recovery.journal.journal_rows import (
    GENESIS,
    GROUP_ROWS_MAX,
    JournalRow,
    make_row,
    verify_rows,
)
from recovery.journal.open_journal import JournalMovedError, JournalSetBackError
from recovery.journal.records import MAJOR, Entry, Record
from recovery.postgres.database import Database, Row
from recovery.postgres.database_errors import (
    CommitUnknownError,
    DatabaseAwayError,
    LeaseLostError,
    StatementRefusedError,
)
from recovery.postgres.leases import JOURNAL_MOVED, JournalLease, Leases, lease_error

DOUBT_S_MAX: Final = (
    8.0  # the deciding thread waits meanwhile; longer than a restart of the server takes
)
APPEND_CALL: Final = (
    "rankmend.append(%s::text, %s::uuid, %s::bigint, %s::bigint, %s::bytea, %s::text[], %s::int[], %s::int[],"
    " %s::float8[], %s::float8[], %s::text[], %s::bytea[], %s::bytea[])"
)
_HAND_IN: Final = (
    "SELECT rankmend.hand_in(%s::text, %s::uuid, %s::bigint, %s::bytea, %s::text[], %s::int[], %s::int[],"
    " %s::float8[], %s::float8[], %s::text[], %s::bytea[], %s::bytea[])"
)
_COLUMNS: Final = "number, kind, major, minor, unix_s, monotonic_s, boot_id, body, checksum"
WAY_OUT: Final = (
    "Restore the database from a backup: its rows were changed, which no controller can do"
)

_Writing: TypeAlias = tuple[tuple[Entry, ...], list[JournalRow]]
# Lease, number and checksum of the record before, rows.
HoldBack: TypeAlias = Callable[[JournalLease, int, bytes, list[JournalRow]], None]


@dataclass(frozen=True, slots=True)
class ReadJournal:
    """All of a journal, sound, as it was read under its lease."""

    entries: tuple[Entry, ...]
    number: int  # of the newest record
    head: bytes  # that record's checksum


class PostgresJournal:
    """The open journal of one job, or of Slurm, under a lease; or the cluster's, which all controllers write."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        lease: JournalLease,
        clock: Clock,
        boot_id: str,
        *,
        is_shared: bool = False,
        doubt_s_max: float = DOUBT_S_MAX,
        read: ReadJournal | None = None,
    ) -> None:
        """Read the journal. ``lease`` was taken before, so that nobody else writes from now on.

        ``read``: all of it, where it was read since.
        """
        self._hold_back: HoldBack | None = None
        self._database = database
        self._leases = leases
        self._lease = lease
        self._clock = clock
        self._boot_id = boot_id
        self._is_shared = is_shared
        self._doubt_s_max = doubt_s_max
        self._lock = threading.Lock()
        self._is_closed = False
        self._doubt: str | None = None
        self._number, self._head = 0, GENESIS
        self.opened: tuple[Entry, ...]
        if read is None:
            self.opened = self.read_newer()
        else:
            self._number, self._head, self.opened = read.number, read.head, read.entries
        self.warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self._lease.journal} in {self._database.url}"

    @property
    def last_number(self) -> int:
        return self._number

    def append(self, record: Record) -> Entry:
        """Write one record and return it in its place once it is durable, else raise."""
        return self.append_many([record])[0]

    def append_many(self, records: Sequence[Record]) -> tuple[Entry, ...]:
        """Write all of ``records`` or none, and return them once they are durable.

        Raises JournalError where nothing was written, LeaseLostError where this controller may not write any more, and
        CommitUnknownError where the journal must be opened again to learn what was written.
        """
        if not 0 < len(records) <= GROUP_ROWS_MAX:
            raise JournalError(
                f"{len(records)} records in one write; 1 to {GROUP_ROWS_MAX} are allowed"
            )
        with self._lock:
            self._refuse_closed()
            entries, rows = self._prepare(records)
            if self._hold_back is None:
                self._write(rows)
            else:
                self._hold_back(self._lease, self._number, self._head, rows)
            self._number, self._head = rows[-1].number, rows[-1].checksum
            return entries

    def append_entries(
        self, entries: Sequence[Entry], doubt: CommitUnknownError | None = None
    ) -> None:
        """Do so with entries that are numbered and dated already; ``doubt``: nobody knows whether they were written a moment ago."""
        with self._lock:
            self._refuse_closed()
            rows = self._rows(entries)
            if doubt is None:
                self._write(rows)
            else:
                self._resolve(rows, doubt)
            self._number, self._head = rows[-1].number, rows[-1].checksum

    def append_call(self, entries: Sequence[Entry]) -> tuple[object, ...]:
        """Return the values of the APPEND_CALL that writes such entries. Where that is durable, `note_appended` follows."""
        with self._lock:
            self._refuse_closed()
            rows, ours = self._rows(entries), self._leases.controller_id
            return append_values(ours, self._lease, rows, self._number, self._head)

    def note_appended(self, entries: Sequence[Entry]) -> None:
        with self._lock:
            newest = self._rows(entries)[-1]
            self._number, self._head = newest.number, newest.checksum

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise JournalError(f"{self.name} is closed")
        if self._doubt is not None:
            raise CommitUnknownError(self._doubt)

    def read_newer(self) -> tuple[Entry, ...]:
        """Return what was written behind what this object knows, by others, and know it from now on.

        Raises JournalSetBackError where what it knows is not there.
        """
        with self._lock:
            if self._leases.is_forgotten:
                raise JournalSetBackError(
                    f"{self._database.url} was restored from a backup older than this controller's start"
                )
            # With the newest one that is known.
            rows = read_rows(self._database, self._lease.journal, max(0, self._number - 1))
            if self._number > 0:
                if not rows or rows[0].checksum != self._head:
                    raise JournalSetBackError(
                        f"{self.name} has no record {self._number} that this controller has seen there: the database "
                        f"was restored from a backup"
                    )
                del rows[0]
            newer = _verified(rows, self.name, self._number, self._head)
            self._number, self._head = newer.number, newer.head
            return newer.entries

    def hold_back(self, into: HoldBack | None) -> None:
        """Hand what is appended from now on to ``into``, which writes it later; None: write it again.

        Whoever does so lets nothing follow from it before.
        """
        with self._lock:
            self._hold_back = into

    def close(self) -> None:
        """Write nothing more. The lease stays."""
        with self._lock:
            self._is_closed = True

    def _prepare(self, records: Sequence[Record]) -> _Writing:
        entries = []
        for number, record in enumerate(records, self._number + 1):
            stamps = (self._clock.unix_s(), self._clock.now_s(), self._boot_id)
            entries.append(Entry(number, *stamps, record))
        return tuple(entries), self._rows(entries)

    def _rows(self, entries: Sequence[Entry]) -> list[JournalRow]:
        """Return the rows of entries that follow the newest one."""
        head, rows = self._head, []
        for number, entry in enumerate(entries, self._number + 1):
            if entry.number != number:
                raise JournalError(f"{self.name}: record {entry.number} would follow {number - 1}")
            row = make_row(entry, head)
            head = row.checksum
            rows.append(row)
        return rows

    def _write(self, rows: list[JournalRow]) -> None:
        """Return once the rows are durable; raise what `append_many` says."""
        try:
            self._send(rows)
        except CommitUnknownError as error:
            self._resolve(rows, error)
        except LeaseLostError as error:
            if (
                self._is_shared
            ):  # of the controller as a whole: each of its jobs learns of it by its own journal
                raise JournalError(f"{self.name} can't be written: {error}") from error
            raise

    def _resolve(self, rows: list[JournalRow], error: Exception) -> None:
        """Find out what came of a write that was sent, and send it again if it was lost."""
        until_s = self._clock.now_s() + self._doubt_s_max
        while self._clock.now_s() < until_s:
            try:
                with suppress(DatabaseAwayError):
                    self._database.probe()
                if self._is_durable(rows[-1]):
                    return
                self._send(rows)
                return
            except JournalMovedError:  # it came after all, or it was another controller's
                if rows[-1].checksum not in self._checksums(rows[-1].number):
                    raise
            except (CommitUnknownError, JournalError) as failure:
                error = failure  # such as a lock that the lost write still has: it may yet commit
            self._database.pause()
        doubt = (
            f"{self.name}: nobody knows whether record {rows[0].number} was written ({error}); it is read back "
            f"when PostgreSQL answers"
        )
        if self._is_shared:  # the next write finds it in its way, and its author reads it then
            raise JournalError(doubt) from error
        self._doubt = doubt
        raise CommitUnknownError(doubt) from error

    def _send(self, rows: list[JournalRow]) -> None:
        append_rows(
            self._database, self._leases.controller_id, self._lease, rows, self._number, self._head
        )

    def _is_durable(self, row: JournalRow) -> bool:
        """Return whether the row is there; where it is, it is durable now."""
        ((is_there,),) = self._database.write(
            "SELECT rankmend.confirm(%s, %s, %s)",
            (self._lease.journal, row.number, row.checksum),
        )
        return bool(is_there)

    def _checksums(self, number: int) -> list[bytes]:
        statement = "SELECT checksum FROM rankmend.record WHERE journal = %s AND number = %s"
        with suppress(JournalError):
            found = self._database.read(statement, (self._lease.journal, number))
            return [bytes(row[0]) for row in found]
        return []


def append_rows(
    database: Database,
    controller_id: uuid.UUID,
    lease: JournalLease,
    rows: Sequence[JournalRow],
    after: int | None = None,
    head: bytes = GENESIS,
) -> None:
    """Write rows behind number ``after`` with the checksum ``head``, all or none, in one statement.

    Without ``after``: behind the row before the first, whatever its checksum. Raises what `Database.write` raises,
    JournalMovedError and LeaseLostError.
    """
    try:
        database.write(
            f"SELECT {APPEND_CALL}", append_values(controller_id, lease, rows, after, head)
        )
    except StatementRefusedError as error:
        raise _append_error(error) from error


def hand_in_rows(
    database: Database,
    controller_id: uuid.UUID,
    journal: str,
    rows: Sequence[JournalRow],
    after: int,
    head: bytes,
) -> None:
    """Write requests to a desk behind number ``after``, without its lease. Raises what `append_rows` raises."""
    try:
        database.write(
            _HAND_IN,
            (journal, controller_id, after, head if after else None, *_columns_of(rows)),
        )
    except StatementRefusedError as error:
        raise _append_error(error) from error


def _columns_of(rows: Sequence[JournalRow]) -> tuple[list[object], ...]:
    return (
        [row.kind for row in rows],
        [row.major for row in rows],
        [row.minor for row in rows],
        [row.unix_s for row in rows],
        [row.monotonic_s for row in rows],
        [row.boot_id for row in rows],
        [row.body for row in rows],
        [row.checksum for row in rows],
    )


def _append_error(error: StatementRefusedError) -> Exception:
    if error.sqlstate == JOURNAL_MOVED:
        return JournalMovedError(str(error))
    return lease_error(error)


def append_values(
    controller_id: uuid.UUID,
    lease: JournalLease,
    rows: Sequence[JournalRow],
    after: int | None = None,
    head: bytes = GENESIS,
) -> tuple[object, ...]:
    """Return the values of one APPEND_CALL, as `append_rows` has them."""
    place = rows[0].number - 1 if after is None else after
    return (
        *(lease.journal, controller_id, lease.epoch, place),
        None if after is None else head,
        *_columns_of(rows),
    )


def read_rows(database: Database, journal: str, after: int = 0) -> list[JournalRow]:
    """Return a journal's rows behind number ``after``, or raise JournalError."""
    found = database.read(
        f"SELECT {_COLUMNS} FROM rankmend.record WHERE journal = %s AND number > %s ORDER BY number",  # noqa: S608 - our own text
        (journal, after),
        is_binary=True,
    )
    return _rows_of(found, journal, database)


def _rows_of(found: Sequence[Row], journal: str, database: Database) -> list[JournalRow]:
    for _number, _kind, major, *_others in found:
        if major != MAJOR:
            raise JournalError(
                f"{journal} in {database.url} has journal version {major}, this rankmend reads {MAJOR}"
            )
    return list(map(JournalRow._make, found))


def _verified(
    rows: Sequence[JournalRow], name: str, after: int = 0, head: bytes = GENESIS
) -> ReadJournal:
    entries, torn = verify_rows(rows, name, after, head)
    if torn:
        raise JournalError(f"{name}: record {after + len(entries) + 1} is damaged. {WAY_OUT}")
    if rows:
        after, head = rows[-1].number, rows[-1].checksum
    return ReadJournal(tuple(entries), after, head)


def read_entries(database: Database, journal: str) -> tuple[Entry, ...]:
    """Return all entries of a journal, also while a controller writes it."""
    return _verified(read_rows(database, journal), f"{journal} in {database.url}").entries


def read_journals(database: Database, journals: Sequence[str]) -> Mapping[str, ReadJournal]:
    """Return all of several journals by one question, without those that can't be read.

    What keeps one of them from it is told to whoever opens that one alone.
    """
    rows = database.read(
        f"SELECT {_COLUMNS}, journal FROM rankmend.record WHERE journal = ANY(%s) ORDER BY journal, number",  # noqa: S608 - our own text
        (list(journals),),
        is_binary=True,
    )
    by_journal: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_journal[row[-1]].append(row[:-1])
    found = {}
    for journal in journals:
        with suppress(JournalError):
            known = _rows_of(by_journal[journal], journal, database)
            found[journal] = _verified(known, f"{journal} in {database.url}")
    return found
