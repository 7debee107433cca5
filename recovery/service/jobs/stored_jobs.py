"""The jobs of a controller on disk.

<state>/lock               held (flock) by the one controller of this folder
<state>/cluster/           the cluster's journal: drains, pauses, budgets
<state>/jobs/<name>-<hash of owner and key>/
    job.json, lock, journal.db    as `recovery.journal.folder.job_folder` keeps them, for `rankmend status`
    service.json                  owner, what the first launcher said, the job's secret; mode 0600
    ended.json                    how it ended; not there while it runs
<state>/moved-to-postgresql       where the jobs are, once they were moved
"""

import contextlib
import fcntl
import math
import os
import secrets
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import Clock, read_boot_id
from rankmend.errors import ConfigError, JobHeldError, JournalError, LaunchError
from rankmend.files import read_capped, read_if_there, replace_file
from rankmend.own_folder import make_private, refuse_foreign_link
from recovery.api.wire import Join
from recovery.journal.committer import CommitThreads
from recovery.journal.folder.job_folder import JobFolder, open_job, read_json
from recovery.journal.folder.job_key import JobKey
from recovery.journal.folder.network_storage import refuse_network_file_system
from recovery.journal.records import Entry
from recovery.journal.store import Journal, open_readonly
from recovery.journal.stored_journal import JournalFile, StoredJournal, Written, written_files
from recovery.service.controller_config import Config
from recovery.service.jobs.job_store import (
    ALONE,
    FILE_BYTES_MAX,
    ControllerFleet,
    Ended,
    FoundJobs,
    StoredJob,
    encode_over,
)

MOVED: Final = "moved-to-postgresql"  # where the jobs are now


@dataclass(frozen=True, slots=True)
class FolderHold:
    """A job's folder, locked."""

    folder: JobFolder

    @property
    def job_id(self) -> uuid.UUID:
        return self.folder.job_id

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def stored_journal(self) -> JournalFile:
        return JournalFile(self.folder.path)

    def open_journal(self, clock: Clock, *, uses_snapshot: bool = False) -> Journal:
        return Journal(self.folder.journal, clock, read_boot_id(), uses_snapshot=uses_snapshot)

    def save(self, stored: StoredJob) -> None:
        path = self.path / "service.json"
        before = read_if_there(path, FILE_BYTES_MAX, JournalError) or b""
        replace_file(path, encode_over(stored, before), JournalError)
        with contextlib.suppress(FileNotFoundError):
            (self.path / "ended.json").unlink()

    def save_end(self, ended: Ended) -> None:
        replace_file(self.path / "ended.json", msgspec.json.encode(ended), JournalError)

    def close(self) -> None:
        os.close(self.folder.lock_descriptor)


class StateFolder:
    """The controller's state folder, locked as long as this object is open."""

    def __init__(
        self,
        path: Path,
        mountinfo: Path = Path("/proc/self/mountinfo"),
        *,
        keeps_jobs: bool = True,
    ) -> None:
        """``keeps_jobs`` is false where they are in PostgreSQL."""
        self.path = path
        refuse_network_file_system(path, mountinfo)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_foreign_link(path, ConfigError)
            for name in ("jobs", "cluster"):
                make_private(path / name, ConfigError)
            if path.stat().st_uid != os.geteuid():
                raise ConfigError(f"state_dir {path} belongs to uid {path.stat().st_uid}")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(path / "lock", flags, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot use state_dir {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise JobHeldError(f"another controller runs on the state folder {path}") from error
        if keeps_jobs and (moved := read_if_there(path / MOVED, FILE_BYTES_MAX, ConfigError)):
            os.close(self._lock)
            where = moved.decode("utf-8", "replace").strip()
            raise ConfigError(
                f'the jobs of {path} were moved to {where}: set journal = "{where}". To decide from the old '
                f"state of this folder anyway, remove {path / MOVED}"
            )

    def close(self) -> None:
        os.close(self._lock)

    @property
    def cluster(self) -> Path:
        """Where the cluster's journal lies."""
        return self.path / "cluster"

    def dating(self, clock: Clock) -> Clock:
        return clock

    def find(self) -> tuple[list[FoundJobs], list[str]]:
        """Return all jobs, and what is wrong with those that can't be read."""
        found, problems = [], []
        for folder in sorted((self.path / "jobs").iterdir()):
            if not (folder / "service.json").is_file():
                continue
            try:
                found.append(_read(folder))
            except (ConfigError, OSError, msgspec.DecodeError) as error:
                problems.append(f"{folder}: {error}")
        return found, problems

    def find_one(self, _owner: str, _join: Join) -> FoundJobs | None:
        return None

    def refuse_held(self, found: FoundJobs) -> None:
        """Do nothing: the folder is locked."""

    def freed(self) -> tuple[FoundJobs, ...]:
        return ()

    def give_up(self, found: FoundJobs) -> None:
        """Do nothing: no job is freed."""

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset()

    def note_silence(self, silent_s: float | None) -> None:
        """Do nothing: no other controller could take the jobs."""

    def note_join(self) -> None:
        """Do nothing."""

    @property
    def generation(self) -> int:
        return 0  # the lock of the folder is ours

    @property
    def fleet(self) -> ControllerFleet:
        return ALONE

    @property
    def peer_secret(self) -> str:
        return ""

    @property
    def words(self) -> None:
        return None

    @property
    def sessions(self) -> None:
        return None

    def tell_peers(self, config: Config) -> None:
        """Do nothing: there are none."""

    def open(
        self,
        owner: str,
        join: Join,
        unix_s: float,
        *,
        is_together: bool = False,  # noqa: ARG002 - a write is durable at once
    ) -> FolderHold:
        """Make or open the folder of a job and lock it."""
        key = job_key(owner, join)
        known = uuid.UUID(join.job_id) if join.job_id is not None else None
        try:
            return FolderHold(open_job(self.path, key, known, unix_s))
        except LaunchError as error:
            raise JournalError(str(error)) from error

    def write_held(self) -> dict[str, Exception]:
        return {}  # what a journal in a file gets is durable at once

    def committer(self, clock: Clock, note_commit: Callable[[float], None]) -> CommitThreads:
        return CommitThreads(clock, note_commit)

    def open_cluster(self, clock: Clock) -> Journal:
        return Journal(self.cluster / "journal.db", clock, read_boot_id())

    def read_cluster(self) -> tuple[Entry, ...]:
        return open_readonly(self.cluster / "journal.db").entries

    def written(self, journals: Sequence[StoredJournal]) -> list[Written]:
        return written_files(journals)

    def lease_left_s(self) -> float:
        return math.inf  # the lock of the folder is ours

    def open_desk(self, name: str, clock: Clock) -> tuple[Journal, None]:
        folder = self.path / name
        make_private(folder, ConfigError)
        return Journal(folder / "journal.db", clock, read_boot_id()), None

    def away_s(self) -> float | None:
        return None

    def remove(self, found: FoundJobs) -> None:
        """Remove an ended job for good."""
        assert isinstance(found.journal, JournalFile), "found in this folder"
        path = found.journal.folder
        if path.parent != self.path / "jobs" or not (path / "ended.json").is_file():
            raise ConfigError(f"{path} is not an ended job of {self.path}")
        shutil.rmtree(path)


def running_jobs_of(path: Path, subject: str) -> list[tuple[str, str]]:
    """Return name and UUID of the jobs of a subject that have not ended, by a state folder that a controller may have open."""
    found = []
    try:
        folders = sorted((path / "jobs").iterdir())
    except FileNotFoundError:
        return []
    for folder in folders:
        with contextlib.suppress(ConfigError, FileNotFoundError, msgspec.DecodeError):
            job = _read(folder)
            if job.ended is None and job.stored.owner == subject:
                found.append((job.stored.join.name, job.job_id))
    return found


def job_key(owner: str, join: Join) -> JobKey:
    """Return the key under which a job's folder is found: the owner's and the job's own."""
    return JobKey(f"service:{owner}:{join.key}", join.name, "its key and its owner's token")


def new_secret() -> str:
    return secrets.token_hex(32)


def read_end(folder: Path) -> Ended | None:
    body = read_if_there(folder / "ended.json", FILE_BYTES_MAX, ConfigError)
    return None if body is None else msgspec.json.decode(body, type=Ended)


def _read(folder: Path) -> FoundJobs:
    job = read_json(folder / "job.json") or {}
    job_id = job.get("job_id")
    if not isinstance(job_id, str):
        raise ConfigError("job.json names no job UUID")
    body = read_capped(folder / "service.json", FILE_BYTES_MAX, ConfigError)
    stored = msgspec.json.decode(body, type=StoredJob)
    return FoundJobs(JournalFile(folder), job_id, stored, read_end(folder))
