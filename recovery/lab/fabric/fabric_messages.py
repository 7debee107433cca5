"""What the coordinator and the peers of a fabric test tell each other: JSON over TLS, with the job's token.

Orders name no program and no file: a peer connects to addresses that other peers have given, or runs a fixed collective.
"""

from enum import Enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from detectors.fabric.fabric_verdict import FabricVerdict

BODY_BYTES_MAX: Final = 4 << 20
FLOWS_MAX: Final = 512  # of one node at a time
SECONDS_MAX: Final = 30.0
SEEN_MAX: Final = 64  # flows of a node's programs, the fastest
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class Transport(Enum):
    """What carries the data of tests."""

    TCP = "tcp"
    RDMA = "rdma"


class TransportWish(Enum):
    AUTO = "auto"  # RDMA where every node can, else TCP
    TCP = "tcp"
    RDMA = "rdma"


class Rail(Struct, frozen=True):
    """An interface or RDMA port of a node that takes part: its address, and the TCP port on which other nodes reach it."""

    name: Name
    address: Annotated[str, Meta(max_length=64)]
    port: Port
    has_tcp: bool = True  # the address is the rail's own
    rdma: Annotated[str, Meta(max_length=80)] = ""  # device and port; "": none can be used
    is_ethernet: bool = False  # RoCE, else InfiniBand
    rdma_problem: Annotated[str, Meta(max_length=1000)] = ""  # why none can


class JoinFabric(Struct, frozen=True):
    rank: Annotated[int, Meta(ge=0, lt=20_000)]
    node: Name
    rails: Annotated[tuple[Rail, ...], Meta(min_length=1, max_length=16)]


class JoinedFabric(Struct, frozen=True):
    count: int  # of nodes


class FlowOrder(Struct, frozen=True):
    """One connection between two peers, at one end."""

    id: int
    token: Token  # proves to the other end that this is the flow; used once
    connects: bool  # else it waits for the other end
    rail: Annotated[int, Meta(ge=0, lt=16)]
    address: str  # of the other end
    port: Port
    path: Annotated[int, Meta(ge=0, lt=4096)]  # number of the source port
    sends: bool
    receives: bool


class FlowWork(Struct, frozen=True, tag=True):
    number: int
    seconds: Seconds  # of sending, in each direction in turn
    flows: Annotated[tuple[FlowOrder, ...], Meta(max_length=FLOWS_MAX)]
    transport: Transport = Transport.TCP


class CollectiveWork(Struct, frozen=True, tag=True):
    """Run collectives under PyTorch, all peers at once."""

    number: int
    address: str  # of rank 0
    port: Port
    rank: int
    count: int
    sizes_bytes: Annotated[tuple[int, ...], Meta(max_length=16)]
    backend: str  # gloo or nccl
    limit_s: Annotated[float, Meta(gt=0, le=600)]


class TraceOrder(Struct, frozen=True):
    """Find the routers that a flow with these ports passes."""

    id: int
    source_port: Port
    address: str
    port: Port
    rail: Annotated[int, Meta(ge=0, lt=16)]
    is_silent: bool = False  # open no connection: a program listens at the port


class TraceWork(Struct, frozen=True, tag=True):
    number: int
    protocol: str  # tcp or udp
    traces: Annotated[tuple[TraceOrder, ...], Meta(max_length=4096)]
    limit_s: Annotated[float, Meta(gt=0, le=120)]


class LookWork(Struct, frozen=True, tag=True):
    """Tell which flows programs of this node send."""

    number: int
    seconds: Seconds  # to watch


class FinishedWork(Struct, frozen=True, tag=True):
    number: int
    verdict: FabricVerdict | None = None
    failure: str = ""


Work = FlowWork | CollectiveWork | TraceWork | LookWork | FinishedWork


class FlowFault(Enum):
    UNREACHABLE = "unreachable"  # no connection
    CUT = "cut"  # the connection broke or stood still
    NO_PEER = "no peer"  # the other end never connected
    LOCAL = "local"  # this end could not even try
    PROGRAM = "program"  # the program that measures failed, or did not end


class FlowResult(Struct, frozen=True):
    id: int
    source_port: int = 0
    received_bytes_per_s: float | None = None
    latency_s: float | None = None
    resent_ratio: float | None = None  # of the segments that this end sent
    fault: FlowFault | None = None
    text: Annotated[str, Meta(max_length=300)] = ""
    # As this end's kernel counts it, while there was something to send
    sent_bytes_per_s: float | None = None


class CollectiveResult(Struct, frozen=True):
    operation: Name
    size_bytes: int
    seconds: float  # of one, the median of the repeats


class TraceResult(Struct, frozen=True):
    id: int
    source_port: int
    hops: Annotated[tuple[str, ...], Meta(max_length=64)]  # "": no answer
    text: Annotated[str, Meta(max_length=300)] = ""


class SeenFlow(Struct, frozen=True):
    """A TCP connection by which a program sends."""

    rail: Annotated[int, Meta(ge=0, lt=16)]
    source_port: Port
    address: Annotated[str, Meta(max_length=64)]  # of the other end
    port: Port
    bytes_per_s: float
    program: Annotated[str, Meta(max_length=64)] = ""
    is_held_up: bool = False  # at both looks it had more to send than the path took


class SeenPair(Struct, frozen=True):
    """A queue pair that may send over RoCE, by its number and the other end's."""

    rail: Annotated[int, Meta(ge=0, lt=16)]
    own: Annotated[int, Meta(ge=0, lt=1 << 24)]
    other: Annotated[int, Meta(ge=0, lt=1 << 24)]
    program: Annotated[str, Meta(max_length=64)] = ""


class PauseRate(Struct, frozen=True):
    """Pause frames that a port received (it had to stop) or sent (its switch had to)."""

    priority: Annotated[str, Meta(max_length=1)]  # of priority flow control; "": the whole link
    is_received: bool
    frames_per_s: float


class PortRates(Struct, frozen=True):
    """What a port counted each second; None: it does not count that."""

    interface: Name
    sent_bytes_per_s: float | None = None
    rdma_bytes_per_s: float | None = None
    ecn_marked_per_s: float | None = None
    cnp_sent_per_s: float | None = None
    cnp_handled_per_s: float | None = None
    pauses: Annotated[tuple[PauseRate, ...], Meta(max_length=32)] = ()  # that came at all


class PeerFindings(Struct, frozen=True):
    """What a peer has found for one work."""

    rank: int
    number: int
    flows: Annotated[tuple[FlowResult, ...], Meta(max_length=FLOWS_MAX)] = ()
    collectives: Annotated[tuple[CollectiveResult, ...], Meta(max_length=64)] = ()
    traces: Annotated[tuple[TraceResult, ...], Meta(max_length=4096)] = ()
    failure: Annotated[str, Meta(max_length=1000)] = ""
    seen: Annotated[tuple[SeenFlow, ...], Meta(max_length=SEEN_MAX)] = ()
    pairs: Annotated[tuple[SeenPair, ...], Meta(max_length=SEEN_MAX)] = ()
    ports: Annotated[tuple[PortRates, ...], Meta(max_length=16)] = ()


def decode_work(body: bytes) -> Work:
    work: Work = msgspec.json.decode(body, type=Work)
    return work
