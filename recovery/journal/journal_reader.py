"""Reads a journal, also while another process writes it, and no more of it than its caller needs.

A row is sound if its checksum fits itself and the checksum stored in the row before, so that a row
can be checked without those before. A journal in a file ends with its last sound row: a crash tore
those behind it.

The reader sends SQL to `RecordTable`, which `recovery.journal.store` and
`recovery.journal.postgres.postgres_journal` implement.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from rankmend.errors import JournalError
from recovery.journal.attempt_records import Milestone, RelativeMilestone
from recovery.journal.journal_rows import (
    GENESIS,
    GROUP_ROWS_MAX,
    JournalRow,
    RowChain,
    entry_of,
    fits,
    too_many_torn,
)
from recovery.journal.records import NAMES, Entry

READ_ROWS_MAX: Final = 20_000  # by one question: some 10 MB
_END: Final = 2**63 - 1  # of the numbers that the databases have
_COLUMNS: Final = ", ".join(f"r.{name}" for name in JournalRow._fields)

PROGRESS: Final = (NAMES[Milestone], NAMES[RelativeMilestone])
_FIELDS: Final = {PROGRESS[0]: ("step", "floor_step"), PROGRESS[1]: ("steps", "floor_steps")}


class RecordTable(Protocol):
    """Where one journal's rows are. Questions are in the SQL that SQLite and PostgreSQL have in common."""

    @property
    def name(self) -> str:
        """Return what messages call the journal."""
        ...

    @property
    def way_out(self) -> str:
        """Return what a person can do about damage."""
        ...

    @property
    def can_be_torn(self) -> bool:
        """Return whether a crash can leave rows at the end that were not written to their end."""
        ...

    def ask(self, question: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Return the answers, or raise JournalError.

        The question is ours; it finds the rows in the table `record`, with the columns of `JournalRow`, and has a
        question mark for each of the ``values``.
        """
        ...

    def whole_number(self, field: str) -> str:
        """Return the SQL expression of a whole number in the stored JSON; null where it isn't there."""
        ...


class JournalReader:
    """One state of a journal. A part that is damaged, and not by a crash, raises JournalError."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        self.torn = 0  # rows at the end, once `entries` has come there

    @property
    def name(self) -> str:
        return self._table.name

    def entries(self, after: int = 0, through: int = _END) -> Iterator[Entry]:
        """Return the entries behind the record ``after``, which has to be sound, through another."""
        for row in self.sound_rows(after, through):
            yield entry_of(row, self.name)

    def sound_rows(self, after: int = 0, through: int = _END) -> Iterator[JournalRow]:
        """Return the rows of `entries`."""
        chain = RowChain(self.name, after, self.checksum_of(after))
        yield from chain.sound(self._in_parts(after, through))
        self.torn = chain.torn
        if self.torn and not self._table.can_be_torn:
            raise self._damaged(chain.number + 1)

    def _in_parts(self, after: int, through: int) -> Iterator[JournalRow]:
        """Return rows as they are stored: all at once may take longer than a database lets a question take."""
        question = (
            f"SELECT {_COLUMNS} FROM record r WHERE r.number > ? AND r.number <= ?"  # noqa: S608 - all of it is ours
            f" ORDER BY r.number LIMIT {READ_ROWS_MAX}"
        )
        count = READ_ROWS_MAX
        while count == READ_ROWS_MAX:
            count = 0
            for fields in self.ask(question, (after, through)):
                row = JournalRow._make(fields)
                count, after = count + 1, row.number
                yield row

    def rows(self, where: str, values: Sequence[object] = ()) -> Iterator[JournalRow]:
        """Return rows in their order, each checked by itself.

        ``where``: an SQL condition of ours on `r`, with a question mark for each of the ``values``.
        """
        for row, before in self._pairs(where, values):
            if not fits(row, before):
                raise self._damaged(row.number)
            yield row

    def _damaged(self, number: int) -> JournalError:
        return JournalError(
            f"{self.name}: record {number} is damaged, or the one before it is "
            f"missing: a crash cannot cause that. {self._table.way_out}"
        )

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
        """Return the rows of our query, as `RecordTable.ask` has it."""
        return self._table.ask(question, values)

    def ask_one(self, question: str, values: Sequence[object] = ()) -> tuple[Any, ...]:
        """Return the first row, or raise JournalError: it was deleted meanwhile."""
        found = next(self.ask(question, values), None)
        if found is None:
            raise JournalError(f"{self.name}: a record is missing. {self._table.way_out}")
        return found

    def whole_number(self, field: str) -> str:
        """Return the SQL expression of a whole number in a record."""
        return self._table.whole_number(field)

    def row(self, number: int) -> JournalRow | None:
        return next(self.rows("r.number = ?", (number,)), None)

    def checksum_of(self, number: int) -> bytes:
        """Return the stored checksum of a record; 0 is the one before the first."""
        if number == 0:
            return GENESIS
        found = next(self.ask("SELECT checksum FROM record WHERE number = ?", (number,)), None)
        return found[0] if found is not None and isinstance(found[0], bytes) else b""

    def last_number(self, after: int = 0) -> int:
        """Return the number of the last sound row; ``after``: a row that is known to be sound, or 0."""
        counted = "SELECT count(*), max(number) FROM record WHERE number > ?"
        found = next(self.ask(counted, (after,)), (0, None))
        count, number = found[0], after if found[1] is None else found[1]
        if count != number - after:
            missing = number - after - count
            raise JournalError(f"{self.name}: {missing} records are missing. {self._table.way_out}")
        for torn in range(count):
            row, before = next(self._pairs("r.number = ?", (number - torn,)))
            if fits(row, before):
                return int(number - torn)
            if not self._table.can_be_torn:
                raise self._damaged(number - torn)
            if torn == GROUP_ROWS_MAX:
                raise too_many_torn(self.name, torn + 1)
        return after


class ProgressBetween:
    """Finds the records of progress between two others, without decoding the rest. Each answer is a set of their numbers.

    The database looks into the stored JSON: 60,000 records take SQLite 25 ms, where Python takes
    200 ms to decode them.
    """

    def __init__(self, reader: JournalReader, after: int, before: int) -> None:
        self._reader = reader
        self._bounds = (after, before)

    def farthest(self) -> set[int]:
        """Return those that are enough to know how far the attempt came."""
        found: set[int] = set()
        for kind, fields in _FIELDS.items():
            highest, floor = map(self._reader.whole_number, fields)
            newest, *reached = self._query(f"max(number), max({highest}), max({floor})", kind)
            if newest is None:
                continue
            found.add(newest)
            of_newest = self._query(f"{highest}, {floor}", kind, "number = ?", newest)
            for field, most, known in zip(fields, reached, of_newest, strict=True):
                if most is not None and most != known:  # an older record has more
                    found.add(
                        self._query(
                            "min(number)", kind, f"{self._reader.whole_number(field)} = ?", most
                        )[0]
                    )
        return found

    def first_beyond(self, step: int | None, relative_step: int | None) -> set[int]:
        """Return the first with a higher step than one of these; None: no such step is awaited."""
        limits = zip(PROGRESS, (step, relative_step), strict=True)
        requested = [
            self._query(
                "min(number)", kind, f"{self._reader.whole_number(_FIELDS[kind][0])} > ?", limit
            )[0]
            for kind, limit in limits
            if limit is not None
        ]
        found = [number for number in requested if number is not None]
        return {min(found)} if found else set()

    def _query(
        self, wanted: str, kind: str, condition: str = "", *values: object
    ) -> tuple[Any, ...]:
        more = f" AND {condition}" if condition else ""
        requested = (
            f"SELECT {wanted} FROM record WHERE number > ? AND number < ? AND kind = ?{more}"  # noqa: S608 - ours
        )
        return self._reader.ask_one(requested, (*self._bounds, kind, *values))
