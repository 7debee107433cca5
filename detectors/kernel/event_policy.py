"""What to do about an event: the policy table, as data with a source in every row.

The table is CSV text that the agent reads: data/kernel_log.csv, then the site's own rows, which
override it. Only this table gives an event its severity and action. Kernel log events, NVML's XIDs
and verdicts, and the checks in node_policy.toml that name an `event` all look them up here. So an
event has one severity, whichever way it arrives.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from detectors.finding import Action, Severity
from detectors.kernel.event import CODE_MAX, EventKind, ManyEvents
from rankmend.errors import ConfigError

COLUMNS: Final = ("table", "code", "name", "severity", "action", "hardware", "source", "meaning")
SOURCE_COLUMNS: Final = (
    "document",
    "says",
    "differs",
)  # of shipped tables; a site may leave them out
ROWS_MAX: Final = 5_000
ANY: Final = "*"  # the row for every code without its own
_DRIVER_VERDICT: Final = "XID_154_EVAL"  # NVIDIA's name for that resolution, in a row's source

_Member = TypeVar("_Member", bound=Enum)

_CODE: Final = re.compile(r"[0-9]{1,5}")

_NVLINK5_CODE: Final = re.compile(
    r"(14[4-9]|150) ([A-Z][A-Z0-9_]{1,40}(?:/[A-Z][A-Z0-9_]{1,40}){0,3}) "
    r"([0-9]|[1-5][0-9]|6[0-3]) (\*|0x[0-9a-f]{1,8})( promoted)?"
)
_HARDWARE: Final = {"yes": True, "no": False}


class EventTable(Enum):
    XID = "xid"
    SXID = "sxid"
    NVLINK5 = "nvlink5"  # XIDs 144 to 150 by unit, reason and status
    VERDICT = "verdict"  # the driver's own verdict: NVML's recovery action, XID 154
    LOG = "log"


@dataclass(frozen=True, slots=True)
class EventPolicy:
    """One row."""

    name: str
    severity: Severity
    action: Action
    blames_hardware: bool
    source: str
    meaning: str
    asks_driver: bool = False  # NVIDIA's resolution is to follow XID 154, the driver's verdict
    document: str = ""  # key of data/documents.toml, which has its title and edition
    says: str = ""  # what that document says, in its own words or figures
    differs: str = ""  # why this row says otherwise, on purpose


PolicyTable = Mapping[tuple[EventTable, str], EventPolicy]


def parse_policy(text: str, origin: str) -> dict[tuple[EventTable, str], EventPolicy]:
    """Return the rows of a table, or raise ConfigError that names the line and what is wrong."""
    rows: dict[tuple[EventTable, str], EventPolicy] = {}
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        header = next(reader, [])
        if tuple(header) not in (COLUMNS, COLUMNS + SOURCE_COLUMNS):
            raise ConfigError(f"{origin}: the first line is {header!r}, not {list(COLUMNS)!r}")
        for cells in reader:
            if not cells or cells[0].startswith("#"):
                continue
            where = f"{origin}, line {reader.line_num}"
            for key, policy in _parse_row(cells, header, where):
                if key in rows:
                    raise ConfigError(f"{where}: {key[0].value} {key[1]} a second time")
                rows[key] = policy
            if len(rows) > ROWS_MAX:
                raise ConfigError(f"{origin}: more than {ROWS_MAX} rows")
    except csv.Error as error:
        raise ConfigError(f"{origin}, line {reader.line_num}: {error}") from error
    return rows


def complete(rows: PolicyTable, origin: str) -> PolicyTable:
    """Return the table, or raise ConfigError if a kind of event has no row."""
    missing = [f"{table.value} {ANY}" for table in _CODED if (table, ANY) not in rows]
    missing += [f"log {kind}" for kind in sorted(_KINDS) if (EventTable.LOG, kind) not in rows]
    if missing:
        raise ConfigError(f"{origin}: no row for {', '.join(missing)}")
    return rows


def policy_of(rows: PolicyTable, kind: EventKind, code: int | None) -> EventPolicy:
    """Return the row for an event; a complete table has one for each."""
    table = _TABLES.get(kind, EventTable.LOG)
    if table is EventTable.LOG:
        return rows[table, kind.value]
    return rows.get((table, str(code))) or rows[table, ANY]


def policy_of_many(rows: PolicyTable, many: ManyEvents) -> EventPolicy:
    """Return the row for many events of a kind."""
    return rows[EventTable.LOG, many.value]


def policy_of_verdict(rows: PolicyTable, number: int) -> EventPolicy:
    """Return the row for a verdict of the driver: nvmlDeviceGpuRecoveryAction_t."""
    return rows.get((EventTable.VERDICT, str(number))) or rows[EventTable.VERDICT, ANY]


def policy_named(rows: PolicyTable, event: str) -> EventPolicy | None:
    """Return the row of an event as node_policy.toml names it (``xid 79``), or None."""
    table, _space, code = event.partition(" ")
    try:
        return rows.get((EventTable(table), code))
    except ValueError:
        return None


_TABLES: Final = {EventKind.XID: EventTable.XID, EventKind.SXID: EventTable.SXID}
_CODED: Final = (EventTable.XID, EventTable.SXID, EventTable.VERDICT)
_LOWEST_CODE: Final = {EventTable.VERDICT: 0}
_KINDS: Final = frozenset(
    {kind.value for kind in EventKind if kind not in _TABLES} | {many.value for many in ManyEvents}
)


def _parse_row(
    cells: list[str], header: list[str], where: str
) -> list[tuple[tuple[EventTable, str], EventPolicy]]:
    """Return the row under each of its codes: a unit of NVLink 5 can have several names."""
    if len(cells) != len(header):
        raise ConfigError(f"{where}: {len(cells)} cells instead of {len(header)}: {cells!r}")
    row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    for column in ("name", "source", "meaning"):
        if not row[column]:
            raise ConfigError(f"{where}: no {column}")
    table = _member(EventTable, row["table"], where, "table")
    codes = _codes_of(table, row["code"], where)
    if row["hardware"] not in _HARDWARE:
        raise ConfigError(f"{where}: hardware is {row['hardware']!r}, not yes or no")
    policy = EventPolicy(
        name=row["name"],
        severity=_member(Severity, row["severity"], where, "severity"),
        action=_member(Action, row["action"], where, "action"),
        blames_hardware=_HARDWARE[row["hardware"]],
        source=row["source"],
        meaning=row["meaning"],
        asks_driver=_DRIVER_VERDICT in row["source"],
        **{column: row.get(column, "") for column in SOURCE_COLUMNS},
    )
    return [((table, code), policy) for code in codes]


def _codes_of(table: EventTable, code: str, where: str) -> list[str]:
    if table is EventTable.LOG:
        if code not in _KINDS:
            raise ConfigError(f"{where}: no kind of event {code!r}; there are {sorted(_KINDS)}")
        return [code]
    if table is EventTable.NVLINK5:
        match = _NVLINK5_CODE.fullmatch(code)
        if match is None:
            raise ConfigError(
                f"{where}: code {code!r} is not 'XID UNIT[/UNIT] REASON STATUS[ promoted]', such as "
                "'149 NETIR_LINK_DOWN 38 *'"
            )
        xid, units, reason, status, promoted = match.groups()
        return [f"{xid} {unit} {reason} {status}{promoted or ''}" for unit in units.split("/")]
    lowest = _LOWEST_CODE.get(table, 1)
    if code == ANY:
        return [code]
    if not (_CODE.fullmatch(code) and lowest <= int(code) <= CODE_MAX):
        raise ConfigError(
            f"{where}: code {code!r} is neither {ANY} nor from {lowest} to {CODE_MAX}"
        )
    return [str(int(code))]


def _member(enum: type[_Member], value: str, where: str, column: str) -> _Member:
    try:
        return enum(value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in enum)
        raise ConfigError(f"{where}: {column} is {value!r}, not one of {allowed}") from None
