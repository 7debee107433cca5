"""A job's state folder: how rankmend recognises a job, and which process holds it.

<state>/jobs/<name>-<hash of the key>/
    job.json     its UUID, key and name; written once
    lock         held (flock) by the one launcher that runs the job
    run.json     the launcher that runs it now, for `rankmend status`
    decide.sock  where people reach that launcher (recovery.launcher.run.job_door)
    journal.db   recovery.journal.store
    alive        when its launcher was last alive (recovery.journal.folder.heartbeat)
    incidents/   evidence, a folder an incident and attempt (recovery.launcher.evidence)
"""

import contextlib
import fcntl
import itertools
import json
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISREG
from typing import Any

from rankmend.errors import ConfigError, JobHeldError, LaunchError, RankmendError
from rankmend.files import read_if_there, replace_file
from rankmend.own_folder import make_private, refuse_foreign_link
from recovery.journal.folder.job_key import JobKey

_JSON_BYTES_MAX = 65536
NAMES_READ_MAX = 500  # at the first start of a job; each takes 0.05 ms
INSTANCES_MAX = 1024  # jobs of one command line that run on a node at the same time


@dataclass(frozen=True, slots=True)
class JobFolder:
    """A job's state folder, locked for the life of this object's process."""

    path: Path
    job_id: uuid.UUID
    key: JobKey
    lock_descriptor: int

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def incidents(self) -> Path:
        """Return the folder with the evidence of the job's incidents (docs/operate/incidents.md)."""
        return self.path / "incidents"

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Record for `rankmend status` which process runs the job, and where its ranks report."""
        replace_file(self.path / "run.json", json.dumps(run, indent=1).encode(), LaunchError)


def open_job(
    state: Path, key: JobKey, known_id: uuid.UUID | None, started_unix_s: float
) -> JobFolder:
    """Make or open the job's folder and lock it.

    ``known_id`` is the UUID found beside the checkpoints: a job whose state folder was lost
    with its node keeps its identity and its budgets. Where nobody chose the key, a job that runs
    under it already is another one: this one gets the next free instance of the key.
    """
    for number in range(1, INSTANCES_MAX if key.is_derived else 1):
        with contextlib.suppress(JobHeldError):
            return _open(state, key.instance(number), known_id, started_unix_s)
    number = INSTANCES_MAX if key.is_derived else 1
    return _open(state, key.instance(number), known_id, started_unix_s)


def _open(state: Path, key: JobKey, known_id: uuid.UUID | None, started_unix_s: float) -> JobFolder:
    path = state / "jobs" / key.folder_name
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_foreign_link(state, LaunchError)
        if state.stat().st_uid != os.getuid():
            raise LaunchError(f"the state folder {state} belongs to uid {state.stat().st_uid}")
        for folder in (path.parent, path):
            make_private(folder, LaunchError)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(path / "lock", flags, 0o600)
    except OSError as error:
        raise LaunchError(
            f"cannot use the state folder {path}: {error.strerror}; give one that you may write to with --state-dir or "
            "RANKMEND_STATE_DIR"
        ) from error
    try:
        _take_lock(lock, path, key)
        job_id, name = _read_or_make_id(path / "job.json", key, known_id, started_unix_s)
        key = replace(key, name=name)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return JobFolder(path, job_id, key, lock)


def _take_lock(lock: int, path: Path, key: JobKey) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 256, 0).decode("utf-8", "replace").strip() or "unknown"
        raise JobHeldError(
            f"the job {key.name!r} runs already, held by {holder} ({path}). A job is recognised by "
            f"{key.reason}: stop the other one, or {key.remedy}"
        ) from error


def _read_or_make_id(
    job_file: Path, key: JobKey, known_id: uuid.UUID | None, made_unix_s: float
) -> tuple[uuid.UUID, str]:
    """Return the job's UUID and its name; a name that nobody chose stays as it was at the first start."""
    found = read_json(job_file)
    if found is None:
        job_id = known_id or uuid.uuid4()
        name = (
            free_name(key.name, _names_in(job_file.parent.parent))
            if key.is_default_name
            else key.name
        )
        body = {"job_id": str(job_id), "key": key.text, "name": name, "made": made_unix_s}
        replace_file(job_file, json.dumps(body, indent=1).encode(), LaunchError)
        return job_id, name
    retained = found.get("name")
    name = retained if key.is_default_name and isinstance(retained, str) and retained else key.name
    try:
        return uuid.UUID(str(found["job_id"])), name
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{job_file} names no job UUID: restore or remove it") from error


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with the lowest number behind it where another job has it already."""
    if name not in taken:
        return name
    return next(
        numbered for number in itertools.count(2) if (numbered := f"{name}-{number}") not in taken
    )


def _names_in(folder: Path) -> set[str]:
    """Return the names of the newest jobs in a folder; one that can't be read has none."""
    names = set()
    try:
        newest = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return set()
    for path in newest[:NAMES_READ_MAX]:
        with contextlib.suppress(RankmendError):
            names.add(str((read_json(path / "job.json") or {}).get("name")))
    return names


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a small JSON object of ours, or None if the file doesn't exist (yet)."""
    body = read_if_there(path, _JSON_BYTES_MAX, LaunchError)
    if body is None:
        return None
    try:
        value = json.loads(body)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return value


def is_held(folder: Path) -> bool:
    """Return whether a launcher runs the job of this state folder now."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def list_folders(state: Path) -> list[Path]:
    """Return the state folders of all jobs, newest first; those that this node hosts included.

    A folder that this user may not open is among them: the caller reports that.
    """
    return _list(state, ("jobs/*", "hosts/*/*/jobs/*"))


def _list(state: Path, patterns: Sequence[str]) -> list[Path]:
    try:
        found = [path for pattern in patterns for path in state.glob(pattern)]
        folders = [path for path in found if _may_hold_job(path)]
        return sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def _may_hold_job(folder: Path) -> bool:
    try:
        return S_ISREG((folder / "job.json").stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def find_jobs(state: Path, wanted: str | None) -> list[Path]:
    """Return the folders of the jobs whose name, UUID or folder begins with ``wanted``."""
    return _named(list_folders(state), wanted)


def find_launchers(state: Path, wanted: str | None) -> list[Path]:
    """Return the folders in which launchers of these jobs tell what they run here, newest first.

    A launcher of a job of several nodes has one of its own, without the job's journal.
    """
    return _named(_list(state, ("jobs/*", "nodes/*/jobs/*")), wanted)


def _named(folders: list[Path], wanted: str | None) -> list[Path]:
    if wanted is None:
        return folders
    found = []
    for folder in folders:
        job = read_quietly(folder / "job.json")  # a damaged one hides no other job
        names = (str(job.get("name", "")), str(job.get("job_id", "")), folder.name)
        if any(name.startswith(wanted) for name in names):
            found.append(folder)
    return found


def read_quietly(path: Path) -> dict[str, object]:
    """Return what a file of a job says; nothing where it is missing or damaged."""
    try:
        return read_json(path) or {}
    except RankmendError:
        return {}
