"""The rows of a journal: numbered without gaps, each with a checksum over itself and the row before. Pure."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rankmend.errors import JournalError
from recovery.journal.older_records import read_record
from recovery.journal.records import MAJOR, MINOR, Entry, encode_record, kind_of

GENESIS: Final = hashlib.sha256(b"rankmend journal 1").digest()[:16]

# Rows in one commit, and so the longest tail that one crash can tear: a plan and a record for each of the
# 10,000 nodes that it leaves, when a hall loses its power.
GROUP_ROWS_MAX: Final = 16_384


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
                f"{WAY_OUT}"
            )
        is_sound = _fits(row, previous)
        if is_sound and first_bad:
            raise JournalError(
                f"{name}: record {first_bad} is damaged but record {place} after it is intact: a "
                f"crash cannot cause that. {WAY_OUT}"
            )
        if not is_sound:
            first_bad = first_bad or place
        else:
            entries.append(_decode_row(row, name))
        previous = row.checksum if isinstance(row.checksum, bytes) else b""
    torn = len(rows) - len(entries)
    if torn > GROUP_ROWS_MAX:
        raise JournalError(
            f"{name}: its last {torn} records are damaged; a crash damages at most "
            f"{GROUP_ROWS_MAX}. {WAY_OUT}"
        )
    return entries, torn


WAY_OUT: Final = (
    "Restore the file from a copy, or move it away: the job then starts with the budgets "
    "saved beside its checkpoints"
)


def _decode_row(row: JournalRow, name: str) -> Entry:
    try:
        record = read_record(row.kind, row.major, row.minor, row.body)
    except JournalError as error:
        raise JournalError(f"{name}: record {row.number}: {error}") from error
    return Entry(row.number, row.unix_s, row.monotonic_s, row.boot_id, record)
