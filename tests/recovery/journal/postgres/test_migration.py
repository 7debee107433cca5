"""The schema's versions, and what the controller's role may do: what is needed, and nothing else."""

import psycopg
import pytest

from rankmend.clock import SystemClock
from rankmend.errors import ConfigError
from recovery.journal.postgres.database import Database
from recovery.journal.postgres.database_url import DatabaseUrl
from recovery.journal.postgres.migration import (
    SCHEMA_VERSION,
    check_schema,
    migrate,
    migrations,
    render_grants,
)
from tests.support.postgres import ROLE_SQL, PostgresServer, connected

pytestmark = pytest.mark.site


def check(url: str) -> None:
    database = Database(DatabaseUrl(url), SystemClock())
    database.open()
    try:
        check_schema(database)
    finally:
        database.close()


def test_a_dry_run_tells_what_it_would_do_and_changes_nothing(postgres: PostgresServer) -> None:
    name = postgres.make_database(is_migrated=False)

    plan = migrate(DatabaseUrl(postgres.url(name)), is_dry=True)

    assert (plan.found, plan.wanted, plan.is_dry) == (0, SCHEMA_VERSION, True)
    assert [one.version for one in plan.applied] == [one.version for one in migrations()]
    assert postgres.ask(name, "SELECT to_regnamespace('rankmend')") == [(None,)]


def test_a_migration_is_done_once_and_the_second_finds_nothing_to_do(
    postgres: PostgresServer,
) -> None:
    name = postgres.make_database(is_migrated=False)

    first = migrate(DatabaseUrl(postgres.url(name)), is_dry=False)
    again = migrate(DatabaseUrl(postgres.url(name)), is_dry=False)

    assert (first.found, len(first.applied)) == (0, SCHEMA_VERSION)
    assert (again.found, again.applied) == (SCHEMA_VERSION, ())
    assert first.has_role
    check(postgres.url(name, "controller"))


def test_a_database_without_the_schema_is_refused_with_the_command_that_makes_it(
    postgres: PostgresServer,
) -> None:
    name = postgres.make_database(is_migrated=False)

    with pytest.raises(ConfigError, match="has no schema of rankmend: rankmend controller migrate"):
        check(postgres.url(name, "controller"))


def test_a_role_without_rights_is_told_which_it_needs(postgres: PostgresServer) -> None:
    name = postgres.make_database()
    postgres.ask("postgres", "DROP ROLE IF EXISTS stranger")
    postgres.ask("postgres", "CREATE ROLE stranger LOGIN")

    with pytest.raises(ConfigError, match=r"no rights .* GRANT rankmend_controller to it"):
        check(postgres.url(name, "stranger"))


@pytest.mark.parametrize(
    ("version", "compatible_from", "refusal"),
    [
        (SCHEMA_VERSION + 1, SCHEMA_VERSION, None),  # one minor release later: both work on it
        (SCHEMA_VERSION + 2, SCHEMA_VERSION + 1, "use a newer rankmend"),
    ],
)
def test_a_newer_schema_is_used_as_far_as_it_says_that_it_can_be(
    postgres: PostgresServer, version: int, compatible_from: int, refusal: str | None
) -> None:
    name = postgres.make_database()
    postgres.ask(
        name,
        "INSERT INTO rankmend.schema_version (version, compatible_from, applied_by) VALUES (%s, %s, 'later')",
        version,
        compatible_from,
    )

    if refusal is None:
        check(postgres.url(name, "controller"))
    else:
        with pytest.raises(ConfigError, match=refusal):
            check(postgres.url(name, "controller"))
    with pytest.raises(ConfigError, match="use the newer rankmend"):
        migrate(DatabaseUrl(postgres.url(name)), is_dry=False)


def test_an_older_schema_is_refused_with_the_command_that_mends_it(
    postgres: PostgresServer,
) -> None:
    name = postgres.make_database()
    postgres.ask(name, "UPDATE rankmend.schema_version SET version = version - 1")

    with pytest.raises(ConfigError, match=rf"needs {SCHEMA_VERSION}: rankmend controller migrate"):
        check(postgres.url(name, "controller"))


def test_a_role_that_may_not_make_the_schema_is_told_so(postgres: PostgresServer) -> None:
    name = postgres.make_database(is_migrated=False)

    with pytest.raises(ConfigError, match=r"cannot migrate .*permission denied for database"):
        migrate(DatabaseUrl(postgres.url(name, "controller")), is_dry=False)


def test_the_shipped_rights_are_those_that_a_migration_gives() -> None:
    assert ROLE_SQL.read_text(encoding="utf-8").endswith(render_grants())


FORBIDDEN = (
    "INSERT INTO rankmend.record SELECT * FROM rankmend.record",
    "UPDATE rankmend.record SET body = ''",
    "DELETE FROM rankmend.record",
    "TRUNCATE rankmend.record CASCADE",
    "UPDATE rankmend.journal SET epoch = epoch + 1",
    "INSERT INTO rankmend.journal (name) VALUES ('mine')",
    "DELETE FROM rankmend.journal",
    "UPDATE rankmend.controller SET expires_at = 'infinity'",
    "DELETE FROM rankmend.controller",
    "UPDATE rankmend.job SET owner = 'me'",
    "DELETE FROM rankmend.job",
    "INSERT INTO rankmend.schema_version VALUES (9, 9, now(), 'me')",
    "SELECT rankmend.demand_lease('cluster', gen_random_uuid(), 0)",
    "SELECT FROM rankmend.record FOR UPDATE",
    "CREATE TABLE rankmend.mine ()",
    "CREATE FUNCTION rankmend.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DROP TABLE rankmend.record",
    "ALTER TABLE rankmend.record DISABLE TRIGGER ALL",
    "CREATE OR REPLACE FUNCTION rankmend.is_alive(asked uuid) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "DROP SCHEMA rankmend CASCADE",
    "CREATE SCHEMA mine",
    "CREATE ROLE mine",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "SELECT pg_read_file('/etc/hostname')",
    "SELECT pg_reload_conf()",
)


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_the_controllers_role_may_do_nothing_else(
    postgres: PostgresServer, shared_database: str, statement: str
) -> None:
    with psycopg.connect(postgres.url(shared_database, "controller"), autocommit=True) as session:
        with pytest.raises(
            (psycopg.errors.InsufficientPrivilege, psycopg.errors.WrongObjectType)
        ) as refused:
            session.execute(statement)  # type: ignore[call-overload]
    assert refused.value.sqlstate == "42501"


@pytest.fixture(scope="module")
def shared_database(postgres: PostgresServer) -> str:
    return postgres.make_database()


def test_functions_of_a_role_of_its_own_cannot_stand_in_for_those_of_the_schema(
    postgres: PostgresServer, shared_database: str
) -> None:
    """What runs with the owner's rights looks names up in pg_catalog alone."""
    found = postgres.ask(
        shared_database,
        "SELECT proname FROM pg_proc WHERE pronamespace = 'rankmend'::regnamespace"
        " AND (NOT prosecdef OR proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp'])",
    )

    assert found == []


def test_a_controller_works_with_the_rights_of_its_role(
    postgres: PostgresServer, shared_database: str
) -> None:
    with connected(postgres.url(shared_database, "controller")) as (database, leases):
        assert leases.renew()
        assert database.read("SELECT count(*) FROM rankmend.job") == [(0,)]
