"""`rankmend check cooling`: coolant units, what hangs on them, and which of it is slowed by heat."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankmend.cli import output
from rankmend.cli.check_fleet import UNREADABLE
from rankmend.cli.options import NAME, fail, json_option, print_json, to_plain
from rankmend.cli.output import echo
from rankmend.cli.site_readings import BYTES_MAX, FILE, nodes_with, read_parts, read_redfish
from rankmend.errors import RankmendError, SourceError, StorageError
from rankmend.files import read_capped, read_if_there, replace_file

if TYPE_CHECKING:
    from detectors.parts.cooling import CoolingReading, CoolingVerdict


@click.command(
    epilog="""\b
Examples:
  rankmend check cooling cooling.json --topology topology.json --pages pages/
  rankmend check cooling cooling.json --redfish https://cdu3.example --credentials cdu.toml --unit cdu-3
"""
)
@click.argument("file", type=FILE)
@click.option(
    "--topology",
    type=FILE,
    metavar="FILE",
    help="What hangs on each unit: `rankmend fabric topology --site`.",
)
@click.option(
    "--pages",
    "pages",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Agents' metrics pages, or folders of these: which nodes are slowed by heat. Repeatable.",
)
@click.option("--redfish", "url", metavar="URL", help="Read a unit first, and note it in FILE.")
@click.option("--credentials", type=FILE, metavar="FILE", help="User and password for it, 0600.")
@click.option("--ca-file", type=FILE, metavar="FILE", help="Authority of its certificate.")
@click.option("--unit", type=NAME, help="Its name: that of its coolant loop in the topology.")
@json_option
def cooling(
    file: Path,
    topology: Path | None,
    pages: tuple[Path, ...],
    url: str | None,
    credentials: Path | None,
    ca_file: Path | None,
    unit: str | None,
    as_json: bool,
) -> None:
    """Judge coolant units by flow, temperature rise and pressure, and by the nodes that are slowed by heat.

    FILE has the units' readings: from the site's monitoring, or by --redfish.

    Exit codes: 0 all units are in order, 1 one is not or its reading is too old to judge it, 64 could not be read.
    """
    from detectors.formats.cooling_file import parse_cooling_file, reading_of_redfish
    from detectors.parts.cooling import judge_cooling
    from detectors.parts.symptoms import SharedSymptom

    try:
        if url is not None:
            _note(
                file, reading_of_redfish(*read_redfish(url, credentials, ca_file, unit, "--unit"))
            )
        readings = parse_cooling_file(read_capped(file, BYTES_MAX, SourceError))
        parts = read_parts(topology)
        known, hot = nodes_with(SharedSymptom.HEAT, pages)
        found = judge_cooling(readings, hot, known, parts, time.time())
    except (RankmendError, OSError) as error:
        fail(str(error), UNREADABLE)
    if as_json:
        print_json([{**to_plain(one), "words": one.in_words()} for one in found])
    else:
        _print(found)
    sys.exit(1 if any(one.is_bad or one.is_stale for one in found) else 0)


def _note(file: Path, new: "CoolingReading") -> None:
    """Put a reading into the file; the site's limits of the unit stay."""
    from detectors.formats.cooling_file import encode_cooling_file, parse_cooling_file

    body = read_if_there(file, BYTES_MAX, StorageError)
    known = {one.unit: one for one in parse_cooling_file(body)} if body else {}
    before = known.get(new.unit)
    if before is not None:
        new = replace(
            new,
            flow_liters_per_s_min=before.flow_liters_per_s_min,
            rise_kelvin_max=before.rise_kelvin_max,
            pressure_pascals_min=before.pressure_pascals_min,
        )
    known[new.unit] = new
    replace_file(file.resolve(), encode_cooling_file(list(known.values())) + b"\n", StorageError, mode=0o644)  # fmt: skip


def _print(found: "tuple[CoolingVerdict, ...]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("unit", overflow="fold")
    for name in ("flow l/min", "rise K", "pressure kPa", "nodes", "hot"):
        table.add_column(name, justify="right")
    for one in found:
        told = one.reading
        figures = (
            (None, None, None)
            if told is None
            else (
                None if told.flow_liters_per_s is None else told.flow_liters_per_s * 60,
                told.rise_kelvin,
                None if told.pressure_pascals is None else told.pressure_pascals / 1e3,
            )
        )
        cells = ["-" if value is None else f"{value:.1f}" for value in figures]
        table.add_row(Text(one.unit), *cells, str(len(one.nodes)), str(len(one.hot)))
    output.console().print(table)
    for one in found:
        if one.is_bad or one.is_stale:
            echo(one.in_words())
