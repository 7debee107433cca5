"""What a controller asks of launchers about a probe of the network, and what they tell of it.

It rides on the answers to their reports and is requested anew with each of them; a launcher without a further request ends its part. The
controller's journal has the probe before any request is sent. docs/use/fabric.md.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from detectors.fabric.fabric_verdict import FabricVerdict

ORDER_BYTES_MAX: Final = 1 << 20  # with the leaf switches of 1,024 nodes


class ProbeState(Enum):
    WAITING = "waiting"  # to hear where the coordinator is
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    YIELDED = "yielded"  # an order with ranks came


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One node's part in a test of the network among some nodes. It names no program and no file."""

    probe_id: str
    place: int  # 0: it coordinates
    count: int  # of nodes
    secret: str  # that the nodes of this probe share
    address: str  # of the coordinator's node
    port: int  # where it listens there; 0: not known yet
    seconds: float  # of sending in each direction of a test
    limit_s: float  # until all of it ends
    bytes_per_s: float  # that this node sends
    bytes_max: int
    rails: tuple[str, ...] = ()
    is_beside_ranks: bool = False  # this node runs ranks, and the policy lets it take part
    leaf_of: dict[str, str] = field(default_factory=dict)  # for the coordinator, where known


@dataclass(frozen=True, slots=True)
class ProbeOrder(ProbeRequest):
    """What a launcher gives the process that carries out its part."""

    node: str = ""


@dataclass(frozen=True, slots=True)
class ProbeTold:
    """What a launcher reports of its part."""

    probe_id: str
    state: ProbeState
    port: int = 0  # where it listens, if it is the coordinator
    failure: str = ""  # at most 500 characters
    verdict: FabricVerdict | None = None  # of the coordinator, at the end
