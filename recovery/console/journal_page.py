"""A page of a journal: newest first, of one kind or of all. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from recovery.journal.cluster_records import CLUSTER_KINDS
from recovery.journal.narration.cluster_narrator import narrate_cluster
from recovery.journal.narration.narrator import details, narrate
from recovery.journal.records import Entry, kind_of

ROWS: Final = 100
LOOKED_THROUGH: Final = (
    2_000  # a job that trains undisturbed adds 1,440 milestones and times an hour
)
_TEXT_MAX: Final = 600
# Kinds whose stored name is no word for people.
_KIND_WORDS: Final = {
    "attempt_heard": "attempt reported",
    "cause_told": "cause",
    "lemon_found": "failing node",
    "power_off_asked": "power off",
    "spent": "plan allowed",
    "watched_asked": "asked of Slurm",
}
_OF_CLUSTER: Final = tuple(CLUSTER_KINDS.values())


@dataclass(frozen=True, slots=True)
class JournalLine:
    number: int
    unix_s: float
    kind: str
    text: str
    details: tuple[str, ...]
    is_plain: bool  # the narrator has words for it


@dataclass(frozen=True, slots=True)
class JournalPage:
    rows: tuple[JournalLine, ...]
    kinds: tuple[tuple[str, int], ...]  # of the whole journal, with how many there are
    before: int | None  # number from which the next page goes on; None: that was the oldest
    total: int


def view_journal(entries: Sequence[Entry], kind: str, before: int | None) -> JournalPage:
    """Return the newest `ROWS` rows below the number ``before``."""
    counts: dict[str, int] = {}
    for entry in entries:
        name = kind_of(entry.record)
        counts[name] = counts.get(name, 0) + 1
    chosen = [
        entry
        for entry in entries
        if kind in ("", kind_of(entry.record)) and (before is None or entry.number < before)
    ]
    shown = chosen[-ROWS:]
    return JournalPage(
        tuple(row_of(entry) for entry in reversed(shown)),
        tuple(sorted(counts.items())),
        shown[0].number if len(chosen) > len(shown) else None,
        len(entries),
    )


def newest_plain(entries: Sequence[Entry], count: int) -> list[JournalLine]:
    """Return the newest rows that the narrator has words for, of the last `LOOKED_THROUGH` at most."""
    newest = reversed(entries[-LOOKED_THROUGH:])
    return list(islice((row for row in map(row_of, newest) if row.is_plain), count))


def row_of(entry: Entry) -> JournalLine:
    record = entry.record
    text = narrate(record)
    if text is None and isinstance(record, _OF_CLUSTER):
        text = narrate_cluster(record)
    plain = text if text is not None else _fields(entry)
    return JournalLine(
        entry.number,
        entry.unix_s,
        kind_of(entry.record),
        plain,
        tuple(details(entry.record)),
        text is not None,
    )


def kind_words(kind: str) -> str:
    """Return what people read for a kind of record."""
    return _KIND_WORDS.get(kind, kind.replace("_", " "))


def _fields(entry: Entry) -> str:
    """Return a record without words of its own by its fields."""
    words = ", ".join(_words(msgspec.to_builtins(entry.record)))
    return words if len(words) <= _TEXT_MAX else words[:_TEXT_MAX] + "..."


def _words(found: object) -> Iterator[str]:
    """Give the plain values of a record, and of what it holds."""
    for name, value in found.items() if isinstance(found, dict) else ():
        words = str(name).replace("_", " ")
        if isinstance(value, float) and not words.endswith("unix s"):
            yield f"{words} {value:.4g}"
        elif isinstance(value, str | int | float) and value != "":
            yield f"{words} {value}"
        elif isinstance(value, dict):
            yield from _words(value)
