"""The ranks that other launchers have started and that are watched (`rankmend watch env`).

Layout: `rankmend.hook.watched`. Whatever lies there comes from a job's user. Of a folder that belongs to a user, only what that
user owns counts, and only where nobody else may write; and the job's UUID must be made of this user's id, so nobody speaks for
another's job. Everything is bounded.
"""

import logging
import math
import os
import pwd
import re
import stat
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agent.ranks.rank_processes import InnerProcess, find_pid, read_inner_processes
from agent.ranks.table import RANKS_MAX, RANKS_OF_USER_MAX, ShownRank
from rankmend.errors import SourceError
from rankmend.hook.watched_layout import FOLDER_PREFIX, JOB_FILE, ROOT, job_id_of
from rankmend.hook.writer import read_start_ticks
from rankmend.progress import ProgressReader, open_owned

log = logging.getLogger(__name__)

JOBS_OF_USER_MAX: Final = 64
FOLDERS_MAX: Final = 4096
USERS_MAX: Final = 64
FOLDERS_OF_USER_MAX: Final = 2  # the plain name, and another where somebody had taken that
JOB_BYTES_MAX: Final = 4096
INNER_LOOK_S: Final = (
    5.0  # between two looks for ranks in containers: /proc of 5,000 processes takes 0.1 s
)
OVER_S: Final = 30.0  # until then a job whose ranks are all dead is looked at each time
SETTLED_NS: Final = 1_000_000_000  # file systems stamp changes to 4 ms, old ones to a second
_FOLDER: Final = re.compile(FOLDER_PREFIX + r"([0-9]{1,10})(-[A-Za-z0-9_]{1,16})?")
_RANK: Final = re.compile(r"rank-([0-9]{1,10})\.progress")
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Text = Annotated[str, Meta(max_length=200)]


class _WrittenJob(msgspec.Struct):
    """What a job's rank has written down of it."""

    key: Annotated[str, Meta(max_length=2000)]
    launcher: Text
    name: Text
    slurm_job: Text
    restarter: Text = ""


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A job of another launcher."""

    job_id: uuid.UUID
    name: str
    user: str
    launcher: str  # "torchrun", "srun", "mpirun", "hydra"; "spawn", "single": none
    slurm_job: str  # its number; empty: not Slurm's
    restarter: str = ""  # what starts its ranks again: "torchelastic", "nvrx"; empty: nothing


@dataclass(frozen=True, slots=True)
class EndedRank:
    """A rank whose process lives no more. Its file is open until the next look."""

    job: WatchedJob
    rank: ShownRank


@dataclass(frozen=True, slots=True)
class FoundRanks:
    jobs: list[WatchedJob]
    ranks: list[ShownRank]
    ended: list[EndedRank]


@dataclass(frozen=True, slots=True)
class _Over:
    """A job none of whose ranks lives. Folders of such jobs stay for a day."""

    changed_ns: int  # when its folder last changed
    files: tuple[tuple[str, int], ...]
    since_s: float

    def is_settled(self, changed_ns: int, now_s: float) -> bool:
        """Return whether its ranks need no look: a rank that starts puts a new file into the folder."""
        return changed_ns == self.changed_ns and now_s - self.since_s >= OVER_S


class WatchedRanks:
    """Finds them anew with each look, and keeps their files open meanwhile."""

    def __init__(self, root: Path = Path(ROOT), only_uid: int | None = None) -> None:
        """``only_uid``: look at this user's jobs; None: at those of all users."""
        self._root = root
        self._only_uid = only_uid
        self._jobs: dict[tuple[str, int], WatchedJob | None] = {}  # by path and inode of the folder
        self._ranks: dict[tuple[str, int], ShownRank | None] = {}  # of the file; None: refused
        self._outside: dict[InnerProcess, int | None] = {}  # pids of ranks in containers
        self._inner: dict[InnerProcess, list[int]] | None = None  # read once in a look, if at all
        self._listed: tuple[int, list[str]] | None = (
            None  # time of the root's last change, its folders
        )
        self._looked_at_s = -math.inf
        self._living: dict[tuple[str, int], WatchedJob] = {}  # ranks of the look before, by file
        self._has_unwritten = (
            False  # of the job looked at: a file in which no process has put its number
        )
        self._over: dict[tuple[str, int], _Over] = {}  # jobs without a living rank, by folder

    def look(self) -> "FoundRanks":
        """Return the jobs with a living rank on this node, these ranks, and those that have ended since the look before."""
        living_before, self._living = self._living, {}
        jobs_before, self._jobs = self._jobs, {}
        ranks_before, self._ranks = self._ranks, {}
        outside_before, self._outside, self._inner = self._outside, {}, None
        over_before, self._over, now_s = self._over, {}, time.monotonic()
        found: list[WatchedJob] = []
        living: list[ShownRank] = []
        for uid, folder in islice(self._users(), USERS_MAX):
            left = RANKS_OF_USER_MAX
            for entry, changed_ns in islice(_folders(folder, uid), JOBS_OF_USER_MAX):
                job = self._job(entry, uid, jobs_before)
                if job is None:
                    continue
                key = entry.path, entry.inode()
                over = over_before.get(key)
                if over is not None and over.is_settled(changed_ns, now_s):
                    self._over[key] = over
                    for file in over.files:
                        self._ranks[file] = ranks_before.pop(file, None)
                    continue
                count, self._has_unwritten = len(self._ranks), False
                ranks = self._of_job(entry.path, uid, job, ranks_before, left, outside_before)
                files = tuple(islice(self._ranks, count, None))
                # else some may not have been looked at, or a process may write its name there at any moment
                if not ranks and len(files) < left and not self._has_unwritten:
                    is_same = over is not None and (over.changed_ns, over.files) == (
                        changed_ns,
                        files,
                    )
                    since_s = over.since_s if over is not None and is_same else now_s
                    self._over[key] = _Over(changed_ns, files, since_s)
                left -= len(ranks)
                if ranks and all(item.job_id != job.job_id for item in found):
                    found.append(job)
                if ranks:
                    living += ranks
        for rank in ranks_before.values():
            if rank is not None:
                rank.reader.close()
        ended = [
            EndedRank(job, rank)
            for key, job in living_before.items()
            if key not in self._living and (rank := self._ranks.get(key)) is not None
        ]
        return FoundRanks(found, living[:RANKS_MAX], ended[:RANKS_MAX])

    def close(self) -> None:
        """Close the ranks' files."""
        for rank in self._ranks.values():
            if rank is not None:
                rank.reader.close()
        self._ranks = {}

    def _job(
        self,
        entry: "os.DirEntry[str]",
        uid: int,
        before: dict[tuple[str, int], WatchedJob | None],
    ) -> WatchedJob | None:
        key = entry.path, entry.inode()
        if key in before:
            self._jobs[key] = before[key]
        elif (Path(entry.path) / JOB_FILE).exists():  # else a rank is about to write it
            self._jobs[key] = _read_job(Path(entry.path), uid)
        return self._jobs.get(key)

    def _of_job(
        self,
        folder: str,
        uid: int,
        job: WatchedJob,
        before: dict[tuple[str, int], ShownRank | None],
        count_max: int,
        outside: dict[InnerProcess, int | None],
    ) -> list[ShownRank]:
        """Return the living ranks of a job. What stays in ``before`` is there no more."""
        living = []
        for file in islice(_rank_files(folder), count_max):
            key = file.path, file.inode()
            rank = before.pop(key) if key in before else _open_rank(Path(file.path), uid, job)
            self._ranks[key] = rank
            if rank is None:
                continue
            pid = self._pid_of(rank, uid, outside)
            if pid is not None:
                living.append(replace(rank, pid=pid))
                self._living[key] = job
        return living

    def _pid_of(
        self, rank: ShownRank, uid: int, before: dict[InnerProcess, int | None]
    ) -> int | None:
        """Return the pid of the process that writes the file, and None if it lives no more.

        0: as it tells itself, or the file can't be read, and shows as broken.
        """
        try:
            pid, ticks = rank.reader.writer()
        except SourceError:
            return 0
        if not pid:
            self._has_unwritten = True
            return None
        if read_start_ticks(pid) == ticks:
            return 0
        process = InnerProcess(uid, pid, ticks)
        is_known, known = process in before, before.get(process)
        # One that is dead stays dead, and one that is found is looked at: the whole of /proc is read for others only.
        if is_known and (known is None or read_start_ticks(known) == ticks):
            self._outside[process] = known
            return known
        if self._inner is None:
            now_s = time.monotonic()
            if now_s - self._looked_at_s < INNER_LOOK_S:
                if is_known:
                    self._outside[process] = known
                return known
            self._looked_at_s, self._inner = now_s, read_inner_processes(Path("/proc"))
        self._outside[process] = find_pid(process, self._inner)
        return self._outside[process]

    def _names(self) -> list[str]:
        """Return the folders of users. The root is listed again only once it has changed: others keep thousands of files there."""
        changed_ns = os.stat(self._root).st_mtime_ns  # noqa: PTH116 - Path is dear
        known = self._listed
        if known is not None and known[0] == changed_ns:
            return known[1]
        names = sorted(
            entry.name for entry in os.scandir(self._root) if _FOLDER.fullmatch(entry.name)
        )
        # a change within the same tick of the file system's clock leaves the time as it is
        is_settled = time.time_ns() - changed_ns > SETTLED_NS
        self._listed = (changed_ns, names) if is_settled else None
        return names

    def _users(self) -> Iterator[tuple[int, Path]]:
        """Yield the folders that are their users' own, and these."""
        try:
            names = self._names()
        except OSError:
            return
        counts: Counter[int] = Counter()
        for name in names:
            match = _FOLDER.fullmatch(name)
            assert match is not None, "the others were left out"
            path, uid = self._root / name, int(match[1])
            if self._only_uid not in (None, uid):
                continue
            # A bounded number each: nobody keeps the others out by many folders of their own.
            if counts[uid] < FOLDERS_OF_USER_MAX and _is_private_of(path, uid):
                counts[uid] += 1
                yield uid, path


def _is_private_of(path: Path, uid: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return _is_private(found, uid)


def _is_private(found: os.stat_result, uid: int) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022


def _folders(folder: Path, uid: int) -> Iterator[tuple["os.DirEntry[str]", int]]:
    """Yield the folders of a user's jobs and when they last changed, the newest first: those of jobs that have ended stay for a day."""
    try:
        with os.scandir(folder) as entries:
            dated = [
                (entry.stat(follow_symlinks=False), entry) for entry in islice(entries, FOLDERS_MAX)
            ]
    except OSError:
        return
    dated.sort(key=lambda item: (-item[0].st_mtime_ns, item[1].name))
    yield from ((entry, found.st_mtime_ns) for found, entry in dated if _is_private(found, uid))


def _rank_files(folder: str) -> Iterator["os.DirEntry[str]"]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    yield from (entry for entry in entries if _RANK.fullmatch(entry.name))


def _read_job(folder: Path, uid: int) -> WatchedJob | None:
    try:
        reported = msgspec.json.decode(_read_owned(folder / JOB_FILE, uid), type=_WrittenJob)
        job_id = job_id_of(uid, reported.key)
        if str(job_id) != folder.name:
            raise SourceError(f"{folder} is not the folder of job {job_id}")
    except (SourceError, msgspec.MsgspecError, RecursionError, OSError) as error:
        log.warning("watched job refused", extra={"path": str(folder), "error": str(error)})
        return None
    return WatchedJob(
        job_id,
        reported.name,
        user_name(uid),
        reported.launcher,
        reported.slurm_job,
        reported.restarter,
    )


def _read_owned(path: Path, uid: int) -> bytes:
    descriptor = os.open(path, _READ)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            raise SourceError(f"{path} is not a regular file of uid {uid}")
        data = os.read(descriptor, JOB_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > JOB_BYTES_MAX:
        raise SourceError(f"{path} has more than {JOB_BYTES_MAX} bytes")
    return data


def user_name(uid: int) -> str:
    """Return a user's name on this node, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _open_rank(path: Path, uid: int, job: WatchedJob) -> ShownRank | None:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise SourceError(f"{path} is not a regular file")
        reader = ProgressReader(open_owned(path, uid), str(path))
        if reader.identity.job_id != job.job_id:
            reader.close()
            raise SourceError(f"{path} is of job {reader.identity.job_id}")
    except (SourceError, OSError) as error:
        log.warning("progress file refused", extra={"path": str(path), "error": str(error)})
        return None
    return ShownRank(reader, pid=0, job_name=job.name)
