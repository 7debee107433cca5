"""The lock of a claim: the kernel drops it once the last process that holds it is gone.

A challenger in another container can't look up the owner's pid. So an owner locks a file of its own beside the
checkpoints before it makes its claim, and its guardian and ranks inherit the open file: the lock (flock(2)) ends with
the last of them, however they end. Nobody can lock the file meanwhile, so a challenger that can has the proof.

It is proof on the owner's own boot only: one kernel, which knows all its processes. On a network file system the lock
may be the server's, which can forget it in an outage while its owner lives: there a challenger also watches the counter.
"""

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from rankmend.errors import StorageError
from rankmend.own_folder import refuse_foreign_link
from recovery.journal.folder.network_storage import LOCAL_TYPES, find_file_system_type
from recovery.launcher.ownership.claim import FolderClaim, LockState
from recovery.launcher.ownership.claim_folder import ClaimFolder

_MODE: Final = 0o644
_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# Out of the way of scripts that count on low numbers, since the ranks inherit it; select(2) ends at 1,023.
_DESCRIPTOR_LEAST: Final = 768
_HELD: Final = frozenset((errno.EWOULDBLOCK, errno.EACCES))


class ClaimLock:
    """The lock of a claim that is about to be made, in this process and all that inherit it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino

    def close(self) -> None:
        """Hold it no longer in this process."""
        os.close(self.descriptor)

    def remove(self) -> None:
        """Hold it no longer, and leave no file."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()


def hold_lock(folder: ClaimFolder, token: str) -> ClaimLock | None:
    """Return the lock of the claim with this token, or None where the file system has no locks."""
    path = folder.lock_path(token)
    try:
        folder.beside.mkdir(exist_ok=True)
        refuse_foreign_link(folder.beside, StorageError)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, _MODE)
    except (OSError, StorageError):  # making the claim reports why
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return ClaimLock(path, _moved_up(descriptor))
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def _moved_up(descriptor: int) -> int:
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR_LEAST)
    except OSError:
        return descriptor  # this process may not have so many
    os.close(descriptor)
    return moved


def look_at_lock(folder: ClaimFolder, claim: FolderClaim, challenger: FolderClaim) -> LockState:
    """Return what this process, which would like to be ``challenger``, sees of the lock of a claim."""
    if not claim.lock_inode or claim.boot_id != challenger.boot_id or claim.boot_id == "unknown":
        return LockState.UNKNOWN
    path = folder.lock_path(claim.token)
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN)
    except OSError:
        return LockState.UNKNOWN
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_ino != claim.lock_inode:
            return LockState.UNKNOWN  # a copy
        # Shared, so that two challengers don't take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return LockState.HELD if error.errno in _HELD else LockState.UNKNOWN
    finally:
        os.close(descriptor)
    # Whose file it is in our user namespace: the claim's uid may be another one's.
    if os.getuid() not in (0, found.st_uid):
        return LockState.UNKNOWN
    is_local = find_file_system_type(path) in LOCAL_TYPES
    return LockState.FREE if is_local else LockState.FREE_ON_NETWORK
