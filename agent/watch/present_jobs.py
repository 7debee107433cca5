"""Which jobs of our own launchers run on this node, and which have left it within ten minutes, over a restart of the agent or the node.

The word says that a job ran here when its launchers blame the node (docs/operate/security.md, "Whose word counts"). A job often leaves a
node before it blames it, and a node boots because of the fault for which it is blamed. So the agent reports a job that has left, too,
with its age, and keeps all of it in one small file of its ``state_dir``.

Ages are monotonic within a boot. Over a reboot the wall clock counts, and the time since the boot at least: no word becomes younger. If the
wall clock has stepped back, nobody knows the age, and nothing is reported.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agent.ranks.watched import user_name
from rankmend.clock import Clock, read_boot_id
from rankmend.errors import StorageError
from rankmend.files import read_if_there, replace_file
from rankmend.watched_report import LEFT_S, PRESENT_MAX, LeftJob, PresentJob

log = logging.getLogger(__name__)

FILE_NAME: Final = "present-jobs.json"
_BYTES_MAX: Final = 65_536  # 128 jobs of 400 bytes
_JOBS_MAX: Final = 2 * PRESENT_MAX  # those that run and those that have left
_TEXT_MAX: Final = 256


class SeenJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job and its user, with the time of CLOCK_MONOTONIC at which its launcher last showed ranks here."""

    job: PresentJob
    seen_s: float


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boot_id: str
    seen: tuple[SeenJob, ...]
    # When it was saved. An older agent wrote none: then it counts for its boot only.
    now_s: float | None = None
    unix_s: float | None = None


class PresentJobsFile:
    def __init__(self, path: Path, clock: Clock, boot_id: str | None = None) -> None:
        self._path = path
        self._clock = clock
        self._boot_id = read_boot_id() if boot_id is None else boot_id

    def load(self) -> tuple[SeenJob, ...]:
        """Return the jobs that were here within ten minutes, by this boot's clock. A broken file says nothing."""
        try:
            body = read_if_there(self._path, _BYTES_MAX, StorageError)
            if body is None:
                return ()
            saved = msgspec.json.decode(body, type=_Saved)
        except (StorageError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            fields = {"path": str(self._path), "error": str(error)}
            log.warning("saved list of jobs on this node ignored", extra=fields)
            return ()
        now_s, shift_s = self._clock.now_s(), self._shift_s(saved)
        if shift_s is None:
            return ()
        shifted = (msgspec.structs.replace(job, seen_s=job.seen_s + shift_s) for job in saved.seen)
        return tuple(job for job in shifted if 0.0 <= now_s - job.seen_s <= LEFT_S)

    def _shift_s(self, saved: _Saved) -> float | None:
        """Return what to add to saved times, which are by the clock of their boot; None: not known."""
        if saved.boot_id == self._boot_id:
            return 0.0
        if saved.now_s is None or saved.unix_s is None:
            return None
        passed_s, now_s = self._clock.unix_s() - saved.unix_s, self._clock.now_s()
        if passed_s < 0.0:
            return None
        return now_s - max(passed_s, now_s) - saved.now_s

    def save(self, seen: Iterable[SeenJob]) -> None:
        """Replace the file, or raise StorageError. Durable: a node that is blamed often dies without a farewell."""
        saved = _Saved(self._boot_id, tuple(seen), self._clock.now_s(), self._clock.unix_s())
        replace_file(self._path, msgspec.json.encode(saved), StorageError, mode=0o600)


@dataclass(frozen=True, slots=True)
class JobsHere:
    """What a report says of our own launchers' jobs."""

    present: tuple[PresentJob, ...] = ()
    left: tuple[LeftJob, ...] = ()

    @property
    def names(self) -> frozenset[tuple[str, int, bool]]:
        """Return what makes one list differ from another, ages left out."""
        running = {(job.job_id, job.uid, True) for job in self.present}
        return frozenset(running | {(job.job_id, job.uid, False) for job in self.left})


NO_JOBS: Final = JobsHere()


class JobsOnNode:
    """For one thread."""

    def __init__(self, file: PresentJobsFile | None) -> None:
        """``file``: None where the agent has no place for what outlives a restart."""
        self._file = file
        loaded = () if file is None else file.load()
        self._seen = {_key(seen.job): seen for seen in loaded}
        self._has_failed = False

    def look(self, owners: Iterable[tuple[uuid.UUID, int]], now_s: float) -> JobsHere:
        """Return the jobs that run here now, and those that did within ten minutes. ``owners``: jobs of launchers, with their users."""
        running: dict[tuple[str, int], SeenJob] = {}
        for job_id, uid in owners:
            if len(running) < PRESENT_MAX:
                job = PresentJob(job_id=str(job_id), uid=uid, user=user_name(uid)[:_TEXT_MAX])
                running[_key(job)] = SeenJob(job, now_s)
        before = {
            key: seen
            for key, seen in self._seen.items()
            if key not in running and now_s - seen.seen_s <= LEFT_S
        }
        self._seen = dict([*before.items(), *running.items()][-_JOBS_MAX:])
        return JobsHere(
            tuple(seen.job for seen in running.values()), _left(before, self._seen, now_s)
        )

    def save(self) -> None:
        """Store what was seen for the next start. Never raises."""
        if self._file is None:
            return
        try:
            self._file.save(self._seen.values())
            self._has_failed = False
        except StorageError as error:
            if not self._has_failed:
                log.warning("list of jobs on this node not saved", extra={"error": str(error)})
            self._has_failed = True


def _left(
    before: Mapping[tuple[str, int], SeenJob],
    retained: Mapping[tuple[str, int], SeenJob],
    now_s: float,
) -> tuple[LeftJob, ...]:
    """Return the newest of the jobs that have left, as many as a report takes."""
    found = [
        LeftJob(
            job_id=seen.job.job_id, uid=seen.job.uid, user=seen.job.user, age_s=now_s - seen.seen_s
        )
        for key, seen in before.items()
        if key in retained
    ]
    return tuple(sorted(found, key=lambda job: job.age_s)[:PRESENT_MAX])


def _key(job: PresentJob) -> tuple[str, int]:
    return job.job_id, job.uid
