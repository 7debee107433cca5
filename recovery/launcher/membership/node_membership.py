"""What a launcher needs that is one of several of its job: who it is, its peers, the storage."""

from collections.abc import Callable
from dataclasses import dataclass

from recovery.api.contact import Contact
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.peers import Peers


@dataclass(frozen=True, slots=True)
class Membership:
    launcher_id: str  # UUID of this start
    slots: int
    peers: Peers
    storage: Storage
    # How the controller is spoken to now; None: not known yet, or nobody but the launcher may.
    contact: Callable[[], Contact | None] = lambda: None
