"""`rankmend status`: jobs, attempts and ranks, once or live."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankmend.cli.options import fail, find_state, json_option, print_json, seconds, state_option
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from recovery.overview import JobView

_WATCH_S = 1.0
_COLOURS = {
    "running": "green",
    "done": "green",
    "recovering": "yellow",
    "stopping": "yellow",
    "interrupted": "red",
    "escalated": "red",
}


@click.command()
@click.argument("job", required=False)
@state_option
@json_option
@click.option("--all", "show_all", is_flag=True, help="Also jobs that have ended.")
@click.option("--watch", "-w", is_flag=True, help="Keep showing, once a second.")
def status(
    job: str | None, state_dir: Path | None, as_json: bool, show_all: bool, watch: bool
) -> None:
    """Show jobs, their attempts, and where each rank stands.

    JOB is the beginning of a job's name or UUID.
    """
    state = find_state(state_dir)
    try:
        if as_json:
            print_json({"jobs": _views(state, job, show_all=show_all)})
        elif watch:
            _watch(state, job, show_all=show_all)
        else:
            from rich.console import Console

            Console().print(_render(state, _views(state, job, show_all=show_all)))
    except RankmendError as error:
        fail(str(error))


def _views(state: Path, job: str | None, *, show_all: bool) -> "list[JobView]":
    from recovery.overview import find_jobs, view_job

    now_s = time.monotonic()
    views = [view_job(folder, now_s) for folder in find_jobs(state, job)]
    ended = {"done", "stopped", "time_limit", "escalated"}
    return [view for view in views if show_all or job or view.state not in ended]


def _watch(state: Path, job: str | None, *, show_all: bool) -> None:
    from rich.live import Live

    with Live(screen=False, auto_refresh=False) as live:
        while True:
            live.update(_render(state, _views(state, job, show_all=show_all)), refresh=True)
            time.sleep(_WATCH_S)


def _render(state: Path, views: "list[JobView]") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    if not views:
        return Text(f"no running job in {state} (--all shows ended ones)")
    return Group(*(_render_job(view) for view in views))


def _render_job(view: "JobView") -> "RenderableType":
    from rich import box
    from rich.console import Group
    from rich.table import Table
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
    lines = [head, Text(f"  {view.job_id}  {view.state_dir}", style="dim")]
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
