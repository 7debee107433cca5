"""Why a checkpoint folder takes no more writes, where room or a person mends it: which file system, what is left, what to do."""

import errno
import os
from enum import Enum
from pathlib import Path
from typing import Final

from rankmend.errors import StorageError

_UNITS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Unwritable(Enum):
    FULL = "full"
    NO_INODES = "no_inodes"  # bytes are free, and no file can be made
    QUOTA = "quota"
    READ_ONLY = "read_only"


class UnwritableError(StorageError):
    """Nothing can be written beside the checkpoints until there is room, or the file system is writable again."""

    def __init__(self, why: Unwritable, text: str) -> None:
        super().__init__(text)
        self.why = why


_CAUSES: Final = {
    errno.ENOSPC: Unwritable.FULL,
    errno.EDQUOT: Unwritable.QUOTA,
    errno.EROFS: Unwritable.READ_ONLY,
}


def explain_unwritable(folder: Path, failure: BaseException | None) -> UnwritableError | None:
    """Return what keeps ``folder`` from being written, or None where ``failure`` is of another kind."""
    if not isinstance(failure, OSError) or failure.errno not in _CAUSES:
        return None
    why = _CAUSES[failure.errno]
    try:
        there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
        left = os.statvfs(there)
        mount = next(
            parent for parent in (there.resolve(), *there.resolve().parents) if parent.is_mount()
        )
    except (OSError, StopIteration):
        return UnwritableError(why, f"{folder} can't be written: {failure.strerror}")
    free, total = _size(left.f_bavail * left.f_frsize), _size(left.f_blocks * left.f_frsize)
    if why is Unwritable.FULL and left.f_files and not left.f_favail and left.f_bavail:
        why = Unwritable.NO_INODES
    text = {
        Unwritable.FULL: f"is full: {free} of {total} free. Make room there",
        Unwritable.NO_INODES: (
            f"has no inode left for another file, though {free} of {total} are free. Remove files there"
        ),
        Unwritable.QUOTA: (
            f"has no quota left for uid {os.getuid()} or its group, though {free} of {total} are free. "
            "Remove files of that owner, or have the quota raised"
        ),
        Unwritable.READ_ONLY: (
            "is mounted read-only: the kernel does that after an error (see dmesg), an administrator by hand. "
            "Make it writable again"
        ),
    }[why]
    return UnwritableError(why, f"{folder} can't be written: the file system at {mount} {text}")


def free_bytes(folder: Path) -> int | None:
    """Return what a process without privileges can still write at ``folder``, quotas aside; None: not known."""
    try:
        there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
        left = os.statvfs(there)
    except (OSError, StopIteration):
        return None
    return left.f_bavail * left.f_frsize


def short_of_room(folder: str, free: int | None, wanted: int) -> UnwritableError | None:
    """Return that a save of this size does not fit, or None where it does or that is not known."""
    if free is None or free >= wanted:
        return None
    return UnwritableError(
        Unwritable.FULL,
        f"{folder} is full: the ranks could not write, {_size(free)} are free, and a save takes {_size(wanted)}. Make room there",
    )


def _size(size_bytes: int) -> str:
    for unit_bytes, unit in _UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.3g} {unit}"
    return f"{size_bytes} bytes"
