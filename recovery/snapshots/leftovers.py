"""Frees the memory of snapshots whose launcher was killed and has not come back.

A launcher locks its folder of snapshots while it lives, and removes it at its end. One that is killed leaves it, for the
launcher that goes on with the job; later it would only hold memory that no process seems to use.
"""

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from rankmend.hook.snapshots import layout
from recovery.snapshots.files import snapshot_paths

log = logging.getLogger(__name__)

KEPT_S: Final = (
    3600.0  # a node that crashed is back by then, and so is whoever starts the job again
)
FOLDER: Final = "snapshots"


def lock(folder: Path) -> int:
    """Mark a folder of snapshots as in use until the returned descriptor is closed. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    with contextlib.suppress(BlockingIOError):  # by a launcher of this job that is just ending
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def remove_leftovers(own_folder: Path, now_s: float) -> int:
    """Remove what no launcher uses and no rank has written for `KEPT_S`; return how many bytes that freed.

    ``own_folder``: this user's in shared memory, with a folder for each job. ``now_s``: monotonic.
    """
    freed = 0
    for folder in own_folder.glob(f"*/{FOLDER}"):
        paths = snapshot_paths(folder)
        if not paths or now_s - _written_at_s(paths) < KEPT_S or _is_in_use(folder):
            continue
        size = sum(_allocated_bytes(path) for path in paths)
        log.info(
            "removing the snapshots of a job whose launcher was killed",
            extra={"folder": str(folder), "bytes": size},
        )
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink()
        freed += size
    return freed


def _written_at_s(paths: list[Path]) -> float:
    """Return when a rank last wrote one. Writes through a mapping don't change a file's times."""
    return max((_head_time_s(path) for path in paths), default=0.0)


def _head_time_s(path: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        with path.open("rb") as file:
            head = file.read(layout.COMMIT_AT)
        return float(layout.parse(head, path.stat().st_size).written_ns) / 1e9
    return 0.0


def _is_in_use(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _allocated_bytes(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0
