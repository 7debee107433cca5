"""Where Prometheus finds the agents (the answer of /v1/sd/agents), and which parts the nodes of the fleet share.

An agent serves under its node's name, unless `[discovery]` has another address. Labels come from
the configuration alone, so that a node's series stay the same series whichever job it runs.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Final

from detectors.formats.site.slurm_topology import parse_parts
from detectors.network_topology import BYTES_MAX
from detectors.parts.fleet_parts import NO_PARTS, FleetParts, SharedKind
from rankmend.errors import ConfigError, SourceError
from rankmend.files import read_capped
from rankmend.listening import parse_listen
from recovery.api import wire
from recovery.service.controller_config import NODE_MARK, Discovery

# What may stand for {node} in an address. A launcher names its node itself: it must not choose the domain.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_HOST: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL.pattern}(\.{_LABEL.pattern})*")
_WILD: Final = frozenset("*?[")  # what makes a name a pattern
JOBS_LABEL: Final = "__meta_rankmend_job_ids"
_NODES_KEPT: Final = 20_000  # whose rack need not be looked for again


@dataclass(frozen=True, slots=True)
class _NameTable:
    """Values by node name: a name before patterns, and of these the first that matches."""

    names: Mapping[str, str]
    patterns: tuple[tuple[re.Pattern[str], str], ...]

    def get(self, node: str) -> str | None:
        if (value := self.names.get(node)) is not None:
            return value
        return next((value for pattern, value in self.patterns if pattern.match(node)), None)


def targets(jobs_of_node: Mapping[str, Iterable[str]], reported: Discovery) -> list[wire.Target]:
    """Return the targets of these nodes, ordered by name; a node whose address is not known is left out.

    With a thousand patterns and 10,000 nodes this takes seconds: not for the event loop.
    """
    addresses, rack_of = _read(reported.addresses), rack_finder(reported)
    found = []
    for node, job_ids in sorted(jobs_of_node.items()):
        address = _address_of(node, addresses.get(node), reported)
        if address is None:
            continue
        labels = {"node": node, JOBS_LABEL: ",".join(sorted(job_ids))}
        if reported.cluster:
            labels["cluster"] = reported.cluster
        if rack_of is not None and (rack := rack_of(node)) is not None:
            labels["rack"] = rack
        found.append(wire.Target([address], labels))
    return found


def agent_address(node: str, reported: Discovery) -> tuple[str, int] | None:
    """Return host and port of a node's agent; None for a name that is no host name.

    For the controller itself, which sends requests there: a name that a launcher chose must not become another address.
    With a thousand patterns this takes a while: not for the event loop.
    """
    given = _read(reported.addresses).get(node)
    if given is None and not _HOST.fullmatch(node):
        return None
    address = _address_of(node, given, reported)
    return None if address is None else parse_listen(address)


def listed_nodes(reported: Discovery) -> dict[str, str]:
    """Return the nodes that the configuration names one by one, each with its agent's address; empty: none is given."""
    found = dict.fromkeys(reported.nodes, "")
    for name, address in reported.addresses.items():
        if _WILD.isdisjoint(name):
            found[name] = "" if NODE_MARK in address else parse_listen(address)[0]
    return found


def rack_finder(reported: Discovery) -> Callable[[str], str | None] | None:
    """Return the function that names a node's rack, by the table before the pattern; None where neither is configured."""
    if not reported.racks and not reported.rack_pattern:
        return None
    racks, pattern = _read(reported.racks), re.compile(reported.rack_pattern or "(?!)")

    @lru_cache(_NODES_KEPT)
    def rack_of(node: str) -> str | None:
        if (rack := racks.get(node)) is not None:
            return rack
        found = pattern.search(node)
        return None if found is None else found[1] if pattern.groups else found[0]

    return rack_of


def _address_of(node: str, given: str | None, reported: Discovery) -> str | None:
    """Return HOST:PORT of a node's agent; None for a name that may not stand for {node}."""
    if given is None:
        domain = f".{reported.domain}" if reported.domain else ""
        return f"{node}{domain}:{reported.agent_port}"
    if NODE_MARK in given and not _LABEL.fullmatch(node):
        return None
    return given.replace(NODE_MARK, node)


def _read(values: Mapping[str, str]) -> _NameTable:
    patterns = tuple(
        (re.compile(translate(name)), value)
        for name, value in values.items()
        if not _WILD.isdisjoint(name)
    )
    return _NameTable(values, patterns)


def read_fleet_parts(reported: Discovery) -> FleetParts:
    """Return what nodes share by the topology file, with the racks of the configuration where it names none.

    Raises ConfigError that names the file.
    """
    found = NO_PARTS
    if reported.topology_file is not None:
        path = Path(reported.topology_file)
        body = read_capped(path, BYTES_MAX, ConfigError, name=f"[discovery] topology_file {path}")
        try:
            found = parse_parts(body)
        except SourceError as error:
            raise ConfigError(f"[discovery] topology_file {path}: {error}") from error
    return replace(found, rack_of=rack_finder(reported))


def rack_names(parts: FleetParts) -> Callable[[str], str | None] | None:
    """Return the function that names a node's rack; None where no racks are known."""
    return (lambda node: parts.name_of(node, SharedKind.RACK)) if parts.has_racks else None
