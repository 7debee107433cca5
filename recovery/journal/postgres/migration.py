"""Brings the schema of a database to the version that this rankmend needs, and checks that it is there.

Each version is a file `schema/NNNN.sql`. Versions are applied in order, all in one transaction. A version names the oldest
one whose programs can work with it, so that controllers one minor release apart can share a database.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankmend.errors import ConfigError
from rankmend.version import RANKMEND_VERSION
from recovery.journal.postgres.database import FORMS, Database, StatementRefusedError
from recovery.journal.postgres.database_url import DatabaseUrl

ROLE: Final = "rankmend_controller"
"""The role with the rights that a controller needs; the role under which it connects is a member."""

_FOLDER: Final = Path(__file__).parent / "schema"
_COMPATIBLE_FROM: Final = {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}  # by version
SCHEMA_VERSION: Final = max(_COMPATIBLE_FROM)
_ADVISORY_LOCK: Final = 0x524D4E44  # one migration at a time
_UNDEFINED: Final = frozenset({"42P01", "3F000"})  # table, schema
_DENIED: Final = "42501"
# Whatever the administrator has set for the role: a change of a large table takes its time, and one migration sees what another
# that it waited for has done.
_OPTIONS: Final = (
    r"-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 "
    rf"-c default_transaction_isolation=read\ committed {FORMS}"
)

_INNER: Final = frozenset({"demand_lease"})  # called by other functions only


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    compatible_from: int
    statements: str


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What a migration does, or has done."""

    found: int  # version of the schema before; 0: there is none
    wanted: int
    applied: tuple[Migration, ...]
    has_role: bool  # the role of controllers is there, and has its rights
    is_dry: bool


def migrations() -> tuple[Migration, ...]:
    """Return all versions of the schema, oldest first."""
    return tuple(
        Migration(
            version, compatible_from, (_FOLDER / f"{version:04d}.sql").read_text(encoding="utf-8")
        )
        for version, compatible_from in sorted(_COMPATIBLE_FROM.items())
    )


def render_grants(role: str = ROLE) -> str:
    """Return the statements that give a role what a controller uses, and nothing else."""
    names = re.findall(
        r"^CREATE FUNCTION rankmend\.(\w+)",
        "".join(migration.statements for migration in migrations()),
        re.M,
    )
    called = sorted(set(names) - _INNER)
    functions = ",\n    ".join(f"rankmend.{name}" for name in called)
    return (
        f"REVOKE ALL ON SCHEMA rankmend FROM PUBLIC, {role};\n"
        f"REVOKE ALL ON ALL TABLES IN SCHEMA rankmend FROM PUBLIC, {role};\n"
        f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA rankmend FROM PUBLIC, {role};\n"
        f"GRANT USAGE ON SCHEMA rankmend TO {role};\n"
        f"GRANT SELECT ON ALL TABLES IN SCHEMA rankmend TO {role};\n"
        f"GRANT EXECUTE ON FUNCTION\n    {functions}\nTO {role};\n"
    )


def migrate(url: DatabaseUrl, *, is_dry: bool) -> MigrationPlan:
    """Bring the schema to the newest version in one transaction, or find out that it works and undo it.

    The role of the connection must own the schema, or may make it. Raises ConfigError with what the database says.
    """
    import psycopg  # noqa: PLC0415 - of the extra `postgres`

    try:
        with psycopg.connect(
            url.text,
            connect_timeout=10,
            target_session_attrs="read-write",
            client_encoding="UTF8",
            options=_OPTIONS,
            **url.credentials(),
        ) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
            plan = _migrate(connection, is_dry=is_dry)
            if is_dry:
                connection.rollback()
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"cannot migrate {url}: {text}") from error
    return plan


def _migrate(connection: Any, *, is_dry: bool) -> MigrationPlan:
    found = 0
    if connection.execute("SELECT to_regclass('rankmend.schema_version')").fetchone()[0]:
        row = connection.execute("SELECT max(version) FROM rankmend.schema_version").fetchone()
        found = row[0] or 0
    if found > SCHEMA_VERSION:
        raise ConfigError(
            f"the schema has version {found}, this rankmend knows {SCHEMA_VERSION}: use the newer rankmend"
        )
    due = tuple(migration for migration in migrations() if migration.version > found)
    if found == 0:
        connection.execute("CREATE SCHEMA IF NOT EXISTS rankmend")
    for migration in due:
        connection.execute(migration.statements)
        connection.execute(
            "INSERT INTO rankmend.schema_version (version, compatible_from, applied_by) VALUES (%s, %s, %s)",
            (migration.version, migration.compatible_from, RANKMEND_VERSION),
        )
    has_role = bool(
        connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone()
    )
    if has_role:
        connection.execute(render_grants())
    return MigrationPlan(found, SCHEMA_VERSION, due, has_role, is_dry)


def check_schema(database: Database) -> None:
    """Raise ConfigError unless this rankmend can work with the database's schema."""
    command = "rankmend controller migrate --config FILE (--dry-run first)"
    try:
        rows = database.read(
            "SELECT version, compatible_from FROM rankmend.schema_version ORDER BY version DESC LIMIT 1"
        )
    except StatementRefusedError as error:
        if error.sqlstate in _UNDEFINED:
            raise ConfigError(f"{database.url} has no schema of rankmend: {command}") from error
        if error.sqlstate == _DENIED:
            raise ConfigError(
                f"the role of {database.url} has no rights on the schema of rankmend, or there is none: {command}, "
                f"and GRANT {ROLE} to it"
            ) from error
        raise
    if not rows:
        raise ConfigError(f"{database.url} has an empty schema of rankmend: {command}")
    version, compatible_from = rows[0]
    if version < SCHEMA_VERSION:
        raise ConfigError(
            f"{database.url} has version {version} of the schema, this rankmend needs {SCHEMA_VERSION}: {command}"
        )
    if compatible_from > SCHEMA_VERSION:
        raise ConfigError(
            f"{database.url} has version {version} of the schema, for versions of rankmend that know {compatible_from} or "
            f"later; this one knows {SCHEMA_VERSION}: use a newer rankmend"
        )
