"""The jobs of several controllers in one PostgreSQL. A controller manages those whose leases it has.

<state>/lock                  held (flock) by the one controller of this folder
<state>/postgres-controller   which start of it had the leases: the next one gives them back, so that no lease has to run out
<state>/job-files/<job>/      what this controller keeps of a job beside its journal: readings of agents
"""

import contextlib
import logging
import math
import secrets
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rankmend.clock import Clock, read_boot_id
from rankmend.errors import ConfigError, JournalError, RankmendError
from rankmend.files import read_if_there, replace_file
from rankmend.own_folder import make_private
from rankmend.packages import Extra, require
from recovery.api.wire import Join
from recovery.journal.journal_reader import JournalReader
from recovery.journal.postgres.database import (
    ANSWER_S_MAX,
    CommitUnknownError,
    Database,
    Row,
    StatementRefusedError,
)
from recovery.journal.postgres.database_url import read_database_url
from recovery.journal.postgres.desk_journal import DeskJournal
from recovery.journal.postgres.group_commit import GroupCommit
from recovery.journal.postgres.leases import HeldByOtherError, JournalLease, Leases
from recovery.journal.postgres.migration import check_schema
from recovery.journal.postgres.postgres_journal import (
    AppendGroup,
    HoldBack,
    PostgresJournal,
    read_entries,
    reading,
    written,
)
from recovery.journal.postgres.spread import Deafness, choose_controller, choose_leaving
from recovery.journal.records import Entry, NewerRecordError
from recovery.journal.stored_journal import StoredJournal, Written
from recovery.service.controller_config import Config, controller_base, fingerprint_of
from recovery.service.fleet.reader import FleetReader
from recovery.service.http.request_errors import CallConflictError
from recovery.service.jobs.job_store import (
    ControllerFleet,
    Ended,
    FoundJobs,
    StoredJob,
    encode_over,
)
from recovery.service.jobs.job_takeover import JobTakeover, TakenJob
from recovery.service.jobs.stored_jobs import StateFolder
from recovery.service.shared_words import PostgresWords
from recovery.service.sign_in.console_sessions import PostgresSessions

log = logging.getLogger(__name__)

CLUSTER: Final = "cluster"
_FOLDERS: Final = "job-files"
_MARK: Final = "postgres-controller"
_MARK_BYTES_MAX: Final = 100
_UNIQUE: Final = "23505"
_LOOK_S: Final = 0.2
_MORE_S: Final = (
    0.02  # between two lots of jobs that are taken over: the deciding thread gets its turn
)
_COLUMNS: Final = (
    "SELECT j.job_id, j.stored, j.ended FROM rankmend.job j JOIN rankmend.journal n ON n.job_id = j.job_id"
    " WHERE j.stored <> ''"
)
_LIVING: Final = (
    "SELECT controller_id, started_at < clock_timestamp() - make_interval(secs => %s * lease_s),"
    " extract(epoch FROM expires_at - clock_timestamp())::float8"
    " FROM rankmend.controller WHERE rankmend.is_alive(controller_id)"
)
_HELD: Final = (
    "SELECT n.job_id, n.holder FROM rankmend.journal n JOIN rankmend.job j ON j.job_id = n.job_id"
    " WHERE j.ended IS NULL AND n.holder IS NOT NULL"
)
_HOLDER: Final = (
    "SELECT c.name, c.url, extract(epoch FROM c.expires_at - clock_timestamp())::float8 FROM rankmend.journal n"
    " JOIN rankmend.controller c ON c.controller_id = n.holder"
    " WHERE n.name = %s AND n.holder <> %s AND rankmend.is_alive(n.holder)"
)
_END_SLACK_S: Final = 0.02  # behind the end of another controller's leases
_SETTLED_LEASES: Final = 3  # a controller that dies again and again is given no jobs of others
_LOOKS_MAX: Final = (
    5  # a second each: then anybody takes a job that its own controller has not taken
)
_FREE: Final = "(n.holder IS NULL OR n.holder = %s OR NOT rankmend.is_alive(n.holder))"


@dataclass(frozen=True, slots=True)
class _SeenControllers:
    living: list[uuid.UUID]
    settled: list[uuid.UUID]  # that have lived for a while
    next_end_s: float  # until the leases of another one end, unless it renews them


@dataclass(frozen=True, slots=True)
class JournalRows:
    """A journal in the database, for readers."""

    database: Database
    name: str
    folder: Path  # of this controller, for what it keeps of the job beside the journal

    def read(self) -> tuple[Entry, ...]:
        return read_entries(self.database, self.name)

    def reading(self) -> contextlib.AbstractContextManager[JournalReader]:
        return reading(self.database, self.name)


class LeasedJob:
    """A job whose lease this controller took."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        job_id: uuid.UUID,
        taken: TakenJob,
        folder: Path,
        leave: Callable[[uuid.UUID], None],
        hold_back: HoldBack | None,
    ) -> None:
        """``folder``: of this controller, for what it keeps of the job. ``leave``: called where only a newer one can manage it.
        ``hold_back``: see `open_journal`.
        """
        self._folder = folder
        self._leave = leave
        self._database = database
        self._leases = leases
        self.job_id = job_id
        self._lease = taken.lease
        self._read = taken.read
        self._hold_back = hold_back
        self._holding: PostgresJournal | None = None  # holds its records back
        self._is_fresh = True

    @property
    def stored_journal(self) -> JournalRows:
        return JournalRows(self._database, self._lease.journal, self._folder)

    def open_journal(self, clock: Clock, *, uses_snapshot: bool = False) -> PostgresJournal:
        """Open the journal under a lease that nothing was written with yet.

        The first one of a job that is opened together with others holds its records back until `PostgresJobs.write_held`.
        """
        if not self._is_fresh:
            self._lease = self._leases.take(self._lease.journal)
        self._is_fresh = False
        read, self._read = self._read, None
        try:
            journal = PostgresJournal(
                self._database,
                self._leases,
                self._lease,
                clock,
                read_boot_id(),
                read=read,
                uses_snapshot=uses_snapshot,
            )
        except NewerRecordError as error:
            log.error(  # noqa: TRY400 - the text says it all
                "job left to a newer controller",
                extra={"job_id": str(self.job_id), "error": str(error)},
            )
            self._leave(self.job_id)
            raise HeldByOtherError(self._lease.journal, "any newer host", "", 0.0) from error
        hold_back, self._hold_back = self._hold_back, None
        if hold_back is not None:
            journal.hold_back(hold_back)
            self._holding = journal
        return journal

    def write_again(self) -> None:
        """Hold nothing back any more."""
        self._hold_back = None
        if self._holding is not None:
            self._holding.hold_back(None)
            self._holding = None

    def save(self, stored: StoredJob) -> None:
        rows = self._database.read(
            "SELECT stored FROM rankmend.job WHERE job_id = %s", (self.job_id,)
        )
        self._write("save_job", encode_over(stored, bytes(rows[0][0]) if rows else b""))

    def save_end(self, ended: Ended) -> None:
        self._write("end_job", msgspec.json.encode(ended))

    def _write(self, function: str, body: bytes) -> None:
        write_again(
            self._database,
            f"SELECT rankmend.{function}(%s, %s, %s, %s)",
            (self.job_id, self._leases.controller_id, self._lease.epoch, body),
        )

    def close(self) -> None:
        self._leases.release(self._lease)


class PostgresJobs:
    def __init__(
        self, folder: StateFolder, config: Config, clock: Clock, leases: Leases | None = None
    ) -> None:
        """Connect, and take part; ``folder`` is closed with it. ``leases``: in place of the configured ones."""
        self._folder = folder
        self._leases = leases or _make_leases(config, clock)
        self._database = self._leases.database
        self._leases.on_renewed = self._look_for_freed
        self._leases.gives_back = self._is_deaf
        self._clock = clock
        self._deafness = Deafness(self._leases.lease_s)
        self._silent_s: float | None = None
        self._others = 0  # controllers that live beside this one
        self._takeover = JobTakeover(self._database, self._leases)
        self._group = AppendGroup(self._database, self._leases)
        self._together: list[LeasedJob] = []  # that hold their records back
        self.peer_secret = secrets.token_urlsafe(32)
        self._fleet = FleetReader(
            self._database,
            self._leases.controller_id,
            self._decode,
            has_thread=self._leases.has_thread,
        )
        self._lock = threading.Lock()
        self._leaving: frozenset[str] = frozenset()
        self._newer: set[uuid.UUID] = set()  # jobs that only a newer controller can manage
        self._waited: dict[uuid.UUID, int] = {}  # for how many looks a job has been free
        make_private(self.path / _FOLDERS, ConfigError)
        self._database.open()
        try:
            check_schema(self._database)
            self._leases.begin()
            self._end_former()
            self.tell_peers(config)
            self._fleet.start()
        except BaseException:
            self._leases.end()
            self._database.close()
            raise

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def leases(self) -> Leases:
        return self._leases

    def dating(self, _clock: Clock) -> Clock:
        return self._leases.clock

    @property
    def words(self) -> PostgresWords:
        return PostgresWords(self._database, self._leases.controller_id)

    @property
    def sessions(self) -> PostgresSessions:
        return PostgresSessions(self._database)

    @property
    def generation(self) -> int:
        return self._leases.generation

    def away_s(self) -> float | None:
        return self._database.away_s

    @property
    def fleet(self) -> ControllerFleet:
        return self._fleet.fleet

    def tell_peers(self, config: Config) -> None:
        write_again(
            self._database,
            "SELECT rankmend.tell_peers(%s, %s, %s)",
            (self._leases.controller_id, self.peer_secret, fingerprint_of(config)),
        )

    def _end_former(self) -> None:
        """Give back what an earlier start on this folder held: it is dead, since the folder's lock is ours."""
        mark = self.path / _MARK
        body = read_if_there(mark, _MARK_BYTES_MAX, ConfigError)
        with contextlib.suppress(ValueError, RankmendError):
            former = uuid.UUID((body or b"").decode("ascii", "replace"))
            self._database.write("SELECT rankmend.end_controller(%s)", (former,))
        replace_file(mark, str(self._leases.controller_id).encode(), ConfigError)

    def find(self) -> tuple[list[FoundJobs], list[str]]:
        """Return all jobs that have ended, and of the free ones those that are this controller's by the spread."""
        self._remove_stale()
        rows = self._database.read(
            f"{_COLUMNS} AND (j.ended IS NOT NULL OR {_FREE})", (self._leases.controller_id,)
        )
        living = self._read_controllers().living
        found, problems = self._decode(
            [row for row in rows if row[2] is not None or self._is_ours(row[0], living)]
        )
        self._takeover.expect(found)
        return found, problems

    def _remove_stale(self) -> None:
        """Remove what this controller keeps of jobs that another one has removed."""
        known = {str(row[0]) for row in self._database.read("SELECT job_id FROM rankmend.job")}
        for folder in (self.path / _FOLDERS).iterdir():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def find_one(self, owner: str, join: Join) -> FoundJobs | None:
        rows = self._database.read(f"{_COLUMNS} AND j.owner = %s AND j.key = %s", (owner, join.key))
        found, problems = self._decode(rows)
        if problems:
            raise JournalError(problems[0])
        return found[0] if found else None

    def refuse_held(self, found: FoundJobs) -> None:
        name = f"job:{found.job_id}"
        for host, url, left_s in self._database.read(_HOLDER, (name, self._leases.controller_id)):
            raise HeldByOtherError(name, host, url, left_s)

    def freed(self) -> list[FoundJobs]:
        return self._takeover.ready()

    def give_up(self, found: FoundJobs) -> None:
        self._takeover.give_up(found.job_id)

    def _look_for_freed(self) -> float:
        """Take jobs whose controller has gone, and return when to look again at the latest.

        For the leases' thread, so that the deciding one needn't wait.
        """
        rows = self._database.read(
            f"{_COLUMNS} AND j.ended IS NULL AND n.holder IS DISTINCT FROM %s AND {_FREE}",
            (self._leases.controller_id, self._leases.controller_id),
        )
        seen = self._read_controllers()
        self._others = len(set(seen.living) - {self._leases.controller_id})
        held: dict[uuid.UUID, uuid.UUID] = {}
        if len(seen.settled) > 1:
            held = dict(self._database.read(_HELD))
        leaving = choose_leaving(held, self._leases.controller_id, seen.settled)
        with self._lock:
            self._leaving = frozenset(str(job_id) for job_id in leaving)
        ours = [row for row in rows if self._is_ours(row[0], seen.living)]
        self._waited = {row[0]: self._waited.get(row[0], 0) + 1 for row in rows}
        found, problems = self._decode(ours)
        for problem in problems:
            log.error("cannot take a job over", extra={"error": problem})
        if self._takeover.prepare(found):
            return _MORE_S
        return seen.next_end_s

    def note_silence(self, silent_s: float | None) -> None:
        with self._lock:
            self._silent_s = silent_s

    def note_join(self) -> None:
        with self._lock:
            self._deafness.hear()

    def _is_deaf(self) -> bool:
        """Return whether the leases are to be given back, as no launcher gets through. For the leases' thread."""
        with self._lock:
            was_deaf, silent_s = self._deafness.is_deaf, self._silent_s
            is_deaf = self._deafness.observe(self._clock.now_s(), silent_s, self._others)
        if is_deaf and not was_deaf:
            log.error(
                "no launcher gets through to this controller; it leaves its jobs to the others. Check its network and [postgres] url",
                extra={"silent_s": silent_s, "others": self._others},
            )
        return is_deaf

    @property
    def leaving(self) -> frozenset[str]:
        """Return the jobs of this controller that others are to have."""
        with self._lock:
            return self._leaving

    def _read_controllers(self) -> _SeenControllers:
        rows = self._database.read(_LIVING, (_SETTLED_LEASES,))
        others_s = [row[2] for row in rows if row[0] != self._leases.controller_id]
        return _SeenControllers(
            [row[0] for row in rows],
            [row[0] for row in rows if row[1]],
            max(0.0, min(others_s, default=math.inf)) + _END_SLACK_S,
        )

    def _is_ours(self, job_id: uuid.UUID, living: list[uuid.UUID]) -> bool:
        """Return whether this controller is to take a free job: it is its own by the spread, or its own one does not come."""
        if job_id in self._newer:
            return False
        chosen = choose_controller(job_id, living)
        return chosen == self._leases.controller_id or self._waited.get(job_id, 0) >= _LOOKS_MAX

    def _decode(self, rows: list[Row]) -> tuple[list[FoundJobs], list[str]]:
        found, problems = [], []
        for job_id, stored, ended in rows:
            try:
                found.append(
                    FoundJobs(
                        JournalRows(self._database, _name(job_id), self._folder_of(job_id)),
                        str(job_id),
                        msgspec.json.decode(stored, type=StoredJob),
                        None if ended is None else msgspec.json.decode(ended, type=Ended),
                    )
                )
            except msgspec.DecodeError as error:
                problems.append(f"job {job_id} in {self._database.url}: {error}")
        return found, problems

    def open(
        self, owner: str, join: Join, _unix_s: float, *, is_together: bool = False
    ) -> LeasedJob:
        """Make or find a job and take its lease, or raise HeldByOtherError."""
        job_id = self._takeover.known_id(owner, join.key)
        if job_id is None:
            known = self._database.read(
                "SELECT job_id FROM rankmend.job WHERE owner = %s AND key = %s", (owner, join.key)
            )
            job_id = known[0][0] if known else self._add(owner, join)
        if job_id in self._newer:
            raise JournalError(
                f"job {job_id} was managed by a newer rankmend, which alone reads its journal; try again"
            )
        folder = self._folder_of(job_id)
        make_private(folder, ConfigError)
        hold_back = self._group.add if is_together else None
        with self._takeover.opening(job_id) as taken:
            job = LeasedJob(
                self._database, self._leases, job_id, taken, folder, self._newer.add, hold_back
            )
        if is_together:
            self._together.append(job)
        return job

    def write_held(self) -> dict[str, Exception]:
        failed = self._group.write()
        together, self._together = self._together, []
        for job in together:
            job.write_again()
        return {name.removeprefix("job:"): error for name, error in failed.items()}

    def _add(self, owner: str, join: Join) -> uuid.UUID:
        wanted = uuid.UUID(join.job_id) if join.job_id is not None else uuid.uuid4()
        try:
            ((job_id,),) = write_again(
                self._database,
                "SELECT rankmend.add_job(%s, %s, %s, '')",
                (wanted, owner, join.key),
            )
        except StatementRefusedError as error:
            if error.sqlstate == _UNIQUE:
                raise CallConflictError(
                    f"job {wanted} is known under another key or owner", "job_id", str(wanted)
                ) from error
            raise
        assert isinstance(job_id, uuid.UUID), "a column of that type"
        return job_id

    def _folder_of(self, job_id: uuid.UUID) -> Path:
        return self.path / _FOLDERS / str(job_id)

    def remove(self, found: FoundJobs) -> None:
        write_again(
            self._database,
            "SELECT rankmend.remove_job(%s, %s)",
            (uuid.UUID(found.job_id), self._leases.controller_id),
        )
        shutil.rmtree(found.journal.folder, ignore_errors=True)

    def committer(self, clock: Clock, note_commit: Callable[[float], None]) -> GroupCommit:
        group = GroupCommit(self._database, clock, note_commit)
        self._leases.yields = group.has_decisions
        return group

    def open_cluster(self, clock: Clock) -> PostgresJournal:
        lease = JournalLease(CLUSTER, 0)
        return PostgresJournal(
            self._database, self._leases, lease, clock, read_boot_id(), is_shared=True
        )

    def read_cluster(self) -> tuple[Entry, ...]:
        return read_entries(self._database, CLUSTER)

    def written(self, journals: Sequence[StoredJournal]) -> list[Written]:
        names = []
        for journal in journals:
            assert isinstance(journal, JournalRows), "of this database"
            names.append(journal.name)
        return written(self._database, names)

    def open_desk(self, name: str, clock: Clock) -> tuple[DeskJournal, DeskJournal]:
        journal = DeskJournal(self._database, self._leases, name, clock, read_boot_id())
        return journal, journal

    def lease_left_s(self) -> float:
        return self._leases.left_s()

    def close(self) -> None:
        self._fleet.stop()
        self._leases.end()
        self._database.close()
        self._folder.close()


def _make_leases(config: Config, clock: Clock) -> Leases:
    require(Extra.POSTGRES, f'the journal "{config.journal}"')
    assert config.journal is not None, "configured"
    url = read_database_url(config.journal, config.postgres.password_file)
    lease_s = config.postgres.lease_s
    database = Database(
        url,
        clock,
        accept_loss=config.postgres.accept_loss,
        answer_s_max=answer_s_of(lease_s),
    )
    return Leases(
        database,
        clock,
        lease_s=lease_s,
        url=controller_base(config, socket.gethostname()),
    )


def answer_s_of(lease_s: float) -> float:
    """Return how long a statement may take: half of the lease, so that a slow disk is no server that is away where people raise the lease."""
    return max(ANSWER_S_MAX, lease_s / 2)


def write_again(database: Database, statement: str, values: tuple[object, ...]) -> list[Row]:
    """Run a write that does no harm twice, a second time where nobody knows what came of the first."""
    try:
        return database.write(statement, values)
    except CommitUnknownError:
        pass
    try:
        database.probe()
        return database.write(statement, values)
    except CommitUnknownError as error:
        raise JournalError(str(error)) from error


def _name(job_id: uuid.UUID) -> str:
    return f"job:{job_id}"
