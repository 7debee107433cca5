"""Finds ranks that another launcher has started and that are watched (`rankmend watch env`), by their progress files.

Layout: `rankmend.hook.watched`. What lies there is the job owner's word, and root may break what it names: so a process counts only
where it belongs to the owner of the folder, and says by its own environment whether it allows drills.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rankmend.errors import RankmendError, SourceError
from rankmend.hook.layout import ENV_WATCH_DRILLS
from rankmend.hook.watched_layout import (
    DRILL_SUFFIX,
    FOLDER_PREFIX,
    JOB_FILE,
    PROGRESS_SUFFIX,
    ROOT,
    job_id_of,
)
from rankmend.progress import ProgressReader, open_owned
from recovery.launcher.processes.process_tree import PROC, ProcessRef, read_environ, read_state

FOLDERS_MAX: Final = 4096
RANKS_MAX: Final = 4096
_JOB_BYTES_MAX: Final = 4096
_ANY: Final = re.compile(".*")
_FOLDER: Final = re.compile(FOLDER_PREFIX + r"([0-9]{1,10})(-[A-Za-z0-9_]{1,16})?")


class _WrittenJob(msgspec.Struct):
    key: Annotated[str, Meta(max_length=2000)]
    name: Annotated[str, Meta(max_length=200)]


@dataclass(frozen=True, slots=True)
class WatchedRank:
    """A living rank of a job that another launcher has started here."""

    job_id: str
    job_name: str
    uid: int
    rank: int
    process: ProcessRef
    allows_drills: bool
    drill_file: Path  # where its hook listens, if it allows drills


def find_watched_ranks(root: Path = Path(ROOT), proc: str = PROC) -> Iterator[WatchedRank]:
    """Yield the living ranks of watched jobs; what is broken or another user's word is left out."""
    for uid, folder in _job_folders(root):
        try:
            reported = _read_job(folder, uid)
        except (RankmendError, OSError, msgspec.MsgspecError, RecursionError):
            continue  # a broken one hides no other
        for path in islice(sorted(folder.glob(f"rank-*{PROGRESS_SUFFIX}")), RANKS_MAX):
            rank = _read_rank(path, uid, reported.name, proc)
            if rank is not None and rank.job_id == folder.name:
                yield rank


def _job_folders(root: Path) -> Iterator[tuple[int, Path]]:
    # Data loaders keep thousands of files beside these folders: names are looked at before they count.
    for own in _folders(root, _FOLDER):
        match = _FOLDER.fullmatch(own.name)
        assert match is not None, "the others were left out"
        uid = int(match[1])
        if _is_private_of(own, uid):
            yield from ((uid, path) for path in _folders(own) if _is_private_of(path, uid))


def _folders(path: Path, names: re.Pattern[str] = _ANY) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            meant = (Path(entry.path) for entry in entries if names.fullmatch(entry.name))
            return sorted(islice(meant, FOLDERS_MAX))
    except OSError:
        return []


def _is_private_of(path: Path, uid: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022


def _read_job(folder: Path, uid: int) -> _WrittenJob:
    descriptor = open_owned(folder / JOB_FILE, uid)
    try:
        reported = msgspec.json.decode(os.read(descriptor, _JOB_BYTES_MAX), type=_WrittenJob)
    finally:
        os.close(descriptor)
    if str(job_id_of(uid, reported.key)) != folder.name:
        raise SourceError(f"{folder} is not the folder of its job")
    return reported


def _read_rank(path: Path, uid: int, job_name: str, proc: str) -> WatchedRank | None:
    try:
        with closing(ProgressReader(open_owned(path, uid), str(path))) as reader:
            pid, start_ticks = reader.writer()
            identity = reader.identity
        state = read_state(pid, proc) if pid > 1 else None
        if state is None or state.is_gone or state.start_ticks != start_ticks:
            return None
        if Path(proc, str(pid)).stat().st_uid != uid:
            return None  # it names another user's process
        marks = _marks(pid, proc)
    except (RankmendError, OSError):
        return None
    if marks == [b""]:
        return None  # it is about to end
    return WatchedRank(
        str(identity.job_id),
        job_name,
        uid,
        identity.rank,
        ProcessRef(pid, start_ticks),
        f"{ENV_WATCH_DRILLS}=1".encode() in marks,
        path.with_name(path.name + DRILL_SUFFIX),
    )


def _marks(pid: int, proc: str) -> list[bytes]:
    """Return the variables that a process was started with; none where this user may not look."""
    try:
        return read_environ(pid, proc).split(b"\0")
    except PermissionError:
        return []
