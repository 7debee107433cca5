"""Reads which switches, racks and supplies the nodes of the fleet hang on, and what they are made of."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from detectors.formats.slurm_topology import parse_parts
from detectors.network_topology import BYTES_MAX
from detectors.parts.fleet_parts import NO_PARTS, FleetParts, SharedKind
from rankmend.errors import ConfigError, SourceError
from rankmend.files import read_capped
from recovery.service.controller_config import Discovery
from recovery.service.discovery import rack_finder


def read_fleet_parts(told: Discovery) -> FleetParts:
    """Return what nodes share by the topology file, with the racks of the configuration where it names none.

    Raises ConfigError that names the file.
    """
    found = NO_PARTS
    if told.topology_file is not None:
        path = Path(told.topology_file)
        body = read_capped(path, BYTES_MAX, ConfigError, name=f"[discovery] topology_file {path}")
        try:
            found = parse_parts(body)
        except SourceError as error:
            raise ConfigError(f"[discovery] topology_file {path}: {error}") from error
    return replace(found, rack_of=rack_finder(told))


def rack_names(parts: FleetParts) -> Callable[[str], str | None] | None:
    """Return the function that names a node's rack; None where no racks are known."""
    return (lambda node: parts.name_of(node, SharedKind.RACK)) if parts.has_racks else None
