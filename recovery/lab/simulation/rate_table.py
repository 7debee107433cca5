"""How often nodes fail, and of what: tables that ship with rankmend, or a site's own, in TOML."""

from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rankmend.errors import ConfigError
from rankmend.toml_file import SettingError, TomlFile, convert, convert_table, refuse_unknown
from recovery.lab.simulation.assumptions import REPAIRS

_BYTES_MAX: Final = 1_000_000
_CAUSES_MAX: Final = 200
_TOP: Final = ("title", "source", "gpus", "days", "note", "cause")
SHIPPED: Final = ("llama3", "rsc", "byterobust")


class Shows(Enum):
    """How a fault shows in the job."""

    EXIT = "exit"  # a rank ends with an error of its device
    SOFTWARE = "software"  # a rank ends with an error of its program; no machine is to blame
    HANG = "hang"  # no rank advances
    HOST = "host"  # a node falls silent
    SLOW = "slow"  # every step takes longer
    FALSE_ALARM = "false alarm"  # a detector accuses a healthy node


@dataclass(frozen=True, slots=True)
class RatedCause:
    name: str
    count: int
    shows: Shows
    hangs: float = 0.0  # share that shows as a hang instead
    stays: float = 0.0  # share that comes again where the node is used on
    told: float = 0.0  # share of which the node's agent sends an alert that ends its use
    repair: str = "gpu"  # how long the node is out of service: a name in `assumptions.REPAIRS`

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name is empty")
        if self.count < 0:
            raise ConfigError(f"count is {self.count}: it can't be negative")
        for key in ("hangs", "stays", "told"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"{key} is {getattr(self, key)}, not from 0 to 1")
        if self.shows in (Shows.SLOW, Shows.FALSE_ALARM):
            raise ConfigError(f"shows is {self.shows.value!r}: set its rate by an assumption")
        if self.repair not in REPAIRS:
            raise ConfigError(f"repair is {self.repair!r}, none of {', '.join(REPAIRS)}")


@dataclass(frozen=True, slots=True)
class RateTable:
    """Counts of failures by cause, of so many GPUs for so many days."""

    title: str
    source: str
    gpus: int
    days: float
    causes: tuple[RatedCause, ...]
    note: str = ""

    @property
    def failures(self) -> int:
        return sum(cause.count for cause in self.causes)

    @property
    def per_gpu_day(self) -> float:
        return self.failures / (self.gpus * self.days)


def read_rates(name: str) -> RateTable:
    """Return a shipped table by its name, or the one in a file.

    Raises ConfigError, which names the file, the line, the key and the value.
    """
    if name in SHIPPED:
        return _read(Path(str(files("recovery.lab.simulation") / "data" / f"{name}.toml")))
    path = Path(name)
    if not path.is_file():
        known = ", ".join(SHIPPED)
        raise ConfigError(f"rates {name!r} are neither a shipped table ({known}) nor a file")
    return _read(path)


def _read(path: Path) -> RateTable:
    file = TomlFile(path, _BYTES_MAX, "the rate table")
    try:
        return _table(file.tables)
    except ConfigError as error:
        raise file.named(error) from error


def _table(tables: dict[str, Any]) -> RateTable:
    refuse_unknown("the rate table", (), tables, _TOP)
    for key in ("title", "source", "gpus", "days", "cause"):
        if key not in tables:
            raise SettingError((key,), f"{key} is missing")
    gpus = convert(tables["gpus"], int, ("gpus",), "the table's")
    days = convert(tables["days"], float, ("days",), "the table's")
    if gpus < 1 or not 0 < days < 1e5:
        raise ConfigError(f"gpus is {gpus} and days is {days}: both must be above 0")
    rows = convert(tables["cause"], list[dict[str, Any]], ("cause",), "the table's")
    if not 1 <= len(rows) <= _CAUSES_MAX:
        raise ConfigError(f"{len(rows)} causes; 1 to {_CAUSES_MAX} are allowed")
    made = RateTable(
        convert(tables["title"], str, ("title",), "the table's"),
        convert(tables["source"], str, ("source",), "the table's"),
        gpus,
        days,
        tuple(_cause(row, number) for number, row in enumerate(rows)),
        convert(tables.get("note", ""), str, ("note",), "the table's").strip(),
    )
    if not made.failures:
        raise ConfigError("all counts are 0")
    return made


def _cause(row: dict[str, Any], number: int) -> RatedCause:
    for key in ("name", "count", "shows"):
        if key not in row:
            raise SettingError(("cause", number, key), f"cause {number + 1}: {key} is missing")
    return convert_table(row, RatedCause, ("cause", number))
