"""Records of probes: idle nodes test the network because a job's communication is slow."""

from dataclasses import dataclass
from enum import Enum

from detectors.fabric.fabric_verdict import FabricVerdict
from detectors.fabric.probe_evidence import ProbeSays


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """How much a probe may load; each node keeps them by itself."""

    seconds: float  # of sending in each direction of a test
    limit_s: float  # for the whole probe on a node, from its order
    bytes_per_s: float  # that a node sends
    bytes_max: int  # that a node sends in all


@dataclass(frozen=True, slots=True)
class FabricProbeAsked:
    """Nodes are about to be asked to test the network among themselves, or (dry) would be. In the cluster's journal, too."""

    probe_id: str  # UUID
    job_id: str
    attempt: int
    ranks: tuple[int, ...]  # whose communication is slow
    about: int  # newest record of these that was known
    nodes: tuple[str, ...]  # that take part; the first one coordinates
    training: tuple[str, ...]  # those of them that run ranks of the job
    rails: tuple[str, ...]  # interfaces to test; (): the one that leads to the other nodes
    limits: ProbeLimits
    epoch: int  # of the controller that asks: another one doesn't go on with it
    is_dry: bool


@dataclass(frozen=True, slots=True)
class FabricProbeSkipped:
    """A probe was due, and too few nodes are idle."""

    attempt: int
    ranks: tuple[int, ...]
    about: int
    idle: tuple[str, ...]  # nodes that could have taken part


class ProbeEnd(Enum):
    JUDGED = "judged"
    YIELDED = "yielded"  # its nodes are needed, or what it was about has ended
    FAILED = "failed"
    LATE = "late"  # no word within its time
    INTERRUPTED = "interrupted"  # the controller that asked has ended


@dataclass(frozen=True, slots=True)
class FabricProbeEnded:
    """What came of a probe. In the cluster's journal, too."""

    probe_id: str
    end: ProbeEnd
    reason: str = ""  # why there is no verdict, or why it decides nothing
    verdict: FabricVerdict | None = None
    says: ProbeSays | None = None  # what the verdict means for the slow ranks
    part: str = ""  # slow, and on the path of the slow ranks, in words; empty: none
    slow_nodes: tuple[str, ...] = ()  # of the probe, that were found slow
