"""The jobs of a controller on disk.

<state>/lock               held (flock) by the one controller of this folder
<state>/cluster/           the cluster's journal: drains, pauses, budgets
<state>/jobs/<name>-<hash of owner and key>/
    job.json, lock, journal.db    as `recovery.journal.job_folder` keeps them, for `rankmend status`
    service.json                  owner, what the first launcher said, the job's secret; mode 0600
    ended.json                    how it ended; not there while it runs
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankmend.errors import ConfigError, JobHeldError, LaunchError
from rankmend.files import read_capped, read_if_there, replace_file
from rankmend.foreign_links import make_private, refuse_foreign_link
from recovery.api.wire import Join
from recovery.journal.job_folder import JobFolder, open_job, read_json
from recovery.journal.job_key import JobKey
from recovery.journal.job_records import JobOutcome
from recovery.journal.network_storage import refuse_network_file_system

FILE_BYTES_MAX: Final = 1024 * 1024


class StoredJob(msgspec.Struct, frozen=True):
    """What the controller stores about a job beside its journal."""

    owner: str  # subject of the token
    secret: str
    join: Join  # by the first launcher of the newest run
    # prefix of its incidents' ids; empty from older controllers: the UUID's first block
    incident_prefix: str = ""


class Ended(msgspec.Struct, frozen=True):
    unix_s: float
    outcome: JobOutcome
    runs: list[str]  # that have ended with it
    launchers: list[str]  # that took part: one that joins again does not start the job again


@dataclass(frozen=True, slots=True)
class FoundJobs:
    """A job's folder, as it was found at the start."""

    path: Path
    job_id: str
    stored: StoredJob
    ended: Ended | None


class StateFolder:
    """The controller's state folder, locked as long as this object is open."""

    def __init__(self, path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
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

    def close(self) -> None:
        os.close(self._lock)

    @property
    def cluster(self) -> Path:
        """Where the cluster's journal lies."""
        return self.path / "cluster"

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

    def open(self, owner: str, join: Join, unix_s: float) -> JobFolder:
        """Make or open the folder of a job and lock it."""
        key = job_key(owner, join)
        known = uuid.UUID(join.job_id) if join.job_id is not None else None
        return open_job(self.path, key, known, unix_s)

    def remove(self, path: Path) -> None:
        """Remove an ended job for good."""
        if path.parent != self.path / "jobs" or not (path / "ended.json").is_file():
            raise ConfigError(f"{path} is not an ended job of {self.path}")
        shutil.rmtree(path)


def job_key(owner: str, join: Join) -> JobKey:
    """Return the key under which a job's folder is found: the owner's and the job's own."""
    return JobKey(f"service:{owner}:{join.key}", join.name, "its key and its owner's token")


def new_secret() -> str:
    return secrets.token_hex(32)


def save(folder: Path, stored: StoredJob) -> None:
    """Keep what is known of a job; it is running from now on."""
    replace_file(folder / "service.json", msgspec.json.encode(stored), LaunchError)
    with contextlib.suppress(FileNotFoundError):
        (folder / "ended.json").unlink()


def save_end(folder: Path, ended: Ended) -> None:
    replace_file(folder / "ended.json", msgspec.json.encode(ended), LaunchError)


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
    return FoundJobs(folder, job_id, stored, read_end(folder))
