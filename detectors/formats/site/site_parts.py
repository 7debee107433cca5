"""A site's own file of what its nodes share beside the network: racks, power feeds, coolant loops. TOML.

[[rack]]
name = "r07"
nodes = ["gpu[001-016]"]

[[power_feed]]
name = "feed-a"
racks = ["r07", "r08"]

[[coolant_loop]]
name = "cdu-3"
racks = ["r07"]
nodes = ["gpu033"]
"""

from collections import Counter
from typing import Annotated, Final

import msgspec

from detectors.formats.site.host_list import expand_hosts
from detectors.network_topology import EDGES_MAX, EdgeOrigin, HangsOn, TopologyEdge, edge
from rankmend.errors import SourceError

_PARTS_MAX: Final = 20_000
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[^\s/]+$")]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=_PARTS_MAX)]


class _Rack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: _Name
    nodes: _Names


class _Supply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: _Name
    nodes: _Names = ()
    racks: _Names = ()


_Racks = Annotated[tuple[_Rack, ...], msgspec.Meta(max_length=_PARTS_MAX)]
_Supplies = Annotated[tuple[_Supply, ...], msgspec.Meta(max_length=_PARTS_MAX)]


class _SiteFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    rack: _Racks = ()
    power_feed: _Supplies = ()
    coolant_loop: _Supplies = ()


def parse_site_parts(text: bytes | str) -> tuple[TopologyEdge, ...]:
    """Return an edge for each node of a rack, and for each node and rack of a feed or loop.

    Raises SourceError that says what is wrong: a rack that no [[rack]] has, a node in two racks, a name given twice.
    """
    try:
        reported = msgspec.toml.decode(text, type=_SiteFile)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SourceError(f"not a file of racks, power feeds and coolant loops: {error}") from error
    edges = _racks(reported.rack)
    _check_count(edges)
    racks = {item.name for item in reported.rack}
    for kind, supplies in (
        (HangsOn.POWER_FEED, reported.power_feed),
        (HangsOn.COOLANT_LOOP, reported.coolant_loop),
    ):
        _check_once(kind, [supply.name for supply in supplies])
        for supply in supplies:
            unknown = [name for name in supply.racks if name not in racks]
            if unknown:
                raise SourceError(
                    f"{kind.value} {supply.name}: there is no [[rack]] {unknown[0]!r}"
                )
            edges += [
                edge(name, supply.name, EdgeOrigin.SITE, is_node=False, kind=kind)
                for name in supply.racks
            ]
            edges += _below(supply.nodes, supply.name, kind)
            _check_count(edges)
    if not edges:
        raise SourceError("the file names no rack, power feed or coolant loop with nodes")
    return tuple(edges)


def _racks(racks: tuple[_Rack, ...]) -> list[TopologyEdge]:
    _check_once(HangsOn.RACK, [rack.name for rack in racks])
    rack_of: dict[str, str] = {}
    edges: list[TopologyEdge] = []
    for rack in racks:
        for below in _below(rack.nodes, rack.name, HangsOn.RACK):
            held = rack_of.setdefault(below.below, rack.name)
            if held != rack.name:
                raise SourceError(f"node {below.below} stands in two racks: {held} and {rack.name}")
            edges.append(below)
    return edges


def _below(nodes: tuple[str, ...], name: str, kind: HangsOn) -> list[TopologyEdge]:
    edges: list[TopologyEdge] = []
    for listed in nodes:
        edges += [edge(node, name, EdgeOrigin.SITE, kind=kind) for node in expand_hosts(listed)]
        _check_count(edges)
    return edges


def _check_count(edges: list[TopologyEdge]) -> None:
    if len(edges) > EDGES_MAX:
        raise SourceError(f"more than {EDGES_MAX} edges of racks, feeds and loops")


def _check_once(kind: HangsOn, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SourceError(f"{kind.value} {twice[0]!r} occurs twice")
