"""`rankmend incidents` and `rankmend why`: what failed, what it cost, and why rankmend acted as it did."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rankmend.cli import output
from rankmend.cli.controller_names import complete_job, complete_story
from rankmend.cli.controller_options import Access, console, controller_options
from rankmend.cli.options import json_option, local_time, print_json, state_option
from rankmend.cli.reader import reading

if TYPE_CHECKING:
    from recovery.api import wire


@click.command(
    epilog="""\b
Examples:
  rankmend incidents
  rankmend incidents llama --controller https://controller.example:9477
"""
)
@click.argument("job", required=False, shell_complete=complete_job)
@state_option
@controller_options
@json_option
def incidents(job: str | None, state_dir: Path | None, access: Access, as_json: bool) -> None:
    """List incidents with their MTTR by phase.

    JOB is the beginning of a job's name or UUID. Asks the controller if one is named, else reads
    this machine's state folder.
    """
    with reading(access, state_dir) as reader:
        rows = [_row(view) for view in reader.incidents(job)]
        notes = [] if as_json else reader.notes(job)
    if as_json:
        print_json({"incidents": rows})
        return
    shown = console()
    for note in notes:
        shown.print(note)
    if not rows:
        shown.print("no incidents")
        return
    for row in rows:
        shown.print(_line(row))
    shown.print(_legend(rows))
    shown.print(_table(rows))


@click.command(
    epilog="""\b
Examples:
  rankmend why 4f1c2d3e-7
  rankmend why llama                   the full history of a job
"""
)
@click.argument("incident", shell_complete=complete_story)
@state_option
@controller_options
@json_option
def why(incident: str, state_dir: Path | None, access: Access, as_json: bool) -> None:
    """Explain why rankmend acted as it did, from the journal alone.

    INCIDENT is an incident's id; the beginning of a job's name or UUID shows the job's full history.
    Asks the controller if one is named, else reads this machine's state folder.
    """
    with reading(access, state_dir) as reader:
        story = reader.story(incident)
    if as_json:
        print_json({"job": story.job, "entries": [_entry(line) for line in story.lines]})
        return
    _print_story(story)


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


def _table(rows: list[dict[str, Any]]) -> Any:
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


def _line(row: dict[str, Any]) -> Any:
    from rich.text import Text

    is_from_memory = row["outcome"] == "recovered" and row["restored_from"] in ("memory", "peer")
    colour = {"recovered": "green", "escalated": "red"}.get(row["outcome"], "yellow")
    return Text.assemble(
        (row["id"], "bold"),
        f"  {_local_time(row['opened_unix_s'])}  ",
        (row["outcome"], colour),
        f"  {row['job']}: {row['summary']} (blamed: {row['blame']})",
        f", went on from memory at step {row['restored_step']}" if is_from_memory else "",
    )


def _legend(rows: list[dict[str, Any]]) -> Any:
    """Return the meaning of each word under "blamed" that the table shows."""
    from rich.text import Text

    from detectors.finding import Blame

    shown = {row["blame"] for row in rows}
    meant = [f"{one.value} = {one.legend}" for one in Blame if one.value in shown]
    return Text(f"blamed: {'; '.join(meant)}", style="dim")


def _local_time(unix_s: float) -> str:
    return local_time(unix_s, "%m-%d %H:%M:%S %z")


def _print_story(story: "wire.Story") -> None:
    from rich.text import Text

    out = output.console(soft_wrap=True)
    out.print(Text(story.job, style="bold"))
    first_s, boot_id = story.lines[0].monotonic_s, story.lines[0].boot_id
    for line in story.lines:
        if line.text is None:
            continue
        since = f"+{line.monotonic_s - first_s:8.3f} s" if line.boot_id == boot_id else " " * 11
        out.print(Text.assemble((f"{since}  #{line.number:<5}", "dim"), line.text))
        for detail in line.details:
            out.print(Text(f"{'':19}{detail}", style="dim"))
