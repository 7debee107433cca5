"""Sessions as administrators have them: roles with settings of their own, passwords that change, servers that end what waits."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rankmend.clock import SystemClock
from rankmend.errors import RankmendError
from recovery.journal.attempt_records import Milestone
from recovery.journal.job_records import PersonActed
from recovery.journal.postgres.database import Database
from recovery.journal.postgres.database_url import DatabaseUrl, read_database_url
from recovery.journal.postgres.migration import check_schema, migrate
from recovery.messages.outside import PersonAct, PersonCommand
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.free_port import free_port
from tests.support.journals import PostgresPlace
from tests.support.postgres import PostgresServer, connected, running_server

pytestmark = pytest.mark.site
SESSIONS = 4
TRICKY = "a\\\\b\\'c ''d\\x41 \"e\" é→ NULL {,} \\\\000"
TEXT = "SELECT 'é→'::text"


@pytest.fixture
def name(postgres: PostgresServer) -> str:
    return postgres.make_database()


@contextlib.contextmanager
def role_with(server: PostgresServer, database: str, setting: str) -> Iterator[str]:
    """Have the administrator set this for the controllers' role."""
    role = f"ALTER ROLE controller IN DATABASE {database}"
    server.ask("postgres", f"{role} SET {setting}")
    yield server.url(database, "controller")
    server.ask("postgres", f"{role} RESET {setting.partition('=')[0]}")


@pytest.mark.parametrize(
    "setting",
    [
        "search_path = 'nowhere'",
        "client_encoding = 'LATIN1'",
        "client_encoding = 'SQL_ASCII'",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
        "statement_timeout = '1ms'",
        "lock_timeout = '1ms'",
        "bytea_output = 'escape'",
        "standard_conforming_strings = 'off'",
        "datestyle = 'German'",
    ],
)
def test_what_an_administrator_sets_for_the_role_changes_nothing(
    postgres: PostgresServer, name: str, setting: str
) -> None:
    with (
        role_with(postgres, name, setting) as url,
        connected(url) as (one, leases),
        connected(url) as (_other, others),
    ):
        check_schema(one)
        renewed = [each.renew() for _turn in range(5) for each in (leases, others)]

        assert all(renewed)
        assert one.read(TEXT) == [("é→",)]
        ((isolation,),) = one.read("SELECT current_setting('transaction_isolation')")
        assert isolation == "read committed"


# Every parameter that a role can set and that changes text, bytes, numbers or times, with a value that differs from ours.
FORMS = {
    "array_nulls": "off",
    "backslash_quote": "on",
    "bytea_output": "'escape'",
    "check_function_bodies": "off",
    "client_encoding": "'LATIN1'",
    "datestyle": "'SQL, DMY'",
    "default_text_search_config": "'german'",
    "escape_string_warning": "off",
    "extra_float_digits": "-15",
    "icu_validation_level": "'error'",
    "intervalstyle": "'iso_8601'",
    "lc_messages": "'C'",
    "lc_monetary": "'C'",
    "lc_numeric": "'C'",
    "lc_time": "'C'",
    "lo_compat_privileges": "on",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "timezone": "'Asia/Kathmandu'",
    "timezone_abbreviations": "'India'",
    "transform_null_equals": "on",
    "xmlbinary": "'hex'",
    "xmloption": "'document'",
}
# The groups of parameters in `pg_settings` that hold such ones.
GROUPS = (
    "Client Connection Defaults / Locale and Formatting",
    "Version and Platform Compatibility / Previous PostgreSQL Versions",
    "Version and Platform Compatibility / Other Platforms and Clients",
)
# In these groups, and about neither text nor values.
OTHER = {
    "allow_alter_system",
    "event_triggers",
    "synchronize_seqscans",
}


def test_no_parameter_about_text_time_or_escaping_is_missing_here(postgres: PostgresServer) -> None:
    rows = postgres.ask(
        "postgres",
        "SELECT name FROM pg_settings WHERE context IN ('user', 'superuser') AND category = ANY(%s)",
        list(GROUPS),
    )

    assert {row[0].lower() for row in rows} - OTHER <= FORMS.keys()


@pytest.mark.parametrize("where", ["role", "database"])
def test_no_parameter_about_text_time_or_escaping_changes_a_record(
    postgres: PostgresServer, where: str
) -> None:
    place = PostgresPlace.make(postgres)
    known = {row[0].lower() for row in postgres.ask("postgres", "SELECT name FROM pg_settings")}
    target = "ROLE controller IN DATABASE" if where == "role" else "DATABASE"
    for parameter in FORMS.keys() & known:
        setting = f"{parameter} = {FORMS[parameter]}"
        postgres.ask("postgres", f"ALTER {target} {place.database} SET {setting}")

    record = PersonActed(PersonCommand(PersonAct.PAUSE, "ada", TRICKY), "")
    with place.opened() as journal:
        written = journal.append_many([record, Milestone(1, 7)])

    assert place.read() == tuple(written)
    assert place.read()[0].record == record


def use_all(database: Database, server: PostgresServer, name: str) -> set[int]:
    """Have several threads hold a session at a time, so that as many wait in the pool afterwards; return which."""

    def look() -> set[int] | None:
        threads = [
            threading.Thread(target=database.read, args=("SELECT pg_sleep(0.5)",))
            for _one in range(SESSIONS)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        found = set(sessions_of(server, name))
        return found if len(found) >= SESSIONS else None  # else one had ended before another began

    return eventually(look, "as many sessions as threads")


def sessions_of(server: PostgresServer, database: str) -> list[int]:
    rows = server.ask(
        database,
        "SELECT pid FROM pg_stat_activity WHERE usename = 'controller' AND datname = current_database()",
    )
    return [row[0] for row in rows]


def test_sessions_that_wait_are_not_ended_for_being_idle(
    postgres: PostgresServer, name: str
) -> None:
    with (
        role_with(postgres, name, "idle_session_timeout = '300ms'") as url,
        connected(url) as (database, _leases),
    ):
        before = use_all(database, postgres, name)
        with psycopg.connect(
            url
        ) as plain:  # begins to wait after all of them, with the role's own setting
            ended = plain.info.backend_pid
            eventually(lambda: ended not in sessions_of(postgres, name), "a plain one is ended")

        assert before <= set(sessions_of(postgres, name))
        assert [database.write("SELECT 1") for _turn in range(SESSIONS)] == [[(1,)]] * SESSIONS
        assert database.away_s is None


def test_sessions_that_the_server_has_ended_while_they_waited_fail_no_statement(
    postgres: PostgresServer, name: str
) -> None:
    with connected(postgres.url(name, "controller")) as (database, _leases):
        ended = use_all(database, postgres, name)
        for pid in ended:
            postgres.ask("postgres", f"SELECT pg_terminate_backend({pid}, 10000)")

        answers = [database.write("SELECT 1") for _turn in range(SESSIONS + 1)]

        assert answers == [[(1,)]] * (SESSIONS + 1)
        assert ended.isdisjoint(sessions_of(postgres, name))


def test_a_session_that_was_told_of_a_new_setting_is_kept(
    postgres: PostgresServer, name: str
) -> None:
    with connected(postgres.url(name, "controller")) as (_database, leases):
        leases.renew()
        before = set(sessions_of(postgres, name))
        postgres.ask(
            "postgres", "ALTER SYSTEM SET timezone = 'Asia/Tokyo'"
        )  # is reported to clients
        postgres.ask("postgres", "SELECT pg_reload_conf()")
        try:
            eventually(lambda: postgres.ask(name, "SHOW timezone") == [("Asia/Tokyo",)], "it holds")

            assert leases.renew()
            assert before <= set(sessions_of(postgres, name))
        finally:
            postgres.ask("postgres", "ALTER SYSTEM RESET timezone")
            postgres.ask("postgres", "SELECT pg_reload_conf()")


def test_a_password_that_was_changed_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    file.chmod(0o600)
    with running_server() as server:
        name = server.make_database()
        hba = server.data / "pg_hba.conf"
        hba.write_text("host all controller 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        server.ask("postgres", "ALTER ROLE controller PASSWORD 'first'")
        server.ask("postgres", "SELECT pg_reload_conf()")
        database = Database(
            read_database_url(server.url(name, "controller"), str(file)), SystemClock()
        )
        database.open()
        try:
            server.ask("postgres", "ALTER ROLE controller PASSWORD 'second'")
            file.write_text("second\n")
            server.stop()
            server.start()

            database.probe()

            assert database.write("SELECT 1") == [(1,)]
        finally:
            database.close()


def test_a_database_whose_encoding_is_none_keeps_text() -> None:
    """As initdb makes it on a host without a locale."""
    with running_server(initdb_words=("-E", "SQL_ASCII")) as server:
        with connected(server.url(server.make_database(), "controller")) as (database, leases):
            check_schema(database)

            assert leases.renew()
            assert database.read(TEXT) == [("é→",)]


@contextlib.contextmanager
def running_as_postgres(*words: str) -> Iterator[None]:
    """Run a program, and have it end with this process."""
    user = ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    bound = ["setpriv", "--pdeathsig", "KILL", *(user if os.getuid() == 0 else ())]
    started = subprocess.Popen([*bound, *words], cwd="/")
    try:
        yield
    finally:
        started.kill()
        started.wait(DEADLINE_S)


@contextlib.contextmanager
def streaming(server: PostgresServer, program: str, *words: str) -> Iterator[None]:
    """Run a client of that name that streams from the server."""
    asked = f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{program}'"
    path = str(server.programs / program)
    with running_as_postgres(path, "-d", server.url("postgres"), *words):
        eventually(lambda: bool(server.ask("postgres", asked)), f"{program} streams")
        yield


def test_subscribers_and_archives_of_wal_are_no_standbys() -> None:
    with running_server(wal_level="logical") as server:
        url = server.url(server.make_database(), "controller")
        folder = server.folder / "wal"
        folder.mkdir()
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        server.run("pg_recvlogical", "-d", server.url("postgres"), "--slot", "a", "--create-slot")
        with (
            streaming(server, "pg_recvlogical", "--slot", "a", "--start", "-f", "/dev/null"),
            streaming(server, "pg_receivewal", "-D", str(folder)),
            connected(url) as (database, _leases),
        ):
            assert database.losses == ()


def test_migrations_at_once_are_one(postgres: PostgresServer) -> None:
    """Also where the administrator wants transactions that see what was there at their begin."""
    name = postgres.make_database(is_migrated=False)
    admin = f"ALTER ROLE admin IN DATABASE {name} SET"
    postgres.ask("postgres", f"{admin} default_transaction_isolation = 'repeatable read'")
    postgres.ask("postgres", f"{admin} statement_timeout = '1ms'")
    applied: list[int | str] = []

    def run() -> None:
        try:
            applied.append(len(migrate(DatabaseUrl(postgres.url(name)), is_dry=False).applied))
        except RankmendError as error:
            applied.append(str(error))

    threads = [threading.Thread(target=run) for _one in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert sorted(applied, key=str)[:2] == [0, 0]
    assert sum(map(bool, applied)) == 1
    assert all(isinstance(one, int) for one in applied), applied


POOLER = """[databases]
* = user=controller host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {folder}/users
pool_mode = transaction
{more}
"""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", "unsupported startup parameter"),
        ("ignore_startup_parameters = options", "does not take the session's settings.*pooler"),
    ],
)
def test_a_real_pooler_is_refused_also_where_it_drops_the_settings_in_silence(
    postgres: PostgresServer, name: str, more: str, says: str
) -> None:
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="rankmend-pooler-", dir="/tmp"))  # for the user postgres
    folder.chmod(0o755)
    port = free_port()
    (folder / "users").write_text('"controller" ""\n')
    text = POOLER.format(server=postgres.port, port=port, folder=folder, more=more)
    (folder / "pgbouncer.ini").write_text(text)
    with running_as_postgres(program, "-q", str(folder / "pgbouncer.ini")):
        eventually(lambda: is_open(port), "the pooler listens")

        with pytest.raises(RankmendError, match=says):
            with connected(postgres.url(name, "controller", port)):
                pass
    shutil.rmtree(folder)


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
