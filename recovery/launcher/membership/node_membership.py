"""How a launcher takes part in its job: who it is, its peers, its access to the checkpoint folder.

On several nodes these are `peers.Peers` and `checkpoint_access.Storage`; on one node, what
`recovery.launcher.membership.alone` has in their place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from recovery.api.contact import Contact
from recovery.checkpoints.model import Share
from recovery.launcher.membership.checkpoint_access import Advance
from recovery.launcher.membership.lease import Lease
from recovery.messages.exchange import Endpoint, Found, FoundCheckpoint


class PeerLink(Protocol):
    """The job's other launchers, as `peers.Peers` asks and answers them."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the others ask this launcher; None: there are no others."""
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
        """Return the job's secrets, the newest first; none where no other node is asked."""
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
