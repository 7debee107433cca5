"""Which nodes are one NVLink domain, and which sit in one chassis. Pure.

A domain: nodes whose GPUs have joined the same clique of the same cluster. Source: nvmlGpuFabricInfoV_t in nvml.h. A cluster of zeros is that of a node with NVSwitches of
its own, whose links lead to no other node.

A chassis: nodes whose GPUs name the same serial number of their chassis, which GB200 NVL72 and newer do. Source: nvmlPlatformInfo_v2_t in nvml.h.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from detectors.network_topology import (
    CONFIDENCE,
    EdgeOrigin,
    GpuChassis,
    NetworkTopology,
    NvlinkDomain,
)
from detectors.parts.node_facts import NodeFacts
from detectors.wording import counted, names_in_words

# As of ports of a leaf switch that are of one rail (detectors.parts.rails).
_STRAY_SHARE: Final = 0.75
_STRAY_AMONG_MIN: Final = 4
# What firmware writes where a field of the board was never filled (dmidecode prints the same words).
_NO_SERIAL: Final = frozenset(
    {"N/A", "NA", "NONE", "NULL", "UNKNOWN", "NOT SPECIFIED", "DEFAULT STRING", "TBD"}
)


@dataclass(frozen=True, slots=True)
class SplitNode:
    """A node whose GPUs have joined different cliques: it is of no domain."""

    node: str
    domains: tuple[str, ...]

    def in_words(self) -> str:
        return f"{self.node}: its GPUs are in several NVLink domains: {names_in_words(list(self.domains))}"


@dataclass(frozen=True, slots=True)
class ScatteredNode:
    """A node whose GPUs name different chassis: it is counted in none."""

    node: str
    chassis: tuple[str, ...]

    def in_words(self) -> str:
        return f"{self.node}: its GPUs name several chassis: {names_in_words(list(self.chassis))}"


@dataclass(frozen=True, slots=True)
class StrayNode:
    """A node in a block of Slurm whose other nodes are of another NVLink domain."""

    node: str
    block: str
    domain: str
    usual: str  # domain of the block's other nodes
    nodes: int  # these

    def in_words(self) -> str:
        return (
            f"{self.node}: {EdgeOrigin.SLURM.value} says block {self.block}, {EdgeOrigin.NVML.value} says NVLink domain {self.domain}; "
            f"{counted(self.nodes, 'node')} of this block are in {self.usual}"
        )


def find_strays(topology: NetworkTopology) -> Iterator[StrayNode]:
    """Yield the nodes that Slurm's blocks and NVLink put among different neighbours. A block may have several domains, so only an odd node or two counts."""
    domain_of = {node: domain.name for domain in topology.nvlink_domains for node in domain.nodes}
    for block in topology.blocks:
        known = [node for node in block.nodes if node in domain_of]
        if len(known) < _STRAY_AMONG_MIN:
            continue
        usual, count = Counter(domain_of[node] for node in known).most_common(1)[0]
        if count >= _STRAY_SHARE * len(known):
            for node in known:
                if domain_of[node] != usual:
                    yield StrayNode(node, block.name, domain_of[node], usual, count)


def find_domains(
    nodes: Iterable[NodeFacts],
) -> tuple[tuple[NvlinkDomain, ...], tuple[SplitNode, ...]]:
    """Return the domains, less sure the more of their GPUs have joined none, and the nodes that are in several."""
    members: dict[str, list[str]] = {}
    gpus: dict[str, tuple[int, int]] = {}  # that have joined, and all
    split = []
    for node in nodes:
        reported = [gpu.clique for gpu in node.gpus if gpu.clique is not None]
        names = sorted({domain_name(*clique) for clique in reported})
        if len(names) > 1:
            split.append(SplitNode(node.node, tuple(names)))
        elif names:
            members.setdefault(names[0], []).append(node.node)
            joined, total = gpus.get(names[0], (0, 0))
            gpus[names[0]] = joined + len(reported), total + len(node.gpus)
    domains = [
        NvlinkDomain(
            name,
            tuple(sorted(own)),
            round(CONFIDENCE[EdgeOrigin.NVML] * gpus[name][0] / gpus[name][1], 2),
        )
        for name, own in sorted(members.items())
    ]
    return tuple(domains), tuple(split)


def find_chassis(
    nodes: Iterable[NodeFacts],
) -> tuple[tuple[GpuChassis, ...], tuple[ScatteredNode, ...]]:
    """Return the chassis, less certain the more of their GPUs name none, and the nodes whose GPUs name several."""
    members: dict[str, list[str]] = {}
    named: Counter[str] = Counter()  # GPUs, by chassis
    all_gpus: Counter[str] = Counter()
    scattered = []
    for node in nodes:
        serials = [gpu.chassis for gpu in node.gpus if is_serial(gpu.chassis)]
        names = tuple(sorted(set(serials)))
        if len(names) > 1:
            scattered.append(ScatteredNode(node.node, names))
        elif names:
            members.setdefault(names[0], []).append(node.node)
            named[names[0]] += len(serials)
            all_gpus[names[0]] += len(node.gpus)
    chassis = [
        GpuChassis(
            name,
            tuple(sorted(own)),
            round(CONFIDENCE[EdgeOrigin.NVML] * named[name] / all_gpus[name], 2),
        )
        for name, own in sorted(members.items())
    ]
    return tuple(chassis), tuple(scattered)


def is_serial(text: str) -> bool:
    """Return whether this is a serial number. Boards whose maker wrote none print a word, or one character all along: 0000000."""
    return len(set(text)) > 1 and text.upper() not in _NO_SERIAL


def domain_name(cluster: str, clique: str) -> str:
    """Return the name that GPU feature discovery gives it in the label nvidia.com/gpu.clique: the UUID, a point, the clique."""
    ends = (8, 12, 16, 20, 32)
    uuid = "-".join(cluster[start:end] for start, end in zip((0, *ends), ends, strict=False))
    return f"{uuid}.{clique}"
