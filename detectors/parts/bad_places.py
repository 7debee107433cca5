"""Bad nodes, or bad NICs of nodes, as workers whose shared part is looked for. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from detectors.parts.fleet_parts import FleetParts
from detectors.parts.shared_blame import PlacedWorker
from rankmend.errors import SourceError


@dataclass(frozen=True, slots=True)
class BadPlace:
    node: str
    nic: str = ""  # "": the whole node


def find_workers(
    bad: Collection[BadPlace], known: Sequence[str], parts: FleetParts
) -> tuple[list[PlacedWorker], set[str]]:
    """Return the workers of all ``known`` nodes, and the names of the bad ones.

    A worker is a node; where a bad place names a NIC, it is a NIC that has a rail, or the name of a bad one. Raises SourceError for a NIC that the node's layout does not have.
    """
    if not any(one.nic for one in bad):
        workers = [PlacedWorker(node, node) for node in dict.fromkeys(known)]
        return workers, {one.node for one in bad}
    named: dict[str, set[str]] = {}
    for one in bad:
        named.setdefault(one.node, set()).update(_devices(one, parts))
    railless = {device for own in named.values() for device in own} - {
        device for node in named for device in _rail_nics(node, parts)
    }
    workers, hit = [], set[str]()
    for node in dict.fromkeys(known):
        own = named.get(node, set())
        alike = {device for device in railless if parts.ports_of(node, device)}
        for device in sorted(own | alike | _rail_nics(node, parts)):
            worker = PlacedWorker(f"{node}/{device}", node, device)
            workers.append(worker)
            hit |= {worker.name} if device in own else set()
    return workers, hit


def _devices(place: BadPlace, parts: FleetParts) -> set[str]:
    if not place.nic:
        found = _rail_nics(place.node, parts)
        if not found:
            raise SourceError(f"the topology names no NIC with a rail of {place.node}")
        return found
    ports = parts.ports_of(place.node, place.nic)
    if not ports:
        raise SourceError(f"the topology names no NIC {place.nic} of {place.node}: see `rankmend fabric topology --pages`")  # fmt: skip
    return {one.device for one in ports}


def _rail_nics(node: str, parts: FleetParts) -> set[str]:
    layout = parts.layout_of(node)
    return set() if layout is None else {one.device for one in layout.nics if one.rail}
