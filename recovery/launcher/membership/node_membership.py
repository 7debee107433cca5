"""What a launcher needs that is one of several of its job: who it is, its peers, the storage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from recovery.api.contact import Contact
from recovery.launcher.membership.checkpoint_access import Storage
from recovery.launcher.membership.peers import Peers

# Reports that one controller takes in a second without noticing: 2,000 nodes, each once.
REPORTS_PER_S_MAX: Final = 2000.0
# In a hurry; a service takes ten reports a second of a node, those of events included.
REPORT_FAST_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Membership:
    launcher_id: str  # UUID of this start
    slots: int
    peers: Peers
    storage: Storage
    # How the controller is spoken to now; None: not known yet, or nobody but the launcher may.
    contact: Callable[[], Contact | None] = lambda: None


def report_pause_s(pause_s: float, group_count: int) -> float:
    """Return the pause between two reports of each of so many launchers, at least ``pause_s``."""
    return max(pause_s, REPORT_FAST_S, group_count / REPORTS_PER_S_MAX)
