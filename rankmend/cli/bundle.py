"""`rankmend bundle`: all evidence about an incident in one file, for a person or a vendor."""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from rankmend.cli.options import examples, fail, find_state, json_option, print_json, state_option
from rankmend.cli.output import echo, echo_exact
from rankmend.errors import RankmendError
from rankmend.printable import printable


@click.command(epilog=examples("rankmend bundle 4f1c2d3e-7"))
@click.argument("incident")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tar.gz",
    help="Write this file. [default: rankmend-INCIDENT.tar.gz]",
)
@state_option
@json_option
def bundle(incident: str, output: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Pack the journal, evidence, versions and settings of an incident.

    Removes secrets that it recognises by name or shape; review the file before you send it.
    INCIDENT is an id from `rankmend incidents`.
    """
    from detectors.wording import counted
    from recovery.local.report.bundle import make_bundle
    from recovery.local.report.overview import find_story

    try:
        folder, entries = find_story(find_state(state_dir), incident)
        if folder is None:
            fail(f"no incident {incident!r} (rankmend incidents lists them)")
        path = output or Path(f"rankmend-{incident}.tar.gz")
        made = make_bundle(folder, entries, path, os.environ, time.time(), _show_progress)
    except RankmendError as error:
        fail(str(error))
    if as_json:
        print_json(asdict(made))
        return
    echo(f"{made.file}: {counted(len(made.files), 'file')}, {made.size_bytes / 1000:.0f} kB")
    for reason in made.left_out:
        echo(printable(f"left out: {reason}"))
    echo("Review it before you send it: secrets are recognised only by name and shape.")


def _show_progress(done: int, of_all: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == of_all else ""
        echo_exact(f"\rpacking {done} of {of_all} files{end}", err=True, nl=False)
