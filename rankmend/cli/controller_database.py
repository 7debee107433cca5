"""`rankmend controller migrate` and `move`: the schema of the controller's PostgreSQL, and what a state folder has into it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankmend.cli.options import examples, json_option, print_json
from rankmend.cli.output import echo, failure

if TYPE_CHECKING:
    from recovery.journal.postgres.database_url import DatabaseUrl
    from recovery.journal.postgres.migration import MigrationPlan

_path = click.Path(path_type=Path)


@click.command(
    epilog=examples(
        "rankmend controller migrate --config /etc/rankmend/controller.toml",
        after="Connect as a role that owns the schema or may create it, not as the controllers' role.",
    )
)
@click.option("--config", "config_path", type=_path, help="Configuration that names the database.")
@click.option(
    "--database",
    metavar="URL",
    help="Database, as the role that owns the schema: postgresql://USER@HOST/DATABASE.",
)
@click.option(
    "--password-file",
    type=_path,
    help="File with that role's password (mode 0600). [default: as PGPASSFILE says]",
)
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="Try it, roll it back, and show what it would do."
)
@json_option
def migrate(
    config_path: Path | None,
    database: str | None,
    password_file: Path | None,
    is_dry: bool,
    as_json: bool,
) -> None:
    """Bring the schema of the controller's PostgreSQL to this version."""
    from rankmend.errors import RankmendError
    from rankmend.packages import Extra, require
    from recovery.journal.postgres import migration

    require(Extra.POSTGRES, "rankmend controller migrate")
    try:
        url = find_database(config_path, database, password_file)
        plan = migration.migrate(url, is_dry=is_dry)
    except RankmendError as error:
        raise failure(error) from error
    if as_json:
        print_json(
            {
                "database": str(url),
                "found": plan.found,
                "wanted": plan.wanted,
                "applied": [
                    {"version": item.version, "compatible_from": item.compatible_from}
                    for item in plan.applied
                ],
                "has_role": plan.has_role,
                "is_dry": plan.is_dry,
            }
        )
        return
    _print_plan(plan, str(url))


@click.command(
    epilog=examples(
        "rankmend controller move --config /etc/rankmend/controller.toml",
        after="Stop the controller first. If a move is interrupted, run it again: it continues.",
    )
)
@click.option(
    "--config",
    "config_path",
    type=_path,
    required=True,
    help="The controller's configuration, with state_dir and journal.",
)
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="Read and compare everything; write nothing."
)
@json_option
def move(config_path: Path, is_dry: bool, as_json: bool) -> None:
    """Move the journals and jobs in the state folder to PostgreSQL."""
    from dataclasses import asdict

    from rankmend.errors import RankmendError
    from rankmend.packages import Extra, require

    require(Extra.POSTGRES, "rankmend controller move")
    from recovery.service.jobs import journal_move

    try:
        report = journal_move.move(
            config_path,
            is_dry=is_dry,
            tell=lambda text: None if as_json else echo(text),
        )
    except RankmendError as error:
        raise failure(error) from error
    if as_json:
        print_json(asdict(report))
        return
    records = sum(journal.records for journal in report.journals)
    verb = "would be moved" if is_dry else "are moved and were read back"
    echo(
        f"{report.jobs_running} running and {report.jobs_ended} ended jobs with {records} records {verb}"
        + ("" if is_dry else ". Start the controller")
    )


def find_database(
    config_path: Path | None, database: str | None, password_file: Path | None
) -> "DatabaseUrl":
    """Return the database that a command works on: the named one, or that of a configuration."""
    from rankmend.errors import ConfigError
    from recovery.journal.postgres.database_url import read_database_url
    from recovery.service.controller_config import load

    if database is not None:
        return read_database_url(database, None if password_file is None else str(password_file))
    if config_path is None:
        raise ConfigError("name the database: --database URL, or --config FILE")
    config = load(config_path)
    if config.journal is None:
        raise ConfigError(
            f'{config_path} has no journal = "postgresql://..."; or give --database URL'
        )
    named = config.postgres.password_file if password_file is None else str(password_file)
    return read_database_url(config.journal, named)


def _print_plan(plan: "MigrationPlan", url: str) -> None:
    from recovery.journal.postgres.migration import ROLE

    if not plan.applied:
        echo(f"{url}: the schema has version {plan.found}, as this rankmend needs")
    verb = "would be applied" if plan.is_dry else "applied"
    for item in plan.applied:
        echo(f"{url}: version {item.version} {verb}")
        if plan.is_dry:
            echo(item.statements)
    if not plan.has_role:
        echo(
            f"the role {ROLE} does not exist: no controller has rights on the schema yet. "
            f"CREATE ROLE {ROLE} NOLOGIN, and migrate again (deploy/postgresql/role.sql)",
            err=True,
        )
