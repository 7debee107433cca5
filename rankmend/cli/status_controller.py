"""`rankmend status` against a controller: its jobs, nodes, plans that wait, pauses and windows."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from rankmend.cli.controller_options import Access, asking, console, explain, find_job
from rankmend.cli.options import print_json, seconds
from rankmend.cli.output import clean
from rankmend.cli.status_watch import Changes, print_json_line, repeat
from rankmend.cli.times import say_time
from rankmend.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from recovery.api import wire
    from recovery.api.operator_client import OperatorClient

_WATCH_S: Final = 2.0  # four requests each: a 25th of what one subject may ask
_NODES_SHOWN: Final = 40  # without --nodes or JOB; those that need a person come first
_NOTES_SHOWN: Final = 5
_COLOURS: Final = {
    "running": "green",
    "done": "green",
    "recovering": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "escalated": "red",
    "not managed": "red",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    job: str | None
    with_ended: bool
    every_node: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """What a controller says of everything, asked for within a moment."""

    url: str  # of the controller that answered
    jobs: "list[wire.JobView]"
    nodes: "list[wire.NodeView]"
    plans: "list[wire.PlanView]"
    cluster: "wire.Cluster"


def take_picture(client: "OperatorClient", wanted: Wanted) -> Picture:
    """Return what the controller tells now."""
    plans, cluster = client.plans(), client.cluster()
    if wanted.job is None:
        jobs, nodes = client.jobs(with_ended=wanted.with_ended), client.nodes()
        return Picture(client.url, jobs, nodes, plans, cluster)
    detail = client.job(find_job(client, wanted.job, with_ended=True).job_id)
    plans = [plan for plan in plans if plan.job_id == detail.job.job_id]
    return Picture(client.url, [detail.job], detail.nodes, plans, cluster)


def show(access: Access, wanted: Wanted, *, as_json: bool, watch: bool) -> None:
    """Print the picture once, or again and again."""
    with asking(access) as client:
        if watch:
            _watch(client, access, wanted, as_json=as_json)
            return
        picture = take_picture(client, wanted)
    if as_json:
        print_json(plain(picture))
    else:
        console().print(render(picture, wanted))


def _watch(client: "OperatorClient", access: Access, wanted: Wanted, *, as_json: bool) -> None:
    """Go on over a controller that does not answer: that is when people look."""
    from recovery.api.controller_errors import UnreachableError

    def ask() -> Picture | str:
        try:
            return take_picture(client, wanted)
        except UnreachableError as error:
            return explain(error, access)

    if sys.stdout.isatty() and not as_json:
        _watch_live(ask, wanted)
    else:
        _watch_lines(ask, as_json=as_json)


def _watch_live(ask: Callable[[], Picture | str], wanted: Wanted) -> None:
    """Draw the picture anew, under what is wrong the last one."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    last: RenderableType = Text("no report yet", style="dim")

    def draw() -> None:
        nonlocal last
        told = ask()
        if isinstance(told, Picture):
            last = clean(render(told, wanted))
        said = [] if isinstance(told, Picture) else told.splitlines()
        problem = [Text(printable(line), style="red") for line in said]
        live.update(Group(*problem, last), refresh=True)

    with Live(
        console=console(), screen=False, auto_refresh=False, vertical_overflow="crop"
    ) as live:
        repeat(_WATCH_S, draw)


def _watch_lines(ask: Callable[[], Picture | str], *, as_json: bool) -> None:
    """Print what has changed, or everything as one line of JSON."""
    changes = Changes()

    def show() -> None:
        told = ask()
        if as_json:
            print_json_line(plain(told) if isinstance(told, Picture) else {"error": told})
        elif isinstance(told, Picture):
            changes.print(_lines(told))
        else:
            changes.add("controller", told.replace("\n", " "))

    repeat(_WATCH_S, show)


def plain(picture: Picture) -> dict[str, Any]:
    """Return the picture for JSON."""
    import msgspec

    return {
        "controller": picture.url,
        "jobs": msgspec.to_builtins(picture.jobs),
        "nodes": msgspec.to_builtins(picture.nodes),
        "plans": msgspec.to_builtins(picture.plans),
        "cluster": msgspec.to_builtins(picture.cluster),
    }


def _lines(picture: Picture) -> "list[tuple[str, str]]":
    """Return a line for each thing that a person who watches wants to hear of, with a key."""
    lines = [("controller", f"{picture.url} answers")]
    lines += [(f"job {job.name} {job.job_id}", _head(job, picture).plain) for job in picture.jobs]
    lines += [(f"plan of {one.incident_id}", _say_plan(one)) for one in picture.plans]
    lines += [
        (f"node {one.node} of job {one.job_id}", f"{one.node}: {one.held}")
        for one in picture.nodes
        if one.held is not None
    ]
    lines += [(f"pause of {one.scope}", _say_pause(one)) for one in picture.cluster.paused]
    return lines


def render(picture: Picture, wanted: Wanted) -> "RenderableType":
    """Return the picture for people."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(picture.url, style="dim")]
    parts += [Text(_say_pause(one), style="yellow") for one in picture.cluster.paused]
    parts += [Text(note, style="yellow") for note in picture.cluster.notes[-_NOTES_SHOWN:]]
    if not picture.jobs:
        parts.append(Text("no running job (--all shows ended ones)"))
    for job in picture.jobs:
        parts += _render_job(job, picture)
    if picture.nodes:
        parts.append(_render_nodes(picture, wanted))
        hidden = len(picture.nodes) - _NODES_SHOWN
        if hidden > 0 and not (wanted.every_node or wanted.job):
            parts.append(Text(f"and {hidden} more nodes (--nodes)", style="dim"))
    parts += _render_idle(picture)
    return Group(*parts)


def _head(job: "wire.JobView", picture: Picture) -> "Text":
    from rich.text import Text

    spares = sum(one.job_id == job.job_id and one.is_spare for one in picture.nodes)
    head = Text.assemble(
        (job.name, "bold"),
        "  ",
        (job.state, _COLOURS.get(job.state, "white")),
        ("  paused", "yellow") if job.is_paused else "",
        f"  attempt {job.attempt}, {job.world_size} ranks on {job.nodes} nodes, {spares} spare, "
        f"{job.restarts} restarts{_left(job.restarts_left)}, {job.restarts_without_progress} without "
        f"progress{_left(job.no_progress_left)}, {job.incidents} incidents",
    )
    if job.highest_step is not None:
        head.append(f", highest step {job.highest_step}")
    return head


def _left(count: int | None) -> str:
    return "" if count is None else f" ({count} left)"


def _render_job(job: "wire.JobView", picture: Picture) -> "list[RenderableType]":
    from rich.text import Text

    about = [job.job_id, f"of {job.owner}", *(f"{k} {v}" for k, v in job.attributes.items())]
    lines: list[RenderableType] = [
        _head(job, picture),
        Text("  " + "  ".join(about), style="dim"),
    ]
    if job.problem is not None:
        lines.append(Text(f"  {job.problem}", style="red"))
    if job.reason is not None:
        incident = f"{job.incident_id}: " if job.incident_id is not None else ""
        lines.append(Text(f"  {incident}{job.reason}"))
    lines += [
        Text(f"  {_say_plan(plan)}", style="yellow")
        for plan in picture.plans
        if plan.job_id == job.job_id
    ]
    return lines


def _say_plan(plan: "wire.PlanView") -> str:
    left = f" leaving {', '.join(plan.without)}" if plan.without else ""
    todo = f"rankmend approve {plan.incident_id}, or reject"
    if plan.waits_for == "nodes":
        todo = "rankmend resume --node NODE takes one back"
    return f"{plan.step}{left} waits: {plan.judgement_reason} ({todo})"


def _say_pause(pause: "wire.Pause") -> str:
    words = f": {pause.reason}" if pause.reason else ""
    return f"{pause.scope} is paused by {pause.who}{words}"


def _render_nodes(picture: Picture, wanted: Wanted) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    names = {job.job_id: job.name for job in picture.jobs}
    nodes: Sequence[wire.NodeView] = picture.nodes
    if not wanted.every_node and wanted.job is None:
        nodes = sorted(nodes, key=_need)[:_NODES_SHOWN]
    table = Table("node", "job", box=box.SIMPLE, pad_edge=False)
    table.add_column("ranks", overflow="fold")
    table.add_column("heard", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for one in nodes:
        heard = Text(_heard(one.heard_age_s))
        heard.stylize("yellow" if _is_silent(one) else "")
        state = Text("spare" if one.is_spare else "in use")
        if one.held is not None:
            state = Text(f"{state.plain if one.ranks else 'held back'}, {one.held}", style="red")
        table.add_row(one.node, names.get(one.job_id, one.job_id), ranges(one.ranks), heard, state)
    return table


def _heard(age_s: float | None) -> str:
    if age_s is None:
        return "not yet"
    return f"{age_s:.1f} s ago" if age_s < 100 else f"{seconds(age_s)} ago"


def _need(node: "wire.NodeView") -> int:
    """Return the place of a node in a list that is cut: those that need a person first."""
    return 0 if node.held is not None else 1 if _is_silent(node) else 2


def _is_silent(node: "wire.NodeView") -> bool:
    from recovery.journal.limits import Policy

    return node.heard_age_s is None or node.heard_age_s > Policy().node_silent_s


def _render_idle(picture: Picture) -> "list[RenderableType]":
    """Return lines about held nodes that no job has, and the windows that are not over."""
    from rich.text import Text

    now_unix_s = time.time()
    in_jobs = {one.node for one in picture.nodes}
    lines: list[RenderableType] = [
        Text(f"{one.node}: {one.hold} by {one.who}{_until(one.until_unix_s)}: {one.reason}")
        for one in picture.cluster.held
        if one.node not in in_jobs
    ]
    lines += [
        Text(
            f"maintenance {one.window_id} of {', '.join(one.nodes[:10])}, "
            f"{say_time(one.from_unix_s)} to {say_time(one.until_unix_s)} by {one.who}: {one.reason}"
        )
        for one in picture.cluster.windows
        if one.until_unix_s > now_unix_s
    ]
    return lines


def _until(unix_s: float | None) -> str:
    return "" if unix_s is None else f" until {say_time(unix_s)}"


def ranges(ranks: Sequence[int]) -> str:
    """Return ranks as people write them: 0-7, 12."""
    parts = []
    numbered = enumerate(sorted(ranks))
    for _gap, run in groupby(numbered, key=lambda pair: pair[1] - pair[0]):
        block = [rank for _place, rank in run]
        parts.append(str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}")
    return ", ".join(parts) or "-"
