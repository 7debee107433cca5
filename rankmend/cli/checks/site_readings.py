"""What `rankmend check cooling` and `rankmend check power` have in common: options, a reading by Redfish, nodes by their agents' pages, the site's parts, the verdicts."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rankmend.cli import output
from rankmend.cli.checks.check_fleet import UNREADABLE, list_pages
from rankmend.cli.options import NAME, fail, json_option, print_json
from rankmend.cli.output import echo
from rankmend.errors import ConfigError, RankmendError, SourceError, StorageError
from rankmend.files import read_capped, read_if_there, replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detectors.formats.redfish import Item
    from detectors.formats.site.unit_file import UnitFile
    from detectors.parts.fleet_parts import FleetParts
    from detectors.parts.site_units import UnitKind, UnitReading, UnitVerdict
    from detectors.parts.symptoms import SharedSymptom

BYTES_MAX: Final = 64 << 20
_READ_S: Final = 60.0
_FILE: Final = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class UnitColumn:
    title: str
    tell: Callable[[Any], float | None]  # the figure of a reading, in base units
    factor: float = 1.0  # to what is shown
    form: str = ".1f"

    def cell(self, reading: Any) -> str:
        value = None if reading is None else self.tell(reading)
        return "-" if value is None else format(self.factor * value, self.form)


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """What the check of one kind of unit is about."""

    kind: "UnitKind"
    file: "UnitFile[Any]"
    read_redfish: "Callable[[str, Sequence[Item], float], UnitReading]"
    judge: "Callable[..., tuple[UnitVerdict, ...]]"
    unit: str  # what one is called in options, JSON and the table
    harmed: str  # what the nodes that it harms are called in JSON
    harmed_title: str  # the same in the table
    columns: tuple[UnitColumn, ...]


def unit_options(
    unit: str, harm: str, loop: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator for the options of a check. ``harm``: how nodes suffer; ``loop``: what a unit is in the topology."""
    options = (
        click.argument("file", type=_FILE),
        click.option(
            "--topology",
            type=_FILE,
            metavar="FILE",
            help=f"What each {unit} supplies: `rankmend fabric topology --site`.",
        ),
        click.option(
            "--pages",
            "pages",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="PATH",
            help=f"Agents' metrics pages, or folders of these: which nodes are {harm}. Repeatable.",
        ),
        click.option(
            "--redfish",
            "url",
            metavar="URL",
            help=f"Read this {unit} first, and write its reading to FILE.",
        ),
        click.option(
            "--credentials",
            type=_FILE,
            metavar="FILE",
            help="File (mode 0600) with user and password.",
        ),
        click.option("--ca-file", type=_FILE, metavar="FILE", help="CA of its certificate."),
        click.option(
            f"--{unit}",
            "name",
            type=NAME,
            help=f"Name of this {unit}: that of its {loop} in the topology.",
        ),
        json_option,
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def check_units(
    check: SiteCheck,
    *,
    file: Path,
    topology: Path | None,
    pages: tuple[Path, ...],
    url: str | None,
    credentials: Path | None,
    ca_file: Path | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Read a unit if asked to, judge all of the file, print the verdicts and exit with 1 where one is bad or can't be judged."""
    try:
        if url is not None:
            new = check.read_redfish(
                *_walk_redfish(url, credentials, ca_file, name, f"--{check.unit}")
            )
            _note(file, check.file, new)
        readings = check.file.parse(read_capped(file, BYTES_MAX, SourceError))
        known, harmed = _nodes_with(check.kind.symptom, pages)
        found = check.judge(readings, harmed, known, _read_parts(topology), time.time())
    except (RankmendError, OSError) as error:
        fail(str(error), UNREADABLE)
    if as_json:
        print_json([_plain(check, item) for item in found])
    else:
        _print(check, found)
    sys.exit(1 if any(item.is_bad or item.is_stale for item in found) else 0)


def _walk_redfish(
    url: str, credentials: Path | None, ca_file: Path | None, name: str | None, option: str
) -> "tuple[str, list[Item], float]":
    """Return the name, all that the unit's Redfish service tells, and when; ``option`` is the one that gives ``name``."""
    from agent.collectors.redfish import walk_bmc
    from rankmend.clock import SystemClock
    from rankmend.redfish_session import (
        RedfishSession,
        make_context,
        parse_url,
        read_credentials,
    )

    if credentials is None or name is None:
        raise ConfigError(f"--redfish needs --credentials and {option}")
    address, clock = parse_url(url), SystemClock()
    context = make_context(None if ca_file is None else str(ca_file), verify=True) if address.is_encrypted else None  # fmt: skip
    session = RedfishSession(address, read_credentials(credentials), context, clock)
    try:
        walk = walk_bmc(session, clock.now_s() + _READ_S)
    finally:
        session.close()
    return name, [item for _device, item in walk.items], clock.unix_s()


def _read_parts(topology: Path | None) -> "FleetParts":
    from detectors import network_topology
    from detectors.formats.site.slurm_topology import parse_parts
    from detectors.parts.fleet_parts import NO_PARTS

    if topology is None:
        return NO_PARTS
    return parse_parts(read_capped(topology, network_topology.BYTES_MAX, SourceError))


def _nodes_with(symptom: "SharedSymptom", pages: "Sequence[Path]") -> tuple[set[str], set[str]]:
    """Return all nodes of the pages, and those of them with a finding of this symptom."""
    from detectors.formats.site.part_pages import read_part_page
    from detectors.parts.symptoms import symptom_of

    known, hit = set(), set()
    for path in list_pages(tuple(pages)):
        text = read_capped(path, BYTES_MAX, SourceError).decode("utf-8", "replace")
        known.add(path.stem)
        _parts, events = read_part_page(path.stem, text, 0.0)
        if any(symptom_of(event.event.check) is symptom for event in events):
            hit.add(path.stem)
    return known, hit


def _note(path: Path, file: "UnitFile[Any]", new: Any) -> None:
    """Put a reading into the file; the site's limits of the unit stay."""
    body = read_if_there(path, BYTES_MAX, StorageError)
    known = {item.name: item for item in file.parse(body)} if body else {}
    if new.name in known:
        limits = [field.name for field in fields(new) if field.name.endswith(("_min", "_max"))]
        new = replace(new, **{limit: getattr(known[new.name], limit) for limit in limits})
    known[new.name] = new
    replace_file(path.resolve(), file.encode(known.values()) + b"\n", StorageError, mode=0o644)


def _plain(check: SiteCheck, verdict: "UnitVerdict") -> dict[str, Any]:
    faults = [asdict(fault) for fault in verdict.faults]
    return {
        check.unit: verdict.unit,
        "faults": [{k: v for k, v in fault.items() if v is not None} for fault in faults],
        "is_stale": verdict.is_stale,
        "reading": None if verdict.reading is None else asdict(verdict.reading),  # type: ignore[call-overload]
        "nodes": verdict.nodes,
        check.harmed: verdict.harmed,
        "is_named": verdict.is_named,
        "words": verdict.in_words(),
    }


def _print(check: SiteCheck, found: "tuple[UnitVerdict, ...]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(check.unit, overflow="fold")
    for title in (*(column.title for column in check.columns), "nodes", check.harmed_title):
        table.add_column(title, justify="right")
    for item in found:
        cells = [column.cell(item.reading) for column in check.columns]
        table.add_row(Text(item.unit), *cells, str(len(item.nodes)), str(len(item.harmed)))
    output.console().print(table)
    for item in found:
        if item.is_bad or item.is_stale:
            echo(item.in_words())
