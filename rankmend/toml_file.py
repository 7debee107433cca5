"""TOML files of settings. An error names the file, the line, the key and the value."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from rankmend.errors import ConfigError
from rankmend.files import read_capped

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_SETTING: Final = re.compile(r"\s*([A-Za-z0-9_\-.\"']+)\s*=")
_T = TypeVar("_T")

Keys = tuple[str | int, ...]
"""Where a setting is, from the top: names of tables and of the key, positions in lists from 0."""


class SettingError(ConfigError):
    """A setting is unknown or has a value that it can't have."""

    def __init__(self, keys: Keys, text: str) -> None:
        super().__init__(text)
        self.keys = keys


class TomlFile:
    """The tables of one file, and where each setting is in it."""

    def __init__(self, path: Path, bytes_max: int, what: str) -> None:
        """``what``: the file's part, for errors such as "cannot read the policy FILE"."""
        self.path = path
        data = read_capped(path, bytes_max, ConfigError, name=f"{what} {path}")
        try:
            self._text = data.decode("utf-8")
            self.tables: dict[str, Any] = msgspec.toml.decode(self._text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error

    def named(self, error: ConfigError) -> ConfigError:
        """Return the error with the file in front, and the line where the setting is."""
        line = find_line(self._text, error.keys) if isinstance(error, SettingError) else None
        place = str(self.path) if line is None else f"{self.path}, line {line}"
        return ConfigError(f"{place}: {error}")


def find_line(text: str, keys: Keys) -> int | None:
    """Return the line, from 1, of a setting or of the nearest table around it; None where none is found."""
    table: Keys = ()
    counts: dict[Keys, int] = {}
    best: tuple[int, int] | None = None  # how many keys agree, the line
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = _parts(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
            table = _numbered(table, counts)
            here = table
        elif setting := _SETTING.match(line):
            here = (*table, *_parts(setting[1]))
        else:
            continue
        if here == keys[: len(here)] and (best is None or len(here) > best[0]):
            best = (len(here), number)
    return None if best is None else best[1]


def _parts(name: str) -> Keys:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


def _numbered(table: Keys, counts: Mapping[Keys, int]) -> Keys:
    """Return the table's keys with the position behind each name of a list: jobs, 0, policy."""
    found: list[str | int] = []
    for end in range(1, len(table) + 1):
        found.append(table[end - 1])
        if table[:end] in counts:
            found.append(counts[table[:end]])
    return tuple(found)


def refuse_unknown(
    where: str, keys: Keys, values: Mapping[str, Any], known: tuple[str, ...]
) -> None:
    """Raise SettingError for a key that is none of these."""
    for key in values:
        if key not in known:
            text = f"{where}: unknown key {key!r}; known: {', '.join(known)}"
            raise SettingError((*keys, key), text)


def table_of(tables: Mapping[str, Any], name: str, keys: Keys = ()) -> dict[str, Any]:
    """Return the table by this name, empty where there is none."""
    found = tables.get(name, {})
    if not isinstance(found, dict):
        raise SettingError((*keys, name), f"{name} is {found!r}, not a table")
    return found


def convert(value: object, kind: Any, keys: Keys, where: str) -> Any:
    """Return the value as this type, or raise SettingError with the key and the value."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SettingError(keys, f"{where} {keys[-1]} is {value!r}: {error}") from error


def convert_table(
    values: Mapping[str, Any],
    kind: type[_T],
    keys: Keys,
    base: Mapping[str, Any] | None = None,
    hidden: tuple[str, ...] = (),
) -> _T:
    """Return a dataclass from a table, over ``base`` where that is given; ``hidden``: fields that are no keys."""
    where = f"[{keys[-1]}]"
    names = tuple(field.name for field in fields(kind) if field.name not in hidden)  # type: ignore[arg-type]
    refuse_unknown(where, keys, values, names)
    types = get_type_hints(kind)
    typed = {key: convert(value, types[key], (*keys, key), where) for key, value in values.items()}
    try:
        return kind(**{**(base or {}), **typed})
    except ConfigError as error:
        raise SettingError(keys, f"{where} {error}") from error
