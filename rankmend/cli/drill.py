"""`rankmend drill`: runs a scenario and says whether what must hold held."""

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.options import fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.errors import RankmendError
from rankmend.printable import printable

if TYPE_CHECKING:
    from recovery.drill.drill_report import DrillReport
    from recovery.drill.scenario import Scenario

_USAGE: Final = 2
_NOT_HELD: Final = 1


@click.command(
    epilog="""\b
Examples:
  rankmend drill --list
  rankmend drill rank-killed --html drill.html
  rankmend drill rank-killed rank-stopped busy-core --junit drills.xml
  rankmend drill my-scenario.toml --dir /scratch/drill --json
"""
)
@click.argument("scenarios", nargs=-1, metavar="SCENARIO...")
@click.option("--list", "is_list", is_flag=True, help="List the scenarios that rankmend ships.")
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one HTML file that needs no network.",
)
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write JUnit XML.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the jobs' folders here. [default: a temporary folder]",
)
@json_option
def drill(
    scenarios: tuple[str, ...],
    is_list: bool,
    page: Path | None,
    junit: Path | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Run each SCENARIO: a job, a schedule of faults, and what must hold.

    SCENARIO is one that rankmend ships (--list), or a TOML file (docs/use/drill.md). The shipped ones run on this machine in a
    minute, without root and without a GPU.

    Exit codes: 0 what must hold held, 1 it did not, 2 wrong usage.
    """
    from recovery.drill.scenario_file import find_scenario, list_library, read_scenario

    try:
        if is_list:
            _list([read_scenario(find_scenario(name)) for name in list_library()], as_json=as_json)
            return
        wanted = [read_scenario(find_scenario(name)) for name in scenarios]
    except RankmendError as error:
        fail(str(error), _USAGE)
    if not wanted:
        fail("name a scenario: rankmend drill SCENARIO (--list)", _USAGE)
    if page is not None:
        from rankmend.packages import Extra, require

        require(Extra.REPORT, "the HTML page")
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            reports = [
                _run(one, Path(tempfile.mkdtemp(prefix=f"{one.name}-", dir=folder)))
                for one in wanted
            ]
        else:
            with tempfile.TemporaryDirectory(prefix="rankmend-drill-") as made:
                reports = [_run(one, Path(made) / f"{place}") for place, one in enumerate(wanted)]
        _write(reports, page, junit)
    except (RankmendError, OSError) as error:
        fail(str(error))
    if as_json:
        from recovery.drill.drill_report import plain_drill

        print_json([plain_drill(one) for one in reports])
    if not all(one.held for one in reports):
        raise SystemExit(_NOT_HELD)


def _run(scenario: "Scenario", folder: Path) -> "DrillReport":
    from recovery.drill.drill_report import DrillReport
    from recovery.drill.runner import DrillRun
    from recovery.drill.verdict import judge_drill

    began_s = time.monotonic()

    def tell(text: str) -> None:
        echo(printable(f"{time.monotonic() - began_s:7.1f} s  {scenario.name}: {text}"), err=True)

    folder.mkdir(parents=True, exist_ok=True)
    run = DrillRun(scenario, folder.resolve(), tell)
    outcome = run.run()
    checks = judge_drill(scenario.holds, outcome)
    for check in checks:
        tell(f"{'held' if check.held else 'NOT HELD'}: {check.name} ({check.said})")
    return DrillReport(scenario, outcome, checks, time.monotonic() - began_s, run.job_time())


def _write(reports: "list[DrillReport]", page: Path | None, junit: Path | None) -> None:
    from rankmend.files import write_output
    from rankmend.version import RANKMEND_VERSION
    from recovery.drill.drill_report import drill_page, write_junit

    if junit is not None:
        write_output(junit, write_junit(reports), RankmendError)
    if page is not None:
        text = drill_page(reports, time.time(), RANKMEND_VERSION)
        write_output(page, text.encode("utf-8", "replace"), RankmendError)


def _list(scenarios: "list[Scenario]", *, as_json: bool) -> None:
    if as_json:
        print_json([{"scenario": one.name, "about": one.about} for one in scenarios])
        return
    for one in scenarios:
        echo(printable(f"{one.name:<18} {one.about}"))
