"""`rankmend check power`: power feeds, what hangs on them, and which of it is short of power."""

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
    from detectors.parts.power_feeds import PowerReading, PowerVerdict


@click.command(
    epilog="""\b
Examples:
  rankmend check power power.json --topology topology.json --pages pages/
  rankmend check power power.json --redfish https://pdu7.example --credentials pdu.toml --feed pdu-a7
"""
)
@click.argument("file", type=FILE)
@click.option(
    "--topology",
    type=FILE,
    metavar="FILE",
    help="What hangs on each feed: `rankmend fabric topology --site`.",
)
@click.option(
    "--pages",
    "pages",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Agents' metrics pages, or folders of these: which nodes are short of power. Repeatable.",
)
@click.option("--redfish", "url", metavar="URL", help="Read a feed first, and note it in FILE.")
@click.option("--credentials", type=FILE, metavar="FILE", help="User and password for it, 0600.")
@click.option("--ca-file", type=FILE, metavar="FILE", help="Authority of its certificate.")
@click.option("--feed", type=NAME, help="Its name: that of its power feed in the topology.")
@json_option
def power(
    file: Path,
    topology: Path | None,
    pages: tuple[Path, ...],
    url: str | None,
    credentials: Path | None,
    ca_file: Path | None,
    feed: str | None,
    as_json: bool,
) -> None:
    """Judge power feeds by load, limits and breakers, and by the nodes that are slowed for power or have lost a supply.

    FILE has the feeds' readings: from the site's monitoring, or by --redfish.

    Exit codes: 0 all feeds are in order, 1 one is not or its reading is too old to judge it, 64 could not be read.
    """
    from detectors.formats.power_file import parse_power_file, power_of_redfish
    from detectors.parts.power_feeds import judge_power
    from detectors.parts.symptoms import SharedSymptom

    try:
        if url is not None:
            _note(file, power_of_redfish(*read_redfish(url, credentials, ca_file, feed, "--feed")))
        readings = parse_power_file(read_capped(file, BYTES_MAX, SourceError))
        known, short = nodes_with(SharedSymptom.POWER, pages)
        found = judge_power(readings, short, known, read_parts(topology), time.time())
    except (RankmendError, OSError) as error:
        fail(str(error), UNREADABLE)
    if as_json:
        print_json([{**to_plain(one), "words": one.in_words()} for one in found])
    else:
        _print(found)
    sys.exit(1 if any(one.is_bad or one.is_stale for one in found) else 0)


def _note(file: Path, new: "PowerReading") -> None:
    """Put a reading into the file; the site's limits of the feed stay."""
    from detectors.formats.power_file import encode_power_file, parse_power_file

    body = read_if_there(file, BYTES_MAX, StorageError)
    known = {one.feed: one for one in parse_power_file(body)} if body else {}
    before = known.get(new.feed)
    if before is not None:
        new = replace(
            new, power_watts_max=before.power_watts_max, load_ratio_max=before.load_ratio_max
        )
    known[new.feed] = new
    replace_file(file.resolve(), encode_power_file(list(known.values())) + b"\n", StorageError, mode=0o644)  # fmt: skip


def _print(found: "tuple[PowerVerdict, ...]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("feed", overflow="fold")
    for name in ("power kW", "limit kW", "load", "nodes", "short of power"):
        table.add_column(name, justify="right")
    for one in found:
        told = one.reading
        watts = (None, None) if told is None else (told.power_watts, told.power_watts_max)
        cells = ["-" if value is None else f"{value / 1e3:.1f}" for value in watts]
        ratio = None if told is None else told.load_ratio
        load = "-" if ratio is None else f"{ratio:.0%}"
        table.add_row(Text(one.feed), *cells, load, str(len(one.nodes)), str(len(one.short)))
    output.console().print(table)
    for one in found:
        if one.is_bad or one.is_stale:
            echo(one.in_words())
