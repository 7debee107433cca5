"""`rankmend status`: jobs, attempts and ranks, once or live."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankmend.cli import output
from rankmend.cli.controller_names import complete_job
from rankmend.cli.controller_options import Access, controller_options, is_local
from rankmend.cli.options import fail, find_state, json_option, print_json, seconds, state_option
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from recovery.report.overview import StoredJobView

_WATCH_S = 1.0
_COLOURS = {
    "running": "green",
    "done": "green",
    "recovering": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "interrupted": "red",
    "escalated": "red",
}


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
@click.option("--all", "show_all", is_flag=True, help="Include jobs that have ended.")
@click.option(
    "--nodes", "show_nodes", is_flag=True, help="Show every node that the controller knows."
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
    try:
        if not is_local(access):
            from rankmend.cli.status_controller import Wanted, show

            show(access, Wanted(job, show_all, show_nodes), as_json=as_json, watch=watch)
            return
        state = find_state(state_dir)
        if watch:
            _watch(state, job, show_all=show_all, as_json=as_json)
        elif as_json:
            print_json({"jobs": _views(state, job, show_all=show_all)})
        else:
            output.console().print(_render(state, _views(state, job, show_all=show_all)))
    except RankmendError as error:
        fail(str(error))
    except KeyboardInterrupt:
        if not watch:
            raise


def _views(state: Path, job: str | None, *, show_all: bool) -> "list[StoredJobView]":
    from recovery.report.overview import find_jobs, view_job

    views = [view_job(folder, time.monotonic) for folder in find_jobs(state, job)]
    ended = {"done", "stopped", "time_limit", "escalated"}
    return [view for view in views if show_all or job or view.state not in ended]


def _watch(state: Path, job: str | None, *, show_all: bool, as_json: bool) -> None:
    """Show the jobs again and again: live on a terminal, else a line for each that has changed."""
    from rankmend.cli.status_watch import Changes, print_json_line, repeat

    changes = Changes()

    def show() -> None:
        views = _views(state, job, show_all=show_all)
        if as_json:
            print_json_line({"jobs": views})
        else:
            changes.print([(view.job_id, _head(view).plain) for view in views])

    if sys.stdout.isatty() and not as_json:
        from rich.live import Live

        def draw() -> None:
            picture = _render(state, _views(state, job, show_all=show_all))
            live.update(output.clean(picture), refresh=True)

        with Live(console=output.console(), screen=False, auto_refresh=False) as live:
            repeat(_WATCH_S, draw)
    else:
        repeat(_WATCH_S, show)


def _render(state: Path, views: "list[StoredJobView]") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    if not views:
        return Text(f"no running job in {state} (--all shows ended ones)")
    return Group(*(_render_job(view) for view in views))


def _head(view: "StoredJobView") -> "Text":
    from rich.text import Text

    colour = _COLOURS.get(view.state, "white")
    head = Text.assemble(
        (view.name, "bold"),
        "  ",
        (view.state, colour),
        f"  attempt {view.attempt}, {view.world_size} ranks, {view.restarts} restarts"
        f" ({view.restarts_without_progress} without progress), {view.incidents} incidents",
    )
    if view.highest_step is not None:
        head.append(f", highest step {view.highest_step}")
    return head


def _render_job(view: "StoredJobView") -> "RenderableType":
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = [_head(view), Text(f"  {view.job_id}  {view.state_dir}", style="dim")]
    if view.problem or view.reason:
        lines.append(Text(f"  {view.problem or view.reason}", style="red" if view.problem else ""))
    lines += [Text(f"  {line}", style="yellow") for line in view.slow]
    if not view.ranks:
        return Group(*lines)
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("rank", "pid", "step", "step time", "last step", "section"):
        table.add_column(column, justify="left" if column == "section" else "right")
    for rank in view.ranks:
        table.add_row(
            str(rank.rank),
            str(rank.pid),
            "-" if rank.step is None else str(rank.step),
            seconds(rank.step_seconds),
            "-" if rank.step_age_s is None else f"{seconds(rank.step_age_s)} ago",
            rank.problem or rank.section or "tells nothing",
        )
    return Group(*lines, table)
