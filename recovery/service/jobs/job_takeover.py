"""Takes jobs that no controller manages, many at once: their leases by one commit, their journals by one question.

Of a long journal that is the snapshot of its fold and what follows. The thread of the leases does it for the deciding thread, which then only folds what was read: reports needn't wait for
the database. At a start the deciding thread does it itself.
"""

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rankmend.errors import JournalError
from recovery.journal.postgres.database import Database
from recovery.journal.postgres.leases import JournalLease, Leases
from recovery.journal.postgres.postgres_journal import (
    ReadJournal,
    fold_sizes,
    read_journals,
    written,
)
from recovery.service.jobs.job_store import FoundJobs

log = logging.getLogger(__name__)

_RECORDS_MAX: Final = 20_000  # in one question: some 10 MB, and 0.2 s of this process
_RECORD_BYTES: Final = 500  # so a snapshot of a fold counts as so many records
_JOBS_MAX: Final = 200  # in one commit
_WAITING_MAX: Final = 60_000  # records that are read and wait for the deciding thread
_TAKING_S_MAX: Final = 10.0  # a statement ends within 4 s


@dataclass(frozen=True, slots=True)
class TakenJob:
    """A job's lease, and its journal as it was read since; None: that is to be read alone."""

    lease: JournalLease
    read: ReadJournal | None


class JobTakeover:
    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases
        self._taking = threading.Lock()  # no lease is taken here while another thread takes one
        self._lock = threading.Lock()  # of what follows; never held while the database is asked
        self._expected: dict[
            str, FoundJobs
        ] = {}  # that the deciding thread opens one after another
        self._taken: dict[str, TakenJob] = {}  # by job
        self._ids: dict[tuple[str, str], str] = {}  # of these, by owner and key
        self._ready: list[FoundJobs] = []  # of these, what the deciding thread has not heard of

    def expect(self, found: Sequence[FoundJobs]) -> None:
        """Note which free jobs are about to be opened one after another."""
        self._expected = {jobs.job_id: jobs for jobs in found if jobs.ended is None}
        self._ids |= {_key(item): job_id for job_id, item in self._expected.items()}

    def prepare(self, found: Sequence[FoundJobs]) -> bool:
        """Take and read some of these free jobs for `ready`; return whether there are more of them."""
        taken = list(self._taken.values())
        waiting = sum(0 if job.read is None else len(job.read.entries) for job in taken)
        if not found or waiting >= _WAITING_MAX:
            return bool(found)
        first = self._first_of(found)
        ready = self._take(first)
        with self._lock:
            self._ready += ready
        return len(first) < len(found)

    def ready(self) -> list[FoundJobs]:
        """Return the jobs that were prepared since this was asked last."""
        with self._lock:
            found, self._ready = self._ready, []
            return found

    def known_id(self, owner: str, key: str) -> uuid.UUID | None:
        """Return the job of an owner's key if it was found to be free."""
        known = self._ids.get((owner, key))
        return None if known is None else uuid.UUID(known)

    @contextmanager
    def opening(self, job_id: uuid.UUID) -> Iterator[TakenJob]:
        """Give what was taken of a job, or take its lease alone, or raise HeldByOtherError."""
        name = str(job_id)
        if name in self._expected:
            self._take(self._first_of(list(self._expected.values())))
        if not self._taking.acquire(timeout=_TAKING_S_MAX):
            raise JournalError(f"job {name} was not opened: its lease may just be taken; try again")
        try:
            with self._lock:
                taken = self._pop(name)
            yield taken or TakenJob(self._leases.take(f"job:{name}"), None)
        finally:
            self._taking.release()

    def give_up(self, job_id: str) -> None:
        """Give the lease of a job back that was prepared and is not opened."""
        with self._lock:
            taken = self._pop(job_id)
        if taken is not None:
            self._leases.release(taken.lease)

    def _pop(self, job_id: str) -> TakenJob | None:
        self._ids = {key: known for key, known in self._ids.items() if known != job_id}
        return self._taken.pop(job_id, None)

    def _first_of(self, found: Sequence[FoundJobs]) -> list[FoundJobs]:
        """Return the first ones, as many as are read at once."""
        some = found[:_JOBS_MAX]
        names = list(map(_name, some))
        folds = fold_sizes(self._database, names)
        records = 0
        first: list[FoundJobs] = []
        for jobs, known in zip(some, written(self._database, names), strict=True):
            number, size_bytes = folds.get(_name(jobs), (0, 0))
            records += known.extent[0] - number + size_bytes // _RECORD_BYTES
            if first and records > _RECORDS_MAX:
                break
            first.append(jobs)
        return first

    def _take(self, found: Sequence[FoundJobs]) -> list[FoundJobs]:
        """Take and read jobs; return those whose lease nobody had."""
        with self._taking:
            leases = {
                item.journal: item for item in self._leases.take_free(list(map(_name, found)))
            }
            taken = [jobs for jobs in found if _name(jobs) in leases]
            with self._lock:
                self._taken |= {jobs.job_id: TakenJob(leases[_name(jobs)], None) for jobs in taken}
                self._ids |= {_key(jobs): jobs.job_id for jobs in taken}
                for jobs in found:
                    self._expected.pop(jobs.job_id, None)
        try:
            read = read_journals(self._database, list(leases))
        except JournalError as error:  # each is read alone then
            log.warning("journals not read at once", extra={"error": str(error)})
            return taken
        with self._lock:
            for jobs in taken:
                lease, known = leases[_name(jobs)], self._taken.get(jobs.job_id)
                # A launcher's join may have had it opened meanwhile.
                if known is not None and known.lease == lease:
                    self._taken[jobs.job_id] = TakenJob(lease, read.get(lease.journal))
        return taken


def _name(found: FoundJobs) -> str:
    return f"job:{found.job_id}"


def _key(found: FoundJobs) -> tuple[str, str]:
    return found.stored.owner, found.stored.join.key
