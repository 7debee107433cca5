"""Parses `lldpctl -f json`: the switch at the other end of each of a node's cables.

Source: lldpd's lldpctl(8) and its json writer. With one interface "interface" is an object by name, with several a list of
such objects. The chassis is an object by the switch's name, or without one if it gave none.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from detectors.network_topology import EdgeOrigin, TopologyEdge, edge
from rankmend.errors import SourceError
from rankmend.printable import is_printable, printable

NAME_CHARACTERS_MAX: Final = 128
INTERFACES_MAX: Final = 1024


def parse_lldp(node: str, body: bytes) -> tuple[TopologyEdge, ...]:
    """Return an edge for each cable whose other end says that it is a switch or router, or does not say."""
    if not node or not is_printable(node):
        raise SourceError(f"LLDP of {node!r:.80}: the file has the name of no node")
    try:
        page = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SourceError(f"LLDP of {node} is not JSON: {error}") from error
    edges = []
    for number, (interface, neighbour) in enumerate(_interfaces(page)):
        if number >= INTERFACES_MAX:
            raise SourceError(f"LLDP of {node}: more than {INTERFACES_MAX} interfaces")
        name, kinds = _chassis(neighbour.get("chassis"))
        if name and (not kinds or kinds & {"Bridge", "Router"}):
            edges.append(edge(node, name, EdgeOrigin.LLDP, port=interface))
    return tuple(edges)


def _interfaces(page: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(page, dict) or not isinstance(page.get("lldp"), dict):
        raise SourceError("LLDP: no object 'lldp' as lldpctl -f json prints")
    found = page["lldp"].get("interface", [])
    for group in found if isinstance(found, list) else [found]:
        if not isinstance(group, dict):
            raise SourceError(f"LLDP: an interface is {type(group).__name__}, not an object")
        for name, neighbour in group.items():
            if isinstance(neighbour, dict):
                yield printable(str(name)[:NAME_CHARACTERS_MAX]), neighbour


def _chassis(value: Any) -> tuple[str, set[str]]:
    """Return the name of the other end, and what it says that it is."""
    if not isinstance(value, dict) or not value:
        return "", set()
    name, content = next(iter(value.items()))
    if name == "id":  # it gave no name: then its address stands for it
        content = value
        name = value["id"].get("value", "") if isinstance(value["id"], dict) else ""
    if not isinstance(content, dict):
        return "", set()
    given = content.get("capability", [])
    kinds = {
        str(item.get("type"))
        for item in (given if isinstance(given, list) else [given])
        if isinstance(item, dict) and item.get("enabled") is True
    }
    return printable(str(name)[:NAME_CHARACTERS_MAX]), kinds  # a switch says what it likes
