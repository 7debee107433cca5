"""What the journal holds of nodes: who joined, left or is silent, and what alerts say."""

from dataclasses import dataclass

from recovery.checkpoints.model import WHOLE, Share
from recovery.journal.leaving import LeaveCause
from recovery.messages.exchange import NO_KINDS, Endpoint, NodeKinds
from recovery.messages.outside import NodeEvidence


@dataclass(frozen=True, slots=True)
class Joined:
    """A node as its launcher tells of itself."""

    node: str
    launcher_id: str
    boot_id: str
    slots: int
    peer_endpoint: Endpoint | None = None
    launcher_started_s: float = 0.0  # compares within one boot
    folder_id: str = ""  # of the checkpoint folder that it sees
    kinds: NodeKinds = NO_KINDS  # of its hardware
    role: str = ""  # --role of its ranks; empty: "default"


@dataclass(frozen=True, slots=True)
class NodesJoined:
    """Nodes that joined the job, came back to it, or whose launcher or boot is another now."""

    nodes: tuple[Joined, ...]


@dataclass(frozen=True, slots=True)
class EndedLauncher:
    """A launcher that carries out no further order, and left no process behind."""

    node: str
    launcher_id: str
    empty_through: int  # also of every attempt that was ordered from it


@dataclass(frozen=True, slots=True)
class LaunchersEnded:
    """Launchers ended and said so, or their guardians for them: their nodes are empty."""

    launchers: tuple[EndedLauncher, ...]


@dataclass(frozen=True, slots=True)
class OffNode:
    """A node without power: its launcher is gone, and nothing of any attempt through this one is left."""

    node: str
    launcher_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class NodesOff:
    """Nodes were silent, and the BMC of each answered `Off` twice."""

    nodes: tuple[OffNode, ...]


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The job gives the node no ranks any more."""

    node: str
    reason: str
    is_lost: bool  # silent or cut off, it may come back by speaking; else only by a person's word
    incident_id: str | None = None
    cause: LeaveCause = LeaveCause.UNKNOWN
    cut_off_from: tuple[str, ...] = ()  # nodes it does not reach; it may return once they have left


@dataclass(frozen=True, slots=True)
class CheckpointReader:
    """A node whose launcher reads its share of each checkpoint."""

    node: str
    share: Share = WHOLE  # of the files in the folder that it sees
    folder_id: str = ""  # equal: the same folder


@dataclass(frozen=True, slots=True)
class FinderChosen:
    """The node whose launcher is to look for checkpoints now, or the first of several."""

    node: str
    attempt: int  # which is gone, with all before
    reason: str
    readers: tuple[CheckpointReader, ...] = ()  # all that look; (): `node` alone, at everything


@dataclass(frozen=True, slots=True)
class FenceWaits:
    """Nodes are silent and nothing proves that their ranks are gone: a person may know."""

    attempt: int
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class EvidenceDoubted:
    """Alerts of the newest attempt that accuse too much of the fleet, or of the job, to be believed alone; or that do so no more."""

    identities: tuple[str, ...]
    attempt: int
    reason: str = ""  # empty: they count again


@dataclass(frozen=True, slots=True)
class EvidenceTaken:
    """Alerts about nodes of the job, each once an attempt, and what was made of them."""

    evidence: tuple[NodeEvidence, ...]
    attempt: int
    incident_id: str | None  # that they join
    reason: str
