"""`rankmend incidents` and `rankmend why`: what went wrong, what it cost, and why we acted so."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rankmend.cli import output
from rankmend.cli.controller_names import complete_job, complete_story
from rankmend.cli.controller_options import Access, asking, console, controller_options, is_local
from rankmend.cli.options import (
    fail,
    find_state,
    json_option,
    local_time,
    print_json,
    state_option,
)
from rankmend.cli.output import echo
from rankmend.cli.shown_line import ShownLine
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from detectors.finding import Finding
    from recovery.journal.accounting import Account
    from recovery.journal.records import Entry

_PHASES = ("detect", "decide", "fence", "retries", "start", "restore", "first_step")


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
    notes: list[str] = []
    try:
        if is_local(access):
            rows = [row for row, _account in _rows(find_state(state_dir), job)]
        else:
            from rankmend.cli.incidents_controller import read_notes, read_rows

            with asking(access) as client:
                rows, notes = read_rows(client, job), read_notes(client, job)
    except RankmendError as error:
        fail(str(error))
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
  rankmend why llama                   the whole story of a job
"""
)
@click.argument("incident", shell_complete=complete_story)
@state_option
@controller_options
@json_option
def why(incident: str, state_dir: Path | None, access: Access, as_json: bool) -> None:
    """Explain why rankmend acted as it did, from the journal alone.

    INCIDENT is an incident's id, or the beginning of a job's name or UUID for its whole story. Asks the
    controller where one is named, else reads this machine's state folder.
    """
    if not is_local(access):
        from rankmend.cli.incidents_controller import read_story

        with asking(access) as client:
            story = read_story(client, incident)
        told, lines = story.entries(), story.lines()
        name = story.name
    else:
        try:
            name, entries = _story(find_state(state_dir), incident)
        except RankmendError as error:
            fail(str(error))
        if not entries:
            fail(f"no incident or job {incident!r} (rankmend incidents lists them)")
        told, lines = [_entry_json(entry) for entry in entries], _lines(entries)
    if as_json:
        print_json({"job": name, "entries": told})
        return
    _print_story(name, lines)


def _rows(state: Path, job: str | None) -> "list[tuple[dict[str, Any], Account]]":
    from recovery.journal.accounting import account_all
    from recovery.journal.incident_records import EvidenceCollected
    from recovery.journal.job_records import JobOpened
    from recovery.report.overview import find_jobs, read_entries

    rows = []
    for folder in find_jobs(state, job):
        try:
            entries = read_entries(folder)
        except RankmendError as error:
            echo(f"rankmend: {error}", err=True)
            continue
        opened = next((e.record for e in entries if isinstance(e.record, JobOpened)), None)
        judged = {
            entry.record.incident_id: entry.record.finding
            for entry in entries
            if isinstance(entry.record, EvidenceCollected)
        }
        for account in account_all(entries):
            # Dumps and stacks know more than what was seen of the job while it hung.
            finding = judged.get(account.incident_id) or account.opened.failure.finding
            rows.append((_row(account, opened.name if opened else folder.name, finding), account))
    return rows


def _row(account: "Account", job_name: str, finding: "Finding") -> dict[str, Any]:
    phases = {f"{name}_s": getattr(account.phases, f"{name}_s") for name in _PHASES}
    return {
        "id": account.incident_id,
        "job_id": finding.job_id,
        "job": job_name,
        "opened_unix_s": account.opened_unix_s,
        "attempt": account.opened.failure.attempt,
        "cause": finding.kind.value,
        "signature": finding.signature,
        "summary": finding.summary,
        "blame": finding.blame.value,
        "ranks": list(finding.ranks),
        "victims": list(finding.victims),
        "outcome": account.state.phase.name.lower(),
        "tries": account.state.try_number,
        "phases": phases,
        "notes": list(account.notes),
        "total_s": account.total_s,
        "recovered_s": account.recovered_s,
        "steps_recomputed": account.steps_recomputed,
        "caught_up_s": account.caught_up_s,
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    """Return the phases in seconds, a row an incident; narrow enough for 80 columns."""
    from rich import box
    from rich.table import Table

    names = [name for name in _PHASES if name != "retries" or _has_retries(rows)]
    table = Table(
        box=box.SIMPLE_HEAD,
        title="time to recovery, in seconds",
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("incident", no_wrap=True)
    for name in (*names, "MTTR"):
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("steps redone", justify="right")
    for row in rows:
        redone = row["steps_recomputed"]
        table.add_row(
            row["id"],
            *(_number(row["phases"][f"{name}_s"]) for name in names),
            _number(row["total_s"]),
            "-" if redone is None else str(redone),
        )
    return table


def _has_retries(rows: list[dict[str, Any]]) -> bool:
    return any(row["phases"]["retries_s"] for row in rows)


def _number(seconds_taken: float | None) -> str:
    return "-" if seconds_taken is None else f"{seconds_taken:.3f}"


def _line(row: dict[str, Any]) -> Any:
    from rich.text import Text

    colour = {"recovered": "green", "escalated": "red"}.get(row["outcome"], "yellow")
    return Text.assemble(
        (row["id"], "bold"),
        f"  {_local_time(row['opened_unix_s'])}  ",
        (row["outcome"], colour),
        f"  {row['job']}: {row['summary']} (blamed: {row['blame']})",
    )


def _legend(rows: list[dict[str, Any]]) -> Any:
    """Return what the words behind "blamed" mean, of those that are shown."""
    from rich.text import Text

    from detectors.finding import Blame

    shown = {row["blame"] for row in rows}
    meant = [f"{one.value} = {one.legend}" for one in Blame if one.value in shown]
    return Text(f"blamed: {'; '.join(meant)}", style="dim")


def _local_time(unix_s: float) -> str:
    return local_time(unix_s, "%m-%d %H:%M:%S %z")


def _story(state: Path, wanted: str) -> "tuple[str, tuple[Entry, ...]]":
    """Return the entries of an incident, or of a whole job where a job is named."""
    from recovery.report.overview import find_jobs, find_story, read_entries

    folder, entries = find_story(state, wanted)
    if folder is not None:
        return folder.name, entries
    folders = find_jobs(state, wanted)
    return (folders[0].name, read_entries(folders[0])) if folders else ("", ())


def _entry_json(entry: "Entry") -> dict[str, Any]:
    from recovery.journal.narrator import narrate
    from recovery.journal.records import kind_of

    return {
        "number": entry.number,
        "unix_s": entry.unix_s,
        "kind": kind_of(entry.record),
        "text": narrate(entry.record),
        "record": entry.record,
    }


def _lines(entries: "tuple[Entry, ...]") -> list[ShownLine]:
    from recovery.journal.narrator import details, narrate

    return [
        ShownLine(
            one.number, one.monotonic_s, one.boot_id, narrate(one.record), details(one.record)
        )
        for one in entries
    ]


def _print_story(name: str, lines: list[ShownLine]) -> None:
    from rich.text import Text

    out = output.console(soft_wrap=True)
    out.print(Text(name, style="bold"))
    first_s, boot_id = lines[0].monotonic_s, lines[0].boot_id
    for line in lines:
        if line.text is None:
            continue
        since = f"+{line.monotonic_s - first_s:8.3f} s" if line.boot_id == boot_id else " " * 11
        out.print(Text.assemble((f"{since}  #{line.number:<5}", "dim"), line.text))
        for detail in line.details:
            out.print(Text(f"{'':19}{detail}", style="dim"))
