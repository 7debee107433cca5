"""Journals in PostgreSQL: the rows and checksums of `recovery.journal.journal_rows`, appended by one statement each.

Beside the rows of a long one is a snapshot of its fold (`recovery.journal.fold_snapshot`). The holder of the lease replaces it now and
then, by a statement that no append waits for; whoever opens the journal next reads it and what follows.
"""

import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from rankmend.clock import Clock
from rankmend.errors import JournalError, RankmendError
from recovery.journal import fold_snapshot
from recovery.journal.fold_snapshot import Foundation
from recovery.journal.journal_reader import READ_ROWS_MAX, JournalReader
from recovery.journal.journal_rows import GENESIS, GROUP_ROWS_MAX, JournalRow, make_row, verify_rows
from recovery.journal.ledger import Ledger
from recovery.journal.open_journal import JournalMovedError, JournalSetBackError
from recovery.journal.postgres.database import (
    CommitUnknownError,
    Database,
    DatabaseAwayError,
    LeaseLostError,
    Row,
    StatementRefusedError,
)
from recovery.journal.postgres.leases import JOURNAL_MOVED, JournalLease, Leases, lease_error
from recovery.journal.records import MAJOR, Entry, Record
from recovery.journal.stored_journal import Written

log = logging.getLogger(__name__)

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

_JOURNALS_MAX: Final = 100  # in one statement: each has 13 values
_FOLD_BYTES_MAX: Final = 64 * 1024 * 1024  # by the schema; 10,000 nodes take 6 MB
_SAVE_FOLD: Final = "SELECT rankmend.save_fold(%s, %s, %s, %s, %s)"
_FOLDS: Final = (
    "SELECT f.journal, f.number, f.body, r.checksum FROM rankmend.fold f"
    " LEFT JOIN rankmend.record r ON r.journal = f.journal AND r.number = f.number WHERE f.journal = ANY(%s)"
)
_ROWS: Final = f"SELECT {_COLUMNS} FROM rankmend.record WHERE journal = %s AND number > %s ORDER BY number LIMIT {READ_ROWS_MAX}"  # noqa: S608 - our own text
_FOLD_SIZES: Final = (
    "SELECT journal, number, length(body) FROM rankmend.fold WHERE journal = ANY(%s)"
)
# Not flattened, as it is sorted: each journal by its index, however much it has.
_ROWS_BEHIND: Final = (
    f"SELECT newer.* FROM unnest(%s::text[], %s::bigint[]) AS asked (name, after)"  # noqa: S608 - our own text
    f" CROSS JOIN LATERAL (SELECT {_COLUMNS}, journal FROM rankmend.record WHERE journal = asked.name"
    " AND number > asked.after ORDER BY number) AS newer ORDER BY newer.journal, newer.number"
)

# In a question `record` is this journal. Not materialized: the conditions of the question find the rows by the index.
_RECORD: Final = (
    f"WITH record AS NOT MATERIALIZED (SELECT {', '.join(JournalRow._fields)}"  # noqa: S608 - our own text
    " FROM rankmend.record WHERE journal = %s) "
)
_NEWEST: Final = (
    "SELECT asked.name, newest.number, newest.unix_s FROM unnest(%s::text[]) AS asked (name)"
    " CROSS JOIN LATERAL (SELECT number, unix_s FROM rankmend.record WHERE journal = asked.name"
    " ORDER BY number DESC LIMIT 1) AS newest"
)


@dataclass(frozen=True, slots=True)
class ReadJournal:
    """All of a journal behind its foundation, sound, as it was read under its lease."""

    entries: tuple[Entry, ...]
    number: int  # of the newest record
    head: bytes  # that record's checksum
    foundation: Foundation | None = None


class PostgresJournal:
    """The open journal of one job, or of Slurm, under a lease; or the cluster's, which all controllers write.

    A write ends in one of three ways. Durable: its entries are returned. Refused, or the server was
    away before: nothing was written, and JournalError is raised. Unknown: the answer was lost, or
    came with a warning. Then the journal reads back on the present primary, and writes something
    there, which is durable only after the record is; if that gives no answer within `DOUBT_S_MAX`,
    CommitUnknownError is raised and this object writes nothing more. A process that opens the
    journal again gets a new lease, behind which the write that is still on its way is refused.
    """

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
        uses_snapshot: bool = False,
    ) -> None:
        """Read the journal. ``lease`` was taken before, so that nobody else writes from now on.

        ``read``: all of it, where it was read since. ``uses_snapshot``: only what follows the snapshot of its fold, if there is
        one; `foundation` has that.
        """
        self._held_fold: Foundation | None = None
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
        self.foundation: Foundation | None = None
        self.opened: tuple[Entry, ...]
        if read is not None and (uses_snapshot or read.foundation is None):
            self.foundation = read.foundation
            self._number, self._head, self.opened = read.number, read.head, read.entries
        else:
            if uses_snapshot:
                self.foundation = _find_folds(database, [lease.journal]).get(lease.journal)
            if self.foundation is not None:
                self._number, self._head = self.foundation.number, self.foundation.checksum
            self.opened = self.read_newer()
        self._began_unix_s: float | None = None  # of the first record
        if self.foundation is not None:
            self._began_unix_s = self.foundation.began_unix_s
        elif self.opened:
            self._began_unix_s = self.opened[0].unix_s
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
            self._note_written(rows)
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
            self._note_written(rows)

    def append_call(self, entries: Sequence[Entry]) -> tuple[object, ...]:
        """Return the values of the APPEND_CALL that writes such entries. Where that is durable, `note_appended` follows."""
        with self._lock:
            self._refuse_closed()
            rows, ours = self._rows(entries), self._leases.controller_id
            return append_values(ours, self._lease, rows, self._number, self._head)

    def note_appended(self, entries: Sequence[Entry]) -> None:
        with self._lock:
            self._note_written(self._rows(entries))

    def _note_written(self, rows: list[JournalRow]) -> None:
        if self._began_unix_s is None:
            self._began_unix_s = rows[0].unix_s
        self._number, self._head = rows[-1].number, rows[-1].checksum

    def hold_fold(self, ledger: Ledger) -> None:
        """Hold the ledger of what is written now, so that the next start folds only what follows."""
        with self._lock:
            if ledger.number == self._number and self._began_unix_s is not None:
                self._held_fold = Foundation(ledger, self._head, self._began_unix_s)

    @property
    def owes_fold(self) -> bool:
        return self._held_fold is not None

    def save_fold(self) -> None:
        """Write the ledger that is held, if this lease is still in force."""
        with self._lock:
            held, self._held_fold, lease = self._held_fold, None, self._lease
            is_sure = not self._is_closed and self._doubt is None
        if held is None or not is_sure:
            return
        try:
            body = fold_snapshot.encode(held)
            if len(body) > _FOLD_BYTES_MAX:
                raise JournalError(f"it has {len(body)} bytes")
            ours = (lease.journal, self._leases.controller_id, lease.epoch)
            self._database.write(_SAVE_FOLD, (*ours, held.number, body))
        except RankmendError as error:  # whether it was written or not: nothing rests on it
            log.warning(
                "snapshot of the fold not written",
                extra={"journal": self.name, "error": str(error)},
            )

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
            known = (self._number, self._head)
            newer = _read_behind(self._database, self._lease.journal, *known)
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
        """Return once the rows are durable; raise what `append_many` raises."""
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
    return [row for rows in _parts(database, journal, after) for row in rows]


def _parts(database: Database, journal: str, after: int) -> Iterator[list[JournalRow]]:
    """Return the same in parts: a million rows take longer than a statement may."""
    while True:
        found = database.read(_ROWS, (journal, after), is_binary=True)
        yield _rows_of(found, journal, database)
        if len(found) < READ_ROWS_MAX:
            return
        after = found[-1][0]


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
    return _read_behind(database, journal, 0, GENESIS).entries


def _read_behind(database: Database, journal: str, number: int, head: bytes) -> ReadJournal:
    """Return what is behind the record with this number and checksum; raise JournalSetBackError where that is not there."""
    name, known, entries = f"{journal} in {database.url}", number, list[Entry]()
    for rows in _parts(database, journal, max(0, number - 1)):  # with the newest known one
        if known:
            if not rows or rows[0].checksum != head:
                raise JournalSetBackError(
                    f"{name} has no record {known} that this controller has seen there: the database was restored from a backup"
                )
            del rows[0]
            known = 0
        newer = _verified(rows, name, number, head)
        entries += newer.entries
        number, head = newer.number, newer.head
    return ReadJournal(tuple(entries), number, head)


def read_journals(database: Database, journals: Sequence[str]) -> Mapping[str, ReadJournal]:
    """Return all of several journals behind the snapshots of their folds by one question, without those that can't be read.

    Why a journal can't be read is reported when a caller opens it alone.
    """
    folds = _find_folds(database, journals)
    begin = {
        journal: (fold.number, fold.checksum) if (fold := folds.get(journal)) else (0, GENESIS)
        for journal in journals
    }
    found: dict[str, ReadJournal] = {}
    if len(journals) == 1:  # it may be long
        with suppress(JournalError):
            read = _read_behind(database, journals[0], *begin[journals[0]])
            found[journals[0]] = replace(read, foundation=folds.get(journals[0]))
        return found
    after = [begin[journal][0] for journal in journals]
    rows = database.read(_ROWS_BEHIND, (list(journals), after), is_binary=True)
    by_journal: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_journal[row[-1]].append(row[:-1])
    for journal in journals:
        with suppress(JournalError):
            newer = _rows_of(by_journal[journal], journal, database)
            verified = _verified(newer, f"{journal} in {database.url}", *begin[journal])
            found[journal] = replace(verified, foundation=folds.get(journal))
    return found


def _find_folds(database: Database, journals: Sequence[str]) -> dict[str, Foundation]:
    """Return the snapshots of these journals' folds that can be used."""
    found = {}
    for journal, number, body, stored in database.read(_FOLDS, (list(journals),), is_binary=True):
        checksum = None if stored is None else bytes(stored)
        place = f"{journal} in {database.url}"
        fold = fold_snapshot.checked(bytes(body), place, {number: checksum}.get)
        if fold is not None:
            found[journal] = fold
    return found


def fold_sizes(database: Database, journals: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return of the snapshots of these journals' folds the newest record and the bytes."""
    found = database.read(_FOLD_SIZES, (list(journals),))
    return {journal: (number, size_bytes) for journal, number, size_bytes in found}


@dataclass(slots=True)
class _Held:
    """Rows of one journal behind number ``after``, which has the checksum ``head``."""

    lease: JournalLease
    after: int
    head: bytes
    rows: list[JournalRow] = field(default_factory=list)


class AppendGroup:
    """The first records of many adopted jobs, written to all of their journals by one commit. For the deciding thread.

    Nothing may follow from a record before `write` has returned.
    """

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases
        self._held: dict[str, _Held] = {}

    def add(self, lease: JournalLease, after: int, head: bytes, rows: list[JournalRow]) -> None:
        """Hold rows back that follow the last ones of this journal."""
        held = self._held.setdefault(lease.journal, _Held(lease, after, head))
        held.rows += rows

    def write(self) -> dict[str, RankmendError]:
        """Write what is held; return the journals that must be opened again, as it may not be durable there, and why."""
        held = [self._held[name] for name in sorted(self._held)]  # in one order: see `take_free`
        self._held = {}
        failed: dict[str, RankmendError] = {}
        for first in range(0, len(held), _JOURNALS_MAX):
            failed |= self._write(held[first : first + _JOURNALS_MAX])
        return failed

    def _write(self, held: list[_Held]) -> dict[str, RankmendError]:
        values: list[object] = []
        for item in held:
            values += append_values(
                self._leases.controller_id, item.lease, item.rows, item.after, item.head
            )
        try:
            self._database.write(f"SELECT {', '.join([APPEND_CALL] * len(held))}", values)
        except StatementRefusedError:  # for one of them: the others are not to suffer for it
            return self._write_each(held)
        except (JournalError, CommitUnknownError) as error:
            return {item.lease.journal: error for item in held}
        return {}

    def _write_each(self, held: list[_Held]) -> dict[str, RankmendError]:
        failed = {}
        for item in held:
            try:
                append_rows(
                    self._database,
                    self._leases.controller_id,
                    item.lease,
                    item.rows,
                    item.after,
                    item.head,
                )
            except RankmendError as error:
                failed[item.lease.journal] = error
        return failed


_NOTHING: Final = Written(0, (0,), is_exact=True)


class PostgresRecords:
    """The rows of a journal in PostgreSQL, for its readers.

    Rows are only ever added, or deleted together with their job: queries in turn, each a
    transaction of its own, show one state of the journal as long as none reads behind a record that
    the reader has seen.
    """

    way_out = WAY_OUT
    can_be_torn = False

    def __init__(self, database: Database, journal: str) -> None:
        self._database = database
        self._journal = journal
        self.name = f"{journal} in {database.url}"

    def ask(self, question: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        statement = _RECORD + question.replace("?", "%s")
        yield from self._database.read(statement, (self._journal, *values))

    def whole_number(self, field: str) -> str:
        return f"(convert_from(body, 'UTF8')::jsonb ->> '{field}')::bigint"


@contextmanager
def reading(database: Database, journal: str) -> Iterator[JournalReader]:
    """Give a reader of a journal, also while a controller writes it."""
    yield JournalReader(PostgresRecords(database, journal))


def written(database: Database, journals: Sequence[str]) -> list[Written]:
    """Return how far each journal was written, by one question."""
    found = {
        name: Written(int(unix_s * 1e9), (number,), is_exact=True)
        for name, number, unix_s in database.read(_NEWEST, (list(journals),))
    }
    return [found.get(name, _NOTHING) for name in journals]
