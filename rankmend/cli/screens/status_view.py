"""The output of `rankmend status`: jobs, ranks, nodes, pending plans, pauses and windows."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from detectors.wording import counted, rank_ranges
from rankmend.cli.options import local_time, print_json
from rankmend.cli.output import clean
from rankmend.cli.screens.checkpoint_lines import say_checkpoint, say_snapshots
from rankmend.cli.screens.kubernetes_node_lines import render_kubernetes_nodes
from rankmend.cli.screens.network_lines import say_nccl, say_plane
from rankmend.cli.screens.slurm_node_lines import render_slurm_nodes
from rankmend.cli.screens.status_watch import Changes, print_json_line, repeat
from rankmend.cli.sources.controller_options import console
from rankmend.cli.sources.picture import Picture, Reader, Wanted
from rankmend.cli.sources.reader import NOTHING_RUNS
from rankmend.cli.times import say_time
from rankmend.cli.watched_lines import render_ranks, render_watched
from rankmend.printable import duration, printable
from rankmend.rank_values import Unsaved

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from recovery.api import wire
    from recovery.local.report.overview import StoredJobView

_JOBS_SHOWN: Final = 40  # without --all or JOB; likewise
_NO_NODES: Final = (
    "no list of nodes: a controller has one (--controller URL), and a state folder has none"
)
_NODES_SHOWN: Final = 40  # without --nodes or JOB; nodes that need a person come first
_NOTES_SHOWN: Final = 5
_FINDINGS_SHOWN: Final = 3  # open ones of a node
# What a node hangs on, by column; one that no node has a word in is left out.
_PLACES: "Final[dict[str, Callable[[wire.NodeView], str]]]" = {
    "NVLink domain": lambda node: node.nvlink_domain,
    "block": lambda node: node.block,
    "leaf": lambda node: node.leaf,
    "rack": lambda node: node.rack,
}
_COLOURS: Final = {
    "running": "green",
    "done": "green",
    "recovering": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "interrupted": "red",
    "escalated": "red",
    "not managed": "red",
}


def show(reader: Reader, wanted: Wanted, *, as_json: bool, watch: bool) -> None:
    """Print the state of everything, once or repeatedly."""
    if watch and sys.stdout.isatty() and not as_json:
        _watch_live(reader, wanted)
    elif watch:
        _watch_lines(reader, wanted, as_json=as_json)
    elif as_json:
        print_json(plain(reader.picture(wanted), wanted))
    else:
        console().print(render(reader.picture(wanted), wanted))


def _watch_live(reader: Reader, wanted: Wanted) -> None:
    """Redraw the picture; while there is none, keep the last one below the problem."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    last: RenderableType = Text("no report yet", style="dim")

    def draw() -> None:
        nonlocal last
        reported = reader.picture_or_problem(wanted)
        if isinstance(reported, Picture):
            last = clean(render(reported, wanted))
        said = [] if isinstance(reported, Picture) else reported.splitlines()
        problem = [Text(printable(line), style="red") for line in said]
        live.update(Group(*problem, last), refresh=True)

    with Live(
        console=console(), screen=False, auto_refresh=False, vertical_overflow="crop"
    ) as live:
        repeat(reader.watch_s, draw)


def _watch_lines(reader: Reader, wanted: Wanted, *, as_json: bool) -> None:
    """Print the changes as lines, or everything as one line of JSON."""
    changes = Changes()

    def show() -> None:
        reported = reader.picture_or_problem(wanted)
        if as_json:
            print_json_line(
                plain(reported, wanted) if isinstance(reported, Picture) else {"error": reported}
            )
        elif isinstance(reported, Picture):
            changes.print(_lines(reported))
        else:
            changes.add("controller", reported.replace("\n", " "))

    repeat(reader.watch_s, show)


def plain(picture: Picture, wanted: Wanted) -> dict[str, Any]:
    """Return the picture for JSON: of jobs that have ended, only those that a script asks for."""
    import msgspec

    with_ended = wanted.with_ended or wanted.job is not None
    jobs = [job for job in picture.jobs if with_ended or _runs(job)]
    return {
        "controller": picture.controller,
        "jobs": msgspec.to_builtins(jobs),
        "watched": msgspec.to_builtins(picture.watched),
        "nodes": msgspec.to_builtins(picture.nodes),
        "slurm_nodes": msgspec.to_builtins(picture.slurm_nodes),
        "kubernetes": msgspec.to_builtins(picture.kubernetes),
        "plans": msgspec.to_builtins(picture.plans),
        "cluster": msgspec.to_builtins(picture.cluster),
    }


def _lines(picture: Picture) -> "list[tuple[str, str]]":
    """Return one line, with a key, for each thing that interests a person who watches."""
    url, spares = picture.controller, _spares(picture)
    lines = [] if url is None else [("controller", f"{url} answers")]
    lines += [(f"job {job.name} {job.job_id}", _head(job, spares).plain) for job in picture.jobs]
    lines += [
        (f"watched {job.name} {job.job_id}", f"{job.name}  {job.state}  {job.reason}".rstrip())
        for job in picture.watched
    ]
    lines += [
        (f"plan of {plan.incident_id or plan.job}", _plan_text(plan)) for plan in picture.plans
    ]
    lines += [
        (f"node {node.node} of job {node.job_id}", f"{node.node}: {node.held}")
        for node in picture.nodes
        if node.held is not None
    ]
    lines += [("observe", ", ".join(picture.cluster.observe))] if picture.cluster.observe else []
    lines += [(f"pause of {item.scope}", _pause_text(item)) for item in picture.cluster.paused]
    return lines


def render(picture: Picture, wanted: Wanted) -> "RenderableType":
    """Return the picture for people."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(_source_text(picture), style="dim")]
    if picture.cluster.observe:
        text = f"observe mode ({', '.join(picture.cluster.observe)}): rankmend decides, and does nothing"
        parts.append(Text(printable(text), style="yellow"))
    parts += [Text(_pause_text(item), style="yellow") for item in picture.cluster.paused]
    parts += [Text(note, style="yellow") for note in picture.cluster.notes[-_NOTES_SHOWN:]]
    if not picture.watched and not any(map(_runs, picture.jobs)) and wanted.job is None:
        parts.append(Text("no running job" if wanted.with_ended else NOTHING_RUNS))
    if wanted.with_ended and wanted.job is None:
        parts += _render_list(picture.jobs)
    else:
        parts += _render_jobs(picture, wanted)
    parts += render_watched(picture.watched)
    if picture.nodes:
        parts.append(_render_nodes(picture, wanted))
        hidden = len(picture.nodes) - _NODES_SHOWN
        if hidden > 0 and not (wanted.every_node or wanted.job):
            parts.append(Text(f"and {hidden} more nodes (--nodes)", style="dim"))
    elif wanted.every_node and picture.controller is None:
        parts.append(Text(_NO_NODES, style="yellow"))
    parts += render_slurm_nodes(picture.slurm_nodes)
    parts += render_kubernetes_nodes(picture.kubernetes)
    parts += _render_idle(picture)
    return Group(*parts)


def _render_jobs(picture: Picture, wanted: Wanted) -> "list[RenderableType]":
    """Return the jobs, those that need a person first, and of the others a count where there are too many."""
    from rich.text import Text

    spares = _spares(picture)
    plans: defaultdict[str, list[wire.PlanView]] = defaultdict(list)
    for plan in picture.plans:
        plans[plan.job_id].append(plan)
    jobs = sorted(picture.jobs, key=lambda job: _need_of_job(job, has_plan=job.job_id in plans))
    shown = jobs if wanted.with_ended or wanted.job is not None else jobs[:_JOBS_SHOWN]
    parts: list[RenderableType] = []
    left = len(jobs) - len(shown)
    if left:
        parts.append(Text(f"{len(jobs)} jobs: {_by_state(jobs)}", style="bold"))
    for job in shown:
        parts += _render_job(job, spares, plans[job.job_id], picture.nodes)
    if left:
        text = f"and {left} more jobs: {_by_state(jobs[len(shown) :])} (--all, or a job's name)"
        parts.append(Text(text, style="dim"))
    return parts


def _runs(job: "wire.JobView") -> bool:
    from recovery.journal.job_records import OutcomeKind

    return job.state not in [kind.value for kind in OutcomeKind]


def _render_list(jobs: "Sequence[wire.JobView]") -> "list[RenderableType]":
    """Return all jobs as one table, those that run first, of the others the newest first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from recovery.console.views.state_words import is_unread

    if not jobs:
        return []
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    started = f"started ({local_time(time.time(), '%Z')})"
    for column in ("job", "state", "id", started, "duration", "script"):
        table.add_column(column, overflow="fold", no_wrap=column == started)
    for column in ("ranks", "nodes", "attempt", "incidents", "step"):
        table.add_column(column, justify="right")
    ordered = sorted(jobs, key=lambda job: (not _runs(job), -(job.began_unix_s or 0.0)))
    for job in ordered:
        began = (
            "-" if job.began_unix_s is None else local_time(job.began_unix_s, "%Y-%m-%d %H:%M:%S")
        )
        counts = (job.world_size, job.nodes, job.attempt, job.incidents)
        table.add_row(
            Text(job.name, style="bold"),
            Text(say_state(job.state), style=_COLOURS.get(job.state, "white")),
            job.job_id[:8],
            began,
            "-" if job.lasted_s is None else duration(job.lasted_s),
            job.script or "-",
            *("-" if is_unread(job) else str(number) for number in counts),
            "-" if job.highest_step is None else str(job.highest_step),
        )
    return [table, Text("rankmend status JOB shows one in detail", style="dim")]


def say_state(state: str) -> str:
    """Return a job's state in the words of people; programs read the value."""
    from recovery.console.views.state_words import word_of

    return word_of(state)


def _need_of_job(job: "wire.JobView", *, has_plan: bool) -> int:
    """Return the sort key of a job: those that wait for a person, all others that don't train, those that do, those that have ended."""
    from recovery.journal.job_records import OutcomeKind

    if job.state in [kind.value for kind in OutcomeKind]:
        return 3
    if has_plan or job.state in ("waiting", "not managed"):
        return 0
    return 1 if job.problem is not None or job.state != "running" else 2


def _by_state(jobs: "Sequence[wire.JobView]") -> str:
    counts = Counter(job.state for job in jobs).most_common()
    return ", ".join(f"{count} {printable(say_state(state))}" for state, count in counts)


def _spares(picture: Picture) -> "Mapping[str, int] | None":
    """Return how many spares each job can use; None where nobody knows: a journal does not list them."""
    if not picture.nodes:
        return None
    return Counter(node.job_id for node in picture.nodes if node.is_spare and node.held is None)


def _head(job: "wire.JobView", spares: "Mapping[str, int] | None") -> "Text":
    from rich.text import Text

    from recovery.console.views.state_words import is_unread

    state = (say_state(job.state), _COLOURS.get(job.state, "white"))
    if is_unread(job):
        return Text.assemble((job.name, "bold"), "  ", state)
    spare = "" if spares is None else f", {counted(spares.get(job.job_id, 0), 'spare')}"
    head = Text.assemble(
        (job.name, "bold"),
        "  ",
        state,
        ("  paused", "yellow") if job.is_paused else "",
        f"  attempt {job.attempt}, {counted(job.world_size, 'rank')} on {counted(job.nodes, 'node')}{spare}, "
        f"{counted(job.restarts, 'restart')}{_patience(job)}, {counted(job.incidents, 'incident')}",
    )
    if job.highest_step is not None:
        head.append(f", highest step {job.highest_step}")
    return head


def _patience(job: "wire.JobView") -> str:
    """Return how near the job is to giving up, where its newest restarts brought no progress."""
    if not job.restarts_without_progress:
        return ""
    text = f", the last {job.restarts_without_progress} without progress"
    left = [item for item in (job.restarts_left, job.no_progress_left) if item is not None]
    return f"{text} (gives up after {min(left)} more)" if left else text


def _render_job(
    job: "wire.JobView",
    spares: "Mapping[str, int] | None",
    plans: "Sequence[wire.PlanView]",
    nodes: "Sequence[wire.NodeView]",
) -> "list[RenderableType]":
    """Return what is known of a job."""
    from rich.text import Text

    from recovery.local.report.overview import StoredJobView

    owner = [f"started by {job.owner}"] if job.owner else []
    stored = job if isinstance(job, StoredJobView) else None
    where = [] if stored is None else [stored.state_dir]
    if job.controller:
        where.append(f"at the controller on {job.controller}")
    about = [job.job_id, *owner, *where, *(f"{k} {v}" for k, v in job.attributes.items())]
    lines: list[RenderableType] = [
        _head(job, spares),
        Text("  " + "  ".join(about), style="dim"),
    ]
    if job.problem is not None:
        lines.append(Text(f"  {job.problem}", style="red"))
    lines += [Text(printable(f"  {say_plane(plane)}"), style="yellow") for plane in job.planes]
    lines += [Text(f"  {line}", style="yellow") for line in say_nccl(job.nccl)]
    if job.fabric_probe:
        lines.append(Text(printable(f"  {job.fabric_probe}"), style="yellow"))
    if job.reason is not None:
        incident = f"{job.incident_id}: " if job.incident_id is not None else ""
        lines.append(Text(f"  {incident}{job.reason}"))
    held = {node.node for node in nodes if node.held is not None and node.job_id == job.job_id}
    if job.down_s is not None:
        lines.append(Text(f"  {say_down(job)}", style="yellow"))
    lines += [Text(f"  {_plan_text(plan, job, held)}", style="yellow") for plan in plans]
    if job.parallel is not None:
        lines.append(Text(f"  {_parallel_text(job.parallel)}"))
    if job.unsaved is not None:
        style = "dim" if job.unsaved.cause == Unsaved.NO_FOLDER.value else "yellow"
        lines.append(Text(printable(f"  {job.unsaved.text}"), style=style))
    if job.checkpoint is not None:
        said = say_checkpoint(job.checkpoint)
        lines += [Text(f"  {line}") for line in said]
    if stored is not None and stored.removed_checkpoint:
        text = f"  newest checked checkpoint: {stored.removed_checkpoint} was removed; no newer one is checked yet"
        lines.append(Text(printable(text), style="yellow"))
    if job.snapshots is not None:
        said = say_snapshots(job.snapshots, job.world_size)
        lines += [Text(f"  {line}") for line in said]
    if stored is not None:
        lines += _render_ranks(stored)
    return lines


def _render_ranks(job: "StoredJobView") -> "list[RenderableType]":
    """Return the progress of the ranks on this machine, which no controller collects."""
    from rich.text import Text

    said = (*job.slow, *job.numbers, *job.replicas)
    lines: list[RenderableType] = [Text(f"  {line}", style="yellow") for line in said]
    if not job.ranks:
        return lines
    return [*lines, *render_ranks(job.ranks)]


def _parallel_text(reported: "wire.ParallelSizes") -> str:
    from recovery.api.parallel_sizes import from_wire

    sharded = ", ".join(printable(part) for part in reported.sharded_parts)
    shown = f"parallel sizes (declared): {from_wire(reported)}"
    return f"{shown}; sharded: {sharded}" if sharded else shown


def say_down(job: "wire.JobView") -> str:
    """Return what the open incident of a job costs so far."""
    assert job.down_s is not None, "called while no rank trains"
    return f"down {duration(job.down_s)} so far, {counted(job.world_size, 'rank')} idle"


def _plan_text(
    plan: "wire.PlanView", job: "wire.JobView | None" = None, held: "Collection[str]" = ()
) -> str:
    """Return what a plan waits for, and what helps; ``job``: whose reason stands above; ``held``: its nodes that are held back."""
    left = f" leaving {', '.join(plan.without)}" if plan.without else ""
    todo = f"rankmend approve {plan.incident_id}, or reject"
    if not plan.incident_id:
        todo = f"rankmend approve {plan.job}, or stop"
    if plan.waits_for == "nodes":
        todo = f"rankmend resume --node {min(held, default='NODE')} returns one to service"
    if plan.waits_for == "storage":
        todo = "it goes on by itself"
    step = plan.step.replace("_", " ")
    if plan.gives_up_after_s is not None:
        todo += f"; the job is given up after {duration(plan.gives_up_after_s)} of waiting"
    is_said = job is not None and plan.judgement_reason in (job.reason or "")
    why = "" if is_said else f": {plan.judgement_reason}"
    return f"{step}{left} waits{why} ({todo})"


def _source_text(picture: Picture) -> str:
    """Return where all this was read."""
    if picture.controller is not None:
        return f"controller {picture.controller}"
    return f"state folder {picture.state_dir}"


def _pause_text(pause: "wire.Pause") -> str:
    words = f": {pause.reason}" if pause.reason else ""
    return f"{pause.scope} is paused by {pause.who}{words}"


def _render_nodes(picture: Picture, wanted: Wanted) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from recovery.console.views.state_words import TRAINS, use_of

    names = {job.job_id: job.name for job in picture.jobs}
    states = {job.job_id: job.state for job in picture.jobs}
    findings: defaultdict[str, list[str]] = defaultdict(list)
    for found in picture.cluster.findings:
        findings[found.node].append(f"{found.check}: {found.summary}")
    nodes: Sequence[wire.NodeView] = picture.nodes
    if not wanted.every_node and wanted.job is None:
        nodes = sorted(nodes, key=lambda node: _need(node, has_finding=node.node in findings))
        nodes = nodes[:_NODES_SHOWN]
    table = Table("node", "job", box=box.SIMPLE, pad_edge=False)
    table.add_column("ranks", overflow="fold")
    table.add_column("last report", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    shown = {name: tell for name, tell in _PLACES.items() if any(map(tell, nodes))}
    for name in shown:
        table.add_column(name, overflow="fold")
    has_starts = any(_shows_starts(node) for node in nodes)
    if has_starts:
        table.add_column("start", overflow="fold")
    for node in nodes:
        received = Text(_report_age_text(node.heard_age_s))
        received.stylize("yellow" if _is_silent(node) else "")
        state = Text(use_of(node, states.get(node.job_id, TRAINS)))
        if node.held is not None:
            state = Text(f"{state.plain}, {node.held}", style="red")
        news = [text for text in findings[node.node] if text not in state.plain]
        for text in news[:_FINDINGS_SHOWN]:
            state.append(printable(f"; {text}"), style="red")
        start = [printable(_starts_text(node))] if has_starts else []
        job = names.get(node.job_id, node.job_id)
        place = [printable(tell(node)) for tell in shown.values()]
        table.add_row(node.node, job, rank_ranges(node.ranks), received, state, *place, *start)
    return table


def _shows_starts(node: "wire.NodeView") -> bool:
    """Return whether a fork server was requested on this node."""
    return any(start.start == "forked" or start.why_not_forked for start in node.starts)


def _starts_text(node: "wire.NodeView") -> str:
    """Return how the processes of the node's ranks came to be, the ranks named where they differ."""
    said = []
    for start in node.starts:
        how = start.start or "unknown"
        if start.why_not_forked:
            how = f"{how}: {start.why_not_forked}"
        said.append(how if len(node.starts) == 1 else f"{rank_ranges(start.ranks)} {how}")
    return "; ".join(said) or "-"


def _report_age_text(age_s: float | None) -> str:
    if age_s is None:
        return "not yet"
    return f"{age_s:.1f} s ago" if age_s < 100 else f"{duration(age_s)} ago"


def _need(node: "wire.NodeView", *, has_finding: bool) -> int:
    """Return the sort key of a node: nodes that need a person come first, as the list may be cut."""
    return 0 if node.held is not None or has_finding else 1 if _is_silent(node) else 2


def _is_silent(node: "wire.NodeView") -> bool:
    from recovery.journal.limits import Policy

    return node.heard_age_s is None or node.heard_age_s > Policy().node_silent_s


def _render_idle(picture: Picture) -> "list[RenderableType]":
    """Return lines about held nodes outside all jobs, and about current and future windows."""
    from rich.text import Text

    from recovery.console.views.state_words import word_of

    now_unix_s = time.time()
    in_jobs = {node.node for node in picture.nodes}
    lines: list[RenderableType] = [
        Text(
            f"{item.node}: {word_of(item.hold)} by {item.who}{_until(item.until_unix_s)}: {item.reason}"
        )
        for item in picture.cluster.held
        if item.node not in in_jobs
    ]
    lines += [
        Text(
            f"maintenance {window.window_id} of {', '.join(window.nodes[:10])}, "
            f"{say_time(window.from_unix_s)} to {say_time(window.until_unix_s)} by {window.who}: {window.reason}"
        )
        for window in picture.cluster.windows
        if window.until_unix_s > now_unix_s
    ]
    return lines


def _until(unix_s: float | None) -> str:
    return "" if unix_s is None else f" until {say_time(unix_s)}"
