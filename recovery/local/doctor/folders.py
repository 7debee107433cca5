"""Reads what `detectors/doctor/storage.py` judges: the folders in which rankmend writes.

A folder may lie on a dead NFS mount: run this in a child. The test file has no name (O_TMPFILE) or
loses it at once, so nothing is left behind, not even by kill -9.
"""

import errno
import getpass
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from detectors.doctor.agent import FolderFacts
from detectors.doctor.storage import StorageFacts
from rankmend.errors import RankmendError
from recovery.journal.folder.network_storage import (
    NETWORK_FUSE_TYPES,
    NETWORK_TYPES,
    find_file_system_type,
    refuse_network_file_system,
)
from recovery.journal.folder.state_folder import default_state_folder

_PROBE: Final = bytes(4096)
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})


def look_at_state(
    folder: Path, mountinfo: Path = Path("/proc/self/mountinfo"), *, is_others: bool = False
) -> FolderFacts:
    """Read a folder for state. ``is_others``: of a service, which may run as another user."""
    return _look(folder, mountinfo, is_others=is_others, is_network_wrong=True)


def look_at_checkpoints(
    folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")
) -> FolderFacts:
    """Read a folder for checkpoints, which may well lie on a network file system."""
    return _look(folder, mountinfo, is_others=False, is_network_wrong=False)


def _look(folder: Path, mountinfo: Path, *, is_others: bool, is_network_wrong: bool) -> FolderFacts:
    try:
        folder = folder.absolute()
    except OSError as failure:  # the working folder is gone
        return FolderFacts(str(folder), error=f"{folder}: {failure.strerror}")
    kind = find_file_system_type(folder, mountinfo)
    is_network = is_network_wrong and (kind in NETWORK_TYPES or kind in NETWORK_FUSE_TYPES)
    known = FolderFacts(str(folder), file_system=kind, is_network=is_network)
    try:
        if not folder.is_dir():
            error = f"{folder} is not a folder" if folder.exists() else _why_not_made(folder)
            return FolderFacts(
                str(folder),
                is_there=False,
                error=error,
                file_system=kind,
                is_network=is_network,
            )
        room = os.statvfs(folder)
    except OSError as failure:
        if is_others and failure.errno in _FORBIDDEN:
            return FolderFacts(str(folder), is_forbidden=True, file_system=kind)
        return FolderFacts(str(folder), error=f"{folder}: {failure.strerror}", file_system=kind)
    error, is_forbidden = "", False
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(_PROBE)
            os.fsync(file.fileno())
    except OSError as failure:
        is_forbidden = is_others and failure.errno in _FORBIDDEN
        error = "" if is_forbidden else f"cannot write into {folder}: {failure.strerror}"
    return FolderFacts(
        known.path,
        error=error,
        is_forbidden=is_forbidden,
        file_system=kind,
        is_network=is_network,
        free_bytes=room.f_bavail * room.f_frsize,
    )


def _why_not_made(folder: Path) -> str:
    """Return why a missing folder can't be made; empty: it can."""
    above = next((parent for parent in folder.absolute().parents if parent.exists()), Path("/"))
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return ""
    return f"no {folder}, and this user can't make it in {above}"


def read_storage(
    environment: Mapping[str, str], state_dir: Path | None, checkpoint_dir: Path | None
) -> StorageFacts:
    try:
        state = state_dir or default_state_folder(environment, refuse_network_file_system)
    except RankmendError:  # another user's folder is in its place: `run` reports that, too
        state = Path("/var/tmp")  # noqa: S108 - only looked at
    return StorageFacts(
        state=look_at_state(state),
        user=_user(),
        checkpoints=look_at_checkpoints(checkpoint_dir) if checkpoint_dir else None,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry in passwd
        return "$(id -u)"
