"""Reads the policy table for kernel events: the one shipped, with the site's rows over it."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from detectors.kernel.event_policy import PolicyTable, complete, parse_policy
from rankmend.errors import ConfigError

_BYTES_MAX: Final = 1_000_000  # the shipped one has 45,000


def load_policy(site: Path | None = None) -> PolicyTable:
    """Return the table, or raise ConfigError that names file, line and what is wrong."""
    shipped = (files("detectors") / "data" / "kernel_log.csv").read_text(encoding="utf-8")
    rows = parse_policy(shipped, "kernel_log.csv")
    if site is not None:
        rows.update(parse_policy(_read(site), str(site)))
    return complete(rows, "kernel_log.csv")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the policy table {path}: {error.strerror}") from error
    if len(data) > _BYTES_MAX:
        raise ConfigError(f"the policy table {path} has more than {_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the policy table {path} is no UTF-8: {error}") from error
