"""The rows of a journal: numbered without gaps, each with a checksum over itself and the row before. Pure."""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rankmend.errors import JournalError
from recovery.journal.older_records import read_record
from recovery.journal.records import (
    MAJOR,
    MINOR,
    Entry,
    NewerRecordError,
    Record,
    encode_record,
    kind_of,
)

_HEAD: Final = struct.Struct("<QIIddQQQ")
GENESIS: Final = hashlib.sha256(b"rankmend journal 1").digest()[:16]

# Rows in one commit, and so the longest tail that one crash can tear: a plan and a record for each of the
# 10,000 nodes that it leaves, when a hall loses its power.
GROUP_ROWS_MAX: Final = 16_384

WAY_OUT: Final = (
    "Restore the file from a copy, or move it away: the job then starts with the budgets "
    "saved beside its checkpoints"
)


class JournalRow(NamedTuple):
    """A record in its stored form, in the order of the table's columns. A tuple: a journal has 100,000."""

    number: int
    kind: str
    major: int
    minor: int
    unix_s: float
    monotonic_s: float
    boot_id: str
    body: bytes
    checksum: bytes


def make_row(entry: Entry, previous: bytes, minor: int = MINOR) -> JournalRow:
    """Return the stored form of ``entry`` behind a row with the checksum ``previous``, as written by this minor version."""
    row = JournalRow(
        entry.number,
        kind_of(entry.record),
        MAJOR,
        minor,
        entry.unix_s,
        entry.monotonic_s,
        entry.boot_id,
        encode_record(entry.record),
        b"",
    )
    return row._replace(checksum=_checksum(row, previous))


def _checksum(row: JournalRow, previous: bytes) -> bytes:
    number, kind, major, minor, unix_s, monotonic_s, boot_id, body, _checksum = row
    name, boot = kind.encode(), boot_id.encode()
    lengths = (len(name), len(boot), len(body))
    head = _HEAD.pack(number, major, minor, unix_s, monotonic_s, *lengths)
    return hashlib.sha256(previous + head + name + boot + body).digest()[:16]


def fits(row: JournalRow, previous: bytes) -> bool:
    """Return whether a row is what was written behind a row with the checksum ``previous``."""
    try:
        return row.checksum == _checksum(row, previous)
    except (AttributeError, TypeError, ValueError, struct.error):
        return False  # SQLite columns have no fixed type: a damaged row can hold anything


class RowChain:
    """Checks rows in their order, one by one.

    Torn are rows at the end whose checksums don't fit. A sound row behind an unsound one, or
    a gap in the numbers, is damage that no crash explains, and raises JournalError.
    """

    def __init__(self, name: str, number: int = 0, checksum: bytes = GENESIS) -> None:
        """Begin behind the row with this number and checksum."""
        self._name = name
        self.number = number  # of the newest sound row
        self.checksum = checksum  # that row's
        self.torn = 0  # unsound rows behind it

    def sound(self, rows: Iterable[JournalRow]) -> Iterator[JournalRow]:
        """Return the sound ones of the rows that follow."""
        previous, place, first_bad = self.checksum, self.number, 0
        for row in rows:
            place += 1
            if row.number != place:
                raise JournalError(
                    f"{self._name}: record {place} is missing (record {row.number} follows "
                    f"{place - 1}). {WAY_OUT}"
                )
            if fits(row, previous):
                if first_bad:
                    raise JournalError(
                        f"{self._name}: record {first_bad} is damaged but record {place} after it "
                        f"is intact: a crash cannot cause that. {WAY_OUT}"
                    )
                self.number, self.checksum = place, row.checksum
                yield row
            else:
                first_bad = first_bad or place
            previous = row.checksum if isinstance(row.checksum, bytes) else b""
        self.torn = place - self.number
        if self.torn > GROUP_ROWS_MAX:
            raise too_many_torn(self._name, self.torn)


def too_many_torn(name: str, torn: int) -> JournalError:
    return JournalError(
        f"{name}: its last {torn} records are damaged; a crash damages at most "
        f"{GROUP_ROWS_MAX}. {WAY_OUT}"
    )


def verify_rows(
    rows: Sequence[JournalRow], name: str, after: int = 0, head: bytes = GENESIS
) -> tuple[list[Entry], int]:
    """Return the entries of the sound rows, and how many torn rows follow them.

    The first row follows number ``after``, which has the checksum ``head``.
    """
    chain = RowChain(name, after, head)
    entries = [entry_of(row, name) for row in chain.sound(rows)]
    return entries, chain.torn


def entry_of(row: JournalRow, name: str) -> Entry:
    """Return the entry of a sound row."""
    return Entry(row.number, row.unix_s, row.monotonic_s, row.boot_id, record_of(row, name))


def record_of(row: JournalRow, name: str) -> Record:
    """Return the record that a row holds."""
    try:
        return read_record(row.kind, row.major, row.minor, row.body)
    except JournalError as error:
        text = f"{name}: record {row.number}: {error}"
        if isinstance(error, NewerRecordError):
            raise NewerRecordError(text) from error
        raise JournalError(text) from error
