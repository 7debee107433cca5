"""How a launcher takes part in its job: who it is, its peers, its lease, its access to the checkpoint folder.

On several nodes `peer_launchers.Peers` and `checkpoint_access.Storage` take part; on one node
`NoPeers` and `ControllersStorage` stand in their place.

Three keepers end an attempt whose launcher reached nobody for `lease_s`: the guardian kills the
ranks at `until_s`; where it stands still with its launcher, each rank ends itself from `ends_s` on,
as it counts a step (`rankmend.hook.lease`). The controller considers the node empty
`lease_margin_s` later at the earliest. By then the other two find nothing left to do.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from recovery.api.contact import Contact
from recovery.launcher.membership.checkpoint_access import Advance
from recovery.messages.candidates import Share
from recovery.messages.exchange import Endpoint, Found, FoundCheckpoint, Peer

# After a controller's restart all launchers come back, two connections each. A TLS handshake
# costs the controller about 1 ms of its core; so spread, they take half of it.
RETURNS_PER_S: Final = 500.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The attempt that is kept alive, and by whom."""

    attempt: int
    peers: tuple[Peer, ...]  # more than half of them are a majority
    lease_s: float
    neighbours: tuple[Peer, ...] = ()  # queried often, and never counted for the majority


@dataclass(frozen=True, slots=True)
class RankDeadline:
    """Until when the ranks of an attempt may run; CLOCK_BOOTTIME."""

    until_s: float  # the guardian kills them, and they publish nothing more
    # by then a kill is done: a rank that still steps ends itself; None: an older controller
    ends_s: float | None


def prolong(
    before: RankDeadline | None, until_s: float, kill_bound_s: float, now_s: float
) -> RankDeadline | None:
    """Return the deadline that a contact gives; None: the one before is over, and stays so.

    The controller may have begun the next attempt by then, and answers reports all the same.
    """
    if before is not None and now_s >= before.until_s:
        return None
    return RankDeadline(until_s, until_s + kill_bound_s if kill_bound_s > 0 else None)


def boot_time_s() -> float:
    """Return CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def spread_s(launchers: int) -> float:
    """Return over how many seconds so many launchers spread their return, so that they don't flood a restarted controller."""
    return launchers / RETURNS_PER_S


class PeerLink(Protocol):
    """The job's other launchers, as `peer_launchers.Peers` queries and answers them."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the others query this launcher; None: there are no others."""
        ...

    @property
    def reached_at_s(self) -> float: ...
    @property
    def unreachable(self) -> tuple[str, ...]: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def tell(self, attempt: int, empty_through: int) -> None: ...
    def keep(self, lease: Lease | None) -> None: ...
    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the job's secrets, the newest first; none where no other node is queried."""
        ...


class CheckpointAccess(Protocol):
    """The fence and the finding of checkpoints, as `checkpoint_access.Storage` does them."""

    @property
    def advance(self) -> Advance | None: ...
    @property
    def found(self) -> Found | None: ...
    @property
    def fence_attempt(self) -> int | None: ...
    def start(self, wake: Callable[[], None]) -> None: ...
    def close(self) -> None: ...
    @property
    def folder_id(self) -> str: ...
    def watch(self, share: Share) -> None: ...
    def known(self) -> tuple[FoundCheckpoint, ...]: ...
    def ask_fence(self, attempt: int, restore_path: str | None = None) -> None: ...
    def ask_found(self, empty_through: int, revision: int, share: Share) -> None: ...


@dataclass(frozen=True, slots=True)
class Membership:
    """How one launcher takes part in its job."""

    launcher_id: str  # UUID of this start
    slots: int
    peers: PeerLink
    storage: CheckpointAccess
    # Returns how the controller is reached now; None: not known yet, or by this process only.
    contact: Callable[[], Contact | None] = lambda: None
    # The shortest pause between two reports that the controller takes.
    report_pause_min_s: float = 0.0
    # The job goes on when this launcher leaves. Without it, the job ends with its launcher.
    outlives_launcher: bool = True
    role: str = ""  # of its ranks; empty: "default"
    passed_preflight: bool = False  # this node, before the launcher joined


class NoPeers:
    """A job without other launchers: no queries, no answers, and nobody to keep a lease with."""

    endpoint: Endpoint | None = None
    reached_at_s = float("-inf")
    unreachable: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def start(self) -> None:
        """Start nothing."""

    def close(self) -> None:
        """Close nothing."""

    def tell(self, attempt: int, empty_through: int) -> None:
        """Tell nobody."""

    def keep(self, lease: Lease | None) -> None:
        """Keep nothing: an order for one node has no lease."""


class ControllersStorage:
    """A checkpoint folder that the controller looks after itself, in the launcher's process.

    The controller writes the fence before it orders an attempt, and looks for checkpoints itself.
    """

    found: Found | None = None
    fence_attempt: int | None = None
    folder_id = ""

    def __init__(self) -> None:
        self.advance: Advance | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """Start nothing."""

    def close(self) -> None:
        """Close nothing."""

    def watch(self, share: Share) -> None:
        """Leave it to the controller."""

    def ask_fence(self, attempt: int, restore_path: str | None = None) -> None:  # noqa: ARG002 - a protocol
        """Answer at once: the controller wrote the fence before it ordered the attempt."""
        self.advance = Advance(attempt, None)

    def known(self) -> tuple[FoundCheckpoint, ...]:
        """Know none: the controller watches them itself."""
        return ()

    def ask_found(self, empty_through: int, revision: int, share: Share) -> None:
        """Find nothing: the controller looks for checkpoints itself."""


def alone(slots: int) -> Membership:
    """Return the membership of a launcher that runs the whole job beside its controller."""
    return Membership(
        str(uuid.uuid4()), slots, NoPeers(), ControllersStorage(), outlives_launcher=False
    )
