"""`rankmend controller migrate`: tried first, then done, and told to scripts and people."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankmend.cli.controller import controller
from recovery.journal.postgres.migration import SCHEMA_VERSION
from tests.support.postgres import PostgresServer, running_server

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


def run(*words: str) -> Result:
    return CliRunner().invoke(controller, ["migrate", *words])


def test_a_schema_is_tried_made_and_found(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.make_database(is_migrated=False))

    tried = run("--database", url, "--dry-run", "--json")
    done = run("--database", url, "--json")
    again = run("--database", url)

    assert [one.exit_code for one in (tried, done, again)] == [0, 0, 0]
    versions = range(1, SCHEMA_VERSION + 1)
    applied = [{"compatible_from": 1, "version": version} for version in versions]
    told = {"applied": applied, "database": url, "found": 0}
    told |= {"has_role": True, "wanted": SCHEMA_VERSION}
    assert json.loads(tried.stdout) == told | {"is_dry": True}
    assert json.loads(done.stdout) == told | {"is_dry": False}
    assert (
        again.stdout == f"{url}: the schema has version {SCHEMA_VERSION}, as this rankmend needs\n"
    )


def test_a_dry_run_shows_the_statements(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.make_database(is_migrated=False))

    told = run("--database", url, "--dry-run")

    assert "version 1 would be applied" in told.stdout
    assert "CREATE TABLE rankmend.record" in told.stdout


def test_the_database_of_a_configuration_is_found_with_its_password_file(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.url(postgres.make_database(is_migrated=False))
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    password.chmod(0o600)
    config = tmp_path / "controller.toml"
    config.write_text(
        f'state_dir = "/var/tmp/none"\njournal = "{url}"\n[postgres]\npassword_file = "{password}"\n'
    )

    done = run("--config", str(config))

    assert done.exit_code == 0, done.output
    assert "version 1 applied" in done.output
    assert "s3cret" not in done.output


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "name the database"),
        (("--database", "postgresql://me:s3cret@db/rankmend"), "has a password in it"),
        (("--database", "postgresql://me@127.0.0.1:1/rankmend"), "cannot migrate"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_a_password(
    words: tuple[str, ...], what: str
) -> None:
    refused = run(*words)

    assert refused.exit_code == 1
    assert what in refused.output
    assert "s3cret" not in refused.output
