"""Checks, before anything starts, whether the limit on open files leaves room for a launcher."""

import contextlib
import resource
from typing import Final

from rankmend.errors import ConfigError

# Counted with 2 and 8 ranks: 17 and 4 for each rank; log files, standbys, evidence take 3 more each.
BASE: Final = 40
EACH_RANK: Final = 8
SEVERAL_NODES: Final = 160  # 64 questions of other launchers at a time, a controller that is hosted


def ensure_open_files(ranks: int, *, is_one_node: bool) -> None:
    """Raise the soft limit on open files if it is too low; raise `ConfigError` if that is impossible."""
    needed = BASE + EACH_RANK * ranks + (0 if is_one_node else SEVERAL_NODES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard == resource.RLIM_INFINITY or hard >= needed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            return
    raise ConfigError(
        f"the limit of open files is {soft} here, "
        f"and a launcher of {ranks} ranks needs {needed}: raise it with `ulimit -n {needed}`, "
        f"LimitNOFILE= or nofile in limits.conf"
    )
