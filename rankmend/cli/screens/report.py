"""`rankmend report`: where the time of jobs went, in the terminal, as JSON, CSV or one HTML file."""

import sys
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.options import fail, json_option, print_json, state_option
from rankmend.cli.output import echo, echo_exact
from rankmend.cli.sources.controller_names import complete_job
from rankmend.cli.sources.controller_options import Access, console, controller_options
from rankmend.cli.sources.reader import find_empty, reading
from rankmend.cli.times import SINCE, TimeOfDay, begin_of
from rankmend.errors import RankmendError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankmend.cli.sources.picture import Reader, SpentTime
    from recovery.accounting.observe_mode.verdict import JudgedDecision
    from recovery.api import wire
    from recovery.local.report.time_report import JobReport

_USAGE: Final = 2
_QUIET_S: Final = 2.0  # a report that takes longer shows how far it is
_CLEAR_LINE: Final = "\r\x1b[K"


class _Shown(Enum):
    SUMMARY = "summary"  # of each job, and the total
    ALL = "all"  # and the tables of each job
    TOTAL = "total"


@click.command(
    epilog="""\b
Examples:
  rankmend report                      a summary of all jobs of this machine
  rankmend report llama --since 7d
  rankmend report --cluster --since 7d the totals of all jobs
  rankmend report --all --html report.html
  rankmend report --would-have --since 7d
"""
)
@click.argument("named", metavar="[JOB]", required=False, shell_complete=complete_job)
@click.option("--job", metavar="JOB", shell_complete=complete_job, help="The same as JOB.")
@click.option("--all", "show_all", is_flag=True, help="Show the details of every job.")
@click.option("--cluster", "only_total", is_flag=True, help="Show only the totals of all jobs.")
@click.option(
    "--since",
    type=SINCE,
    help="Count only the time since then: 7d, 12h, or 2026-12-01T08:00.",
)
@click.option(
    "--would-have",
    is_flag=True,
    help="Show instead what rankmend would have done but did not, and whether it would have "
    "been right. --html has both.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a row for each job and part.")
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one HTML file that needs no network and no script.",
)
@state_option
@controller_options
@json_option
def report(
    named: str | None,
    job: str | None,
    show_all: bool,
    only_total: bool,
    since: "float | TimeOfDay | None",
    would_have: bool,
    as_csv: bool,
    page: Path | None,
    state_dir: Path | None,
    access: Access,
    as_json: bool,
) -> None:
    """Show where the time of jobs went.

    Divides wall time and GPU-hours into productive and recomputed steps, phases of recoveries, saves,
    waits and stops, and gives goodput, ETTR, availability, MTBF, MTTR and lost GPU-hours by cause.
    JOB is the beginning of a job's name or UUID. Asks the controller if one is named, else reads this
    machine's state folder.
    """
    if named is not None and job not in (None, named):
        fail("give the job once: JOB or --job", _USAGE)
    job = named if job is None else job
    chosen = [("JOB", job is not None), ("--all", show_all), ("--cluster", only_total)]
    given = [name for name, is_given in chosen if is_given]
    if len(given) > 1:
        fail(f"{' and '.join(given)} exclude each other", _USAGE)
    if as_csv and as_json:
        fail("--csv and --json exclude each other", _USAGE)
    is_plain = not (would_have or as_json or as_csv or page is not None or job is not None)
    if is_plain and find_empty(access, state_dir) is not None:
        echo("no jobs")
        return
    if would_have:
        from rankmend.cli.would_have import judged_decisions, show_would_have

        since_unix_s = begin_of(since)
        with reading(access, state_dir) as reader:
            judged = judged_decisions(reader, job, since_unix_s)
            if page is not None:
                _write_page(page, _read(reader, job, since_unix_s), judged)
        show_would_have(judged, as_json=as_json, as_csv=as_csv, has_page=page is not None)
        return
    shown = _Shown.TOTAL if only_total else _Shown.ALL if show_all else _Shown.SUMMARY
    saving: dict[str, list[str]] = {}
    with reading(access, state_dir) as reader:
        reports = _read(reader, job, begin_of(since))
        degraded = reader.degraded_networks(job)
        if page is not None:
            _write_page(page, reports)
        elif not (as_json or as_csv) and _has_details(reports, shown):
            saving = _read_saving(reader)
    if job is not None and not reports:
        fail(f"no job {job!r} with any time to report on (rankmend status --all lists jobs)")
    _show(
        reports,
        degraded,
        saving,
        as_json=as_json,
        as_csv=as_csv,
        has_page=page is not None,
        shown=shown,
    )


def _read(reader: "Reader", job: str | None, since_unix_s: float | None) -> "list[JobReport]":
    from recovery.accounting.goodput.figures import clip
    from recovery.local.report.time_report import report_of

    reports = [
        report_of(item.time, item.paces)
        for item in _counted(reader.times(job, since_unix_s))
        if item is not None
    ]
    for watched in reader.watched_times(job):
        shown = watched if since_unix_s is None else clip(watched, since_unix_s)
        if shown is not None:
            reports.append(report_of(shown))
    return reports


def _has_details(reports: "list[JobReport]", shown: _Shown) -> bool:
    return shown is _Shown.ALL or (shown is _Shown.SUMMARY and len(reports) == 1)


def _read_saving(reader: "Reader") -> dict[str, list[str]]:
    """Return what saving costs the jobs that run, by job id: only of them it is known what saves now."""
    from rankmend.cli.screens.checkpoint_lines import say_saving
    from rankmend.cli.sources.picture import Wanted

    jobs = reader.picture(Wanted(None, with_ended=False, every_node=False)).jobs
    return {job.job_id: say_saving(job.checkpoint, job.snapshots) for job in jobs}


def _counted(jobs: "Iterator[SpentTime | None]") -> "Iterator[SpentTime | None]":
    """Return the jobs; once that takes long, show on a terminal how many journals were read."""
    began_s, is_shown = time.monotonic(), False
    for count, job in enumerate(jobs, start=1):
        yield job
        if sys.stderr.isatty() and time.monotonic() - began_s > _QUIET_S:
            echo_exact(f"\rjournals read: {count} ", err=True, nl=False)
            is_shown = True
    if is_shown:
        echo_exact(_CLEAR_LINE, err=True, nl=False)


def _write_page(
    path: Path, reports: "list[JobReport]", judged: "list[JudgedDecision] | None" = None
) -> None:
    from rankmend.files import replace_file
    from rankmend.packages import Extra, require
    from rankmend.version import RANKMEND_VERSION
    from recovery.local.report.time_page import render_page

    require(Extra.REPORT, "the HTML page")
    text = render_page(reports, time.time(), RANKMEND_VERSION, judged)
    replace_file(path, text.encode("utf-8", "replace"), RankmendError, mode=0o644)
    echo(f"written: {path}", err=True)


def _show(
    reports: "list[JobReport]",
    degraded: "list[wire.JobView]",
    saving: dict[str, list[str]],
    *,
    as_json: bool,
    as_csv: bool,
    has_page: bool,
    shown: _Shown,
) -> None:
    from recovery.local.report.time_report import csv_rows, plain_report

    if as_json:
        reported = [
            {"job_id": item.job_id, "plane": plane.plane, "nodes": plane.nodes, "part": plane.part}
            for item in degraded
            for plane in item.planes
        ]
        print_json(
            {
                **plain_report(reports, with_jobs=shown is not _Shown.TOTAL),
                "degraded_networks": reported,
            }
        )
    elif as_csv:
        import csv
        import io

        text = io.StringIO()
        rows = csv_rows(reports, with_jobs=shown is not _Shown.TOTAL)
        csv.writer(text, lineterminator="\n").writerows(rows)
        echo_exact(text.getvalue(), nl=False)
    elif not has_page:
        from rankmend.cli.screens.network_lines import say_plane
        from rankmend.cli.screens.report_tables import show_report, show_total

        if shown is _Shown.TOTAL:
            show_total(console(), reports)
        else:
            show_report(console(), reports, saving, with_details=_has_details(reports, shown))
        for item in degraded:
            for plane in item.planes:
                echo(f"{item.name}: {say_plane(plane)} now")
