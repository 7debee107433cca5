"""Reads the limits of recovery from a TOML file: the tables [policy] and [hang].

Their keys are the fields of `recovery.journal.limits.Policy` and `detectors.hang.live.HungLimits`, which
hold the defaults with their reasons. A key that is none of them is an error.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from detectors.hang.live import HungLimits
from rankmend.errors import ConfigError
from recovery.journal.limits import Policy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BYTES_MAX = 1024 * 1024


def read_policy(path: Path | None) -> Policy:
    """Return the limits in a file, over the defaults; without a file the defaults."""
    if path is None:
        return Policy()
    tables = _read_toml(path)
    for name in tables:
        if name not in ("policy", "hang"):
            raise ConfigError(f"{path}: unknown table or key {name!r}; known: policy, hang")
    hung: HungLimits = _convert(path, "hang", tables.get("hang", {}), HungLimits, ())
    policy: Policy = _convert(path, "policy", tables.get("policy", {}), Policy, ("hung",))
    return replace(policy, hung=hung)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            body = file.read(_BYTES_MAX)
        return tomllib.loads(body.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


def _convert(path: Path, table: str, values: Any, kind: type[Any], hidden: tuple[str, ...]) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {table} is no table")
    known = [name for name in kind.__dataclass_fields__ if name not in hidden]
    for key in values:
        if key not in known:
            raise ConfigError(
                f"{path}: unknown key {key!r} in [{table}]; known: {', '.join(known)}"
            )
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: [{table}] {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: [{table}] {error}") from error
