"""What is requested of a test of the network between nodes."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from recovery.lab.fabric.fabric_messages import TransportWish
from recovery.lab.fabric.rdma_ports import SYSFS
from recovery.lab.fabric.send_bounds import SendBounds


class FabricKind(Enum):
    FIND = "find"
    PAIRS = "pairs"
    RING = "ring"
    BISECT = "bisect"
    ALL_TO_ALL = "all-to-all"
    COLLECTIVES = "collectives"
    PATHS = "paths"
    FLOWS = "flows"  # of programs that run


@dataclass(frozen=True, slots=True)
class FabricOptions:
    kind: FabricKind
    seconds: float = 1.0  # of sending in each direction of a test
    join_s: float = 60.0
    limit_s: float = 600.0  # for the whole test, joining included
    rails: tuple[str, ...] = ()  # interfaces; (): the one that leads to the first node
    leaf_of: Mapping[str, str] = field(default_factory=dict)
    sizes_bytes: tuple[int, ...] = (1 << 20, 1 << 24)
    backend: str = "gloo"
    python: Path = Path(sys.executable)
    flows: int = 1  # of each pair, for paths
    ports: int = 16  # source ports tried of each flow, for paths
    protocol: str = "tcp"
    transport: TransportWish = TransportWish.TCP
    sysfs: Path = SYSFS  # where RDMA ports are looked up
    bounds: SendBounds | None = None  # of this node; None: it sends as fast as it can
    # Called on the first node with the port at which it listens for the others
    on_listening: Callable[[int], None] = lambda _port: None
