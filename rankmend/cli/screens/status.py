"""`rankmend status`: jobs, attempts and ranks, once or live."""

from pathlib import Path

import click

from rankmend.cli.options import json_option, state_option
from rankmend.cli.output import echo, say_looking
from rankmend.cli.sources.controller_names import complete_job
from rankmend.cli.sources.controller_options import (
    Access,
    controller_options,
    is_local,
    is_own_state,
)
from rankmend.cli.sources.reader import NOTHING_RUNS, find_empty, has_watched, reading


@click.command(
    epilog="""\b
Examples:
  rankmend status
  rankmend status --watch
  rankmend status llama --controller https://controller.example:9477
"""
)
@click.argument("job", required=False, shell_complete=complete_job)
@state_option
@controller_options
@json_option
@click.option("--all", "show_all", is_flag=True, help="List every job, also those that have ended.")
@click.option(
    "--nodes", "show_nodes", is_flag=True, help="Show all nodes that the controller knows."
)
@click.option("--watch", "-w", is_flag=True, help="Refresh until Ctrl-C.")
def status(
    job: str | None,
    state_dir: Path | None,
    access: Access,
    as_json: bool,
    show_all: bool,
    show_nodes: bool,
    watch: bool,
) -> None:
    """Show jobs, their attempts, and the state of each rank or node.

    JOB is the beginning of a job's name or UUID. Asks the controller if one is named, else reads this
    machine's state folder.
    """
    if watch:
        say_looking("jobs")
    empty = None if watch or as_json or job is not None else find_empty(access, state_dir)
    # Who goes on looking sees a job that starts later.
    with_watched = is_local(access) and is_own_state() and (watch or has_watched())
    if empty is not None and not with_watched:
        echo(str(empty))
        echo(NOTHING_RUNS)
        return
    from rankmend.cli.screens.status_view import show
    from rankmend.cli.sources.picture import Wanted

    wanted = Wanted(job, show_all, show_nodes)
    try:
        with reading(access, state_dir, with_watched=with_watched) as reader:
            show(reader, wanted, as_json=as_json, watch=watch)
    except KeyboardInterrupt:
        if not watch:
            raise
