"""What the tables rest on, and what a newer edition of NVIDIA's XID catalogue changes in them.

Each shipped row of XIDs, SXIDs and thresholds names a document and what it says. The catalogue grows with each
driver: an operator saves the newer one, and `compare` tells the rows that it adds, words otherwise or contradicts.

Forms of a catalogue that `parse_catalogue` reads: NVIDIA's spreadsheet Xid-Catalog.xlsx saved as CSV (its first sheet;
commas, semicolons or tabs; lines before the header are skipped), and JSON: a list of objects with those columns'
names, or an object whose values are such lists or objects by code. A row's bucket of resolution decides, not its prose.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec

from detectors.finding import Action
from detectors.kernel.event_policy import EventPolicy, EventTable, PolicyTable
from rankmend.errors import ConfigError

CATALOGUE_ROWS_MAX: Final = 10_000
CELL_CHARS_MAX: Final = 400
_HEADER_LINES_MAX: Final = 20  # before the header: a title, an empty line
_NO_ACTION: Final = "no action"
_TABLES: Final = {"XID": EventTable.XID, "SXID": EventTable.SXID, "": EventTable.XID}
# NVIDIA's buckets of resolution, and the actions that carry them out. Others are workflows, which rules decide.
_ACTIONS: Final = {
    "IGNORE": frozenset({Action.NONE}),
    "RESTART_APP": frozenset({Action.RESTART_APP}),
    "RESET_GPU": frozenset({Action.RESET_GPU}),
    "RESTART_BM": frozenset({Action.REBOOT}),
    "RESTART_VM": frozenset({Action.REBOOT}),
    "CONTACT_SUPPORT": frozenset({Action.CONTACT_SUPPORT}),
    "CHECK_MECHANICALS": frozenset({Action.CONTACT_SUPPORT}),
    "UPDATE_SWFW": frozenset({Action.CONTACT_SUPPORT}),
}


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source of rows."""

    title: str
    edition: str  # version, commit or what dates it
    read: str  # the day on which it was compared with the tables
    url: str = ""  # none: this repository


def parse_documents(text: str) -> Mapping[str, Document]:
    """Return the documents by key, or raise ConfigError."""
    try:
        return msgspec.toml.decode(text, type=dict[str, Document])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"documents: {error}") from error


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """One code of a catalogue."""

    table: EventTable
    code: str
    mnemonic: str
    immediate: str
    investigatory: str

    @property
    def says(self) -> str:
        """Return its two actions as the tables' column `says` has them."""
        parts = [cell for cell in (self.immediate, self.investigatory) if cell]
        return " / ".join(parts) or _NO_ACTION


class TableChange(Enum):
    """What a catalogue says against a table."""

    ADDED = "added"  # a code without a row
    CHANGED = "changed"  # a row rests on other words than the catalogue has now
    CONTRADICTED = "contradicted"  # a row's action is not the one that the catalogue asks for
    GONE = "gone"  # a row rests on a code that the catalogue no longer has


@dataclass(frozen=True, slots=True)
class Difference:
    """One code about which a table and a catalogue do not agree."""

    change: TableChange
    table: EventTable
    code: str
    name: str
    before: str  # what the document said when the row was written
    now: str  # what the catalogue says
    severity: str  # of our row; empty where there is none
    action: str
    differs: str  # why our row says otherwise than the document, if it does so on purpose


def parse_catalogue(text: str, origin: str) -> tuple[CatalogueRow, ...]:
    """Return the codes of a saved catalogue, or raise ConfigError with what is wrong."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if text.startswith("PK"):
        raise ConfigError(f"{origin}: a spreadsheet as it is; save its first sheet as CSV")
    records = (
        _json_records(text, origin)
        if text.lstrip()[:1] in ("[", "{")
        else _csv_records(text, origin)
    )
    rows: dict[tuple[EventTable, str], CatalogueRow] = {}
    for record in records:
        row = _row_of(record)
        if row is not None:
            rows.setdefault((row.table, row.code), row)
        if len(rows) > CATALOGUE_ROWS_MAX:
            raise ConfigError(f"{origin}: more than {CATALOGUE_ROWS_MAX} codes")
    if not rows:
        raise ConfigError(
            f"{origin}: no code with a resolution: a catalogue has the columns Code and "
            "'Resolution Bucket (Immediate Action)'"
        )
    return tuple(rows.values())


def compare(
    rows: Iterable[CatalogueRow], table: PolicyTable, document: str = "xid-catalog"
) -> tuple[Difference, ...]:
    """Return all that the catalogue says otherwise, by table and code.

    A row that differs from its document on purpose (`differs`) is contradicted only where the document has changed since.
    """
    found: list[Difference] = []
    listed: set[tuple[EventTable, str]] = set()
    for row in rows:
        listed.add((row.table, row.code))
        ours = table.get((row.table, row.code))
        if ours is None:
            found.append(_difference(TableChange.ADDED, row, None))
            continue
        has_changed = _words(ours.says) != _words(row.says)
        wanted = _ACTIONS.get(_bucket(row.immediate))
        is_contrary = wanted is not None and ours.action not in wanted
        if is_contrary and (has_changed or not ours.differs):
            found.append(_difference(TableChange.CONTRADICTED, row, ours))
        elif has_changed:
            found.append(_difference(TableChange.CHANGED, row, ours))
    covered = {kind for kind, _code in listed}
    for (kind, code), ours in table.items():
        if ours.document == document and kind in covered and (kind, code) not in listed:
            gone = CatalogueRow(kind, code, ours.name, "", "")
            found.append(_difference(TableChange.GONE, gone, ours))
    return tuple(sorted(found, key=_order))


def disagrees(policy: EventPolicy) -> bool:
    """Return whether a row's action is another than the one that its document asks for, or the document asks for none."""
    wanted = _ACTIONS.get(_bucket(policy.says))
    return wanted is not None and policy.action not in wanted


def _order(difference: Difference) -> tuple[str, str, int]:
    code = difference.code
    return difference.change.value, difference.table.value, int(code) if code.isdigit() else 0


def _difference(change: TableChange, row: CatalogueRow, ours: EventPolicy | None) -> Difference:
    return Difference(
        change=change,
        table=row.table,
        code=row.code,
        name=row.mnemonic or (ours.name if ours else ""),
        before=ours.says if ours else "",
        now="" if change is TableChange.GONE else row.says,
        severity=ours.severity.value if ours else "",
        action=ours.action.value if ours else "",
        differs=ours.differs if ours else "",
    )


def _bucket(says: str) -> str:
    return says.partition(" / ")[0].strip().upper()


def _words(says: str) -> tuple[str, ...]:
    """Return the buckets that a text names: prose around them may change without a change of meaning.

    Where a code has no action, its cells hold prose or that it is unused; both say no action.
    """
    return tuple(re.findall(r"\b[A-Z0-9]{2,}(?:_[A-Z0-9]+)+(?:/[A-Z]+)?\b|\bIGNORE\b", says))


def _csv_records(text: str, origin: str) -> Iterator[Mapping[str, str]]:
    lines = text.split("\n")
    number = 0  # of the line that is being read
    try:
        for line in lines[:_HEADER_LINES_MAX]:
            number += 1
            delimiter = max(",;\t", key=line.count)
            names = [_name(cell) for cell in next(csv.reader([line], delimiter=delimiter), [])]
            if "code" in names and "immediate" in names:
                break
        else:
            raise ConfigError(
                f"{origin}: none of the first {_HEADER_LINES_MAX} lines has the columns Code and 'Resolution Bucket "
                "(Immediate Action)'; a catalogue is CSV or JSON (rankmend check table --help)"
            )
        for cells in csv.reader([f"{line}\n" for line in lines[number:]], delimiter=delimiter):
            yield dict(zip(names, cells, strict=False))
    except csv.Error as error:
        raise ConfigError(f"{origin}, from line {number} on: {error}") from error


def _json_records(text: str, origin: str) -> Iterator[Mapping[str, str]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{origin}: {error}") from error
    yield from _json_rows(data, "")


def _json_rows(data: Any, code: str, depth: int = 0) -> Iterator[Mapping[str, str]]:
    if isinstance(data, list):
        for member in data:
            yield from _json_rows(member, code, depth + 1)
    elif isinstance(data, dict) and depth < 4:
        plain = {
            _name(str(key)): str(value)
            for key, value in data.items()
            if isinstance(value, str | int | float)
        }
        if len(plain) > 1:
            yield {"code": code, **plain}
            return
        for key, value in data.items():
            yield from _json_rows(value, str(key), depth + 1)


def _name(cell: str) -> str:
    """Return a column's short name: NVIDIA words the heads at length, and otherwise in each edition."""
    head = re.sub(r"[^a-z]+", " ", cell.lower()).strip()
    if "immediate" in head:
        return "immediate"
    if "investigatory" in head:
        return "investigatory"
    if head.startswith(("resolution", "recommended")):
        return "immediate"
    if head in ("code", "xid", "xid code", "error code"):
        return "code"
    return head.split(" ")[0]


def _row_of(record: Mapping[str, str]) -> CatalogueRow | None:
    """Return the row, or None for one that is none: an empty line, a heading, a kind that no table has."""
    code = record.get("code", "").strip().removesuffix(".0")
    table = _TABLES.get(record.get("type", "").strip().upper())
    if not re.fullmatch(r"[0-9]{1,5}", code) or table is None or int(code) == 0:
        return None
    immediate, investigatory = (
        " ".join(record.get(name, "").split())[:CELL_CHARS_MAX]
        for name in ("immediate", "investigatory")
    )
    return CatalogueRow(
        table, str(int(code)), record.get("mnemonic", "").strip()[:80], immediate, investigatory
    )
