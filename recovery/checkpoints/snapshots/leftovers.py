"""Frees the memory of snapshots whose launcher was killed and has not come back.

A launcher locks its folder of snapshots while it lives, and removes it at its end. One that is killed leaves it, for the
launcher that goes on with the job; later it would only hold memory that no process seems to use.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankmend.hook.snapshots import layout
from recovery.checkpoints.snapshots.files import copy_paths, snapshot_paths

log = logging.getLogger(__name__)

KEPT_S: Final = (
    3600.0  # a node that crashed is back by then, and so is whoever starts the job again
)
FOLDER: Final = "snapshots"
COPIES: Final = "copies"  # beside it, of other nodes' snapshots
LOCK_TRIES: Final = 20
LOCK_PAUSE_S: Final = 0.05


def lock(folder: Path) -> int:
    """Mark a folder of snapshots as in use until the returned descriptor is closed. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    for _try in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):  # another launcher is removing old snapshots
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        time.sleep(LOCK_PAUSE_S)
    return descriptor


def remove_leftovers(own_folder: Path, now_s: float) -> int:
    """Remove what no launcher uses and no rank has written for `KEPT_S`; return how many bytes that freed.

    ``own_folder``: this user's in shared memory, with a folder for each job. ``now_s``: monotonic.
    """
    freed = 0
    for folder in own_folder.glob(f"*/{FOLDER}"):
        paths = [*snapshot_paths(folder), *copy_paths(folder.with_name(COPIES))]
        if not paths or now_s - _written_at_s(paths) < KEPT_S:
            continue
        with _unused(folder) as is_unused:
            if is_unused:
                freed += _remove(folder, paths)
    return freed


def _remove(folder: Path, paths: list[Path]) -> int:
    size = sum(_allocated_bytes(path) for path in paths)
    log.info(
        "removing the snapshots of a job whose launcher was killed",
        extra={"folder": str(folder), "bytes": size},
    )
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
    return size


def _written_at_s(paths: list[Path]) -> float:
    """Return when a rank last wrote one. Writes through a mapping don't change a file's times."""
    return max((_head_time_s(path) for path in paths), default=0.0)


def _head_time_s(path: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        with path.open("rb") as file:
            head = file.read(layout.COMMIT_AT)
        return float(layout.parse(head, path.stat().st_size).written_ns) / 1e9
    return 0.0


@contextlib.contextmanager
def _unused(folder: Path) -> Iterator[bool]:
    """Give whether no launcher uses a folder; one that begins to waits for the end of the block."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_unused = True
    except OSError:
        is_unused = False
    try:
        yield is_unused
    finally:
        os.close(descriptor)


def _allocated_bytes(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0
