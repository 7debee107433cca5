"""The network under test, the tests of a round, and their readings.

Nodes and rails are numbered; names are for people. A test sends from one node to another over one rail, first one way
and then the other, so it gives two readings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Final

from rankmend.errors import ConfigError

NODES_MAX: Final = 20_000  # as --nnodes of rankmend run
RAILS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Network:
    nodes: tuple[str, ...]
    rails: tuple[str, ...] = ("rail0",)
    leaf_of: Mapping[str, str] = field(default_factory=dict)  # leaf switch of a node, where known

    def __post_init__(self) -> None:
        if not 2 <= len(self.nodes) <= NODES_MAX:
            raise ConfigError(f"a fabric test of {len(self.nodes)} nodes: want 2 to {NODES_MAX}")
        if not 1 <= len(self.rails) <= RAILS_MAX:
            raise ConfigError(f"a fabric test of {len(self.rails)} rails: want 1 to {RAILS_MAX}")
        if len(set(self.nodes)) != len(self.nodes):
            raise ConfigError("a node is named twice")

    @property
    def rounds_max(self) -> int:
        """2 log2 N: the rounds in which a slow node, NIC, rail or switch is found."""
        return 2 * ceil(log2(len(self.nodes)))

    def leaf(self, node: int) -> str | None:
        return self.leaf_of.get(self.nodes[node])


@dataclass(frozen=True, slots=True, order=True)
class PairTest:
    """Two nodes that send to each other over each rail. ``path``: number of the source port."""

    low: int
    high: int
    path: int = 0


Round = tuple[PairTest, ...]  # no node twice


@dataclass(frozen=True, slots=True)
class Reading:
    """What one direction of a test gave."""

    round: int
    sender: int
    receiver: int
    rail: int
    path: int
    bytes_per_s: float  # 0: nothing arrived within the time. A test that did not run has no reading
    latency_s: float | None = None  # the shortest round trip
    resent_ratio: float | None = None  # share of the segments that were sent again
