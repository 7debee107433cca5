"""`rankmend check parts` and `check part`: devices by serial number, their history, and files for repair orders."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.checks.check_fleet import UNREADABLE, list_pages
from rankmend.cli.options import examples, fail, json_option, local_time, print_json
from rankmend.cli.output import echo
from rankmend.errors import RankmendError, SourceError, StorageError
from rankmend.files import read_capped, read_if_there, replace_file

if TYPE_CHECKING:
    from detectors.parts.part_history import PartEvent, PartHistory

_PAGE_BYTES_MAX: Final = 16_000_000
_HISTORY_BYTES_MAX: Final = 1 << 30
_FORMAT: Final = "rankmend-parts-1"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NEEDS_REPAIR: Final = frozenset({"replace", "contact_support"})
_file = click.Path(dir_okay=False, path_type=Path)
_folder = click.Path(file_okay=False, path_type=Path)


@click.command(
    epilog="""\b
Example: collect each node's page and findings, then bring the history up to date and write repair orders:
  for n in $(cat nodes); do curl -sf http://$n:9476/metrics >pages/$n; done
  for n in $(cat nodes); do scp -q $n:/var/lib/rankmend/findings/findings.jsonl findings/$n.jsonl; done
  rankmend check parts pages/ --findings findings/ --history parts.json --repair orders/
"""
)
@click.argument("pages", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--findings",
    type=_folder,
    metavar="DIR",
    help="Folder with the agents' findings.jsonl, one file per node, named after it; adds times and figures.",
)
@click.option(
    "--history",
    "history_file",
    type=_file,
    metavar="FILE",
    help="Keep the history of all parts here; created if missing.",
)
@click.option(
    "--repair",
    "repair_dir",
    type=_folder,
    metavar="DIR",
    help="Write a file for each part that needs repair.",
)
@click.option(
    "--serial", "serials", multiple=True, help="Also write one for this part. Repeatable."
)
@json_option
def parts(
    pages: tuple[Path, ...],
    findings: Path | None,
    history_file: Path | None,
    repair_dir: Path | None,
    serials: tuple[str, ...],
    as_json: bool,
) -> None:
    """Follow GPUs, NICs, disks and transceivers by serial number, and write repair orders.

    PAGES are metrics pages of nodes' agents, one file per node, named after the node, or folders of
    these. A part needs repair while it has a critical finding, or a finding with the action replace
    or contact_support.

    Exit codes: 0 no part needs repair, 1 some do, 64 could not be read or written.
    """
    now_unix_s = time.time()
    try:
        known = _read_history(history_file) if history_file is not None else {}
        found = _brought_up(known, pages, findings, now_unix_s)
        if history_file is not None:
            _write_history(history_file, found)
        strange = set(serials) - {item.serial for item in found.values()}
        if strange:
            fail(f"no part has the serial number {min(strange)!r}", UNREADABLE)
        bad = [item for item in found.values() if item.stays and has_to_be_repaired(item)]
        wanted = bad + [
            item for item in found.values() if item.serial in serials and item not in bad
        ]
        written = _write_orders(repair_dir, wanted, now_unix_s) if repair_dir is not None else []
    except (RankmendError, OSError) as error:
        fail(str(error), UNREADABLE)
    if as_json:
        print_json({"parts": len(found), "repair": bad, "files": [str(order) for order in written]})
    else:
        for item in bad:
            event = worst_of(item)
            echo(f"{item.kind} {item.serial}: {item.place.node} {item.place.device} {item.place.slot}: {event.summary}")  # fmt: skip
        echo(f"{len(found)} parts, {len(bad)} in need of repair, {len(written)} files written")
    sys.exit(1 if bad else 0)


@click.command(epilog=examples("rankmend check part 1652721000123 --history parts.json"))
@click.argument("serial")
@click.option(
    "--history",
    "history_file",
    type=_file,
    required=True,
    metavar="FILE",
    help="File that `check parts --history` wrote.",
)
@json_option
def part(serial: str, history_file: Path, as_json: bool) -> None:
    """Show where the part with this SERIAL number has been, and its findings.

    Exit codes: 0 shown, 64 unknown part or unreadable file.
    """
    try:
        found = [item for item in _read_history(history_file).values() if item.serial == serial]
    except RankmendError as error:
        fail(str(error), UNREADABLE)
    if not found:
        fail(f"{history_file} has no part with the serial number {serial!r}", UNREADABLE)
    if as_json:
        print_json(found)
        return
    for item in found:
        echo(order_of(item, time.time()), nl=False)


def has_to_be_repaired(history: "PartHistory") -> bool:
    return any(
        event.severity == "critical" or event.action in _NEEDS_REPAIR
        for event in history.open_events
        if event.node == history.place.node  # a finding that nobody ended where the part has left
    )


def worst_of(history: "PartHistory") -> "PartEvent":
    return max(
        history.open_events,
        key=lambda event: (
            event.action in _NEEDS_REPAIR,
            event.severity == "critical",
            event.unix_s,
        ),
    )


def order_of(history: "PartHistory", now_unix_s: float) -> str:
    """Return the text of a repair order."""
    place = history.place
    lines = [
        f"Part:     {history.kind}" + (f", {history.model}" if history.model else ""),
        f"Serial:   {history.serial}",
        *([f"UUID:     {history.uuid}"] if history.uuid else []),
        f"Node:     {place.node}",
        f"Slot:     {' '.join(text for text in (place.slot, place.device) if text)}",
        f"As of:    {_moment(now_unix_s)}",
        "",
        "Found:",
    ]
    for event in history.events:
        where = (
            ""
            if event.node == place.node
            else f" (in {event.node} {event.slot})".replace(" )", ")")
        )
        lines.append(
            f"  {_moment(event.unix_s)}  {event.change}: {event.summary} [{event.check}, {event.severity}, {event.action}]{where}"
        )
        lines += [f"      {text}" for text in event.evidence]
    if not history.events:
        lines.append("  nothing")
    lines += ["", "Where it was:"]
    lines += [
        f"  {_moment(stay.first_unix_s)} to {_moment(stay.last_unix_s)}  {stay.node} {stay.slot} {stay.device}"
        for stay in history.stays
    ]
    from rankmend.printable import printable

    return "".join(f"{printable(line)}\n" for line in lines)


def _moment(unix_s: float) -> str:
    return local_time(unix_s, "%Y-%m-%d %H:%M:%S %Z")


def _brought_up(
    known: "dict[str, PartHistory]",
    pages: tuple[Path, ...],
    findings: Path | None,
    now_unix_s: float,
) -> "dict[str, PartHistory]":
    from detectors.formats.site.part_pages import read_findings_journal, read_part_page
    from detectors.parts.part_history import PARTS_MAX, note_events, note_seen

    seen, reported = [], []
    for path in list_pages(pages):
        text = read_capped(path, _PAGE_BYTES_MAX, SourceError).decode("utf-8", "replace")
        parts_here, active = read_part_page(path.stem, text, now_unix_s)
        seen += parts_here
        reported += active
    for path in sorted(findings.glob("*.jsonl*")) if findings is not None else ():
        node = path.name.partition(".jsonl")[0]
        text = read_capped(path, _PAGE_BYTES_MAX, SourceError).decode("utf-8", "replace")
        reported[:0] = read_findings_journal(node, text)
    found = note_seen(known, seen, now_unix_s)
    if len(found) > PARTS_MAX:
        raise SourceError(f"{len(found)} parts: at most {PARTS_MAX}")
    return note_events(found, reported)


def _read_history(path: Path) -> "dict[str, PartHistory]":
    import msgspec

    from detectors.parts.part_history import PartHistory

    body = read_if_there(path, _HISTORY_BYTES_MAX, StorageError)
    if body is None:
        return {}
    try:
        page = msgspec.json.decode(body)
        if page["format"] != _FORMAT:
            raise ValueError(f"format {page['format']!r:.40}")
        found = msgspec.convert(page["parts"], list[PartHistory])
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{path} is not a history of parts: {error}") from error
    return {item.key: item for item in found if item.stays}


def _write_history(path: Path, found: "dict[str, PartHistory]") -> None:
    import msgspec

    page = {"format": _FORMAT, "parts": [found[key] for key in sorted(found)]}
    replace_file(path.resolve(), msgspec.json.encode(page), StorageError, mode=0o644)


def _write_orders(folder: Path, wanted: "list[PartHistory]", now_unix_s: float) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for item in wanted:
        name = _UNSAFE.sub("_", item.key)[:200]
        path = folder / f"{name}.txt"
        if path in written:  # two serial numbers that differ in odd characters only
            path = folder / f"{name}-{len(written)}.txt"
        body = order_of(item, now_unix_s).encode("utf-8", "replace")
        replace_file(path, body, StorageError, mode=0o644, durable=False)
        written.append(path)
    return written
