"""Parses the output of `ibnetdiscover`: switches and hosts of an InfiniBand subnet, and their cables.

Source: ibnetdiscover(8) of rdma-core (infiniband-diags). A record begins with "Switch" or "Ca" and the node's GUID; each line in brackets
is a cable: the own port, then the GUID and the port of the other end.
"""

import re
from collections import Counter
from typing import Final

from detectors.network_topology import EdgeOrigin, TopologyEdge, edge
from rankmend.errors import SourceError
from rankmend.printable import printable

LINES_MAX: Final = 2_000_000
_RECORD: Final = re.compile(
    r'(?P<kind>Switch|Ca)\s+\d{1,4}\s+"(?P<guid>[SH]-[0-9a-f]{16})"\s*#\s*"(?P<name>[^"]{0,128})"'
)
_CABLE: Final = re.compile(
    r'\[(?P<port>\d{1,4})\](?:\([0-9a-f]{1,16}\))?\s+"(?P<guid>[SH]-[0-9a-f]{16})"\[(?P<far>\d{1,4})\]'
)


def parse_ibnetdiscover(text: str) -> tuple[TopologyEdge, ...]:
    """Return the cables of hosts to switches and of leaf switches to others. A host's name is the first word of its description."""
    names: dict[str, str] = {}
    cards: dict[str, str] = {}  # device of a host by its GUID, as "node7 mlx5_0" describes it
    cables: list[tuple[str, str, str]] = []
    own = ""
    for number, line in enumerate(text.splitlines()):
        if number >= LINES_MAX:
            raise SourceError(f"ibnetdiscover: more than {LINES_MAX} lines")
        if found := _RECORD.match(line):
            own = found["guid"]
            described = printable(found["name"])  # any text that somebody has set there
            words = described.split() or [own]
            names[own] = described if own.startswith("S") else words[0]
            cards[own] = words[1] if len(words) > 1 else ""
        elif own and (cable := _CABLE.match(line)):
            cables.append((own, cable["port"], cable["guid"]))
        elif not line.strip():
            own = ""
    if not names:
        raise SourceError("ibnetdiscover: no Switch and no Ca in this output")
    leaves = {other for own, _port, other in cables if own.startswith("H")}
    unique = _unique(names)
    edges = []
    for own, port, other in cables:
        if other not in names or not other.startswith("S"):
            continue
        if own.startswith("H"):
            edges.append(
                edge(
                    unique[own],
                    unique[other],
                    EdgeOrigin.IBNETDISCOVER,
                    port=f"{cards[own]}/{port}" if cards[own] else port,
                )
            )
        elif own in leaves and other not in leaves:
            edges.append(
                edge(
                    unique[own],
                    unique[other],
                    EdgeOrigin.IBNETDISCOVER,
                    is_node=False,
                    port=port,
                )
            )
    return tuple(edges)


def _unique(names: dict[str, str]) -> dict[str, str]:
    """Return the names; of switches that share a description the GUID is added. A host has one name for all its cards."""
    count = Counter(name for guid, name in names.items() if guid.startswith("S"))
    twice = {name for name, switches in count.items() if switches > 1}
    return {
        guid: f"{name or 'switch'} {guid[2:]}"
        if guid.startswith("S") and (name in twice or not name)
        else name
        for guid, name in names.items()
    }
