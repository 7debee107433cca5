"""`rankmend incidents` and `rankmend why`: what failed, what it cost, and why rankmend acted as it did."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.options import json_option, local_time, print_json, state_option
from rankmend.cli.screens.status_watch import print_json_line
from rankmend.cli.sources.controller_names import complete_job, complete_node, complete_story
from rankmend.cli.sources.controller_options import Access, controller_options, is_local
from rankmend.cli.sources.reader import find_empty, reading
from rankmend.cli.times import SINCE, TimeOfDay, begin_of
from rankmend.printable import duration, printable

if TYPE_CHECKING:
    from recovery.api import wire


_FOLLOW_S: Final = 2.0  # a look at a controller costs it a list of incidents
_OPEN: Final = ("opened", "fencing", "restoring", "verifying")


@click.command(
    epilog="""\b
Examples:
  rankmend incidents
  rankmend incidents llama --controller https://controller.example:9477
  rankmend incidents --since 7d --node gpu-17
  rankmend incidents --follow
"""
)
@click.argument("job", required=False, shell_complete=complete_job)
@click.option(
    "--since",
    type=SINCE,
    help="List only what began since then: 7d, 12h, or 2026-12-01T08:00.",
)
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=complete_node,
    help="List only what happened on this node, or counts against it.",
)
@click.option("--phases", is_flag=True, help="Add a table of the times of recovery, by phase.")
@click.option(
    "-f", "--follow", is_flag=True, help="Print a line for each new or changed one, until Ctrl-C."
)
@state_option
@controller_options
@json_option
def incidents(
    job: str | None,
    since: "float | TimeOfDay | None",
    node: str | None,
    phases: bool,
    follow: bool,
    state_dir: Path | None,
    access: Access,
    as_json: bool,
) -> None:
    """List what went wrong, the newest first, with what it cost.

    JOB is the beginning of a job's name or UUID. Asks the controller if one is named, else reads
    this machine's state folder.

    "duration" is the time until training went on; "loss" includes the steps made again.
    """
    since_unix_s = begin_of(since)
    if follow:
        output.say_looking("incidents")
    if not follow and job is None and find_empty(access, state_dir) is not None:
        _print_none(as_json=as_json)
        return
    with reading(access, state_dir) as reader:

        def look() -> list[dict[str, Any]]:
            return [_row(view) for view in _wanted(reader.incidents(job), since_unix_s, node)]

        if follow:
            with contextlib.suppress(KeyboardInterrupt):
                _follow(look, as_json=as_json)
            return
        rows = look()
        notes = [] if as_json else reader.notes(job)
    if as_json:
        print_json({"incidents": rows})
        return
    if not rows:
        for text in (*notes, "no incidents"):
            output.echo(text)
        return
    shown = output.console(is_wide=True)
    for note in notes:
        shown.print(note)
    now_unix_s = time.time() if is_local(access) else None
    shown.print(_table(rows, now_unix_s))
    shown.print(_legend(rows))
    if phases:
        shown.print(_phases(rows))
    shown.print(f"rankmend why {rows[0]['id']} explains the newest")


def _print_none(*, as_json: bool) -> None:
    if as_json:
        print_json({"incidents": []})
    else:
        output.echo("no incidents")


def _wanted(
    views: "Iterable[wire.IncidentView]", since_unix_s: float | None, node: str | None
) -> "list[wire.IncidentView]":
    """Return the incidents that were requested, the newest first."""
    found = [
        view
        for view in views
        if (since_unix_s is None or view.opened_unix_s >= since_unix_s)
        and (node is None or node in (view.node, *(charge.node for charge in view.charges)))
    ]
    return sorted(found, key=lambda view: view.opened_unix_s, reverse=True)


def _follow(look: Callable[[], list[dict[str, Any]]], *, as_json: bool) -> None:
    """Print the newest incidents, then a line for each that is new or has changed."""
    printed: dict[str, Any] = {}
    while True:
        for row in reversed(look()):
            reported = (_word(row), row["blame"], row["total_s"], row["caught_up_s"])
            if printed.get(row["id"]) == reported:
                continue
            printed[row["id"]] = reported
            if as_json:
                print_json_line(row)
            else:
                output.echo(printable(line_of(row)))
        sys.stdout.flush()
        time.sleep(_FOLLOW_S)


@click.command(
    epilog="""\b
Examples:
  rankmend why                         the newest incident
  rankmend why 4f1c2d3e-7
  rankmend why llama                   the full history of a job
"""
)
@click.argument("incident", required=False, shell_complete=complete_story)
@state_option
@controller_options
@json_option
def why(incident: str | None, state_dir: Path | None, access: Access, as_json: bool) -> None:
    """Explain why rankmend acted as it did, from the journal alone.

    INCIDENT is an incident's id, the newest if none is given; the beginning of a job's name or UUID shows
    the job's full history. Asks the controller if one is named, else reads this machine's state folder.
    """
    if incident is None and find_empty(access, state_dir) is not None:
        _print_no_story(as_json=as_json)
        return
    with reading(access, state_dir) as reader:
        wanted = incident
        if wanted is None:
            newest = _wanted(reader.incidents(None), None, None)
            wanted = newest[0].incident_id if newest else None
        if wanted is None:
            _print_no_story(as_json=as_json)
            return
        story = reader.story(wanted)
        is_priced = story.incident_id is not None and story.job_id and not as_json
        known = reader.incidents(story.job_id) if is_priced else []
    if as_json:
        print_json({"job": story.job, "entries": [_entry(line) for line in story.lines]})
        return
    _print_story(
        story, next((item for item in known if item.incident_id == story.incident_id), None)
    )


def _print_no_story(*, as_json: bool) -> None:
    if as_json:
        print_json({"job": None, "entries": []})
    else:
        output.echo("no incidents")


def _row(view: "wire.IncidentView") -> dict[str, Any]:
    import msgspec

    row: dict[str, Any] = msgspec.to_builtins(view)
    return {"id": row.pop("incident_id"), **row}


def _entry(line: "wire.StoryLine") -> dict[str, Any]:
    import msgspec

    return {
        "number": line.number,
        "unix_s": line.unix_s,
        "kind": line.kind,
        "text": line.text,
        "record": msgspec.json.decode(line.record),
    }


def _table(rows: list[dict[str, Any]], now_unix_s: float | None) -> Any:
    """Return one row per incident; ``now_unix_s``: by the clock of the journal, None: it isn't this machine's."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column(f"began ({local_time(rows[0]['opened_unix_s'], '%Z')})", no_wrap=True)
    table.add_column("duration", justify="right", overflow="fold")
    table.add_column("loss", justify="right", overflow="fold")
    table.add_column("job", overflow="fold")
    table.add_column("what", overflow="fold", ratio=1)
    table.add_column("blamed", overflow="fold")
    for row in rows:
        number, began, duration, loss, job, what, blame = _cells(row, now_unix_s)
        word = _word(row)
        shown = Text.assemble((word, _colour(row)), what.removeprefix(word))
        table.add_row(Text(number, style="bold"), began, duration, loss, job, shown, blame)
    return table


def cells_of(view: "wire.IncidentView", now_unix_s: float | None) -> tuple[str, ...]:
    """Return the row of an incident: id, began, duration, loss, job, what, blamed."""
    return _cells(_row(view), now_unix_s)


def _cells(row: dict[str, Any], now_unix_s: float | None) -> tuple[str, ...]:
    return (
        row["id"],
        local_time(row["opened_unix_s"], "%Y-%m-%d %H:%M:%S"),
        _duration(row, now_unix_s),
        _loss(row, now_unix_s),
        row["job"],
        f"{_word(row)}: {_what(row)}",
        _blamed(row)[0],
    )


def _word(row: dict[str, Any]) -> str:
    """Return how an incident stands, in the word that the console shows."""
    from recovery.console.views.state_words import word_of

    return row.get("standing") or word_of(row["outcome"])


def _colour(row: dict[str, Any]) -> str:
    return {"recovered": "green", "escalated": "red"}.get(row["outcome"], "yellow")


def _what(row: dict[str, Any]) -> str:
    is_from_memory = row["outcome"] == "recovered" and row["restored_from"] in ("memory", "peer")
    memory = f", went on from memory at step {row['restored_step']}" if is_from_memory else ""
    return f"{row['summary']}{memory}"


def _duration(row: dict[str, Any], now_unix_s: float | None) -> str:
    """Return the time from the fault until training went on, or until it was given up; so far, while it lasts."""
    took_s = row["total_s"] if row["total_s"] is not None else row["recovered_s"]
    if took_s is not None:
        return duration(took_s)
    if row["outcome"] not in _OPEN:
        return "-"
    trained_s = row.get("trained_s", 0.0)
    if trained_s is None:
        return "trains on"
    down_s = row["down_s"]
    if down_s is None and now_unix_s is not None:
        since_unix_s = row["opened_unix_s"] + trained_s
        down_s = max(0.0, now_unix_s - since_unix_s) + (row["phases"].get("detect_s") or 0)
    return "open" if down_s is None else f"{duration(down_s)} so far"


def _loss(row: dict[str, Any], now_unix_s: float | None) -> str:
    """Return the time until the job was as far as before, with the steps that it made again."""
    from detectors.wording import counted

    if row.get("trained_s", 0.0) is None:
        return "-"
    redone = row["steps_recomputed"]
    steps = "" if not redone else f", {counted(redone, 'step')} again"
    if row["outcome"] in _OPEN and None not in (row["highest_step"], row["restored_step"]):
        behind = max(0, row["highest_step"] - row["restored_step"])
        steps = f", {counted(behind, 'step')} to make again" if behind else ""
    if row["caught_up_s"] is not None:
        return f"{duration(row['caught_up_s'])}{steps}"
    so_far = _duration(row, now_unix_s)
    # A job that was given up has lost its time until somebody starts it again.
    is_behind = row["outcome"] == "recovered" and bool(redone)
    is_left = row["outcome"] == "cancelled" and row.get("is_lost_least", False)
    is_more = is_behind or is_left or (row["outcome"] == "escalated" and so_far != "-")
    return f"{so_far} and more{steps}" if is_more else f"{so_far}{steps}"


def _phases(rows: list[dict[str, Any]]) -> Any:
    """Return a table of the phases in seconds, one row per incident, at most 80 columns wide."""
    from rich import box
    from rich.table import Table

    names = _shown_phases(rows)
    table = Table(
        box=box.SIMPLE_HEAD,
        title="time to recovery, in seconds",
        title_justify="left",
        padding=0,
    )
    table.add_column("incident", no_wrap=True)
    for name in (*names, "MTTR"):
        head = name.removesuffix("_s").replace("_", " ")
        table.add_column(head, justify="right", min_width=5, overflow="fold")
    table.add_column("steps redone", justify="right", min_width=5, overflow="fold")
    for row in rows:
        redone = row["steps_recomputed"]
        table.add_row(
            row["id"],
            *(_number(row["phases"].get(name)) for name in names),
            _number(row["total_s"]),
            "-" if redone is None else str(redone),
        )
    return table


def _shown_phases(rows: list[dict[str, Any]]) -> list[str]:
    """Return the keys of the phases that a row has, in their order; "retries" only if there were any."""
    keys = [key for row in rows for key in row["phases"]]
    is_known = {key: any(row["phases"].get(key) is not None for row in rows) for key in keys}
    is_known["retries_s"] = any(row["phases"].get("retries_s") for row in rows)
    return [key for key in dict.fromkeys(keys) if is_known[key]]


def _number(seconds_taken: float | None) -> str:
    """Return seconds in at most 5 characters up to a day: to a thousandth, or four digits."""
    if seconds_taken is None:
        return "-"
    digits = 3 if seconds_taken < 9.9995 else 2 if seconds_taken < 99.995 else 1
    return f"{seconds_taken:.{digits if seconds_taken < 999.95 else 0}f}"


def line_of(row: dict[str, Any]) -> str:
    """Return an incident in one line."""
    began = local_time(row["opened_unix_s"], "%Y-%m-%d %H:%M:%S %Z")
    outcome = _word(row)
    took = "" if row["total_s"] is None else f" after {duration(row['total_s'])}"
    return f"{began}  {row['id']}  {row['job']}: {outcome}{took}: {_what(row)} (blamed: {_blamed(row)[0]})"


def _blamed(row: dict[str, Any]) -> tuple[str, str]:
    """Return whom or what an incident blames, and what that word means."""
    from detectors.finding import Blame, blamed_in_words

    blame = next((item for item in Blame if item.value == row["blame"]), None)
    if blame is None:  # of a newer controller
        return row["blame"], row["blame"]
    return blamed_in_words(blame, row["cause"], row["ranks"])


def _legend(rows: list[dict[str, Any]]) -> Any:
    """Return the meaning of each word under "blamed" that the table shows."""
    from rich.text import Text

    shown = dict(sorted(map(_blamed, rows)))
    meant = "; ".join(f"{word} = {legend}" for word, legend in shown.items())
    return Text(f"blamed: {meant}", style="dim")


def _print_story(story: "wire.Story", cost: "wire.IncidentView | None") -> None:
    """Print each record with its time of day and the time since the first; ``cost``: of the incident, if it is known."""
    from rich.text import Text

    out = output.console(soft_wrap=True)
    first = story.lines[0]
    began = local_time(first.unix_s, "%Y-%m-%d %H:%M:%S %Z")
    out.print(Text.assemble((story.job, "bold"), f"  {began}"))
    for line in story.lines:
        if line.text is None:
            continue
        is_same_boot = line.boot_id == first.boot_id
        since = f"+{line.monotonic_s - first.monotonic_s:8.3f} s" if is_same_boot else " " * 11
        at = local_time(line.unix_s, "%H:%M:%S")
        out.print(Text.assemble((f"{at}  {since}  #{line.number:<5}", "dim"), line.text))
        for detail in line.details:
            out.print(Text(f"{'':29}{detail}", style="dim"))
    if cost is not None:
        row = _row(cost)
        took, loss = _duration(row, None), _loss(row, None)
        out.print(
            Text(
                f"training went on after {took}; lost in all: {loss}"
                if cost.total_s is not None and cost.outcome == "recovered"
                else f"{_word(row)}; duration: {took}",
                style="bold",
            )
        )
