"""Records of nodes: which joined, left or are silent, and which alerts accuse them. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from recovery.messages.candidates import WHOLE, Share
from recovery.messages.exchange import NO_KINDS, Endpoint, NodeKinds
from recovery.messages.outside import NodeEvidence

_OTHERS_MAX: Final = 64  # journaled with a node that is cut off; the rest count as reached


class LeaveCause(Enum):
    UNKNOWN = "unknown"  # from a version that did not record it
    NOT_JOINED = "not_joined"
    ENDED = "ended"  # its launcher has ended
    LEFT = "left"  # the job had left it before
    ALERT = "alert"
    SILENT = "silent"
    HELD = "held"  # by the cluster: drained, quarantined, in maintenance
    SLOW = "slow"
    BLAMED = "blamed"  # several times in a row
    CUT_OFF = "cut_off"  # from other nodes of the job
    ACCUSED = "accused"
    PERSON = "person"
    NUMBERS = "numbers"


LOST: Final = frozenset({LeaveCause.SILENT, LeaveCause.CUT_OFF})
"""Causes after which a node comes back by speaking; after others only by a person's word."""

GONE: Final = LOST | {LeaveCause.ALERT}
"""Causes that may have one cause of their own: a part that several nodes share."""


_WORDS: Final = {
    LeaveCause.NOT_JOINED: "it has not joined",
    LeaveCause.ENDED: "its launcher has ended",
    LeaveCause.SILENT: "silent",
    LeaveCause.SLOW: "slow",
    LeaveCause.BLAMED: "blamed {} times in a row",
    LeaveCause.CUT_OFF: "cut off from {}",
    LeaveCause.NUMBERS: "its numbers went wrong first",
    LeaveCause.ACCUSED: "accused, and the policy allows no restart in place",
}


@dataclass(frozen=True, slots=True)
class LeaveReason:
    """Why a job gives a node no ranks any more. Decisions read the cause alone; `text` is journaled beside it for people."""

    cause: LeaveCause
    detail: str = ""  # names, a count, or another's words where there are none of our own
    others: tuple[str, ...] = ()  # CUT_OFF: the nodes it does not reach

    @property
    def text(self) -> str:
        return _WORDS.get(self.cause, "{}").format(self.detail)


def cut_off_from(others: list[str]) -> LeaveReason:
    """Return the reason to leave a node that does not reach these others, one at least."""
    more = f" and {len(others) - 1} others" if len(others) > 1 else ""
    return LeaveReason(LeaveCause.CUT_OFF, f"{others[0]}{more}", tuple(others[:_OTHERS_MAX]))


@dataclass(frozen=True, slots=True)
class Joined:
    """A node as its launcher describes it."""

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
    """Launchers, or their guardians for them, reported that they ended: their nodes are empty."""

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
