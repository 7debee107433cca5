"""What is mounted on a folder; covers it, and takes the cover away. Source: proc_pid_mountinfo(5), mount(2), umount2(2).

By system calls: umount(8) would look at the mount point, and wait for ever where that hangs.
"""

import ctypes
import os
import re
from pathlib import Path
from typing import Final

from rankmend.errors import SourceError

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_LAYERS_MAX: Final = 8
# linux/mount.h, linux/fs.h
_MS_RDONLY: Final = 1
_MS_REMOUNT: Final = 32
_MS_BIND: Final = 4096
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)


def count_mounts(path: str) -> int:
    """Return how many mounts lie on a folder, one above the other, in this mount namespace."""
    try:
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise SourceError(f"cannot read /proc/self/mountinfo: {error.strerror}") from error
    return sum(1 for line in text.splitlines() if _plain(line.split(" ")[4]) == path)


def cover_read_only(path: str) -> None:
    """Mount a folder on itself, for reading only."""
    flags = ctypes.c_ulong(_MS_BIND)
    _check(path, _libc.mount(os.fsencode(path), os.fsencode(path), None, flags, None))
    flags = ctypes.c_ulong(_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    _check(path, _libc.mount(None, os.fsencode(path), None, flags, None))


def unmount_to(path: str, mounts_before: int) -> None:
    """Unmount, the newest first, until so many are left; what still uses one keeps it until it closes."""
    for _ in range(_LAYERS_MAX):
        if count_mounts(path) <= mounts_before:
            return
        _check(path, _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW))
    raise SourceError(f"{path} is still mounted {count_mounts(path)} times, not {mounts_before}")


def _check(path: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: os.fsdecode(bytes([int(found[1], 8)])), text)
