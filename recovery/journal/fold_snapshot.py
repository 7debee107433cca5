"""The ledger of a long journal, kept beside it, so that a start folds only what was written since.

    <state>/jobs/<job>/fold.snapshot    msgpack: what made it, the newest record in it, the ledger, and a SHA-256 over all that

In PostgreSQL the same bytes are a row of `rankmend.fold`, which only the holder of the journal's lease writes
(`recovery.journal.postgres.postgres_journal`): whoever takes the job over begins with it.

A snapshot is of what is durable, and nothing rests on it: one that is damaged, that other code has made, or whose record
the journal does not have with that checksum is left aside, with one line in the log, and the whole journal is folded. The checksum of a record
depends on all before it, so a snapshot of another journal, or of another past, does not fit.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import JournalError, RankmendError
from rankmend.files import read_if_there, replace_file
from rankmend.version import RANKMEND_VERSION
from recovery.journal.ledger import Ledger
from recovery.journal.records import MAJOR, MINOR

log = logging.getLogger(__name__)

FILE: Final = "fold.snapshot"
EVERY: Final = 10_000  # records between two: they are read and folded in 0.2 s
_BYTES_MAX: Final = 256 * 1024 * 1024  # 10,000 nodes take 6 MB
# What the fold runs, and what a ledger consists of: all that it imports, and more. To read it takes 10 ms.
CODE: Final = (
    "recovery/journal/**/*.py",
    "recovery/messages/**/*.py",
    "detectors/**/*.py",
    "rankmend/*.py",
    "rankmend/hook/*.py",
)


@dataclass(frozen=True, slots=True)
class Foundation:
    """What a journal says through a record, with the checksum that this record has."""

    ledger: Ledger
    checksum: bytes
    began_unix_s: float  # the first record's

    @property
    def number(self) -> int:
        return self.ledger.number


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    maker: str
    digest: bytes  # of all that follows
    number: int
    checksum: bytes
    began_unix_s: float
    ledger: bytes


@cache
def maker() -> str:
    """Return what names the code that folds: another one may fold otherwise."""
    root = Path(__file__).parents[2]
    code = hashlib.sha256()
    for pattern in CODE:
        for path in sorted(root.glob(pattern)):
            code.update(path.read_bytes())
    return f"{RANKMEND_VERSION} {MAJOR}.{MINOR} {code.hexdigest()[:16]}"


def encode(retained: Foundation) -> bytes:
    ledger = msgspec.msgpack.encode(retained.ledger)
    digest = _digest(retained.number, retained.checksum, retained.began_unix_s, ledger)
    stored = _Stored(
        maker(), digest, retained.number, retained.checksum, retained.began_unix_s, ledger
    )
    return msgspec.msgpack.encode(stored)


def decode(body: bytes) -> Foundation:
    """Return what a snapshot holds; raise JournalError with the reason why it can't be used."""
    try:
        stored = msgspec.msgpack.decode(body, type=_Stored)
        if stored.maker != maker():
            raise JournalError(f"it was made by {stored.maker[:80]!r}, and this is {maker()!r}")
        fields = (stored.number, stored.checksum, stored.began_unix_s, stored.ledger)
        if stored.digest != _digest(*fields):
            raise JournalError("it is damaged")
        ledger = msgspec.msgpack.decode(stored.ledger, type=Ledger)
    except (msgspec.MsgspecError, ValueError, RecursionError, RankmendError) as error:
        if isinstance(error, JournalError):
            raise
        raise JournalError(f"it can't be read: {error}") from error
    return Foundation(ledger, stored.checksum, stored.began_unix_s)


def _digest(number: int, checksum: bytes, began_unix_s: float, ledger: bytes) -> bytes:
    reported = msgspec.msgpack.encode((number, checksum, began_unix_s))
    return hashlib.sha256(reported + ledger).digest()


def find(folder: Path, checksum_of: Callable[[int], bytes | None]) -> Foundation | None:
    """Return the snapshot beside a journal, if it can be used."""
    path = folder / FILE
    try:
        body = read_if_there(path, _BYTES_MAX, JournalError)
    except (OSError, JournalError) as error:
        _note_unused(str(path), error)
        return None
    return None if body is None else checked(body, str(path), checksum_of)


def checked(
    body: bytes, place: str, checksum_of: Callable[[int], bytes | None]
) -> Foundation | None:
    """Return what a snapshot holds if the journal has its record, else None: the log says why.

    ``checksum_of`` returns that of a record; None: there is no such record.
    """
    try:
        retained = decode(body)
        if checksum_of(retained.number) != retained.checksum:
            raise JournalError(f"the journal has no such record {retained.number}")
    except JournalError as error:
        _note_unused(place, error)
        return None
    return retained


def _note_unused(place: str, error: Exception) -> None:
    log.warning("snapshot of the fold not used", extra={"path": place, "reason": str(error)})


def keep(folder: Path, retained: Foundation) -> None:
    """Write a snapshot in place of the one before; what keeps it from that is only logged."""
    try:
        replace_file(folder / FILE, encode(retained), JournalError)
    except (OSError, JournalError) as error:
        log.warning("snapshot of the fold not written", extra={"error": str(error)})
