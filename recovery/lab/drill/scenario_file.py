"""Reads scenarios from TOML: those of the library, and a person's own."""

import re
from pathlib import Path
from typing import Any, Final

from rankmend.errors import ConfigError
from rankmend.toml_file import TomlFile, convert_table, refuse_unknown, table_of
from recovery.lab.drill.scenario import DrillFault, DrillHolds, DrillJob, DrillPhase, Scenario

LIBRARY: Final = Path(__file__).parent / "library"
_BYTES_MAX: Final = 65_536
_FAULTS_MAX: Final = 32
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def list_library() -> list[str]:
    """Return the names of the scenarios that rankmend ships."""
    return sorted(path.stem for path in LIBRARY.glob("*.toml"))


def find_scenario(wanted: str) -> Path:
    """Return the file of a scenario of the library, or the file that a person names."""
    shipped = LIBRARY / f"{wanted}.toml"
    if _NAME.fullmatch(wanted) and shipped.is_file():
        return shipped
    path = Path(wanted)
    if not path.is_file():
        raise ConfigError(
            f"no scenario {wanted!r:.120}: name a TOML file, or one of {', '.join(list_library())}"
        )
    return path


def read_scenario(path: Path) -> Scenario:
    """Return the scenario of a file; an error names the file, the line, the key and the value."""
    file = TomlFile(path, _BYTES_MAX, "the scenario")
    tables = file.tables
    try:
        refuse_unknown("top level", (), tables, ("about", "job", "faults", "holds"))
        faults = tables.get("faults", [])
        if not isinstance(faults, list) or len(faults) > _FAULTS_MAX:
            raise ConfigError(f"[[faults]]: want a list of at most {_FAULTS_MAX}")
        return Scenario(
            path.stem,
            str(tables.get("about", "")),
            convert_table(table_of(tables, "job"), DrillJob, ("job",)),
            tuple(_fault(fault, place) for place, fault in enumerate(faults)),
            convert_table(table_of(tables, "holds"), DrillHolds, ("holds",)),
        )
    except (ConfigError, TypeError) as error:
        raise file.named(
            ConfigError(str(error)) if isinstance(error, TypeError) else error
        ) from error


def _fault(table: Any, place: int) -> DrillFault:
    if not isinstance(table, dict) or not {"fault", "on"} <= set(table):
        raise ConfigError(f"[[faults]] number {place + 1}: it needs fault and on")
    if not place and table.get("during") == DrillPhase.TOGETHER.value:
        raise ConfigError("[[faults]] number 1: together with which fault?")
    return convert_table(table, DrillFault, ("faults", place))
