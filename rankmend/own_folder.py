"""Files and folders of this user in places where other users may write: shared memory, the temporary folder, /var/tmp.

The user's one folder there is `rankmend-<uid>`, 0700. Another user may have made that before us, by
mistake or to block this user. Then the folder is `rankmend-<uid>-<random>` beside it, whose name
nobody can foresee; later processes find it by its owner. The place itself must be sticky, as all of
these are, so that nobody removes the folder.

We follow every link in a path that the user names (a checkpoint folder on /scratch, a home folder
elsewhere). Below it, we follow links of this user and of the administrator, and no others: behind
another user's link, we could write to or chmod anybody's file. We open no existing file for
writing: it could be a link, a hard link or a pipe.
"""

import errno
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankmend.errors import LaunchError

log = logging.getLogger(__name__)

ROOT_UID: Final = 0


def refuse_foreign_link(path: Path, error: Callable[[str], Exception]) -> None:
    """Raise where ``path`` is a symbolic link that another user has made."""
    try:
        found = path.lstat()
    except OSError:
        return  # missing, or unreadable: the caller that opens it reports that
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


def own_folder(root: Path) -> Path:
    """Return the one folder of this user below ``root``, made where it is not there."""
    plain = root / f"rankmend-{os.getuid()}"
    blocker = _blocker(plain)
    if blocker is None:
        make_private(plain, LaunchError, is_secret=True)
        return plain
    found = sorted(path for path in root.glob(f"{plain.name}-*") if _is_ours(path))
    if found:
        make_private(found[0], LaunchError, is_secret=True)
        return found[0]
    try:
        made = Path(tempfile.mkdtemp(prefix=f"{plain.name}-", dir=root))  # 0700
    except OSError as error:
        raise LaunchError(f"cannot make a folder in {root}: {error.strerror}") from error
    log.warning(
        "another user's file occupies the path of this user's folder in shared memory; using another folder",
        extra={"blocked": str(plain), "by": blocker, "folder": str(made)},
    )
    return made


def _blocker(path: Path) -> str | None:
    """Return who has something of theirs at ``path``, or None where it is ours or free."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"cannot stat {path}: {error.strerror}") from error
    if found.st_uid == os.getuid() and not stat.S_ISDIR(found.st_mode):
        raise LaunchError(f"{path} is not a folder: remove it")
    return None if found.st_uid == os.getuid() else f"uid {found.st_uid}"


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def find_own_folder(root: Path) -> Path:
    """Return the same without making it, as long as nobody is in the way."""
    plain = root / f"rankmend-{os.getuid()}"
    return plain if _blocker(plain) is None else own_folder(root)
