"""What a collective should take on this network, from the measured latency and bandwidth of each class of path. Pure.

Latency and bandwidth (the alpha-beta model; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, doi.org/10.1177/1094342005051521): a ring
all-reduce of n ranks takes 2 (n - 1) steps, each as long as its slowest hop takes for 1/n of the data. Tests of pairs run on all
nodes at once, so the rate across leaf switches is each node's share of the uplinks; a ring that crosses them less often gets more.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from detectors.fabric.network import Network, Reading
from rankmend.errors import SourceError


class PathClassName(Enum):
    LEAF = "below one leaf switch"
    ACROSS = "across leaf switches"
    UNKNOWN = "topology unknown"


@dataclass(frozen=True, slots=True)
class PathClass:
    name: PathClassName
    latency_s: float  # one way
    bytes_per_s: float  # of one node, on one rail
    tests: int


# nccl-tests, doc/PERFORMANCE.md: bus bandwidth is size / time times this
BUS_FACTORS: Final = {
    "all_reduce": lambda count: 2 * (count - 1) / count,
    "all_to_all": lambda count: (count - 1) / count,
}


def bus_bytes_per_s(operation: str, size_bytes: int, seconds: float, count: int) -> float:
    """Return the bus bandwidth as nccl-tests defines it. Raises SourceError for an unknown operation or no time."""
    if operation not in BUS_FACTORS or seconds <= 0 or count < 2:
        raise SourceError(f"no bus bandwidth: {operation} of {count} ranks in {seconds} s")
    factor: float = BUS_FACTORS[operation](count)
    return size_bytes / seconds * factor


def path_classes(network: Network, readings: Sequence[Reading]) -> tuple[PathClass, ...]:
    """Return the classes of paths that were measured, the nearest first."""
    found: dict[PathClassName, list[Reading]] = {}
    for reading in readings:
        if reading.bytes_per_s > 0:
            found.setdefault(_class_of(network, reading.sender, reading.receiver), []).append(
                reading
            )
    return tuple(
        PathClass(
            name,
            median([item.latency_s for item in found[name] if item.latency_s is not None] or [0.0])
            / 2,
            median(item.bytes_per_s for item in found[name]),
            len(found[name]),
        )
        for name in PathClassName
        if name in found
    )


def ring_all_reduce_s(
    network: Network, classes: Sequence[PathClass], order: Sequence[int], size_bytes: int
) -> float:
    """Return how long an all-reduce should take over a ring of the nodes in this order."""
    count = len(order)
    hops = [(order[at], order[(at + 1) % count]) for at in range(count)]
    crossings = Counter(
        network.leaf(a) for a, b in hops if _class_of(network, a, b) is PathClassName.ACROSS
    )
    slowest = max(
        _hop_s(network, classes, a, b, size_bytes / count, crossings[network.leaf(a)])
        for a, b in hops
    )
    return 2 * (count - 1) * slowest


def all_to_all_s(network: Network, classes: Sequence[PathClass], size_bytes: int) -> float:
    """Return how long an all-to-all should take in which each node sends ``size_bytes`` in all."""
    count = len(network.nodes)
    worst = 0.0
    for node in range(count):
        peers = Counter(_class_of(network, node, other) for other in range(count) if other != node)
        time_s = 0.0
        for name, number in peers.items():
            found = _find(classes, name)
            time_s += number * (found.latency_s + size_bytes / count / found.bytes_per_s)
        worst = max(worst, time_s)
    return worst


def preferred_order(network: Network) -> tuple[int, ...]:
    """Return the nodes with neighbours below one leaf switch: a ring, or a pipeline, crosses each uplink once."""
    leaves = {name: at for at, name in enumerate(dict.fromkeys(network.leaf_of.values()))}
    return tuple(
        sorted(
            range(len(network.nodes)),
            key=lambda node: (leaves.get(network.leaf(node) or "", len(leaves)), node),
        )
    )


def _hop_s(
    network: Network,
    classes: Sequence[PathClass],
    a: int,
    b: int,
    chunk_bytes: float,
    crossing: int,
) -> float:
    name = _class_of(network, a, b)
    found = _find(classes, name)
    rate = found.bytes_per_s
    if name is PathClassName.ACROSS:
        leaf = network.leaf(a)
        members = sum(network.leaf(node) == leaf for node in range(len(network.nodes)))
        near = next((class_ for class_ in classes if class_.name is PathClassName.LEAF), None)
        rate = rate * members / max(1, crossing)
        rate = min(rate, near.bytes_per_s) if near is not None else rate
    return found.latency_s + chunk_bytes / rate


def _find(classes: Sequence[PathClass], name: PathClassName) -> PathClass:
    found = next((class_ for class_ in classes if class_.name is name), None)
    if found is None:
        raise SourceError(f"no test measured a path {name.value}")
    return found


def _class_of(network: Network, a: int, b: int) -> PathClassName:
    leaves = network.leaf(a), network.leaf(b)
    if None in leaves:
        return PathClassName.UNKNOWN
    return PathClassName.LEAF if leaves[0] == leaves[1] else PathClassName.ACROSS
