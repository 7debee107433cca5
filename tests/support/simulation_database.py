"""A PostgreSQL with rankmend's schema, in memory and under a simulated clock, and the links of controllers to it.

`SimServer` does what the files of `recovery/journal/postgres/schema` say; `tests/recovery/journal/postgres/test_simulated_database.py` holds
both against each other. `SimLink` stands in the place of `recovery.journal.postgres.database.Database`: what it does to a
statement (answer lost, statement lost, late, cut off, refused for a full disk) is drawn from the seed.
"""

import contextlib
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from recovery.journal.journal_rows import JournalRow
from recovery.journal.postgres.database import (
    CommitUnknownError,
    DatabaseAwayError,
    StatementRefusedError,
)
from recovery.journal.postgres.leases import (
    _TAKE_FREE,
    _UNIX_S,
    JOURNAL_MOVED,
    LEASE_OVER,
    NO_JOURNAL,
)
from tests.support.simulation_queries import QUERIES

Row = tuple[Any, ...]
DISK_FULL = "53100"
ANSWER_S = 5.0  # after which a controller gives a statement up
PAUSE_S = 0.1
_FUNCTION = re.compile(r"rankmend\.(\w+)\(")
# Calls of functions, and the time.
_CALL = re.compile(
    r"SELECT (\* FROM )?rankmend\.\w+\([^()]*\)(, rankmend\.\w+\([^()]*\))*"
    rf"(?P<clock>, {re.escape(_UNIX_S)})?"
)


@dataclass
class Starter:
    """A row of `controller`: one start of one."""

    name: str
    url: str
    lease_s: float
    started_s: float
    expires_s: float
    peer_secret: str = ""
    certificate: str = ""


@dataclass
class Kept:
    """A row of `journal`, with its records."""

    job_id: uuid.UUID | None = None
    is_shared: bool = False
    holder: uuid.UUID | None = None
    epoch: int = 0
    rows: list[tuple[JournalRow, uuid.UUID, int, float]] = field(default_factory=list)


@dataclass
class KeptJob:
    owner: str
    key: str
    stored: bytes
    ended: bytes | None = None
    version: int = 1  # of the row


class SimServer:
    """``is_fenced`` false: it refuses nothing for a lease, so that a checker can be seen to notice."""

    def __init__(self, now_unix_s: Callable[[], float], *, is_fenced: bool = True) -> None:
        self.now_unix_s = now_unix_s
        self.is_fenced = is_fenced
        self.starters: dict[uuid.UUID, Starter] = {}
        self.jobs: dict[uuid.UUID, KeptJob] = {}
        self.journals = {"cluster": Kept(is_shared=True), "slurm": Kept(), "kubernetes": Kept()}
        self.is_down = False
        self.is_full = False
        self.unknown: list[
            str
        ] = []  # statements that have no answer here: no run with one proves anything

    def ask(self, statement: str, values: Sequence[Any]) -> list[Row]:
        """Carry a statement out as one transaction, and return its rows."""
        query = QUERIES.get(statement)
        if query is not None:
            return query(self, *values)
        if statement == _TAKE_FREE:
            return self._take_free(*values)
        called = _CALL.fullmatch(statement)
        names = _FUNCTION.findall(statement)
        functions = [getattr(self, f"_{name}", None) for name in names]
        if called is None or None in functions or (len(names) > 1 and set(names) != {"append"}):
            raise self._refuse_unknown(statement)
        if names[0] not in ("end_controller", "release"):
            self._demand_space()
        if len(names) > 1:
            return self._append_group(list(values), len(names))
        rows: list[Row] = functions[0](*values)  # type: ignore[misc]
        return [(*row, self.now_unix_s()) for row in rows] if called["clock"] else rows

    def _demand_space(self) -> None:
        if self.is_full:
            raise StatementRefusedError("could not extend file: No space left on device", DISK_FULL)  # fmt: skip

    def _refuse_unknown(self, statement: str) -> AssertionError:
        """Remember a statement that has no answer here, since whoever sent it may swallow the error."""
        self.unknown.append(statement)
        return AssertionError(f"the simulated database does not know this statement: {statement}")

    # Functions of the schema.

    def is_alive(self, asked: uuid.UUID | None) -> bool:
        one = self.starters.get(asked) if asked is not None else None
        now_s = self.now_unix_s()
        return one is not None and now_s < one.expires_s <= now_s + one.lease_s + 1

    def _demand_lease(self, asked: str, by: uuid.UUID, epoch: int) -> Kept:
        kept = self.journals.get(asked)
        if kept is None:
            raise StatementRefusedError(f"there is no journal {asked}", NO_JOURNAL)
        if not self.is_fenced:
            return kept
        if not kept.is_shared and (kept.holder != by or kept.epoch != epoch):
            raise StatementRefusedError(f"the lease of {asked} is over", LEASE_OVER)
        if not self.is_alive(by):
            raise StatementRefusedError("the lease of the controller has expired", LEASE_OVER)
        return kept

    def _append(
        self, asked: str, by: uuid.UUID, epoch: int, after: int, head: bytes | None, *columns: Any
    ) -> list[Row]:
        kept = self._demand_lease(asked, by, epoch)
        newest = kept.rows[-1][0] if kept.rows else None
        number = 0 if newest is None else newest.number
        is_moved = number != after or (
            newest is not None and head is not None and newest.checksum != head
        )
        if is_moved and self.is_fenced:
            raise StatementRefusedError(f"journal {asked} ends at record {number}", JOURNAL_MOVED)
        for place, told in enumerate(zip(*columns, strict=True), 1):
            row = JournalRow(number + place, *told)
            kept.rows.append((row, by, epoch, self.now_unix_s()))
        return [(None,)]

    def _append_group(self, values: list[Any], count: int) -> list[Row]:
        """Carry all appends of one statement out, or none."""
        each = len(values) // count
        before = {name: list(kept.rows) for name, kept in self.journals.items()}
        try:
            for place in range(count):
                self._append(*values[place * each : (place + 1) * each])
        except StatementRefusedError:
            for name, rows in before.items():
                self.journals[name].rows = rows
            raise
        return [(None,) * count]

    def _confirm(self, asked: str, at: int, checksum: bytes) -> list[Row]:
        rows = self.journals[asked].rows if asked in self.journals else []
        return [(0 < at <= len(rows) and rows[at - 1][0].checksum == checksum,)]

    def _begin_controller(
        self, by: uuid.UUID, name: str, url: str, _version: str, lease_s: float
    ) -> list[Row]:
        now_s = self.now_unix_s()
        self.starters.setdefault(by, Starter(name, url, lease_s, now_s, now_s + lease_s))
        return [(None,)]

    def _renew(self, by: uuid.UUID) -> list[Row]:
        is_held = self.is_alive(by)
        if by in self.starters:
            self.starters[by].expires_s = self.now_unix_s() + self.starters[by].lease_s
        if not is_held:
            self._free(by)
        return [(is_held,)]

    def _free(self, by: uuid.UUID) -> None:
        for kept in self.journals.values():
            if kept.holder == by:
                kept.holder = None

    def _take(self, asked: str, by: uuid.UUID) -> list[Row]:
        kept = self.journals.get(asked)
        if kept is None or kept.is_shared:
            raise StatementRefusedError(f"there is no journal {asked} to take", NO_JOURNAL)
        if not self.is_alive(by):
            raise StatementRefusedError("the lease of the controller has expired", LEASE_OVER)
        if kept.holder not in (None, by) and self.is_alive(kept.holder):
            assert kept.holder is not None
            holder = self.starters[kept.holder]
            return [(None, holder.name, holder.url, holder.expires_s - self.now_unix_s())]
        kept.holder = by
        kept.epoch += 1
        return [(kept.epoch, None, None, None)]

    def _take_free(self, taker: uuid.UUID, names: list[str], by: uuid.UUID) -> list[Row]:
        wanted = sorted(name for name in names if name in self.journals)
        free = [name for name in wanted if self.journals[name].holder != by]
        if free:
            self._demand_space()
        return [(name, self._take(name, taker)[0][0]) for name in free]

    def _tell_peers(self, by: uuid.UUID, secret: str, certificate: str) -> list[Row]:
        if by in self.starters:
            self.starters[by].peer_secret, self.starters[by].certificate = secret, certificate
        return [(None,)]

    def _release(self, asked: str, by: uuid.UUID, epoch: int) -> list[Row]:
        kept = self.journals.get(asked)
        if kept is not None and kept.holder == by and kept.epoch == epoch:
            kept.holder = None
        return [(None,)]

    def _end_controller(self, by: uuid.UUID) -> list[Row]:
        self._free(by)
        if by in self.starters:
            self.starters[by].expires_s = self.now_unix_s()
        return [(None,)]

    def _add_job(self, asked: uuid.UUID, owner: str, key: str, stored: bytes = b"") -> list[Row]:
        known = next((i for i, one in self.jobs.items() if (one.owner, one.key) == (owner, key)), None)  # fmt: skip
        if known is None:
            known = asked
            self.jobs[asked] = KeptJob(owner, key, stored)
        self.journals.setdefault(f"job:{known}", Kept(known))
        return [(known,)]

    def _save_job(self, asked: uuid.UUID, by: uuid.UUID, epoch: int, stored: bytes) -> list[Row]:
        self._demand_lease(f"job:{asked}", by, epoch)
        self._keep(asked, stored, None)
        return [(None,)]

    def _end_job(self, asked: uuid.UUID, by: uuid.UUID, epoch: int, outcome: bytes) -> list[Row]:
        self._demand_lease(f"job:{asked}", by, epoch)
        self._keep(asked, self.jobs[asked].stored, outcome)
        return [(None,)]

    def _keep(self, job_id: uuid.UUID, stored: bytes, ended: bytes | None) -> None:
        job = self.jobs[job_id]
        job.stored, job.ended, job.version = stored, ended, job.version + 1

    def rows_of(self, journal: str) -> list[JournalRow]:
        kept = self.journals.get(journal)
        return [] if kept is None else [row for row, *_rest in kept.rows]


@dataclass
class LinkTrouble:
    """What goes wrong on one controller's way to the database, each until a time of the simulation."""

    lost_s: float = 0.0  # statements are lost
    mute_s: float = 0.0  # answers are lost
    doubt_ratio: float = 0.0  # of statements whose answer, or which themselves, are lost or late
    doubtful_appends: int = 0  # so many of the next ones


class SimLink:
    """A controller's database. Raises what `Database` raises; blocks its controller in simulated time."""

    url = "the simulated database"
    losses: tuple[str, ...] = ()

    def __init__(
        self,
        server: SimServer,
        random: Random,
        now_s: Callable[[], float],
        call_after: Callable[[float, Callable[[], None]], None],
        block: Callable[[float], None],
        cross: Callable[[], None],
    ) -> None:
        """``block`` lets the world go on while this controller waits; ``cross`` is a boundary: it may raise CrashError."""
        self._server, self._random, self._now_s = server, random, now_s
        self._call_after, self._block, self._cross = call_after, block, cross
        self.trouble = LinkTrouble()
        self.away_since_s: float | None = None
        self.error: str | None = None
        self.doubts = 0

    @property
    def away_s(self) -> float | None:
        return None if self.away_since_s is None else self._now_s() - self.away_since_s

    def open(self) -> None:
        self.probe()

    def close(self) -> None:
        return

    def pause(self) -> None:
        self._block(PAUSE_S)

    def probe(self) -> None:
        """Ask whether the server is there."""
        self._run("SELECT 1", (), is_write=False)
        self.away_since_s = None

    def read(
        self,
        statement: str,
        values: Sequence[Any] = (),
        *,
        is_binary: bool = False,
    ) -> list[Row]:
        self._refuse_away()
        return self._run(statement, values, is_write=False)

    def write(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        self._refuse_away()
        self._cross()
        rows = self._run(statement, values, is_write=True)
        self._cross()
        return rows

    def _refuse_away(self) -> None:
        if self.away_since_s is not None:
            raise DatabaseAwayError("PostgreSQL is away: simulated")

    def _note_away(self) -> None:
        if self.away_since_s is None:
            self.away_since_s = self._now_s()
        self.error = "simulated"

    def _run(self, statement: str, values: Sequence[Any], *, is_write: bool) -> list[Row]:
        now_s, trouble = self._now_s(), self.trouble
        if self._server.is_down:
            self._note_away()
            raise DatabaseAwayError("PostgreSQL is away: simulated, down")
        is_lost, is_mute = now_s < trouble.lost_s, now_s < trouble.mute_s
        is_late = False
        is_doubtful = is_write and self._random.random() < trouble.doubt_ratio
        if trouble.doubtful_appends and "rankmend.append" in statement:
            trouble.doubtful_appends, is_doubtful = trouble.doubtful_appends - 1, True
        if is_doubtful:
            kind = self._random.randrange(3)
            is_lost, is_mute, is_late = is_lost or kind == 0, kind == 1, kind == 2
        if not (is_lost or is_mute or is_late):
            return self._do(statement, values)
        if is_mute and not is_lost:
            with contextlib.suppress(StatementRefusedError):  # nor is that heard
                self._do(statement, values)
        elif is_late and not is_lost:
            self._call_after(self._random.uniform(0.0, 12.0), lambda: self._do_late(statement, values))  # fmt: skip
        self.doubts += is_write
        self._block(self._random.choice([0.0, ANSWER_S]))
        self._note_away()
        if is_write:
            raise CommitUnknownError("the answer of PostgreSQL to a write was lost: simulated")
        raise DatabaseAwayError("PostgreSQL is away: simulated")

    def _do(self, statement: str, values: Sequence[Any]) -> list[Row]:
        return [(1,)] if statement == "SELECT 1" else self._server.ask(statement, values)

    def _do_late(self, statement: str, values: Sequence[Any]) -> None:
        """A statement that was on its way when its sender gave it up."""
        if not self._server.is_down:
            try:
                self._do(statement, values)
            except StatementRefusedError:
                return
