"""A real PostgreSQL in a folder of the test, databases in it, and a wire that can be cut."""

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rankmend.clock import Clock, SystemClock
from recovery.journal.postgres.database import Database
from recovery.journal.postgres.database_url import DatabaseUrl
from recovery.journal.postgres.leases import Leases
from recovery.journal.postgres.migration import migrate
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port

ROLE_SQL = Path(__file__).parents[2] / "deploy/postgresql/role.sql"


def find_programs() -> Path | None:
    """Return the folder with initdb and postgres, newest version first."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: -int(path.parts[-3]),
    )
    if found:
        return found[0].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@dataclass
class PostgresServer:
    """A server on a free port of loopback, as an unprivileged user: it refuses root."""

    programs: Path
    folder: Path
    port: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    data_folder: Path | None = None  # where it is not in `folder`
    initdb_words: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        return self.data_folder or self.folder / "data"

    def make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)

    def make(self) -> None:
        self.make_folder()
        words = ("-A", "trust", "-U", "admin", "--no-locale", "-E", "UTF8", "--no-sync")
        self.run("initdb", "-D", str(self.data), *words, *self.initdb_words)

    def run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [*_as_user(), str(self.programs / program), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            cwd="/",
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, **settings: str) -> None:
        self.port = self.port or free_port()
        self.settings.update(settings)
        words = [f"-c{name}={value}" for name, value in self.settings.items()]
        self.process = subprocess.Popen(
            [
                *_as_user(),
                str(self.programs / "postgres"),
                *("-D", str(self.data), "-p", str(self.port)),
                *("-clisten_addresses=127.0.0.1", f"-cunix_socket_directories={self.folder}"),
                *("-cshared_buffers=16MB", "-cmax_connections=60", "-cautovacuum=off"),
                *words,
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
            cwd="/",
        )
        process = self.process

        def is_up() -> bool:
            assert process.poll() is None, (self.folder / "log").read_text()[-2000:]
            return self.answers()

        eventually(is_up, "PostgreSQL starts", pause_s=0.05)

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def stop(self, mode: str = "fast") -> None:
        """Stop it; immediate: as by kill -9 of all its processes."""
        if self.process is not None:
            self.run("pg_ctl", "stop", "-D", str(self.data), "-m", mode, "-w")
            self.process.wait(DEADLINE_S)
            self.process = None

    def url(self, database: str, user: str = "admin", port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def ask(self, database: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return what the administrator is answered."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def want_standby(self, name: str) -> None:
        """Have every commit wait for this standby; return once one really does, as settings reach processes one by one."""
        self.ask("postgres", f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self.ask("postgres", "SELECT pg_reload_conf()")
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%emit_message%'"
        is_seen = threading.Event()

        def commit() -> None:
            while not is_seen.is_set():
                self.ask("postgres", "SELECT pg_logical_emit_message(true, 'probe', '')")

        writer = threading.Thread(target=commit)
        writer.start()
        try:
            eventually(lambda: bool(self.ask("postgres", waiting)), "a commit that waits")
        finally:
            is_seen.set()
            self.ask("postgres", f"SELECT pg_cancel_backend(pid) FROM ({waiting}) AS waiting")
            writer.join(DEADLINE_S)

    def follow(self, primary: "PostgresServer", *, is_synchronous: bool = True) -> None:
        """Start as a standby with a copy of the primary, and return once it streams."""
        name = "standby_a"
        primary.run(
            "pg_basebackup", "-D", str(self.data), "-R", "-c", "fast", "-X", "stream", "--no-sync",
            "-d", f"{primary.url('postgres')}?application_name={name}",
        )  # fmt: skip
        self.start()
        if is_synchronous:
            primary.ask("postgres", f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            primary.ask("postgres", "SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        wanted = "sync" if is_synchronous else "async"
        eventually(lambda: primary.ask("postgres", state) == [(wanted,)], "the standby streams")

    def promote(self) -> None:
        """Make a standby the primary.

        Its own synchronous standby is gone with the roles: nothing is acknowledged before a person says so, as here.
        """
        self.run("pg_ctl", "promote", "-D", str(self.data), "-w")
        self.ask("postgres", "ALTER SYSTEM RESET synchronous_standby_names")
        self.ask("postgres", "SELECT pg_reload_conf()")

    def make_database(self, *, is_migrated: bool = True) -> str:
        """Return the name of a new database with the schema of rankmend."""
        name = f"db_{uuid.uuid4().hex[:12]}"
        self.ask("postgres", f"CREATE DATABASE {name}")
        if is_migrated:
            migrate(DatabaseUrl(self.url(name)), is_dry=False)
        return name


def _as_user() -> list[str]:
    return ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []


@contextlib.contextmanager
def running_server(
    *, data_folder: Path | None = None, initdb_words: tuple[str, ...] = (), **settings: str
) -> Iterator[PostgresServer]:
    """Run a server, or skip the test with the reason."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install psycopg")
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if os.getuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL refuses root, and there is no user postgres")
    home = Path(
        f"/tmp/rankmend-pg-{uuid.uuid4().hex[:8]}"
    )  # the user postgres can't enter pytest's
    server = PostgresServer(programs, home, data_folder=data_folder, initdb_words=initdb_words)
    try:
        server.make()
        server.start(**settings)
        server.ask("postgres", ROLE_SQL.read_text().partition("-- In the database")[0])
        server.ask("postgres", "CREATE ROLE controller LOGIN IN ROLE rankmend_controller")
        yield server
    finally:
        with contextlib.suppress(AssertionError):
            server.stop("immediate")
        if server.process is not None:
            server.process.kill()
            server.process.wait(DEADLINE_S)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def connected(
    url: str, *, lease_s: float = 30.0, clock: Clock | None = None, **options: Any
) -> Iterator[tuple[Database, Leases]]:
    """Give a controller's database and leases, as the service has them."""
    clock = clock or SystemClock()
    database = Database(DatabaseUrl(url), clock, **options)
    database.open()
    leases = Leases(database, clock, lease_s=lease_s)
    try:
        leases.begin()
        yield database, leases
    finally:
        leases.end()
        database.close()


class Wire:
    """Passes bytes between clients and a server, and cuts where a test says so."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._cut_after: bytes | None = None  # text of a statement whose answer is lost
        self._cut_before: bytes | None = None  # text of a statement that is lost itself
        self.is_open = True
        self.cut_for_good = False  # with the next cut, cut all, and refuse new connections
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer(self, to: bytes) -> None:
        """Pass the next statement with this text on, and lose its answer."""
        self._cut_after = to

    def lose_statement(self, text: bytes) -> None:
        """Lose the next statement with this text."""
        self._cut_before = text

    def close_all(self) -> None:
        """Cut all connections, and refuse new ones until `is_open` is set."""
        self.is_open = False
        for pair in self._pairs:
            _close(*pair)

    def close(self) -> None:
        self.close_all()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _address = self._listener.accept()
                try:
                    if not self.is_open:
                        raise ConnectionRefusedError
                    server = socket.create_connection(("127.0.0.1", self._target), 5.0)
                except OSError:  # the server is away
                    client.close()
                    continue
                server.settimeout(None)
                self._pairs = [pair for pair in self._pairs if pair[0].fileno() >= 0]
                self._pairs.append((client, server))
                is_lost = threading.Event()
                for source, sink, look in (
                    (client, server, self._look_at_statement),
                    (server, client, lambda _data: None),
                ):
                    threading.Thread(
                        target=self._pass, args=(source, sink, look, is_lost), daemon=True
                    ).start()

    def _pass(
        self,
        source: socket.socket,
        sink: socket.socket,
        look: Callable[[bytes], bool | None],
        is_lost: threading.Event,
    ) -> None:
        try:
            while data := source.recv(65536):
                loses = look(data)
                if loses is False:
                    break
                if loses is True:
                    is_lost.set()
                if look == self._look_at_statement or not is_lost.is_set():
                    sink.sendall(data)
                if is_lost.is_set() and look != self._look_at_statement:
                    break  # the server has answered: what it did is done
        except OSError:
            pass
        if is_lost.is_set() and self.cut_for_good:
            self.close_all()
        _close(source, sink)

    def _look_at_statement(self, data: bytes) -> bool | None:
        """Return True if its answer is to be lost, False if it itself is."""
        if self._cut_before is not None and self._cut_before in data:
            self._cut_before = None
            self.cuts += 1
            return False
        if self._cut_after is not None and self._cut_after in data:
            self._cut_after = None
            self.cuts += 1
            return True
        return None


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def port_of(url: str) -> int:
    found = re.search(r":(\d+)/", url)
    assert found is not None
    return int(found[1])
