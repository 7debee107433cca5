"""The mark of a node for drills: /etc/rankmend/drills.toml, which root alone may write.

[drills]
allow = ["process", "cpu", "network", "storage", "gpu", "kernel-log", "rankmend"]
interfaces = ["eth1"]
paths = ["/scratch/drills"]
for_s_max = 600
fill_bytes_max = 1073741824
"""

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

from rankmend.errors import ConfigError
from rankmend.toml_file import TomlFile, convert_table, refuse_unknown, table_of
from recovery.lab.inject.permission import NodeMarks
from recovery.lab.inject.request import FOR_S_MAX

MARKS: Final = Path("/etc/rankmend/drills.toml")
_BYTES_MAX: Final = 65_536


def read_marks(path: Path = MARKS) -> NodeMarks | None:
    """Return what root allows on this node; None without a file. Raise ConfigError for one that others may write."""
    try:
        found, folder = path.lstat(), path.parent.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot stat {path}: {error.strerror}") from error
    for what, status in ((str(path), found), (str(path.parent), folder)):
        is_kind = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        is_shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if not is_kind or status.st_uid != 0 or is_shared:
            raise ConfigError(
                f"{what} marks this node for drills only where root alone may write it"
            )
    file = TomlFile(path, _BYTES_MAX, "the marks of this node")
    try:
        refuse_unknown("top level", (), file.tables, ("drills",))
        marks = convert_table(table_of(file.tables, "drills"), NodeMarks, ("drills",))
        if not 0 < marks.for_s_max <= FOR_S_MAX:
            raise ConfigError(
                f"for_s_max {marks.for_s_max:g}: want more than 0, at most {FOR_S_MAX:g}"
            )
        if any(not item.startswith("/") for item in marks.paths):
            raise ConfigError("paths: each begins with a slash")
    except ConfigError as error:
        raise file.named(error) from error
    return replace(marks, paths=tuple(os.path.realpath(item) for item in marks.paths))
