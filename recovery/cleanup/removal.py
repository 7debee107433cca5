"""Removes leftovers: with the user's rights, relative to open folders, and never through a link or another mount."""

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recovery.cleanup.leftover_files import Leftover, open_folders

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_DEPTH_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Removal:
    path: str
    error: str = ""


def remove_leftovers(leftovers: Sequence[Leftover], uid: int) -> list[Removal]:
    """Remove each that is still what was found there."""
    return [Removal(one.path, _remove(one, uid)) for one in leftovers]


def _remove(leftover: Leftover, uid: int) -> str:
    """Return why it is still there, or nothing."""
    try:
        with open_folders(leftover.folders, uid) as folder:
            found = os.stat(leftover.name, dir_fd=folder, follow_symlinks=False)
            if found.st_ino != leftover.inode or found.st_uid != uid:
                return "something else has taken its place"
            _remove_entry(folder, leftover.name, found, uid, _DEPTH_MAX)
            with contextlib.suppress(FileNotFoundError):
                os.stat(leftover.name, dir_fd=folder, follow_symlinks=False)
                return "not empty"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _remove_entry(folder: int, name: str, found: os.stat_result, uid: int, depth: int) -> None:
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        opened = os.fstat(inner)
        if (opened.st_ino, opened.st_dev) != (found.st_ino, os.fstat(folder).st_dev) or not depth:
            return  # exchanged meanwhile, or another mount
        for each in os.listdir(inner):  # noqa: PTH208 - of a descriptor
            with contextlib.suppress(FileNotFoundError):
                below = os.stat(each, dir_fd=inner, follow_symlinks=False)
                if below.st_uid == uid:
                    _remove_entry(inner, each, below, uid, depth - 1)
    finally:
        os.close(inner)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=folder)
