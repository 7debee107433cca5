"""Leaf switches by host: Slurm's topology.conf, lines of "host switch", or the file of `rankmend fabric topology`."""

import re
from typing import Final

from detectors.network_topology import (
    EdgeOrigin,
    NetworkTopology,
    TopologyEdge,
    decode_topology,
    edge,
    leaf_switches,
)
from detectors.parts.fleet_parts import FleetParts, find_parts
from rankmend.errors import SourceError

LINES_MAX: Final = 100_000
NAMES_MAX: Final = 100_000
_RANGE: Final = re.compile(r"(?P<low>\d{1,9})(?:-(?P<high>\d{1,9}))?$")


def parse_topology(text: str) -> dict[str, str]:
    """Return the leaf switch of each host: see `parse_edges`."""
    return leaf_switches(NetworkTopology(parse_edges(text)))


def parse_parts(text: str) -> FleetParts:
    """Return what each host hangs on: see `parse_edges`."""
    return find_parts(NetworkTopology(parse_edges(text)))


def parse_edges(text: str) -> tuple[TopologyEdge, ...]:
    """Return the edges of a topology; raise SourceError for anything else.

    The file of `rankmend fabric topology`, Slurm's topology.conf (SwitchName=leaf1 Nodes=node[01-16,20], SwitchName=top
    Switches=leaf[1-4]), or lines of "host switch".
    """
    if text.lstrip().startswith("{"):
        return decode_topology(text).edges
    switch_of: dict[tuple[str, bool], list[str]] = {}
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise SourceError(f"{len(lines)} lines of topology: more than {LINES_MAX}")
    for number, line in enumerate(lines):
        words = line.partition("#")[0].split()
        if not words:
            continue
        pairs = {
            key.lower(): value for key, equals, value in (w.partition("=") for w in words) if equals
        }
        if "switchname" in pairs:
            for key, is_node in (("nodes", True), ("switches", False)):
                for below in expand_hosts(pairs.get(key, "")):
                    switch_of.setdefault((below, is_node), []).append(pairs["switchname"])
        elif len(words) == 2 and not pairs:
            switch_of.setdefault((words[0], True), []).append(words[1])
        else:
            raise SourceError(f"topology, line {number + 1}: {line[:80]!r}")
        if len(switch_of) > NAMES_MAX:
            raise SourceError(f"more than {NAMES_MAX} hosts in the topology")
    if not any(is_node for _below, is_node in switch_of):
        raise SourceError("the topology names no host")
    return tuple(
        # A node stands below one leaf in Slurm: the last line holds, as it does there.
        edge(below, switch, EdgeOrigin.SLURM, is_node=is_node)
        for (below, is_node), switches in switch_of.items()
        for switch in (switches[-1:] if is_node else dict.fromkeys(switches))
    )


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm host list such as ``gpu[01-03,7],login1``."""
    hosts: list[str] = []
    for part in re.findall(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)?", text):
        if not part:
            continue
        prefix, bracket, rest = part.partition("[")
        if not bracket:
            hosts.append(prefix)
            continue
        inner, _close, suffix = rest.partition("]")
        for item in inner.split(","):
            match = _RANGE.match(item)
            if match is None:
                raise SourceError(f"not a host list: {text[:80]!r}")
            low, high = int(match["low"]), int(match["high"] or match["low"])
            if high - low >= NAMES_MAX or len(hosts) > NAMES_MAX:
                raise SourceError(f"more than {NAMES_MAX} hosts in {text[:80]!r}")
            width = len(match["low"])
            hosts.extend(f"{prefix}{value:0{width}d}{suffix}" for value in range(low, high + 1))
    return tuple(hosts)
