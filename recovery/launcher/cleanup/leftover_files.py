"""Finds and removes files that a job has left in shared memory and in temporary folders.

    rankmend-<uid>/<run>/          progress files, snapshots and their copies; `slurm-job` names the Slurm job
    rankmend-watch-<uid>/<run>/    of ranks of other launchers; job.json names it
    nccl-*, torch_*, sem.mp-* ...  name no job: they are the job's only if the user has no other one here

Users write in these folders while root reads: everything is opened relative to the folder before
it, no link is followed, and only the user's own files count. Removal has the user's rights, and
crosses no link and no other mount.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from rankmend.hook.watched_layout import FOLDER_PREFIX, JOB_FILE
from recovery.checkpoints.snapshots import leftovers
from recovery.launcher.ranks.runtime_folder import NAME as SLURM_JOB_FILE

ROOTS: Final = (Path("/dev/shm"), Path("/tmp"))  # noqa: S108 - see above; /var/tmp has journals
# Segments that frameworks leave in /dev/shm when they are killed: NCCL, PyTorch, Python's multiprocessing and joblib,
# CUDA's MPS, UCX, Open MPI, PSM3, libfabric, OpenMP.
SEGMENTS: Final = re.compile(
    r"nccl-\w+|torch_\d+_\w+|psm_[0-9a-f]+|sem\.(mp|loky|joblib)-.+|(loky|joblib)-.+|cuda\.shm\..+|ucx_shm_posix_.+"
    r"|(vader|sm)_segment\..+|psm3_shm\..+|ofi_shm_.+|__KMP_REGISTERED_LIB_.+"
)
ENTRIES_MAX: Final = 10_000
_NAME_BYTES_MAX: Final = 4096
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_DEPTH_MAX: Final = 16


class LeftoverKind(Enum):
    RUN = "run"  # rankmend's own, of a launcher
    WATCHED = "watched"  # rankmend's own, of another launcher's ranks
    SEGMENT = "segment"  # a framework's


@dataclass(frozen=True, slots=True)
class Leftover:
    kind: LeftoverKind
    folders: tuple[str, ...]  # the way to it: a root, then names
    name: str
    inode: int
    size_bytes: int
    run: str = ""  # rankmend's job id
    is_in_use: bool = False  # a launcher holds its snapshots

    @property
    def path(self) -> str:
        return str(Path(*self.folders, self.name))


def find_leftovers(job: str, uid: int, roots: tuple[Path, ...] = ROOTS) -> list[Leftover]:
    """Return what names this job, and the segments of the user that name none."""
    found: list[Leftover] = []
    for root in roots:
        with contextlib.suppress(OSError), _opened(None, str(root), uid=None) as folder:
            # All of them: a user who fills the folder with other names hides nothing.
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - of a descriptor
                if not (name.startswith("rankmend-") or SEGMENTS.fullmatch(name)):
                    continue
                try:
                    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except OSError:
                    continue  # another job's, removed since: the rest counts all the same
                if info.st_uid != uid:
                    continue
                if _is_of(name, "rankmend-", uid):
                    found += _of_job(folder, root, name, job, uid, LeftoverKind.RUN)
                elif _is_of(name, FOLDER_PREFIX, uid):
                    found += _of_job(folder, root, name, job, uid, LeftoverKind.WATCHED)
                elif root == roots[0] and stat.S_ISREG(info.st_mode):
                    size = info.st_blocks * 512
                    found.append(
                        Leftover(LeftoverKind.SEGMENT, (str(root),), name, info.st_ino, size)
                    )
    return found


@contextlib.contextmanager
def open_folders(names: tuple[str, ...], uid: int) -> Iterator[int]:
    """Give a descriptor of the last folder, each opened in the one before; all but the first are the user's."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_opened(None, names[0], uid=None))
        for name in names[1:]:
            folder = stack.enter_context(_opened(folder, name, uid=uid))
        yield folder


def _of_job(
    root_folder: int, root: Path, name: str, job: str, uid: int, kind: LeftoverKind
) -> Iterator[Leftover]:
    with contextlib.suppress(OSError), _opened(root_folder, name, uid=uid) as folder:
        for run in _names(folder):
            with contextlib.suppress(OSError, ValueError), _opened(folder, run, uid=uid) as inner:
                if _job_of(inner, uid, kind) != job:
                    continue
                yield Leftover(
                    kind, (str(root), name), run, os.fstat(inner).st_ino, _size(inner),
                    run.partition("@")[0], _is_locked(inner),
                )  # fmt: skip


def _job_of(folder: int, uid: int, kind: LeftoverKind) -> str:
    if kind is LeftoverKind.RUN:
        return _read(folder, SLURM_JOB_FILE, uid).strip()
    try:
        reported = json.loads(_read(folder, JOB_FILE, uid))
    except RecursionError:
        return ""  # brackets without end
    return str(reported.get("slurm_job", "")) if isinstance(reported, dict) else ""


def _is_of(name: str, prefix: str, uid: int) -> bool:
    return name == f"{prefix}{uid}" or name.startswith(f"{prefix}{uid}-")


def _is_locked(folder: int) -> bool:
    """Return whether a launcher holds the run's snapshots (`snapshots.leftovers`)."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(leftovers.FOLDER, _FOLDER, dir_fd=folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _size(folder: int, depth: int = 4) -> int:
    total = 0
    for name in _names(folder):
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        total += info.st_blocks * 512
        if stat.S_ISDIR(info.st_mode) and depth:
            with contextlib.suppress(OSError), _opened(folder, name, uid=info.st_uid) as inner:
                total += _size(inner, depth - 1)
    return total


def _names(folder: int) -> list[str]:
    return sorted(os.listdir(folder))[:ENTRIES_MAX]


@contextlib.contextmanager
def _opened(parent: int | None, name: str, *, uid: int | None) -> Iterator[int]:
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        if uid is not None and os.fstat(descriptor).st_uid != uid:
            raise PermissionError(f"{name} belongs to another user")
        yield descriptor
    finally:
        os.close(descriptor)


def _read(folder: int, name: str, uid: int) -> str:
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        info = os.fstat(descriptor)
        if info.st_uid != uid or not stat.S_ISREG(info.st_mode):
            return ""
        return os.read(descriptor, _NAME_BYTES_MAX).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Removal:
    path: str
    error: str = ""


def remove_leftovers(leftovers: Sequence[Leftover], uid: int) -> list[Removal]:
    """Remove each that is still what was found there."""
    return [Removal(leftover.path, _remove(leftover, uid)) for leftover in leftovers]


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
