"""`rankmend controller`: run the service, and manage its certificates and tokens."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click

from rankmend.cli import output
from rankmend.cli.controller_database import migrate, move
from rankmend.cli.options import examples
from rankmend.cli.output import echo, failure
from rankmend.cli.sources.controller_options import (
    Access,
    client_of,
    confirm,
    controller_options,
    yes_option,
)
from rankmend.cli.times import say_time
from rankmend.errors import ConfigError
from rankmend.printable import printable

_JOBS_SHOWN = 20

_path = click.Path(path_type=Path)
_tokens_option = click.option(
    "--tokens-file",
    type=_path,
    default=Path("/etc/rankmend/controller/tokens.toml"),
    show_default=True,
    help="The controller's token file.",
)


_hosts_option = click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name or address of the controller; repeatable.",
)


@click.group()
def controller() -> None:
    """Run and set up the controller, which recovers the jobs of a cluster."""


@controller.command(
    epilog=examples(
        "rankmend controller run --config /etc/rankmend/controller.toml",
        after="SIGHUP reloads the configuration; SIGTERM and SIGINT stop the controller, while training continues.",
    )
)
@click.option(
    "--config", "config_path", type=_path, required=True, help="Configuration file (TOML)."
)
def run(config_path: Path) -> None:
    """Run the controller in the foreground, as systemd does."""
    import signal
    import sys

    # Before the slow imports: an uncaught SIGHUP ends the process. The daemon handles it later.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from rankmend import logs
    from rankmend.errors import RankmendError
    from rankmend.packages import Extra, require

    require(Extra.CONTROLLER, "rankmend controller run")
    from recovery.service import daemon

    logs.configure()
    try:
        code = daemon.run(config_path)
    except RankmendError as error:
        raise failure(error) from error
    sys.exit(code)


@controller.command(
    epilog=examples("rankmend controller init /etc/rankmend --host controller.example")
)
@click.argument("folder", type=_path)
@_hosts_option
@click.option(
    "--state-dir",
    type=_path,
    default=Path("/var/lib/rankmend-controller"),
    show_default=True,
    help="Folder for the journals.",
)
@click.option("--user", help="User that runs the service; owns the key and the token file.")
def init(folder: Path, hosts: tuple[str, ...], state_dir: Path, user: str | None) -> None:
    """Create certificates, tokens and a configuration in FOLDER. Existing files are never overwritten."""
    from rankmend.errors import RankmendError
    from recovery.service.setup import init as make

    try:
        made = make(folder, list(hosts), state_dir, user)
    except RankmendError as error:
        raise failure(error) from error
    echo(
        f"created in {folder}:\n"
        f"  {made.config.name}   the configuration: rankmend controller run --config {made.config}\n"
        f"  {made.authority.name}            for clients (--ca-file); move its key, ca.key, off this machine\n"
        f"  {made.admin_token.name}       has every right; give it to one administrator\n"
        f"Next, make a token for each user or group; its jobs don't exist for the others:\n"
        f"  rankmend controller token add USER --role launch --role read --output USER.token "
        f"--tokens-file {made.config.parent / 'tokens.toml'}\n"
        f"  {made.launch_token.name}      counts as one user: for a service account that starts all jobs\n"
        f"For Prometheus and dashboards, which see all jobs: rankmend controller token add NAME --role fleet-read "
        f"--tokens-file {made.config.parent / 'tokens.toml'}\n"
        f"For each agent: rankmend controller node-cert NODE --dir {made.config.parent}"
    )


controller.add_command(migrate)
controller.add_command(move)


@controller.group()
def token() -> None:
    """Add, list and revoke tokens.

    A running controller reads them on reload.
    """


@token.command(
    epilog=examples("rankmend controller token add ann --role launch --output ann.token")
)
@click.argument("subject")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice(["launch", "alert", "read", "fleet-read", "act"]),
    help="Role of the subject; repeatable. read: its own jobs; fleet-read: everybody's.",
)
@click.option(
    "--node", "nodes", multiple=True, metavar="PATTERN", help="Limit the token to these nodes."
)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="PATTERN",
    help="Limit the token to jobs with these names.",
)
@click.option(
    "--days", type=click.FloatRange(min=0, min_open=True), help="Days until the token expires."
)
@click.option("--comment", default="", help="Note to keep in the token file.")
@click.option(
    "--output", type=_path, help="Write the token to this file (mode 0600) instead of printing it."
)
@_tokens_option
def add(
    subject: str,
    roles: tuple[str, ...],
    nodes: tuple[str, ...],
    jobs: tuple[str, ...],
    days: float | None,
    comment: str,
    output: Path | None,
    tokens_file: Path,
) -> None:
    """Make a token for SUBJECT, a user (whose launchers run jobs) or a program."""
    from rankmend.errors import RankmendError
    from recovery.service.http.authority import write_new
    from recovery.service.roles import Role
    from recovery.service.tokens import add_token, make_token

    expires = None if days is None else datetime.now(timezone.utc) + timedelta(days=days)
    try:
        text, entry = make_token(
            subject,
            [Role(role) for role in roles],
            nodes=nodes,
            jobs=jobs,
            expires=expires.replace(microsecond=0) if expires is not None else None,
            comment=comment,
        )
        if output is not None:
            write_new(output, f"{text}\n".encode(), 0o600)
        add_token(tokens_file, entry)
    except (RankmendError, OSError) as error:
        raise failure(error) from error
    echo(f"token {entry.id} of {subject}" + (f" in {output}" if output else ""), err=True)
    if output is None:
        echo(text)


@token.command("list", epilog=examples("rankmend controller token list"))
@_tokens_option
def list_tokens(tokens_file: Path) -> None:
    """List the tokens' subjects; the tokens themselves are not stored."""
    from rich import box
    from rich.table import Table

    from rankmend.errors import RankmendError
    from recovery.service.tokens import read_tokens

    try:
        entries = read_tokens(tokens_file)
    except RankmendError as error:
        raise failure(error) from error
    table = Table("id", "subject", "roles", "nodes", "jobs", "expires", "comment", box=box.SIMPLE)
    for entry in entries:
        table.add_row(
            entry.id,
            entry.subject,
            ", ".join(role.value for role in entry.roles),
            ", ".join(entry.nodes) or "all",
            ", ".join(entry.jobs) or "all",
            say_time(entry.expires.timestamp()) if entry.expires else "never",
            entry.comment,
        )
    output.console().print(table)


@token.command(epilog=examples("rankmend controller token revoke 3f2a9c1d"))
@click.argument("token_id", metavar="ID")
@_tokens_option
@yes_option
@controller_options
def revoke(token_id: str, tokens_file: Path, access: Access, *, yes: bool) -> None:
    """Revoke the token with this ID.

    Names the running jobs that use it and asks for confirmation: their training goes on, and no failure of theirs is recovered any more.
    With --controller the controller says which these are, else its state folder on this machine says which jobs its subject has.
    """
    from rankmend.errors import RankmendError
    from recovery.service.roles import Role
    from recovery.service.tokens import find_token, revoke_token

    try:
        entry = find_token(tokens_file, token_id)
        if Role.LAUNCH in entry.roles:
            warning = _users_text(entry.id, entry.subject, tokens_file, access)
            if warning:
                echo(printable(warning), err=True)
                confirm(f"Revoke token {entry.id} of {entry.subject}?", yes=yes)
        revoke_token(tokens_file, token_id)
    except (RankmendError, OSError) as error:
        raise failure(error) from error
    echo(f"revoked token {entry.id} of {entry.subject}; reload the controller")


def _users_text(token_id: str, subject: str, tokens_file: Path, access: Access) -> str:
    """Return which running jobs a token's end would leave to themselves; empty: none."""
    from rankmend.errors import RankmendError
    from recovery.service.controller_config import load
    from recovery.service.jobs.stored_jobs import running_jobs_of

    orphaned = "would be refused: their training goes on, and no failure of theirs is recovered until they have another token"
    problem = ""
    if access.is_named:
        try:
            client = client_of(access)
            try:
                jobs = [job for job in client.jobs() if token_id in job.tokens]
            finally:
                client.close()
        except (RankmendError, OSError, ValueError) as error:
            problem = f"the controller does not say which jobs use token {token_id}: {error}\n"
        else:
            named = _named_jobs([(job.name, job.job_id) for job in jobs])
            return f"Launchers of {named} use token {token_id} and {orphaned}." if jobs else ""
    try:
        config = load(tokens_file.parent / "controller.toml")
        if config.journal is not None:
            raise ConfigError("its jobs are in PostgreSQL")
        found = running_jobs_of(Path(config.state_dir), subject)
    except (RankmendError, OSError) as error:
        return f"{problem}It is not known which running jobs use token {token_id} ({error}): give --controller. Their launchers {orphaned}."
    if not found:
        return problem.strip()
    return f"{problem}{subject} has {_named_jobs(found)}. Launchers that use token {token_id} {orphaned}."


def _named_jobs(jobs: Sequence[tuple[str, str]]) -> str:
    """Return how many running jobs these are, and their names."""
    from detectors.wording import counted

    shown = ", ".join(f"{name} ({job_id[:8]})" for name, job_id in jobs[:_JOBS_SHOWN])
    more = f" and {len(jobs) - _JOBS_SHOWN} more" if len(jobs) > _JOBS_SHOWN else ""
    return f"{counted(len(jobs), 'running job')}: {shown}{more}"


_authority_option = click.option(
    "--dir",
    "folder",
    type=_path,
    default=Path("/etc/rankmend/controller"),
    show_default=True,
    help="Folder with ca.crt and ca.key.",
)
_output_option = click.option(
    "--output", type=_path, default=Path(), help="Folder for the files. [default: here]"
)


@controller.command(
    "server-cert",
    epilog=examples(
        "rankmend controller server-cert --dir /etc/rankmend --host controller.example"
    ),
)
@_hosts_option
@_authority_option
@_output_option
def server_cert(hosts: tuple[str, ...], folder: Path, output: Path) -> None:
    """Renew the controller's certificate.

    Also issues one for other names.
    """
    from rankmend.errors import RankmendError
    from recovery.service.setup import make_server_files

    try:
        cert, key = make_server_files(folder, list(hosts), output)
    except RankmendError as error:
        raise failure(error) from error
    echo(f"created {cert} and {key}: put them where [tls] points, and reload the controller")


@controller.command(
    "node-cert", epilog=examples("rankmend controller node-cert gpu-17 --dir /etc/rankmend")
)
@click.argument("node")
@_authority_option
@_output_option
def node_cert(node: str, folder: Path, output: Path) -> None:
    """Create the certificate that identifies the agent on NODE."""
    from rankmend.errors import RankmendError
    from recovery.service.setup import make_node_files

    try:
        cert, key = make_node_files(folder, node, output)
    except RankmendError as error:
        raise failure(error) from error
    echo(f"created {cert} and {key}")
