"""Statements to PostgreSQL, each a transaction of its own, and the outcome of each: done, refused, not tried, or unknown.

A session is checked as it begins: what the server promises (`durability`). A thread shuts down the
socket of a statement without an answer in time, since libpq waits for ever for a server that was
stopped. Once the server is away, every statement fails at once until `probe` has reached it: the
deciding thread must not wait for a timeout per job.

Each session sets how it writes and reads text, bytes, times and numbers, whatever the role, the
database or the server has set. The driver escapes arrays of bytes by `standard_conforming_strings`:
where it is off, checksums arrive as other bytes, and the check of the table refuses every record.
Source of the settings that change the meaning of a literal or the form of a value: PostgreSQL,
20.11.2 locale and formatting, 20.13 version and platform compatibility. The encoding is the
connection's own parameter.
"""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from rankmend.clock import Clock
from rankmend.errors import ConfigError, JournalError, RankmendError
from recovery.journal.postgres.database_url import DatabaseUrl
from recovery.journal.postgres.durability import ServerSettings, name_losses, refuse_server

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.errors import Diagnostic
    from psycopg_pool import ConnectionPool

log = logging.getLogger(__name__)

FORMS: Final = " ".join(
    f"-c {name}={value}"
    for name, value in {
        "standard_conforming_strings": "on",
        "backslash_quote": "safe_encoding",
        "escape_string_warning": "on",
        "transform_null_equals": "off",
        "array_nulls": "on",
        "quote_all_identifiers": "off",
        "bytea_output": "hex",
        "extra_float_digits": "1",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "timezone": "UTC",
        "xmlbinary": "base64",
        "xmloption": "content",
    }.items()
)


# The deciding thread, the two threads that commit for jobs, the keeper of leases, the reader of other controllers, those of Slurm, Kubernetes and the accounts of time, two
# readers for the console and the API, one for their views, one for sessions of people, one for the words of agents, and one to spare: a thread that gets no session in time takes the server
# for away.
POOL_MAX: Final = 14
ANSWER_S_MAX: Final = 4.0  # for a statement, where half of the lease is not longer
_CONNECT_S: Final = 3
_LOOK_S: Final = 0.2
_PAUSE_S: Final = 0.1
_WORDS_MAX: Final = 8  # of a server to a session that waits
# In the server, so that it ends by itself what we no longer wait for. A transaction of ours is one statement: a
# session that is idle within one is not ours. What an administrator has set for the role does not count here.
_OPTIONS: Final = (
    "-c idle_in_transaction_session_timeout=2000 -c client_min_messages=warning "
    rf"-c default_transaction_isolation=read\ committed {FORMS}"
)
# A peer that vanished without a word is noticed within 8 s, also while we only wait for its answer.
_KEEPALIVE: Final = {
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 5,
    "tcp_user_timeout": 8000,
    "connect_timeout": _CONNECT_S,
}
_PARAMETERS: Final[dict[str, Any]] = {
    **_KEEPALIVE,
    "autocommit": True,
    "application_name": "rankmend-controller",
    "client_encoding": "UTF8",
    "target_session_attrs": "read-write",
    "prepare_threshold": None,  # a statement takes its commit: there is nothing to gain
}
# A standby is what may be promoted: neither a backup, nor what archives WAL, nor a subscriber of logical replication.
_SETTINGS: Final = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('fsync'),
       current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'),
       (SELECT count(*) FROM pg_stat_replication
        WHERE coalesce(application_name, '') NOT IN ('pg_basebackup', 'pg_receivewal', 'barman_receive_wal')
          AND pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL)),
       (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout')
"""
# An administrator's bounds for other people's sessions (since PostgreSQL 14 and 17): ours wait in the pool, and end by themselves.
_NO_BOUNDS: Final = """
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'transaction_timeout')
"""

Row: TypeAlias = tuple[Any, ...]


class DatabaseAwayError(JournalError):
    """The database can't be reached: nothing was tried, so nothing was written."""


class CommitUnknownError(RankmendError):
    """The answer to a write was lost, or it came with a warning: it may have been written or not.

    Not a JournalError, which means that nothing was written: the caller must read back before any effect.
    """


class StatementRefusedError(JournalError):
    """The database refused a statement: nothing was written."""

    def __init__(self, text: str, sqlstate: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class LeaseLostError(RankmendError):
    """The database refused a write because the lease under which it was made is over.

    Not a JournalError: trying again does not help, and somebody else may decide for the job already.
    """


@dataclass(slots=True)
class _Waited:
    """A statement that waits for its answer, by a descriptor of our own of its socket."""

    descriptor: int
    until_s: float


class Database:
    def __init__(
        self,
        url: DatabaseUrl,
        clock: Clock,
        *,
        accept_loss: bool = False,
        pool_max: int = POOL_MAX,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        """``answer_s_max``: how long a statement may take, its commit included."""
        self.url = url
        self._answer_s_max = answer_s_max
        self._clock = clock
        self._accept_loss = accept_loss
        self._lock = threading.Lock()
        self._warnings: WeakKeyDictionary[Connection[Row], list[str]] = WeakKeyDictionary()
        self._waited: list[_Waited] = []
        self._should_stop = threading.Event()
        self._away_since_s: float | None = None
        self.error: str | None = None  # why it is away
        self.losses: tuple[str, ...] = ()  # that a person has accepted
        self._pool = self._make_pool(pool_max)
        self._watchdog = threading.Thread(target=self._cut_overdue, name="database", daemon=True)

    def open(self) -> None:
        """Connect for the first time, or raise what keeps the journal from this server."""
        self._watchdog.start()
        try:
            self._try_session(ConfigError)
            self._pool.open()
            self.probe()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._should_stop.set()
        self._pool.close(timeout=2.0)
        if self._watchdog.ident is not None:
            self._watchdog.join(2.0)

    # Whether it is there.

    @property
    def away_s(self) -> float | None:
        """Return for how long the server has been away; None: it is there."""
        since_s = self._away_since_s
        return None if since_s is None else self._clock.now_s() - since_s

    def probe(self) -> None:
        """Ask the server whether it is there, also while it is away, or raise."""
        if self._away_since_s is not None:
            self._try_session()
        self._run("SELECT 1", (), is_write=False, is_probe=True)

    def pause(self) -> None:
        """Wait a moment before the same is tried again."""
        time.sleep(_PAUSE_S)

    def _note_away(self, error: Exception) -> str:
        text = _one_line(error)
        with self._lock:
            if self._away_since_s is None:
                self._away_since_s = self._clock.now_s()
                log.error("PostgreSQL is away: nothing new is decided", extra={"error": text})
            self.error = text
        return text

    def _note_there(self) -> None:
        with self._lock:
            away_s, self._away_since_s, self.error = self.away_s, None, None
        if away_s is not None:
            log.warning("PostgreSQL is there again", extra={"away_s": round(away_s, 1)})

    # Statements.

    def read(
        self, statement: str, values: Sequence[object] = (), *, is_binary: bool = False
    ) -> list[Row]:
        """Return the rows of a query, or raise JournalError. Binary: for many rows, at half of the cost."""
        return self._run(statement, values, is_write=False, is_binary=is_binary)

    def write(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement as a transaction of its own; return its rows once it is durable.

        Raises StatementRefusedError and DatabaseAwayError where nothing was written, and CommitUnknownError.
        """
        return self._run(statement, values, is_write=True)

    def _run(
        self,
        statement: str,
        values: Sequence[object],
        *,
        is_write: bool,
        is_probe: bool = False,
        is_binary: bool = False,
    ) -> list[Row]:
        import psycopg  # noqa: PLC0415 - of the extra `postgres`

        if self._away_since_s is not None and not is_probe:
            raise DatabaseAwayError(f"PostgreSQL is away: {self.error}")
        with self._connection() as connection:
            warnings = self._warnings[connection]
            warnings.clear()
            try:
                with self._until(connection):
                    cursor = connection.execute(statement, values, binary=is_binary)
                    rows: list[Row] = cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                raise self._judge(error, connection, is_write=is_write) from error
            if warnings and is_write:
                raise CommitUnknownError(f"PostgreSQL warned of a write: {'; '.join(warnings)}")
        self._note_there()
        return rows

    def _judge(
        self, error: Exception, connection: "Connection[Row]", *, is_write: bool
    ) -> Exception:
        """Return what a failed statement means."""
        import psycopg  # noqa: PLC0415

        assert isinstance(error, psycopg.Error)
        # An ERROR on a session that lives on undid the statement. After FATAL, or no word at all, nobody knows: a
        # backend that is terminated while it waits for a standby has committed before.
        is_undone = error.diag.severity_nonlocalized == "ERROR"
        # A value that can't be sent, such as a text with a null byte: nothing was.
        is_unsent = error.sqlstate is None and isinstance(error, psycopg.DataError)
        if (is_undone or is_unsent) and not connection.closed:
            text = error.diag.message_primary or _one_line(error)
            return StatementRefusedError(f"PostgreSQL refuses: {text}", error.sqlstate or "")
        text = self._note_away(error)
        if is_write:
            return CommitUnknownError(f"the answer of PostgreSQL to a write was lost: {text}")
        return DatabaseAwayError(f"PostgreSQL is away: {text}")

    @contextmanager
    def _connection(self) -> "Iterator[Connection[Row]]":
        """Lend a session that has been checked, or raise DatabaseAwayError: nothing was sent then."""
        from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests  # noqa: PLC0415

        try:
            connection = self._pool.getconn(timeout=_CONNECT_S)
        except (PoolTimeout, PoolClosed, TooManyRequests) as error:
            text = self._note_away(error)
            raise DatabaseAwayError(f"PostgreSQL is away: {text}") from error
        try:
            yield connection
        finally:
            self._pool.putconn(connection)  # a broken connection is replaced

    # Sessions.

    def _try_session(self, *passes: type[Exception]) -> None:
        """Make a session and drop it, to learn at once why there are none: a pool only lets its callers wait."""
        import psycopg  # noqa: PLC0415

        try:
            self._session().connect(self.url.text, **self._parameters()).close()
        except passes:
            raise
        except (psycopg.Error, ConfigError) as error:
            raise DatabaseAwayError(f"PostgreSQL is away: {self._note_away(error)}") from error

    def _parameters(self) -> dict[str, Any]:
        milliseconds = int(self._answer_s_max * 1000)
        bounds = f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds // 2}"
        return {**_PARAMETERS, "options": f"{bounds} {_OPTIONS}"}

    def _make_pool(self, pool_max: int) -> "ConnectionPool[Connection[Row]]":
        from psycopg_pool import ConnectionPool  # noqa: PLC0415

        # The pool's own log lines have the connection string; `_note_away` logs what matters.
        logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
        return ConnectionPool(
            self.url.text,
            connection_class=self._session(),
            min_size=1,
            max_size=pool_max,
            check=_refuse_ended,
            open=False,
            kwargs=self._parameters(),
            reconnect_timeout=0.0,  # `probe` decides when to try again
            name="rankmend",
        )

    def _session(self) -> "type[Connection[Row]]":
        """Return the kind of connection that is checked as it is made."""
        import psycopg  # noqa: PLC0415

        database = self

        class Session(psycopg.Connection[Row]):
            @classmethod
            def connect(cls, *given: Any, **named: Any) -> Any:
                named |= database.url.credentials()
                connection = super().connect(*given, **named)
                try:
                    database._check_session(connection)
                except BaseException:
                    connection.close()
                    raise
                return connection

        return Session

    def _check_session(self, connection: "Connection[Row]") -> None:
        """Raise ConfigError for a server that can't keep a journal, before any other statement."""
        with self._until(connection):
            row = connection.execute(_SETTINGS).fetchone()
            connection.execute(_NO_BOUNDS)
        assert row is not None, "a query without FROM gives one row"
        settings = ServerSettings(*row)
        refusal = refuse_server(settings)
        if refusal is None and settings.answer_ms != int(self._answer_s_max * 1000):
            refusal = (
                f"it does not take the session's settings (statement_timeout is {settings.answer_ms} ms). "
                f"Is this a pooler such as PgBouncer? Connect to the server itself"
            )
        losses = name_losses(settings)
        if refusal is None and losses and not self._accept_loss:
            refusal = (
                f"{'; '.join(losses)}. Mend that; or accept with accept_loss = true in [postgres] that "
                f"decisions may be lost"
            )
        if refusal is not None:
            raise ConfigError(f"the journal can't be kept on {self.url}: {refusal}")
        if losses != self.losses:
            for loss in losses:
                log.warning("PostgreSQL may lose commits", extra={"reason": loss})
            self.losses = losses
        warnings: list[str] = []

        def note(
            notice: "Diagnostic",
        ) -> None:  # which logs nothing any more once this has returned
            if notice.severity_nonlocalized == "WARNING":
                warnings.append(notice.message_primary or "")

        self._warnings[connection] = warnings
        connection.add_notice_handler(note)

    # Answers that do not come.

    @contextmanager
    def _until(self, connection: "Connection[Row]") -> Iterator[None]:
        """Cut the connection if the block is not done in time."""
        waited = _Waited(
            os.dup(connection.fileno()), self._clock.now_s() + self._answer_s_max + 1.0
        )
        with self._lock:
            self._waited.append(waited)
        try:
            yield
        finally:
            with self._lock:
                self._waited.remove(waited)
            os.close(waited.descriptor)

    def _cut_overdue(self) -> None:
        while not self._should_stop.wait(_LOOK_S):
            now_s = self._clock.now_s()
            with self._lock:  # no descriptor is closed meanwhile
                for item in self._waited:
                    if item.until_s < now_s:
                        _shut_down(item.descriptor)


def _refuse_ended(connection: "Connection[Row]") -> None:
    """Raise where the server has ended a session that waited in the pool, as it does when it restarts: that costs no question.

    A notice to a waiting statement may also report a changed setting.
    """
    poll = select.poll()  # select.select takes no descriptor above 1,023
    poll.register(connection.fileno(), select.POLLIN)
    for _word in range(_WORDS_MAX):
        if not poll.poll(0):
            return
        connection.pgconn.consume_input()  # raises at the end of the stream


def _shut_down(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
