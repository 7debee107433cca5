"""Reads what `detectors/doctor/limits.py` judges."""

import os
import resource
import tempfile
from pathlib import Path
from typing import Final

from detectors.doctor.limits import LimitFacts
from recovery.journal.folder.network_storage import find_file_system_type
from recovery.launcher.host.open_files import BASE, EACH_RANK, SEVERAL_NODES

_RANKS: Final = 8
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - it is looked at, and a file without a name is made


def read_limits(
    shared_memory: Path = SHARED_MEMORY, mountinfo: Path = Path("/proc/self/mountinfo")
) -> LimitFacts:
    files, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    size, free, error = _room(shared_memory)
    return LimitFacts(
        shm_bytes=size,
        shm_free_bytes=free,
        shm_type=find_file_system_type(shared_memory, mountinfo),
        shm_error=error,
        files=_finite(files),
        files_max=_finite(files_max),
        files_needed=BASE + EACH_RANK * _RANKS + SEVERAL_NODES,
        processes=_finite(processes),
        is_root=os.geteuid() == 0,
    )


def _room(folder: Path) -> tuple[int | None, int, str]:
    """Return size and free bytes, and why no file can be made there."""
    try:
        room = os.statvfs(folder)
    except FileNotFoundError:
        return None, 0, ""
    except OSError as error:
        return 0, 0, f"{folder}: {error.strerror}"
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return size, free, f"cannot make a file in {folder}: {error.strerror}"
    return size, free, ""


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
