"""Moves the journals and jobs of a state folder to PostgreSQL, record by record, checksums included.

The folder is locked meanwhile: its controller is stopped. A move that was cut off is started again and goes on where it
ended: what the database has must be the beginning of what the folder has. Only once all of it is there and has been
read back is the folder marked as moved, and no controller decides from it any more.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import SystemClock
from rankmend.errors import ConfigError, JournalError
from rankmend.files import replace_file
from recovery.journal.journal_rows import JournalRow
from recovery.journal.postgres.database import CommitUnknownError, Database, LeaseLostError
from recovery.journal.postgres.database_url import read_database_url
from recovery.journal.postgres.leases import JournalLease, Leases
from recovery.journal.postgres.migration import check_schema
from recovery.journal.postgres.postgres_journal import append_rows, read_rows
from recovery.journal.store import read_sound_rows
from recovery.journal.stored_journal import JournalFile
from recovery.service.controller_config import load
from recovery.service.jobs.job_store import DESKS, FoundJobs
from recovery.service.jobs.postgres_jobs import CLUSTER, write_again
from recovery.service.jobs.stored_jobs import MOVED, StateFolder

_BATCH: Final = 2_000  # rows: some 2 MB in one statement


@dataclass(frozen=True, slots=True)
class MovedJournal:
    name: str
    records: int  # that the folder has
    copied: int  # by this move; the others were there already


@dataclass(frozen=True, slots=True)
class MoveReport:
    jobs_running: int
    jobs_ended: int
    journals: tuple[MovedJournal, ...]
    is_dry: bool


class JournalMove:
    def __init__(
        self,
        folder: StateFolder,
        database: Database,
        leases: Leases,
        *,
        is_dry: bool,
        on_journal: Callable[[MovedJournal], None] = lambda _moved: None,
    ) -> None:
        """``leases`` have begun; with ``is_dry`` everything is read and compared, and nothing written."""
        self._folder = folder
        self._database = database
        self._leases = leases
        self._is_dry = is_dry
        self._on_journal = on_journal

    def run(self) -> MoveReport:
        """Move all, or raise with what stands in the way: what was moved until then stays, and does no harm."""
        found, problems = self._folder.find()
        if problems:
            raise ConfigError(f"not every job of {self._folder.path} can be read: {problems[0]}")
        moved = [self._move_shared(CLUSTER, self._folder.cluster / "journal.db")]
        for name in DESKS:
            desk = self._folder.path / name / "journal.db"
            if desk.is_file():
                moved.append(self._move_shared(name, desk))
        moved += [self._move_job(job) for job in found]
        if not self._is_dry:
            self._mark()
        running = sum(job.ended is None for job in found)
        return MoveReport(running, len(found) - running, tuple(moved), self._is_dry)

    def _move_shared(self, name: str, path: Path) -> MovedJournal:
        rows = read_sound_rows(path) if path.is_file() else []
        lease = JournalLease(name, 0)
        if name != CLUSTER and not self._is_dry:
            lease = self._leases.take(name)
        moved = self._copy(lease, rows)
        if name != CLUSTER and not self._is_dry:
            self._leases.release(lease)
        return moved

    def _move_job(self, job: FoundJobs) -> MovedJournal:
        assert isinstance(job.journal, JournalFile), "found in a folder"
        path = job.journal.path
        # none: killed before its first record
        rows = read_sound_rows(path) if path.is_file() else []
        name = f"job:{job.job_id}"
        if self._is_dry:
            return self._copy(JournalLease(name, 0), rows)
        stored = msgspec.json.encode(job.stored)
        ((retained,),) = write_again(
            self._database,
            "SELECT rankmend.add_job(%s, %s, %s, '')",
            (uuid.UUID(job.job_id), job.stored.owner, job.stored.join.key),
        )
        if str(retained) != job.job_id:
            raise ConfigError(
                f"{self._database.url} has another job, {retained}, under the key and owner of job {job.job_id} "
                f"({job.stored.join.name})"
            )
        lease = self._leases.take(name)
        moved = self._copy(lease, rows)
        held = (retained, self._leases.controller_id, lease.epoch)
        write_again(self._database, "SELECT rankmend.save_job(%s, %s, %s, %s)", (*held, stored))
        if job.ended is not None:
            body = msgspec.json.encode(job.ended)
            write_again(self._database, "SELECT rankmend.end_job(%s, %s, %s, %s)", (*held, body))
        self._leases.release(lease)
        return moved

    def _copy(self, lease: JournalLease, rows: Sequence[JournalRow]) -> MovedJournal:
        there = read_rows(self._database, lease.journal)
        if list(rows[: len(there)]) != there:
            raise ConfigError(
                f"{lease.journal} in {self._database.url} is not the beginning of the one in {self._folder.path}: "
                f"another controller has written it. Move to an empty database"
            )
        for first in range(len(there), len(rows), _BATCH):
            if not self._is_dry:
                self._append(lease, rows[first : first + _BATCH])
        if not self._is_dry and read_rows(self._database, lease.journal) != list(rows):
            raise JournalError(f"{lease.journal} in {self._database.url} is not what was written")
        moved = MovedJournal(lease.journal, len(rows), len(rows) - len(there))
        self._on_journal(moved)
        return moved

    def _append(self, lease: JournalLease, rows: Sequence[JournalRow]) -> None:
        try:
            append_rows(self._database, self._leases.controller_id, lease, rows)
        except (CommitUnknownError, LeaseLostError) as error:
            raise JournalError(
                f"{lease.journal} was not copied to its end: {error}. Run the move again: it continues from there"
            ) from error

    def _mark(self) -> None:
        text = f"{self._database.url}\n"
        replace_file(self._folder.path / MOVED, text.encode(), ConfigError)


def move(path: Path, *, is_dry: bool, tell: Callable[[str], None]) -> MoveReport:
    """Move what the controller with this configuration keeps in its state folder; ``tell`` gets a line a journal."""
    config = load(path)
    if config.journal is None:
        raise ConfigError(
            f'{path} has no journal = "postgresql://...": set where the journals move to'
        )
    clock = SystemClock()
    folder = StateFolder(Path(config.state_dir))
    try:
        url = read_database_url(config.journal, config.postgres.password_file)
        database = Database(url, clock, accept_loss=config.postgres.accept_loss)
        database.open()
        leases = Leases(database, clock, lease_s=config.postgres.lease_s)
        try:
            check_schema(database)
            leases.begin()
            return JournalMove(
                folder,
                database,
                leases,
                is_dry=is_dry,
                on_journal=lambda item: tell(
                    f"{item.name}: {item.records} records, {item.copied} of them new there"
                ),
            ).run()
        finally:
            leases.end()
            database.close()
    finally:
        folder.close()
