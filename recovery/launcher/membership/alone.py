"""Takes the place of peers and storage where one node runs the whole job.

The controller is in the launcher's process: it writes the fence before it orders an attempt, and
looks for checkpoints itself. There is nobody to keep a lease with.
"""

import uuid
from collections.abc import Callable

from recovery.checkpoints.model import Share
from recovery.launcher.membership.checkpoint_access import Advance
from recovery.launcher.membership.lease import Lease
from recovery.launcher.membership.node_membership import Membership
from recovery.messages.exchange import Endpoint, Found, FoundCheckpoint


class NoPeers:
    """A job without other launchers: no queries and no answers."""

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
    """A checkpoint folder that the controller looks after itself."""

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
