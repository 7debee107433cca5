"""`rankmend drill`: runs a scenario and says whether everything held that must hold."""

import contextlib
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
    from recovery.lab.drill.drill_report import DrillReport
    from recovery.lab.drill.scenario import Scenario

_USAGE: Final = 2
_NOT_HELD: Final = 1
_END_GRACE_S: Final = 60.0  # after Ctrl-C, for the job to end and the faults to be undone


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
    help="Write one HTML file that loads nothing from the network.",
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

    SCENARIO is one that rankmend ships (--list), or the path of a TOML file. The shipped
    scenarios run on this machine in a minute, without root or a GPU.

    Exit codes: 0 all checks passed, 1 some failed, 2 wrong usage.
    """
    from recovery.lab.drill.scenario_file import find_scenario, list_library, read_scenario
    from recovery.lab.inject.supervisor import is_supervisor
    from recovery.launcher.processes.bound_work import run_bound

    try:
        if is_list:
            _list([read_scenario(find_scenario(name)) for name in list_library()], as_json=as_json)
            return
        wanted = [read_scenario(find_scenario(name)) for name in scenarios]
    except RankmendError as error:
        fail(str(error), _USAGE)
    if not wanted:
        fail("name a scenario: rankmend drill SCENARIO (--list)", _USAGE)
    _require(wanted, page)

    with contextlib.ExitStack() as stack:
        home = folder
        if home is None:
            made = tempfile.TemporaryDirectory(prefix="rankmend-drill-", ignore_cleanup_errors=True)
            home = Path(stack.enter_context(made))

        def work() -> int:
            return _run_all(wanted, home, page, junit, as_json=as_json)

        code = run_bound(work, grace_s=_END_GRACE_S, is_spared=is_supervisor)
    raise SystemExit(code)


def _require(wanted: "list[Scenario]", page: Path | None) -> None:
    """Refuse what can't be done with the packages that are here."""
    from recovery.lab.drill.scenario import DrillLauncher
    from recovery.lab.drill.watched_run import require_torchrun

    if page is not None:
        from rankmend.packages import Extra, require

        require(Extra.REPORT, "the HTML page")
    try:
        if any(item.job.launcher is DrillLauncher.TORCHRUN for item in wanted):
            require_torchrun()
    except RankmendError as error:
        fail(str(error), _USAGE)


def _run_all(
    wanted: "list[Scenario]",
    home: Path,
    page: Path | None,
    junit: Path | None,
    *,
    as_json: bool,
) -> int:
    try:
        home.mkdir(parents=True, exist_ok=True)
        reports = [
            _run(item, Path(tempfile.mkdtemp(prefix=f"{item.name}-", dir=home))) for item in wanted
        ]
        _write(reports, page, junit)
    except (RankmendError, OSError) as error:
        fail(str(error))
    if as_json:
        from recovery.lab.drill.drill_report import plain_drill

        print_json([plain_drill(report) for report in reports])
    return 0 if all(report.held for report in reports) else _NOT_HELD


def _run(scenario: "Scenario", folder: Path) -> "DrillReport":
    from recovery.lab.drill.drill_report import DrillReport
    from recovery.lab.drill.runner import DrillRun
    from recovery.lab.drill.scenario import DrillLauncher
    from recovery.lab.drill.watched_run import WatchedRun

    began_s = time.monotonic()

    def tell(text: str) -> None:
        echo(printable(f"{time.monotonic() - began_s:7.1f} s  {scenario.name}: {text}"), err=True)

    kinds = {DrillLauncher.RANKMEND: DrillRun, DrillLauncher.TORCHRUN: WatchedRun}
    run = kinds[scenario.job.launcher](scenario, folder.resolve(), tell)
    outcome = run.run()
    checks = run.checks(outcome)
    for check in checks:
        tell(f"{'held' if check.held else 'NOT HELD'}: {check.name} ({check.said})")
    return DrillReport(scenario, outcome, checks, time.monotonic() - began_s, run.job_time())


def _write(reports: "list[DrillReport]", page: Path | None, junit: Path | None) -> None:
    from rankmend.files import write_output
    from rankmend.version import RANKMEND_VERSION
    from recovery.lab.drill.drill_report import drill_page, write_junit

    if junit is not None:
        write_output(junit, write_junit(reports), RankmendError)
    if page is not None:
        text = drill_page(reports, time.time(), RANKMEND_VERSION)
        write_output(page, text.encode("utf-8", "replace"), RankmendError)


def _list(scenarios: "list[Scenario]", *, as_json: bool) -> None:
    if as_json:
        print_json([{"scenario": scenario.name, "about": scenario.about} for scenario in scenarios])
        return
    for scenario in scenarios:
        echo(printable(f"{scenario.name:<18} {scenario.about}"))
