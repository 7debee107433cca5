"""Leaf switches by host: Slurm's topology.conf, lines of "host switch", or the file of `rankmend fabric topology`."""

from collections.abc import Iterator
from typing import Final

from detectors.formats.host_list import expand_hosts
from detectors.network_topology import (
    EDGES_MAX,
    NAME_CHARACTERS_MAX,
    EdgeOrigin,
    NetworkTopology,
    TopologyEdge,
    decode_topology,
    edge,
    leaf_switches,
)
from detectors.parts.fleet_parts import FleetParts, find_parts
from rankmend.errors import SourceError
from rankmend.printable import is_printable

LINES_MAX: Final = 100_000


def parse_topology(text: bytes | str) -> dict[str, str]:
    """Return the leaf switch of each host: see `parse_edges`."""
    return leaf_switches(NetworkTopology(parse_edges(text)))


def parse_parts(text: bytes | str) -> FleetParts:
    """Return what each host hangs on: see `parse_edges`."""
    if isinstance(text, bytes):
        text = _decode(text)
    is_file = text.lstrip().startswith("{")
    return find_parts(decode_topology(text) if is_file else NetworkTopology(parse_edges(text)))


def parse_edges(text: bytes | str) -> tuple[TopologyEdge, ...]:
    """Return the edges of a topology; raise SourceError for anything else.

    The file of `rankmend fabric topology`, Slurm's topology.conf (SwitchName=leaf1 Nodes=node[01-16,20], SwitchName=top
    Switches=leaf[1-4]), or lines of "host switch".
    """
    if isinstance(text, bytes):
        text = _decode(text)
    if text.lstrip().startswith("{"):
        return decode_topology(text).edges
    switch_of: dict[tuple[str, bool], list[str]] = {}
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise SourceError(f"{len(lines)} lines of topology: more than {LINES_MAX}")
    count = 0
    for number, line in enumerate(lines):
        try:
            for below, is_node, switch in _hung(line):
                switch_of.setdefault((below, is_node), []).append(switch)
                count += 1
        except SourceError as error:
            raise SourceError(f"topology, line {number + 1}: {error}") from error
        if count > EDGES_MAX:
            raise SourceError(f"more than {EDGES_MAX} edges in the topology")
    if not any(is_node for _below, is_node in switch_of):
        raise SourceError("the topology names no host")
    return tuple(
        # A node stands below one leaf in Slurm: the last line holds, as it does there.
        edge(below, switch, EdgeOrigin.SLURM, is_node=is_node)
        for (below, is_node), switches in switch_of.items()
        for switch in (switches[-1:] if is_node else dict.fromkeys(switches))
    )


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SourceError(
            f"topology, line {line}: byte 0x{body[error.start]:02x} is not UTF-8"
        ) from error


def _hung(line: str) -> Iterator[tuple[str, bool, str]]:
    """Yield what a line hangs on which switch, and whether it is a node."""
    words = line.partition("#")[0].split()
    if not words:
        return
    split = (word.partition("=") for word in words)
    pairs = {key.lower(): value for key, equals, value in split if equals}
    if len(words) == 2 and not pairs:
        yield _name(words[0]), True, _name(words[1])
        return
    if "switchname" not in pairs:
        raise SourceError(f"neither a switch nor 'host switch': {line[:80]!r}")
    switch = _name(pairs["switchname"])
    for key, is_node in (("nodes", True), ("switches", False)):
        for below in expand_hosts(pairs[key]) if pairs.get(key) else ():
            yield below, is_node, switch


def _name(text: str) -> str:
    if not 1 <= len(text) <= NAME_CHARACTERS_MAX or not is_printable(text):
        raise SourceError(
            f"{text!r:.80} is no name: 1 to {NAME_CHARACTERS_MAX} printable characters"
        )
    return text
