"""What `rankmend check cooling` and `rankmend check power` have in common: a reading by Redfish, nodes by their agents' pages, the site's parts."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rankmend.cli.check_fleet import list_pages
from rankmend.errors import ConfigError, SourceError
from rankmend.files import read_capped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detectors.formats.redfish import Item
    from detectors.parts.fleet_parts import FleetParts
    from detectors.parts.symptoms import SharedSymptom

BYTES_MAX: Final = 64 << 20
_READ_S: Final = 60.0
FILE: Final = click.Path(dir_okay=False, path_type=Path)


def read_redfish(
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


def read_parts(topology: Path | None) -> "FleetParts":
    from detectors.formats.slurm_topology import parse_parts
    from detectors.parts.fleet_parts import NO_PARTS

    if topology is None:
        return NO_PARTS
    return parse_parts(read_capped(topology, BYTES_MAX, SourceError).decode("utf-8", "replace"))


def nodes_with(symptom: "SharedSymptom", pages: "Sequence[Path]") -> tuple[set[str], set[str]]:
    """Return all nodes of the pages, and those of them with a finding of this symptom."""
    from detectors.formats.part_pages import read_part_page
    from detectors.parts.symptoms import symptom_of

    known, hit = set(), set()
    for path in list_pages(tuple(pages)):
        text = read_capped(path, BYTES_MAX, SourceError).decode("utf-8", "replace")
        known.add(path.stem)
        _parts, events = read_part_page(path.stem, text, 0.0)
        if any(symptom_of(one.event.check) is symptom for one in events):
            hit.add(path.stem)
    return known, hit
