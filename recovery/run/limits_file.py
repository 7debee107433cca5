"""Reads the limits of recovery from a TOML file: the tables [policy] and [hang].

Their keys are the fields of `recovery.journal.limits.Policy` and `detectors.hang.live.HungLimits`, which
contain the defaults with their reasons. An unknown key is an error.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from detectors.hang.live import HungLimits
from rankmend.errors import ConfigError
from rankmend.toml_file import TomlFile, convert_table, refuse_unknown, table_of
from recovery.journal.limits import Policy

_BYTES_MAX: Final = 1024 * 1024


def read_policy(path: Path | None) -> Policy:
    """Return the limits in a file on top of the defaults; without a file, the defaults."""
    if path is None:
        return Policy()
    file = TomlFile(path, _BYTES_MAX, "the configuration")
    try:
        refuse_unknown("the file", (), file.tables, ("policy", "hang"))
        hung = convert_table(table_of(file.tables, "hang"), HungLimits, ("hang",))
        table = table_of(file.tables, "policy")
        return replace(convert_table(table, Policy, ("policy",), hidden=("hung",)), hung=hung)
    except ConfigError as error:
        raise file.named(error) from error
