"""What a fabric test says of a network. Pure, and light: journals and launchers read it without what judges."""

from dataclasses import dataclass
from enum import Enum

Cell = tuple[int, int, int]  # sender, receiver, rail


class PartKind(Enum):
    NODE = "node"
    NIC = "nic"
    RAIL = "rail"
    SWITCH = "switch"  # all tests of its nodes are slow
    UPLINK = "uplink"  # of a leaf switch: only those that leave it are
    GROUP = "group"  # nodes that share something slow above them; the topology is unknown
    LINK = "link"  # between two nodes, whatever the source port
    PATH = "path"  # one of several between two nodes: some source ports are slow


class Direction(Enum):
    BOTH = "both"
    SENDS = "sends"
    RECEIVES = "receives"


class FabricOutcome(Enum):
    FOUND = "found"
    SOUND = "sound"
    UNCLEAR = "unclear"  # slow tests that no part explains, or too few nodes


@dataclass(frozen=True, slots=True)
class SlowPart:
    kind: PartKind
    name: str
    direction: Direction
    delay_ratio: float  # median time of a byte against the usual
    nodes: tuple[str, ...]
    rail: str | None  # None: all rails
    tests: int
    resent_ratio: float | None  # median share of segments sent again
    paths: tuple[int, ...] = ()  # numbers of the slow source ports


@dataclass(frozen=True, slots=True)
class FabricVerdict:
    outcome: FabricOutcome
    parts: tuple[SlowPart, ...]
    rounds: int
    usual_bytes_per_s: float
    slow_ratio: float  # share of all readings that are slow
    unexplained_ratio: float  # share of readings that are slow without a part to blame
    unconfirmed: tuple[Cell, ...]  # slow, and not tested often enough to accuse them
