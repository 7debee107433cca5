"""One journal in each kind of storage, for tests that hold for both."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rankmend.clock import SystemClock
from recovery.journal.journal_rows import GENESIS, JournalRow, make_row
from recovery.journal.open_journal import OpenJournal
from recovery.journal.postgres.leases import HeldByOtherError, JournalLease, Leases
from recovery.journal.postgres.postgres_journal import PostgresJournal, append_rows, read_entries
from recovery.journal.records import Entry
from recovery.journal.store import Journal, open_readonly
from recovery.journal.stored_journal import JournalFile, StoredJournal
from recovery.service.jobs.postgres_jobs import JournalRows
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer, connected

ROOT = Path(__file__).parents[2]
# What a process of its own runs: prints the number of each record that is acknowledged, until it is killed.
_WRITES_FOR_EVER = """
    step = 0
    while True:
        step += 1
        print(journal.append(Milestone(1, step)).number, flush=True)
"""


class JournalPlace(Protocol):
    def opened(self) -> contextlib.AbstractContextManager[OpenJournal]: ...
    def read(self) -> tuple[Entry, ...]: ...
    def stored(self) -> contextlib.AbstractContextManager[StoredJournal]: ...
    def add(self, entries: Sequence[Entry]) -> None:
        """Write entries behind those that are there, with their own stamps."""
        ...

    def change(self, statement: str) -> None:
        """Change the table {record} behind rankmend's back."""
        ...

    def start_writer(self) -> "subprocess.Popen[str]": ...


@dataclass
class SqlitePlace:
    path: Path

    @contextlib.contextmanager
    def opened(self) -> Iterator[OpenJournal]:
        journal = Journal(self.path, SystemClock(), "boot-1")
        try:
            yield journal
        finally:
            journal.close()

    def read(self) -> tuple[Entry, ...]:
        return open_readonly(self.path).entries

    @contextlib.contextmanager
    def stored(self) -> Iterator[StoredJournal]:
        yield JournalFile(self.path.parent)

    def add(self, entries: Sequence[Entry]) -> None:
        with self.opened():  # makes it
            pass
        rows = make_rows(self.read(), entries)
        connection = sqlite3.connect(self.path)
        connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.commit()
        connection.close()

    def change(self, statement: str) -> None:
        connection = sqlite3.connect(self.path)
        connection.execute(statement.format(record="record"))
        connection.commit()
        connection.close()

    def start_writer(self) -> "subprocess.Popen[str]":
        return _start(
            "from tests.support.journals import SqlitePlace\n"
            f"with SqlitePlace(Path({str(self.path)!r})).opened() as journal:{_WRITES_FOR_EVER}"
        )


@dataclass
class PostgresPlace:
    server: PostgresServer
    database: str
    job_id: str

    @classmethod
    def make(cls, server: PostgresServer) -> "PostgresPlace":
        place = cls(server, server.make_database(), str(uuid.uuid4()))
        place.server.ask(place.database, "SELECT rankmend.add_job(%s, 'a', 'k', '')", place.job_id)
        return place

    @property
    def name(self) -> str:
        return f"job:{self.job_id}"

    @contextlib.contextmanager
    def opened(
        self,
        lease_s: float = 30.0,
        port: int | None = None,
        waits: bool = False,
        **options: Any,
    ) -> Iterator[PostgresJournal]:
        """Open it as a controller of its own does; ``waits``: for the lease of another one to end."""
        url = self.server.url(self.database, "controller", port)
        with connected(url, lease_s=lease_s) as (database, leases):
            lease = self.take(leases, waits=waits)
            journal = PostgresJournal(database, leases, lease, SystemClock(), "boot-1", **options)
            try:
                yield journal
            finally:
                journal.close()
                leases.release(lease)

    def take(self, leases: Leases, *, waits: bool = False) -> JournalLease:
        """Take the lease; ``waits``: once the one of another has ended."""

        def look() -> JournalLease | None:
            try:
                return leases.take(self.name)
            except HeldByOtherError:
                if not waits:
                    raise
                return None

        return eventually(look, f"the lease of {self.name}", pause_s=0.05)

    def read(self) -> tuple[Entry, ...]:
        with connected(self.server.url(self.database, "controller")) as (database, _leases):
            return read_entries(database, self.name)

    @contextlib.contextmanager
    def stored(self) -> Iterator[JournalRows]:
        with connected(self.server.url(self.database, "controller")) as (database, _leases):
            yield JournalRows(database, self.name, Path("/nowhere"))

    def add(self, entries: Sequence[Entry]) -> None:
        with connected(self.server.url(self.database, "controller")) as (database, leases):
            lease = self.take(leases)
            rows = make_rows(read_entries(database, self.name), entries)
            append_rows(database, leases.controller_id, lease, rows)
            leases.release(lease)

    def change(self, statement: str) -> None:
        self.server.ask(self.database, statement.format(record="rankmend.record"))

    def start_writer(self, lease_s: float = 30.0) -> "subprocess.Popen[str]":
        return _start(
            "from tests.support.journals import PostgresPlace\n"
            "from tests.support.postgres import PostgresServer\n"
            f"server = PostgresServer(Path('/'), Path('/'), {self.server.port})\n"
            f"place = PostgresPlace(server, {self.database!r}, {self.job_id!r})\n"
            f"with place.opened({lease_s}) as journal:{_WRITES_FOR_EVER}"
        )


def make_rows(known: Sequence[Entry], entries: Sequence[Entry]) -> list[JournalRow]:
    """Return the rows of entries that follow others."""
    head, rows = GENESIS, []
    for entry in known:
        head = make_row(entry, head).checksum
    for entry in entries:
        rows.append(make_row(entry, head))
        head = rows[-1].checksum
    return rows


def _start(source: str) -> "subprocess.Popen[str]":
    head = "from pathlib import Path\nfrom recovery.journal.attempt_records import Milestone\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + source],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
