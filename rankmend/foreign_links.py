"""Folders and files that this user alone writes to, in places where other users may write, too.

What the user names is followed (a checkpoint folder on /scratch, a home folder elsewhere). Below it,
a link of one's own is followed, and so is the administrator's. A link of another user is not: what is written or chmodded behind it could be
anybody's. Nothing that is there already is opened for writing: it could be a link, a hard link or a pipe.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT_UID: Final = 0


def refuse_foreign_link(path: Path, error: Callable[[str], Exception]) -> None:
    """Raise where ``path`` is a symbolic link that another user has made."""
    try:
        found = path.lstat()
    except OSError:
        return  # not there, or not to be looked at: whoever opens it says so
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), ROOT_UID):
        raise error(
            f"{path} is a symbolic link made by uid {found.st_uid}: rankmend does not follow it. "
            f"Remove it, or name another folder"
        )


def make_private(
    folder: Path, error: Callable[[str], Exception], *, is_secret: bool = False
) -> None:
    """Make a folder that only this user writes to, or check that an existing one is this user's.

    Its parent must exist. Raise where another user owns the folder, or a link in its place.
    ``is_secret``: close an existing folder to readers, too.
    """
    try:
        if not folder.is_symlink():
            folder.mkdir(mode=0o700, exist_ok=True)
        refuse_foreign_link(folder, error)
        found = folder.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise error(f"{folder} is not a folder: remove it")
        if found.st_uid != os.geteuid():
            raise error(f"{folder} belongs to uid {found.st_uid}, not to uid {os.geteuid()}")
        if found.st_mode & (0o077 if is_secret else 0o022):
            folder.chmod(0o700)
    except OSError as failure:
        raise error(f"cannot make the folder {folder}: {failure.strerror}") from failure


def open_new(path: Path, mode: int = 0o600) -> int:
    """Return a descriptor of a new, empty file; what is there by this name is removed, not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    path.unlink(missing_ok=True)
    return os.open(path, flags, mode)


def open_to_append(path: Path, mode: int = 0o644) -> int:
    """Return a descriptor at the end of a file; raise OSError for a link, a pipe or a device."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is not a regular file", str(path))
    return descriptor
